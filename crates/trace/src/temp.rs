//! `TempPath`: a file on its way, beside the target, under a name that no reader looks for.
//!
//! Owns the temporary file's name, lock and end: renamed to the target, or removed. Does not own
//! the content. The name depends on the target alone, so that what a killed process left is taken
//! over rather than piled up; it is locked while it is written, so that two processes do not write
//! one file. Memory: none. Invariant: only who holds the lock writes, renames or removes. Cost: a
//! lock and a few metadata calls.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use crate::Error;

/// A file that is removed unless it is renamed.
#[derive(Debug)]
pub(crate) struct TempPath {
    path: PathBuf,
    renamed: bool,
}

impl TempPath {
    /// Makes `.NAME<suffix>` beside a target called NAME, empty and locked until the handle is
    /// closed.
    pub(crate) fn create(target: &Path, suffix: &str) -> Result<(File, Self), Error> {
        let mut name = OsString::from(".");
        name.push(target.file_name().unwrap_or_default());
        name.push(suffix);
        let path = target.with_file_name(name);
        let failed = |action| {
            let path = Some(path.clone());
            move |source| Error::Io {
                path,
                action,
                source,
            }
        };
        // A link would be followed, and what it leads to emptied.
        if fs::symlink_metadata(&path).is_ok_and(|there| !there.is_file()) {
            return Err(Error::NotAFile { path });
        }
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed("creating"))?;
        match file.try_lock() {
            // Where files cannot be locked, two recordings at a time are the user's business.
            Ok(()) => {}
            Err(TryLockError::Error(e)) if e.kind() == io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(e)) => return Err(failed("locking")(e)),
            Err(TryLockError::WouldBlock) => return Err(Error::Busy { path }),
        }
        // Who held the lock may just have renamed or removed the file: then it is not ours.
        let opened = file.metadata().map_err(failed("looking at"))?;
        if !fs::metadata(&path).is_ok_and(|named| is_one(&named, &opened)) {
            return Err(Error::Busy { path });
        }
        file.set_len(0).map_err(failed("emptying"))?;
        let renamed = false;
        Ok((file, Self { path, renamed }))
    }

    pub(crate) fn rename_to(&mut self, target: &Path) -> Result<(), Error> {
        fs::rename(&self.path, target).map_err(|e| self.error("renaming", e))?;
        self.renamed = true;
        Ok(())
    }

    pub(crate) fn error(&self, action: &'static str, source: io::Error) -> Error {
        Error::Io {
            path: Some(self.path.clone()),
            action,
            source,
        }
    }
}

impl Drop for TempPath {
    fn drop(&mut self) {
        if !self.renamed {
            // Nothing to be done if it fails: the next recording takes the file over.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(unix)]
fn is_one(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// Elsewhere an open file cannot be renamed or removed.
#[cfg(not(unix))]
fn is_one(_: &fs::Metadata, _: &fs::Metadata) -> bool {
    true
}

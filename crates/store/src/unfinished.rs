//! `Unfinished`: a file on its way, under a name that no reader looks for.
//!
//! Owns the temporary file, its lock and its end: renamed to the target, or removed. Does not own
//! the content. A file is locked while it is written, so one that is not locked was left by a
//! process that ended, and the next run takes it over, emptied. Memory: none.
//! Invariants: 1. the target is the old file or the whole new one; 2. only the process that holds
//! the lock writes, renames or removes. Cost: a lock and two metadata calls.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::io::direct::os;
use crate::io::platform;
use crate::{Error, Result};

/// A file while it is written. Dropping it removes it.
#[derive(Debug)]
pub struct Unfinished {
    path: PathBuf,
    /// Locked.
    file: File,
    was_left_over: bool,
    renamed: bool,
}

impl Unfinished {
    /// Makes the file, or takes over what an interrupted run left.
    ///
    /// # Errors
    /// [`Error::File`]; [`Error::Busy`] while another process writes it; [`Error::NotAFile`] where
    /// something else has the name: a link would be followed, and what it leads to emptied.
    pub fn create(path: PathBuf) -> Result<Self> {
        if fs::symlink_metadata(&path).is_ok_and(|there| !there.is_file()) {
            return Err(Error::NotAFile { path });
        }
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let file = options.open(&path).map_err(failed(&path, "make"))?;
        match file.try_lock() {
            // Where files cannot be locked, two runs at a time are the user's business.
            Ok(()) => {}
            Err(TryLockError::Error(e)) if e.kind() == ErrorKind::Unsupported => {}
            Err(TryLockError::WouldBlock) => return Err(Error::Busy { path }),
            Err(TryLockError::Error(source)) => return Err(failed(&path, "lock")(source)),
        }
        // The process that held the lock may just have renamed the file: then it is not ours.
        let opened = file.metadata().map_err(failed(&path, "look at"))?;
        let named = fs::metadata(&path).map(|metadata| platform::file_id(&metadata));
        if !named.is_ok_and(|id| id == platform::file_id(&opened)) {
            return Err(Error::Busy { path });
        }
        let was_left_over = opened.len() > 0;
        file.set_len(0).map_err(failed(&path, "empty"))?;
        Ok(Self {
            path,
            file,
            was_left_over,
            renamed: false,
        })
    }

    /// Its temporary path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The handle to write through.
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// Whether an interrupted run had left it.
    pub(crate) const fn was_left_over(&self) -> bool {
        self.was_left_over
    }

    /// Takes the space of the whole file, so that a full drive shows at once, where the file system
    /// can; elsewhere a full drive shows while writing.
    pub(crate) fn reserve(&self, len_bytes: u64) -> Result<()> {
        use ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        match os::reserve(&self.file, len_bytes) {
            Err(e) if matches!(e.kind(), StorageFull | FileTooLarge | QuotaExceeded) => {
                Err(failed(&self.path, "write")(e))
            }
            _ => Ok(()),
        }
    }

    /// Sends what was written to the device and drops it from memory.
    pub(crate) fn flush(&self) -> Result<()> {
        let flushed = self.file.sync_data();
        flushed.map_err(failed(&self.path, "write"))?;
        // Only to spare memory: direct reads do not look there, counters tell otherwise.
        let _ = os::drop_pages(&self.file);
        Ok(())
    }

    /// Gives the file, which is complete, its name; what had the name is replaced.
    ///
    /// # Errors
    /// [`Error::File`]; the file is then removed unless it already has its name.
    ///
    /// # Cost
    /// A flush of the file and of its folder.
    pub fn rename(mut self, to: &Path) -> Result<()> {
        let synced = self.file.sync_all();
        synced.map_err(failed(&self.path, "write"))?;
        fs::rename(&self.path, to).map_err(failed(to, "make"))?;
        self.renamed = true;
        sync_folder_of(to)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.renamed {
            // Nobody is left to tell; the next run finds it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Makes a new name last. Other systems give no handle to flush a folder with.
fn sync_folder_of(path: &Path) -> Result<()> {
    if !cfg!(unix) {
        return Ok(());
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(failed(folder, "flush"))
}

pub(crate) fn failed(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File {
        path,
        action,
        source,
    }
}

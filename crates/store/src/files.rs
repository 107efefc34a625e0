//! `FileSet`: the files that are read from, and whether they are still the ones that were opened.
//!
//! Owns the open handles (read-only) and what identified each file: length, modification time and,
//! on unix, device and inode. Does not own reading loops (`io`) nor file formats. Not seen: a
//! change in place that keeps length and time, as within one tick of the file system's clock.
//! Invariants: 1. every file is a regular file; 2. handle and identity belong to the same file.
//! Cost: a clone is a reference count; `verify` is two metadata calls and no read.

use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use crate::io::platform;
use crate::{Change, Error, Result};

/// Open files, numbered from zero. Clones share the handles.
#[derive(Clone, Debug)]
pub struct FileSet {
    files: Arc<[OpenFile]>,
}

#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    file: File,
    identity: Identity,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Identity {
    len_bytes: u64,
    /// `None` where the system keeps no such time.
    modified: Option<SystemTime>,
    /// Device and inode, where the system has them.
    file_id: Option<(u64, u64)>,
}

impl FileSet {
    /// Opens the files for reading.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::NotAFile`].
    pub fn open<P: AsRef<Path>>(paths: &[P]) -> Result<Self> {
        let files: Result<_> = paths
            .iter()
            .map(|path| OpenFile::open(path.as_ref()))
            .collect();
        Ok(Self { files: files? })
    }

    /// Number of files.
    #[must_use]
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The path by which a file was opened; `None` out of range.
    #[must_use]
    pub fn path(&self, file: usize) -> Option<&Path> {
        self.files.get(file).map(|f| f.path.as_path())
    }

    /// The length that a file had when it was opened; `None` out of range.
    #[must_use]
    pub fn len_bytes(&self, file: usize) -> Option<u64> {
        self.files.get(file).map(|f| f.identity.len_bytes)
    }

    /// Checks that a file is still the one that was opened: the handle has its length and time,
    /// and the path leads to the same file.
    ///
    /// # Errors
    /// [`Error::FileChanged`]; [`Error::Open`] if the file cannot be looked at any more;
    /// [`Error::NoSuchFile`].
    ///
    /// # Cost
    /// Two metadata calls.
    pub fn verify(&self, file: usize) -> Result<()> {
        self.open_file(file)?.verify()
    }

    /// [`verify`](Self::verify) for every file.
    ///
    /// # Errors
    /// As [`verify`](Self::verify).
    pub fn verify_unchanged(&self) -> Result<()> {
        self.files.iter().try_for_each(OpenFile::verify)
    }

    /// Reads at a place, once: may return fewer bytes than the buffer holds, and zero at the end.
    pub(crate) fn read_at(
        &self,
        file: usize,
        offset_bytes: u64,
        buffer: &mut [u8],
    ) -> io::Result<usize> {
        match self.files.get(file) {
            Some(open) => platform::read_at(&open.file, buffer, offset_bytes),
            None => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// The path for an error message.
    pub(crate) fn path_or_empty(&self, file: usize) -> PathBuf {
        self.path(file).map(Path::to_owned).unwrap_or_default()
    }

    pub(crate) fn check_index(&self, file: usize) -> Result<()> {
        self.open_file(file).map(|_| ())
    }

    fn open_file(&self, file: usize) -> Result<&OpenFile> {
        self.files.get(file).ok_or(Error::NoSuchFile {
            file,
            n_files: self.files.len(),
        })
    }
}

impl OpenFile {
    fn open(path: &Path) -> Result<Self> {
        let failed = |source| Error::Open {
            path: path.to_owned(),
            source,
        };
        // Asked before opening, because opening a pipe waits for its other end.
        let not_a_file = || Error::NotAFile {
            path: path.to_owned(),
        };
        if !fs::metadata(path).map_err(failed)?.is_file() {
            return Err(not_a_file());
        }
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(not_a_file());
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            identity: Identity::of(&metadata),
        })
    }

    fn verify(&self) -> Result<()> {
        let changed = |change| Error::FileChanged {
            path: self.path.clone(),
            change,
        };
        let failed = |source| Error::Open {
            path: self.path.clone(),
            source,
        };
        let open = Identity::of(&self.file.metadata().map_err(failed)?);
        if let Some(change) = self.identity.change(&open) {
            return Err(changed(change));
        }
        let named = match fs::metadata(&self.path) {
            Ok(metadata) => Identity::of(&metadata),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(changed(Change::Missing)),
            Err(e) => return Err(failed(e)),
        };
        self.identity
            .change(&named)
            .map_or(Ok(()), |change| Err(changed(change)))
    }
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        Self {
            len_bytes: metadata.len(),
            modified: metadata.modified().ok(),
            file_id: platform::file_id(metadata),
        }
    }

    fn change(&self, now: &Self) -> Option<Change> {
        if self.file_id != now.file_id {
            return Some(Change::Replaced);
        }
        if self.len_bytes != now.len_bytes {
            return Some(Change::Length {
                expected_bytes: self.len_bytes,
                found_bytes: now.len_bytes,
            });
        }
        (self.modified != now.modified).then_some(Change::Modified)
    }
}

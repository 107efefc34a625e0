//! `FileSet`: the files that are read from, and whether they are still the ones that were opened.
//!
//! Owns the open handles (read-only), a second one for direct reads where they work, and what
//! identified each file: length, modification time, on unix device and inode, and a hash of the
//! first 64 KiB. Does not own reading loops (`io`) nor file formats. Not seen: a change in place
//! behind the header that keeps length and time, as within one tick of the file system's clock.
//! Invariants: 1. every file is a regular file; 2. handles and identity belong to the same file;
//! 3. a file is direct only after a direct read of it has worked. Cost: a clone is a reference
//! count; `verify` is two metadata calls and no read.

use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use crate::io::{ReadMode, direct, platform};
use crate::{Change, Error, Result};

/// Bytes at the start of a file that its hash covers: where formats keep their directory.
const HEADER_BYTES: u64 = 64 << 10;

/// Open files, numbered from zero. Clones share the handles.
///
/// ```
/// use thalweg_store::FileSet;
/// # let mut file = tempfile::NamedTempFile::new()?;
/// # std::io::Write::write_all(&mut file, b"weights")?;
/// # let path = file.path();
/// let files = FileSet::open(&[path])?;
/// if let Some(path) = files.first_buffered() {
///     eprintln!("warning: direct reads do not work for {}", path.display());
/// }
/// files.verify_header(0)?; // once a run; `verify` is for every read
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct FileSet {
    files: Arc<[OpenFile]>,
}

#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    file: File,
    /// The same file, read past the page cache.
    direct: Option<File>,
    identity: Identity,
    /// SHA-256 of the first [`HEADER_BYTES`].
    header: [u8; 32],
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
    /// Opens the files for reading, each also for direct reads where they work.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::NotAFile`]; [`Error::Read`] for a header that cannot be read;
    /// [`Error::OutOfMemory`] for the block that is read to see whether direct reads work.
    ///
    /// # Cost
    /// Two reads a file.
    ///
    /// # Platform
    /// Direct on Linux, and on macOS, where it has not been tested.
    pub fn open<P: AsRef<Path>>(paths: &[P]) -> Result<Self> {
        Self::open_with(paths, true)
    }

    /// Opens the files for reads through the page cache alone: for a machine that has memory to
    /// spare for what was read before.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_buffered<P: AsRef<Path>>(paths: &[P]) -> Result<Self> {
        Self::open_with(paths, false)
    }

    fn open_with<P: AsRef<Path>>(paths: &[P], direct: bool) -> Result<Self> {
        let files: Result<_> = paths
            .iter()
            .map(|path| OpenFile::open(path.as_ref(), direct))
            .collect();
        Ok(Self { files: files? })
    }

    /// How a backend that can read directly reads a file; `None` out of range.
    #[must_use]
    pub fn mode(&self, file: usize) -> Option<ReadMode> {
        self.files.get(file).map(|f| match f.direct {
            Some(_) => ReadMode::Direct,
            None => ReadMode::Buffered,
        })
    }

    /// The first file for which direct reads do not work, so that a program can say so once.
    #[must_use]
    pub fn first_buffered(&self) -> Option<&Path> {
        let buffered = self.files.iter().find(|f| f.direct.is_none());
        buffered.map(|f| f.path.as_path())
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

    /// Checks that the first 64 KiB of a file still are what they were: notices what was written in
    /// place within one tick of the file system's clock, or with its time set back.
    ///
    /// # Errors
    /// [`Error::FileChanged`] with [`Change::Header`]; [`Error::Read`], [`Error::NoSuchFile`].
    ///
    /// # Cost
    /// A read of 64 KiB through the page cache, and their hash: for the start of a run.
    pub fn verify_header(&self, file: usize) -> Result<()> {
        let open = self.open_file(file)?;
        if hash_header(&open.file, &open.path)? == open.header {
            return Ok(());
        }
        Err(Error::FileChanged {
            path: open.path.clone(),
            change: Change::Header,
        })
    }

    /// Reads at a place, once, past the page cache if the file is [`ReadMode::Direct`]: then place,
    /// length and address must be aligned.
    pub(crate) fn read_best_at(
        &self,
        file: usize,
        offset_bytes: u64,
        buffer: &mut [u8],
    ) -> io::Result<usize> {
        match self.best_handle(file) {
            Some(handle) => platform::read_at(handle, buffer, offset_bytes),
            None => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// The handle for direct reads, or the buffered one where there is none.
    pub(crate) fn best_handle(&self, file: usize) -> Option<&File> {
        let open = self.files.get(file)?;
        Some(open.direct.as_ref().unwrap_or(&open.file))
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
    fn open(path: &Path, direct: bool) -> Result<Self> {
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
        let identity = Identity::of(&metadata);
        let direct = match direct {
            true => direct::open_proven(path)?,
            false => None,
        };
        // The path may lead elsewhere by now; `verify` will say so.
        let direct = direct.filter(|direct| {
            direct
                .metadata()
                .is_ok_and(|metadata| Identity::of(&metadata) == identity)
        });
        Ok(Self {
            path: path.to_owned(),
            header: hash_header(&file, path)?,
            file,
            direct,
            identity,
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

/// SHA-256 of what the file has of its first [`HEADER_BYTES`].
fn hash_header(file: &File, path: &Path) -> Result<[u8; 32]> {
    let mut hash = Sha256::new();
    let mut piece = [0; 4096];
    let mut offset_bytes = 0;
    while offset_bytes < HEADER_BYTES {
        match platform::read_at(file, &mut piece, offset_bytes) {
            Ok(0) => break,
            Ok(n) => {
                // Not beyond the header, however short the reads were.
                let left = usize::try_from(HEADER_BYTES - offset_bytes).unwrap_or(n);
                let n = n.min(left);
                hash.update(&piece[..n]);
                offset_bytes += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => {
                return Err(Error::Read {
                    path: path.to_owned(),
                    offset_bytes,
                    len_bytes: piece.len(),
                    source,
                });
            }
        }
    }
    Ok(hash.finalize().into())
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

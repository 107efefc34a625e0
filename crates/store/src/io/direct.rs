//! `DirectFile`: one file, read past the page cache where the system can.
//!
//! Owns the handle and the knowledge of how it was opened. Does not own buffers, nor several files
//! (`FileSet`). Memory: none; a direct read lands in the caller's buffer alone. Invariants: 1. a
//! file is [`ReadMode::Direct`] only after a direct read of it has worked; 2. a short read goes on
//! at the last aligned place, an interrupted one is repeated, the end of the file is an error.
//! Direct reads exist here for Linux (`O_DIRECT`) and macOS (`F_NOCACHE`, written from the system's
//! documentation and never run); elsewhere every file is buffered.
//! Cost: one system call a read, as a rule.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::io::platform;
use crate::{ALIGNMENT_BYTES, AlignedBuf, Error, Result};

/// How reads of a file travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ReadMode {
    /// From the device into the buffer, as far as the file system honors it: one that lives
    /// in memory (tmpfs since Linux 6.6) accepts the request all the same.
    Direct,
    /// Through the page cache: the system or the file system offers nothing else.
    Buffered,
}

impl fmt::Display for ReadMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Direct => "direct",
            Self::Buffered => "buffered",
        })
    }
}

/// A file open for reading, directly if possible. Threads may read it at the same time.
///
/// ```
/// use thalweg_store::{AlignedBuf, DirectFile};
/// # let mut file = tempfile::NamedTempFile::new()?;
/// # std::io::Write::write_all(&mut file, &[7; 8192])?;
/// # let path = file.path();
/// let file = DirectFile::open(path)?; // of two blocks of sevens
/// let mut buf = AlignedBuf::zeroed(4096)?;
/// file.read_exact_at(4096, &mut buf)?;
/// assert!(buf.iter().all(|byte| *byte == 7));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DirectFile {
    path: PathBuf,
    file: File,
    len_bytes: u64,
    mode: ReadMode,
}

impl DirectFile {
    /// Opens a file for direct reads, or for buffered ones where direct ones do not work.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::NotAFile`]; [`Error::OutOfMemory`] for the block that is read to
    /// see whether direct reads work.
    ///
    /// # Platform
    /// Direct on Linux, and on macOS, where it has not been tested.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::check_regular(path)?;
        match open_proven(path)? {
            Some(file) => Self::with_mode(path, file, ReadMode::Direct),
            None => Self::open_buffered(path),
        }
    }

    /// Opens a file for buffered reads without read-ahead by the system.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::NotAFile`].
    pub fn open_buffered(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::check_regular(path)?;
        let file = File::open(path).map_err(|source| Error::Open {
            path: path.to_owned(),
            source,
        })?;
        // Only a hint: without it the system reads more than is asked for.
        let _ = os::expect_no_order(&file);
        Self::with_mode(path, file, ReadMode::Buffered)
    }

    /// How its reads travel.
    #[must_use]
    pub const fn mode(&self) -> ReadMode {
        self.mode
    }

    /// Its length when it was opened.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The path by which it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Fills a buffer from a place of the file. In direct mode the place, the length and the
    /// buffer's address must be multiples of [`ALIGNMENT_BYTES`], as an [`AlignedBuf`] has them.
    ///
    /// # Errors
    /// [`Error::Misaligned`], [`Error::Read`], [`Error::UnexpectedEof`].
    pub fn read_exact_at(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<()> {
        let step = match self.mode {
            ReadMode::Direct => ALIGNMENT_BYTES,
            ReadMode::Buffered => 1,
        };
        let aligned = offset_bytes.is_multiple_of(step as u64)
            && buffer.len().is_multiple_of(step)
            && buffer.as_ptr().addr().is_multiple_of(step);
        if !aligned {
            return Err(Error::Misaligned {
                path: self.path.clone(),
                offset_bytes,
                len_bytes: buffer.len(),
            });
        }
        let wanted_bytes = buffer.len();
        let read = |at, rest: &mut [u8]| platform::read_at(&self.file, rest, at);
        match fill(read, offset_bytes, buffer, step) {
            Ok(n) if n == wanted_bytes => Ok(()),
            Ok(got_bytes) => Err(Error::UnexpectedEof {
                path: self.path.clone(),
                offset_bytes,
                wanted_bytes,
                got_bytes,
            }),
            Err(source) => Err(Error::Read {
                path: self.path.clone(),
                offset_bytes,
                len_bytes: wanted_bytes,
                source,
            }),
        }
    }

    /// Asks the system to drop the file's pages from the page cache. Pages that are not on the
    /// device yet stay.
    ///
    /// # Errors
    /// [`Error::File`], also where the system has no such request.
    ///
    /// # Platform
    /// Linux alone.
    pub fn evict(&self) -> Result<()> {
        os::drop_pages(&self.file).map_err(|source| Error::File {
            path: self.path.clone(),
            action: "evict",
            source,
        })
    }

    /// Asked before opening, because opening a pipe waits for its other end.
    pub(crate) fn check_regular(path: &Path) -> Result<()> {
        let metadata = fs::metadata(path).map_err(|source| Error::Open {
            path: path.to_owned(),
            source,
        })?;
        if metadata.is_file() {
            return Ok(());
        }
        Err(Error::NotAFile {
            path: path.to_owned(),
        })
    }

    fn with_mode(path: &Path, file: File, mode: ReadMode) -> Result<Self> {
        let metadata = file.metadata().map_err(|source| Error::Open {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            path: path.to_owned(),
            file,
            len_bytes: metadata.len(),
            mode,
        })
    }
}

/// Opens a file for direct reads and reads its first block; `None` where that does not work.
pub(crate) fn open_proven(path: &Path) -> Result<Option<File>> {
    let Ok(file) = os::open_direct(path) else {
        return Ok(None);
    };
    // Some file systems take the flag and then refuse the read.
    let mut block = AlignedBuf::zeroed(ALIGNMENT_BYTES)?;
    let read = loop {
        match platform::read_at(&file, &mut block, 0) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => break other,
        }
    };
    Ok(read.is_ok().then_some(file))
}

/// Repeats `read` until the buffer is full or the file ends; returns the bytes that it got. Goes
/// on only at multiples of `step`, which divides the buffer's length.
fn fill(
    mut read: impl FnMut(u64, &mut [u8]) -> io::Result<usize>,
    offset_bytes: u64,
    buffer: &mut [u8],
    step: usize,
) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        // A place beyond 64 bits does not exist: the end of the file comes first.
        let at = offset_bytes.saturating_add(filled as u64);
        let rest = &mut buffer[filled..];
        let wanted = rest.len();
        match read(at, rest) {
            Ok(n) => {
                let n = n.min(wanted);
                let whole = n - n % step;
                if whole == 0 {
                    // Less than one step: an unaligned tail, after which nothing comes.
                    return Ok(filled + n);
                }
                filled += whole;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}

/// What only Linux offers.
#[cfg(target_os = "linux")]
pub(crate) mod os {
    use std::fs::File;
    use std::io;
    use std::path::Path;

    use rustix::fs::{Advice, FallocateFlags, Mode, OFlags};

    pub(crate) fn open_direct(path: &Path) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
    }

    pub(crate) fn expect_no_order(file: &File) -> io::Result<()> {
        Ok(rustix::fs::fadvise(file, 0, None, Advice::Random)?)
    }

    pub(crate) fn drop_pages(file: &File) -> io::Result<()> {
        Ok(rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?)
    }

    /// Takes the space now, so that a full drive shows at once. Not every file system can.
    pub(crate) fn reserve(file: &File, len_bytes: u64) -> io::Result<()> {
        Ok(rustix::fs::fallocate(
            file,
            FallocateFlags::empty(),
            0,
            len_bytes,
        )?)
    }
}

/// Elsewhere: buffered reads, but for macOS, and no hints.
#[cfg(not(target_os = "linux"))]
pub(crate) mod os {
    use std::fs::File;
    use std::io;
    use std::path::Path;

    /// Untested. The system takes unaligned reads as well; aligned ones are what it can pass on.
    #[cfg(target_os = "macos")]
    pub(crate) fn open_direct(path: &Path) -> io::Result<File> {
        let file = File::open(path)?;
        rustix::fs::fcntl_nocache(&file, true)?;
        Ok(file)
    }

    #[cfg(not(target_os = "macos"))]
    pub(crate) fn open_direct(_: &Path) -> io::Result<File> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn expect_no_order(_: &File) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn drop_pages(_: &File) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn reserve(_: &File, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Two blocks and a tail of 100 bytes.
    fn file() -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("temporary file");
        let content: Vec<u8> = (0..2 * ALIGNMENT_BYTES + 100)
            .map(|i| (i % 251) as u8)
            .collect();
        file.write_all(&content).expect("writable");
        file
    }

    #[test]
    fn direct_and_buffered_reads_give_the_file() {
        let temp = file();
        let whole = fs::read(temp.path()).expect("readable");
        let direct = DirectFile::open(temp.path()).expect("opens");
        let buffered = DirectFile::open_buffered(temp.path()).expect("opens");
        assert_eq!(buffered.mode(), ReadMode::Buffered);
        for file in [direct, buffered] {
            let mut buf = AlignedBuf::zeroed(2 * ALIGNMENT_BYTES).expect("small");
            file.read_exact_at(0, &mut buf).expect("whole blocks");
            assert!(buf[..] == whole[..2 * ALIGNMENT_BYTES]);
            assert_eq!(file.len_bytes(), whole.len() as u64);
        }
    }

    #[test]
    fn the_end_of_the_file_is_an_error_with_the_count() {
        let temp = file();
        let file = DirectFile::open(temp.path()).expect("opens");
        let mut buf = AlignedBuf::zeroed(2 * ALIGNMENT_BYTES).expect("small");
        let error = file.read_exact_at(ALIGNMENT_BYTES as u64, &mut buf);
        let Err(Error::UnexpectedEof { got_bytes, .. }) = error else {
            panic!("{error:?}");
        };
        assert_eq!(got_bytes, ALIGNMENT_BYTES + 100);
        let beyond = file.read_exact_at(1 << 40, &mut buf);
        assert!(matches!(
            beyond,
            Err(Error::UnexpectedEof { got_bytes: 0, .. })
        ));
    }

    #[test]
    fn unaligned_direct_reads_are_refused_before_the_system_sees_them() {
        let temp = file();
        let file = DirectFile {
            mode: ReadMode::Direct,
            ..DirectFile::open_buffered(temp.path()).expect("opens")
        };
        let mut buf = AlignedBuf::zeroed(2 * ALIGNMENT_BYTES).expect("small");
        for (offset, range) in [(1, 0..4096), (0, 0..100), (0, 1..4097)] {
            let error = file.read_exact_at(offset, &mut buf[range]);
            assert!(matches!(error, Err(Error::Misaligned { .. })), "{error:?}");
        }
    }

    #[test]
    fn folders_and_missing_files_are_refused() {
        let folder = tempfile::tempdir().expect("temporary folder");
        assert!(matches!(
            DirectFile::open(folder.path()),
            Err(Error::NotAFile { .. })
        ));
        let missing = folder.path().join("missing");
        assert!(matches!(DirectFile::open(missing), Err(Error::Open { .. })));
    }

    #[test]
    fn short_reads_go_on_at_the_last_step() {
        let mut buffer = [0_u8; 16];
        let mut places = Vec::new();
        let mut script = [Ok(6), Err(io::ErrorKind::Interrupted), Ok(9), Ok(4)].into_iter();
        let read = |at, rest: &mut [u8]| {
            places.push((at, rest.len()));
            match script.next().expect("no more reads than scripted") {
                Ok(n) => Ok(n),
                Err(kind) => Err(io::Error::from(kind)),
            }
        };
        assert_eq!(fill(read, 100, &mut buffer, 4).expect("recovers"), 16);
        assert_eq!(places, [(100, 16), (104, 12), (104, 12), (112, 4)]);
    }
}

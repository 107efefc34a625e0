//! `ReaderKind`: the ways of reading by name, and `open`, which makes one.
//!
//! Owns the names and nothing else. A way that does not work on this machine is an error, never
//! replaced by another, so that a figure belongs to the reader it names. Memory: none of its own.
//! Cost: that of making the backend.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

use super::{PoolBackend, PreadBackend, ReadBackend};
use crate::{Error, FileSet, Result};

/// A way of reading.
///
/// ```
/// use thalweg_store::io::ReaderKind;
/// assert_eq!("pool".parse::<ReaderKind>()?, ReaderKind::Pool);
/// assert_eq!(ReaderKind::Uring.to_string(), "uring");
/// let error = "poll".parse::<ReaderKind>().unwrap_err();
/// assert_eq!(error.to_string(), "no reader is called \"poll\"; known are pread, pool, uring");
/// # Ok::<(), thalweg_store::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ReaderKind {
    /// One read at a time on the calling thread, through the page cache.
    Pread,
    /// Threads, each with one read under way; direct where that works.
    Pool,
    /// One ring with many reads under way; direct where that works. Linux alone.
    Uring,
}

impl ReaderKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Pread, Self::Pool, Self::Uring];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pread => "pread",
            Self::Pool => "pool",
            Self::Uring => "uring",
        }
    }
}

impl fmt::Display for ReaderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ReaderKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| Error::UnknownReader {
            found: text.to_owned(),
        })
    }
}

/// Makes a backend that reads these files, with so many threads or so deep a ring;
/// [`ReaderKind::Pread`] has one read under way whatever is asked for.
///
/// # Errors
/// [`Error::RingUnsupported`] for [`ReaderKind::Uring`] where it does not work; those of
/// [`PoolBackend::new`] and `UringBackend::new`.
pub fn open(
    kind: ReaderKind,
    files: FileSet,
    threads_or_depth: NonZeroUsize,
) -> Result<Box<dyn ReadBackend>> {
    Ok(match kind {
        ReaderKind::Pread => Box::new(PreadBackend::new(files)),
        ReaderKind::Pool => Box::new(PoolBackend::new(files, threads_or_depth)?),
        ReaderKind::Uring => open_ring(files, threads_or_depth)?,
    })
}

#[cfg(all(target_os = "linux", feature = "io-uring"))]
fn open_ring(files: FileSet, depth: NonZeroUsize) -> Result<Box<dyn ReadBackend>> {
    Ok(Box::new(super::UringBackend::new(files, depth)?))
}

#[cfg(not(all(target_os = "linux", feature = "io-uring")))]
fn open_ring(_: FileSet, _: NonZeroUsize) -> Result<Box<dyn ReadBackend>> {
    let why = "this build has no io_uring";
    Err(Error::RingUnsupported {
        source: std::io::Error::new(std::io::ErrorKind::Unsupported, why),
    })
}

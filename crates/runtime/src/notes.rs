//! What somebody asked for and does not get, in words.
//!
//! Owns the wording; found while the engine is opened and while it runs. Memory: none.

use std::fmt;
use std::path::PathBuf;

/// Something that was asked for and has no effect, or less than one would think.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Note {
    /// Direct reads do not work for a file, so that reads go through the page cache.
    BufferedReads {
        /// The file.
        path: PathBuf,
    },
    /// Nothing will ever be read ahead: every expert has a slot.
    NothingToReadAhead,
    /// The reader works only while somebody waits for it.
    ReaderCannotReadAhead,
    /// Guesses were of too little use, so that reading ahead stopped for a while.
    ReadAheadPaused {
        /// Pauses so far.
        n_pauses: u64,
        /// Share of the last guesses that were of use.
        precision: f64,
    },
    /// A bias toward resident experts has nothing to prefer: every expert has a slot.
    BiasWithoutMisses,
    /// Routers were to be rounded to bf16 and are stored so.
    RoutersAreBf16,
    /// Routers' Q8_0 copies make no guess: nothing is read ahead, or the routers are stored so.
    NoGuessByCopies,
    /// Routers were to be compared with the stored ones and are the stored ones.
    NothingToAudit,
    /// The watchdog can see neither free memory nor swapping.
    WatchdogIsBlind,
    /// Memory could not be locked.
    NotLocked {
        /// What the system said.
        reason: String,
        /// Most bytes that may be locked; `None` without a limit, or where it cannot be read.
        limit_bytes: Option<u64>,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BufferedReads { path } => write!(
                f,
                "direct reads do not work for {}: reads go through the page cache, which is not \
                 part of the budget",
                path.display()
            ),
            Self::NothingToReadAhead => {
                write!(
                    f,
                    "read-ahead has nothing to do: every expert has a slot of its own"
                )
            }
            Self::ReaderCannotReadAhead => write!(
                f,
                "read-ahead has no effect with a reader that works only while it is waited for; \
                 use the pool or the ring"
            ),
            Self::ReadAheadPaused {
                n_pauses,
                precision,
            } => write!(
                f,
                "read-ahead paused itself {n_pauses} times; of the last guesses {:.0} % were of use",
                100.0 * precision
            ),
            Self::BiasWithoutMisses => write!(
                f,
                "the routing bias changes nothing once all experts are read: every expert has a \
                 slot of its own"
            ),
            Self::RoutersAreBf16 => write!(
                f,
                "rounding routers to bf16 changes nothing: the model stores them so"
            ),
            Self::NoGuessByCopies => write!(
                f,
                "the Q8_0 copies of routers are of no use: nothing is read ahead, or the model \
                 stores its routers so"
            ),
            Self::NothingToAudit => write!(
                f,
                "there is nothing to audit: routers decide and guess with the stored weights"
            ),
            Self::WatchdogIsBlind => write!(
                f,
                "the watchdog sees nothing: this system tells neither free memory nor swapping"
            ),
            Self::NotLocked {
                reason,
                limit_bytes: Some(limit),
            } => write!(
                f,
                "memory is not locked: {reason}; at most {limit} bytes may be locked (ulimit -l)"
            ),
            Self::NotLocked {
                reason,
                limit_bytes: None,
            } => write!(f, "memory is not locked: {reason}"),
        }
    }
}

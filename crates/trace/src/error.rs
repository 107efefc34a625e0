//! `Error`: what can be wrong with a trace, its text form or its file, with the facts.
//!
//! Hand-written because the crate has no dependencies. Owns no state.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// What went wrong. Positions are counted from zero.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    Io {
        /// The file, where one is known.
        path: Option<PathBuf>,
        /// What was being done.
        action: &'static str,
        /// Its answer.
        source: io::Error,
    },
    /// The path leads to a folder, a pipe or a device.
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// Another process writes this file.
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// The file ends before a part that it must have.
    TooShort {
        /// Bytes needed so far.
        needed_bytes: u64,
        /// Bytes there.
        found_bytes: u64,
    },
    /// The file is longer or shorter than its header says.
    WrongLength {
        /// Bytes that the header asks for.
        expected_bytes: u64,
        /// Bytes there.
        found_bytes: u64,
    },
    /// Four bytes that should be a mark are not.
    BadMagic {
        /// Where.
        offset_bytes: u64,
        /// The mark.
        expected: [u8; 4],
        /// The bytes there.
        found: [u8; 4],
    },
    /// A version of the format that this reader does not know.
    UnknownVersion {
        /// The version known.
        expected: u16,
        /// The version in the file.
        found: u16,
    },
    /// Flags that contradict each other or are unknown.
    BadFlags {
        /// The flags.
        found: u16,
        /// What is wrong with them.
        reason: &'static str,
    },
    /// A figure outside its range.
    OutOfRange {
        /// The figure.
        field: &'static str,
        /// Its value.
        found: u64,
        /// Least value allowed.
        min: u64,
        /// Greatest value allowed.
        max: u64,
    },
    /// The checksum does not fit the bytes: the file is damaged.
    BadChecksum {
        /// CRC-32C computed from the bytes.
        expected: u32,
        /// CRC-32C in the file.
        found: u32,
    },
    /// A document that starts or ends where it cannot.
    BadDocument {
        /// Which.
        index: u32,
        /// The figure.
        field: &'static str,
        /// Its value.
        found: u64,
        /// Least value allowed.
        min: u64,
        /// Greatest value allowed.
        max: u64,
    },
    /// The provenance is not UTF-8.
    BadText {
        /// Where the first wrong byte is.
        offset_bytes: u64,
    },
    /// An expert that the model does not have.
    ExpertOutOfRange {
        /// Token position.
        token: u64,
        /// Layer.
        layer: u32,
        /// The expert.
        found: u32,
        /// Experts that there are.
        n_expert: u32,
    },
    /// An expert named twice in one list.
    DuplicateExpert {
        /// Token position.
        token: u64,
        /// Layer.
        layer: u32,
        /// The expert.
        expert: u16,
    },
    /// A weight or logit that is not a usable number, or out of order.
    BadValue {
        /// Token position.
        token: u64,
        /// Layer.
        layer: u32,
        /// What it is.
        field: &'static str,
        /// Its position in the list.
        index: u32,
        /// Its value.
        found: f32,
    },
    /// A list of another length than the shape says.
    WrongCount {
        /// What was counted.
        what: &'static str,
        /// The count needed.
        expected: u64,
        /// The count found.
        found: u64,
    },
    /// The trace holds no logits.
    NoLogits,
    /// The logits that were kept do not suffice for so strong a bias: an expert that was left out
    /// might be chosen.
    BiasTooStrong {
        /// First token where it fails.
        token: u64,
        /// Layer.
        layer: u32,
        /// The bias in nats.
        beta: f32,
        /// The bias must stay below this there.
        limit: f32,
    },
    /// A line of CSV that cannot be read.
    BadLine {
        /// Line number, from one.
        line: u64,
        /// The column, or what is wrong with the line.
        field: &'static str,
        /// What was needed.
        expected: u64,
    },
}

impl Error {
    pub(crate) fn io(action: &'static str, source: io::Error) -> Self {
        Self::Io {
            path: None,
            action,
            source,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The reason is the source, which whoever prints the chain prints once.
            Self::Io { path, action, .. } => match path {
                Some(path) => write!(f, "{action} {} failed", path.display()),
                None => write!(f, "{action} failed"),
            },
            Self::Busy { path } => write!(f, "another process is writing {}", path.display()),
            Self::NotAFile { path } => write!(f, "{} is not a regular file", path.display()),
            Self::TooShort {
                needed_bytes,
                found_bytes,
            } => write!(
                f,
                "trace is cut off: at least {needed_bytes} bytes needed, {found_bytes} there"
            ),
            Self::WrongLength {
                expected_bytes,
                found_bytes,
            } => write!(
                f,
                "trace should have {expected_bytes} bytes by its header, has {found_bytes}"
            ),
            Self::BadMagic {
                offset_bytes,
                expected,
                found,
            } => write!(
                f,
                "no trace: mark {} expected at byte {offset_bytes}, found {}",
                expected.escape_ascii(),
                found.escape_ascii()
            ),
            Self::UnknownVersion { expected, found } => {
                write!(f, "trace has version {found}, this reader knows {expected}")
            }
            Self::BadFlags { found, reason } => write!(f, "trace flags {found:#06x}: {reason}"),
            Self::OutOfRange {
                field,
                found,
                min,
                max,
            } => write!(f, "{field} is {found}, allowed are {min} to {max}"),
            Self::BadChecksum { expected, found } => write!(
                f,
                "trace is damaged: checksum {found:#010x} in the file, {expected:#010x} computed"
            ),
            Self::BadDocument {
                index,
                field,
                found,
                min,
                max,
            } => write!(
                f,
                "{field} of document {index} is {found}, allowed are {min} to {max}"
            ),
            Self::BadText { offset_bytes } => {
                write!(f, "provenance is not UTF-8 at byte {offset_bytes}")
            }
            Self::ExpertOutOfRange {
                token,
                layer,
                found,
                n_expert,
            } => write!(
                f,
                "token {token}, layer {layer}: expert {found} is out of range, there are \
                 {n_expert}"
            ),
            Self::DuplicateExpert {
                token,
                layer,
                expert,
            } => write!(f, "token {token}, layer {layer}: expert {expert} twice"),
            Self::BadValue {
                token,
                layer,
                field,
                index,
                found,
            } => write!(
                f,
                "token {token}, layer {layer}: {field} {index} is {found}, which is no usable \
                 value there"
            ),
            Self::WrongCount {
                what,
                expected,
                found,
            } => write!(f, "{found} {what}, expected {expected}"),
            Self::NoLogits => f.write_str("trace holds no logits"),
            Self::BiasTooStrong {
                token,
                layer,
                beta,
                limit,
            } => write!(
                f,
                "bias of {beta} is too strong for the logits kept: it must stay below {limit} at \
                 token {token}, layer {layer}"
            ),
            Self::BadLine {
                line,
                field,
                expected,
            } => write!(f, "line {line}: bad {field}, expected {expected}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

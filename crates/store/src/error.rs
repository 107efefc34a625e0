//! `Error`: everything that can go wrong in this crate, with the facts.
//!
//! Owns the messages. A failed read names the file and the place; the store wraps it in
//! [`Error::Expert`], which names the layer and the expert. Owns no state.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use crate::io::ReaderKind;

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What a content check may return; see [`ExpertStore::set_check`](crate::ExpertStore::set_check).
pub type CheckError = Box<dyn std::error::Error + Send + Sync>;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be opened or looked at.
    #[error("cannot open {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The path leads to a folder, a pipe or a device.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A file is no longer what was opened: what has been read of it before does not belong
    /// together with what would be read now.
    #[error("{} changed while it was open: {change}; open it again", path.display())]
    FileChanged {
        /// The file.
        path: PathBuf,
        /// How it is noticed.
        change: Change,
    },
    /// No file of the set has this number.
    #[error("file {file} of a set of {n_files}")]
    NoSuchFile {
        /// The number asked for.
        file: usize,
        /// Files in the set.
        n_files: usize,
    },
    /// The system failed a read.
    #[error("reading {len_bytes} bytes at {offset_bytes} of {} failed", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Where the read began.
        offset_bytes: u64,
        /// Bytes asked for.
        len_bytes: usize,
        /// The system's reason.
        source: io::Error,
    },
    /// The file ends within a read.
    #[error(
        "{} ends within a read at {offset_bytes}: wanted {wanted_bytes} bytes, got {got_bytes}",
        path.display()
    )]
    UnexpectedEof {
        /// The file.
        path: PathBuf,
        /// Where the read began.
        offset_bytes: u64,
        /// Bytes asked for.
        wanted_bytes: usize,
        /// Bytes there were.
        got_bytes: usize,
    },
    /// A segment of a read does not lie within its buffer.
    #[error("segment of {len_bytes} bytes at {dst_bytes} exceeds a buffer of {buf_bytes} bytes")]
    BadSegment {
        /// Where in the buffer the segment begins.
        dst_bytes: usize,
        /// Its length.
        len_bytes: usize,
        /// The buffer's length.
        buf_bytes: usize,
    },
    /// The read backend broke its contract: it took nothing although nothing was under way.
    #[error("the read backend refuses an operation although none is under way")]
    OperationRefused,
    /// The read backend broke its contract: operations went in and did not come back.
    #[error("the read backend did not return {n_lost} of its operations")]
    OperationsLost {
        /// Operations still missing.
        n_lost: usize,
    },
    /// A pool without readers would never return an operation.
    #[error("a pool needs at least one reader")]
    NoReaders,
    /// A reader panicked within a read; the others go on.
    #[error("the reader panicked within a read at {offset_bytes} of {}", path.display())]
    ReaderPanicked {
        /// The file.
        path: PathBuf,
        /// Where the read began.
        offset_bytes: u64,
    },
    /// io_uring does not work on this machine, or is not part of this build.
    #[error("io_uring cannot be used here; read with another reader")]
    RingUnsupported {
        /// The system's reason.
        source: io::Error,
    },
    /// The ring no longer takes reads.
    #[error("io_uring failed; open the files again")]
    RingFailed {
        /// The system's reason.
        source: io::Error,
    },
    /// No reader has this name.
    #[error("no reader is called {found:?}; known are {}", ReaderNames)]
    UnknownReader {
        /// The name.
        found: String,
    },
    /// A read was given up before it began.
    #[error("the read was given up before it began")]
    Cancelled,
    /// The buffer of a slot is still with the read backend, after [`Error::OperationsLost`].
    #[error("the buffer of arena slot {slot} has not come back from the read backend")]
    SlotLost {
        /// The slot, counted over the whole arena.
        slot: usize,
    },
    /// A stream has something to read and nowhere to put it.
    #[error("experts of layer {layer} cannot be streamed: the store has no transit slots")]
    NoTransit {
        /// The layer.
        layer: usize,
    },
    /// An expert could not be loaded.
    #[error("cannot load expert {expert} of layer {layer}")]
    Expert {
        /// The layer.
        layer: usize,
        /// The expert within the layer.
        expert: u16,
        /// The reason.
        source: Box<Self>,
    },
    /// The content check refused what was read.
    #[error("part {part} at {offset_bytes} of {} is not usable", path.display())]
    Rejected {
        /// The file.
        path: PathBuf,
        /// Where the part begins.
        offset_bytes: u64,
        /// The part of the expert.
        part: usize,
        /// What the check returned.
        source: CheckError,
    },
    /// Memory could not be had.
    #[error("cannot allocate {wanted_bytes} bytes")]
    OutOfMemory {
        /// Bytes asked for.
        wanted_bytes: usize,
    },
    /// A size exceeds what can be addressed.
    #[error("size of {what} exceeds the address space")]
    TooLarge {
        /// What has the size.
        what: &'static str,
    },
    /// A layer has more experts than an id can name.
    #[error("layer {layer} has {found} experts, at most {limit} are possible")]
    TooManyExperts {
        /// The layer.
        layer: usize,
        /// Its experts.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// A layer with experts that have no parts.
    #[error("the experts of layer {layer} have no parts")]
    NoParts {
        /// The layer.
        layer: usize,
    },
    /// A part without bytes, or longer than the distance from one expert to the next.
    #[error(
        "part {part} of layer {layer} has {len_bytes} bytes an expert, {stride_bytes} bytes apart"
    )]
    BadPart {
        /// The layer.
        layer: usize,
        /// The part.
        part: usize,
        /// Bytes of one expert.
        len_bytes: u64,
        /// Bytes from one expert to the next.
        stride_bytes: u64,
    },
    /// A bundled layer whose experts do not begin where a direct read can.
    #[error(
        "bundles of layer {layer} begin at {offset_bytes}, {stride_bytes} bytes apart: not \
         multiples of {}",
        crate::ALIGNMENT_BYTES
    )]
    UnalignedBundle {
        /// The layer.
        layer: usize,
        /// Where its first bundle begins.
        offset_bytes: u64,
        /// Bytes from one to the next.
        stride_bytes: u64,
    },
    /// Bundles longer than the distance from one to the next.
    #[error("bundles of layer {layer} have {len_bytes} bytes, {stride_bytes} bytes apart")]
    BadBundle {
        /// The layer.
        layer: usize,
        /// Bytes of one expert.
        len_bytes: u64,
        /// Bytes from one to the next.
        stride_bytes: u64,
    },
    /// A part or a table extends beyond its file.
    #[error("{what} ends at {end_bytes}, beyond the {len_bytes} bytes of {}", path.display())]
    BeyondFile {
        /// What does.
        what: Extent,
        /// The file.
        path: PathBuf,
        /// Where it ends.
        end_bytes: u64,
        /// The file's length.
        len_bytes: u64,
    },
    /// A list with one entry a layer has another length.
    #[error("{what} is given for {found} layers, expected {expected}")]
    LayerCount {
        /// The list.
        what: &'static str,
        /// Layers of the layout.
        expected: usize,
        /// Entries.
        found: usize,
    },
    /// Fewer slots than experts that are needed at the same time.
    #[error("layer {layer} has {slots} slots, but {batch} experts must be resident together")]
    SlotsBelowBatch {
        /// The layer.
        layer: usize,
        /// Its slots.
        slots: usize,
        /// Experts needed together.
        batch: usize,
    },
    /// More slots, or a larger batch, than the layer has experts.
    #[error("{what} of layer {layer} is {found}, but it has {n_expert} experts")]
    AboveExperts {
        /// The layer.
        layer: usize,
        /// The figure.
        what: &'static str,
        /// Its value.
        found: usize,
        /// Experts in the layer.
        n_expert: usize,
    },
    /// No layer has this number.
    #[error("layer {layer} of {n_layer}")]
    LayerOutOfRange {
        /// The number asked for.
        layer: usize,
        /// Layers.
        n_layer: usize,
    },
    /// No expert of the layer has this id.
    #[error("expert {expert} of layer {layer}, which has {n_expert}")]
    ExpertOutOfRange {
        /// The layer.
        layer: usize,
        /// The id asked for.
        expert: u16,
        /// Experts in the layer.
        n_expert: usize,
    },
    /// A batch names an expert twice.
    #[error("expert {expert} of layer {layer} occurs twice in one batch")]
    DuplicateExpert {
        /// The layer.
        layer: usize,
        /// The expert.
        expert: u16,
    },
    /// A batch does not fit in the slots of its layer.
    #[error("{picks} experts of layer {layer} do not fit in its {slots} slots at once")]
    BatchTooLarge {
        /// The layer.
        layer: usize,
        /// Experts in the batch.
        picks: usize,
        /// Slots of the layer.
        slots: usize,
    },
    /// The policy or the residency table of a layer refused.
    #[error("the cache of layer {layer} failed")]
    Cache {
        /// The layer.
        layer: usize,
        /// The reason.
        source: thalweg_cache::Error,
    },
    /// Rows of no bytes.
    #[error("a table needs rows of at least one byte")]
    EmptyRow,
    /// No row of the table has this number.
    #[error("row {row} of {n_rows}, asked for at position {position}")]
    RowOutOfRange {
        /// Position in the request.
        position: usize,
        /// The number asked for.
        row: u64,
        /// Rows in the table.
        n_rows: u64,
    },
    /// The output does not hold the rows exactly.
    #[error("output of {found_bytes} bytes for {n_rows} rows of {row_bytes} bytes")]
    OutputLength {
        /// Rows asked for.
        n_rows: usize,
        /// Bytes of a row.
        row_bytes: usize,
        /// Bytes of the output.
        found_bytes: usize,
    },
    /// A direct read of a place, a length or a buffer that is not a multiple of the block.
    #[error(
        "direct read of {len_bytes} bytes at {offset_bytes} of {} is not aligned to {} bytes",
        path.display(),
        crate::ALIGNMENT_BYTES
    )]
    Misaligned {
        /// The file.
        path: PathBuf,
        /// Where the read begins.
        offset_bytes: u64,
        /// Its length.
        len_bytes: usize,
    },
    /// The system failed to make, write or remove a file.
    #[error("cannot {action} {}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What was tried, as a verb.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// Another process is making the same file.
    #[error("{} is being written by another process; wait for it or use another folder", path.display())]
    Busy {
        /// The unfinished file.
        path: PathBuf,
    },
    /// A file where a probe file should be, with other content.
    #[error("{} is no probe file: it differs at {offset_bytes}; move it away", path.display())]
    NotAProbeFile {
        /// The file.
        path: PathBuf,
        /// Where it was seen to differ.
        offset_bytes: u64,
    },
    /// A size that is none, or not a multiple of [`ALIGNMENT_BYTES`](crate::ALIGNMENT_BYTES).
    #[error(
        "{what} is {found_bytes} bytes, not a positive multiple of {}",
        crate::ALIGNMENT_BYTES
    )]
    BadSize {
        /// What has the size.
        what: &'static str,
        /// The size.
        found_bytes: u64,
    },
    /// A file has fewer bytes left that were not read before.
    #[error(
        "{wanted_bytes} bytes wanted, but {left_bytes} of the file have not been read; make it \
         larger or measure less"
    )]
    UsedUp {
        /// Bytes asked for.
        wanted_bytes: u64,
        /// Bytes left.
        left_bytes: u64,
    },
    /// More threads than are of use.
    #[error("{found} threads to read with, at most {limit} are of use")]
    TooManyThreads {
        /// Threads asked for.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// A thread could not be started.
    #[error("cannot start a thread")]
    Thread {
        /// The system's reason.
        source: io::Error,
    },
    /// A profile is not what it should be.
    #[error("profile{} is not usable: {fault}", OfPath(path.as_deref()))]
    Profile {
        /// Its file, if it was read from one.
        path: Option<PathBuf>,
        /// What is wrong.
        fault: crate::ProfileFault,
    },
    /// A file of bundled experts is not what it should be.
    #[error("bundled experts{} are not usable: {fault}", OfPath(path.as_deref()))]
    Bundle {
        /// Its file, if it was read from one.
        path: Option<PathBuf>,
        /// What is wrong.
        fault: crate::BundleFault,
    },
    /// Experts that the bundle format cannot express.
    #[error("experts of layer {layer} cannot be bundled: {what} is {found}, expected {expected}")]
    Unbundleable {
        /// The layer.
        layer: usize,
        /// The figure.
        what: &'static str,
        /// What it would have to be, or at most.
        expected: u64,
        /// What it is.
        found: u64,
    },
    /// A file would be written over one that it is made from.
    #[error("{} is one of the files that are read; write to another", path.display())]
    TargetIsSource {
        /// The file.
        path: PathBuf,
    },
    /// The caller ended a long piece of work.
    #[error("{what} was stopped after {done_bytes} of {total_bytes} bytes")]
    Stopped {
        /// The work.
        what: &'static str,
        /// Bytes done.
        done_bytes: u64,
        /// Bytes in all.
        total_bytes: u64,
    },
    /// `validate` found a broken invariant: a fault of this crate, not of its caller.
    #[error("invariant {invariant} of the {owner} is broken at {place}")]
    Broken {
        /// The structure.
        owner: &'static str,
        /// The invariant's number in the structure's documentation.
        invariant: u32,
        /// A layer, slot or block that shows it.
        place: u64,
    },
}

/// A path in a message, where there is one.
struct OfPath<'a>(Option<&'a Path>);

impl fmt::Display for OfPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(path) => write!(f, " {}", path.display()),
            None => Ok(()),
        }
    }
}

/// The readers that there are, in a message.
struct ReaderNames;

impl fmt::Display for ReaderNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, kind) in ReaderKind::ALL.iter().enumerate() {
            write!(f, "{}{kind}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// How a file is noticed to be another than the one opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Change {
    /// Nothing is at the path any more.
    Missing,
    /// Another file is at the path.
    Replaced,
    /// The length differs.
    Length {
        /// Bytes when it was opened.
        expected_bytes: u64,
        /// Bytes now.
        found_bytes: u64,
    },
    /// The time of the last modification differs.
    Modified,
    /// The first bytes differ, although length and time do not.
    Header,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("it was removed"),
            Self::Replaced => f.write_str("another file took its place"),
            Self::Length {
                expected_bytes,
                found_bytes,
            } => write!(f, "it had {expected_bytes} bytes and has {found_bytes}"),
            Self::Modified => f.write_str("it was written to"),
            Self::Header => f.write_str("its first bytes are others"),
        }
    }
}

/// What lies in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Extent {
    /// A part of a layer's experts.
    Part {
        /// The layer.
        layer: usize,
        /// The part.
        part: usize,
    },
    /// A table of rows.
    Rows,
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Part { layer, part } => write!(f, "part {part} of layer {layer}"),
            Self::Rows => f.write_str("the row table"),
        }
    }
}

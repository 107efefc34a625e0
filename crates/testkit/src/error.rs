//! The crate's one error type. Owns: why a small model could not be made, or a golden not read.

use std::io;
use std::path::PathBuf;

use crate::Problem;

/// Why a small model could not be made, or a golden not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A field of [`SmallModel`](crate::SmallModel) does not go with the others.
    #[error("{field} = {found}: {rule}")]
    Setting {
        /// The field.
        field: &'static str,
        /// Its value.
        found: usize,
        /// What it must satisfy.
        rule: &'static str,
    },
    /// Fields of [`SyntheticModel`](crate::SyntheticModel) that do not go together.
    #[error("no such model can be written: {}", listed(problems))]
    Unsuitable {
        /// All that is wrong.
        problems: Vec<Problem>,
    },
    /// The caller's progress function asked for the end.
    #[error("stopped after {done_bytes} of {total_bytes} bytes; nothing is left on the disk")]
    Stopped {
        /// Bytes that had been written.
        done_bytes: u64,
        /// Length of the whole file.
        total_bytes: u64,
    },
    /// The draft has no such tensor.
    #[error("the draft has no tensor `{name}`")]
    NoTensor {
        /// The name that was looked up.
        name: String,
    },
    /// A tensor of this type cannot be encoded or decoded here.
    #[error("tensor `{name}`: type {ty} is not decoded by thalweg-quant")]
    NoCodec {
        /// The tensor.
        name: String,
        /// Its type.
        ty: &'static str,
    },
    /// An element outside a tensor.
    #[error("tensor `{name}` has {n_elements} elements, element {index} was asked for")]
    Element {
        /// The tensor.
        name: String,
        /// The element.
        index: usize,
        /// How many there are.
        n_elements: usize,
    },
    /// The file was refused or could not be written.
    #[error(transparent)]
    Gguf(#[from] thalweg_gguf::Error),
    /// Values could not be encoded or decoded.
    #[error("tensor `{name}`: {source}")]
    Quant {
        /// The tensor.
        name: String,
        /// The reason.
        source: thalweg_quant::Error,
    },
    /// A golden file could not be read.
    #[error("{}: {source}", path.display())]
    Golden {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A golden manifest is not what it should be.
    #[error("{}: {source}", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: serde_json::Error,
    },
    /// A golden file has not the length that its manifest implies.
    #[error("{}: {expected_bytes} bytes expected, found {found_bytes}", path.display())]
    GoldenLength {
        /// The file.
        path: PathBuf,
        /// Bytes that the manifest implies.
        expected_bytes: usize,
        /// Bytes in the file.
        found_bytes: usize,
    },
}

fn listed(problems: &[Problem]) -> String {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    lines.join("; ")
}

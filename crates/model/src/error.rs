//! What can go wrong between a file and a model.

use std::fmt;

/// Result with the model crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed binding or forward step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file names an architecture that is not built in.
    #[error("architecture {found:?} is not supported (supported: {supported})")]
    Architecture {
        /// `general.architecture` of the file.
        found: String,
        /// Known names, separated by commas.
        supported: &'static str,
    },
    /// The file does not describe a usable model; every problem found is listed.
    #[error("the model file has {} problem(s):{}", problems.len(), List(problems))]
    Invalid {
        /// All problems, in file order of the architecture's expectations.
        problems: Vec<Problem>,
    },
    /// A weight is NaN or infinite.
    #[error("tensor {tensor:?} holds a value that is not finite at element {index}")]
    NotFinite {
        /// Tensor name.
        tensor: String,
        /// Element index in storage order.
        index: u64,
    },
    /// A chunk does not fit the sequence or the workspace.
    #[error("{what}: {wanted} tokens wanted, {available} available")]
    Capacity {
        /// What is too small.
        what: &'static str,
        /// Tokens wanted.
        wanted: usize,
        /// Tokens available.
        available: usize,
    },
    /// A token id is outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {n_vocab}")]
    Token {
        /// The id.
        id: u32,
        /// Vocabulary size.
        n_vocab: usize,
    },
    /// Reading the file failed.
    #[error(transparent)]
    Gguf(#[from] thalweg_gguf::Error),
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] thalweg_backend::Error),
    /// A tensor's bytes do not fit their format.
    #[error(transparent)]
    Quant(#[from] thalweg_quant::Error),
}

/// One thing that is wrong with a model file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// A metadata key is missing, has the wrong type or an unusable value.
    Metadata {
        /// Key.
        key: String,
        /// What is wrong, with expected and found.
        reason: String,
    },
    /// A tensor is missing.
    MissingTensor {
        /// Name.
        name: String,
        /// Dimensions that were expected, `ne` order.
        expected: Vec<u64>,
    },
    /// A tensor has other dimensions.
    Shape {
        /// Name.
        name: String,
        /// Dimensions that were expected, `ne` order.
        expected: Vec<u64>,
        /// Dimensions found, `ne` order.
        found: Vec<u64>,
    },
    /// A tensor's type cannot be decoded.
    TensorType {
        /// Name.
        name: String,
        /// Type name.
        found: String,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Metadata { key, reason } => write!(f, "metadata {key:?}: {reason}"),
            Self::MissingTensor { name, expected } => {
                write!(f, "tensor {name:?} is missing (expected {expected:?})")
            }
            Self::Shape {
                name,
                expected,
                found,
            } => {
                write!(
                    f,
                    "tensor {name:?} has shape {found:?}, expected {expected:?}"
                )
            }
            Self::TensorType { name, found } => {
                write!(
                    f,
                    "tensor {name:?} has type {found}, which cannot be decoded"
                )
            }
        }
    }
}

/// Problems, one a line.
struct List<'a>(&'a [Problem]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|p| write!(f, "\n  - {p}"))
    }
}

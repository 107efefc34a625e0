//! `Error`: everything that can go wrong in this crate, with the facts.
//!
//! Owns the messages. Owns no state.

use std::io;
use std::path::PathBuf;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Reading or writing a model file failed.
    #[error(transparent)]
    Gguf(#[from] thalweg_gguf::Error),
    /// The model's header is not usable.
    #[error(transparent)]
    Model(#[from] thalweg_model::Error),
    /// Running a layer's experts failed.
    #[error(transparent)]
    Backend(#[from] thalweg_backend::Error),
    /// A file that is not a model failed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried, as a verb.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The caller asked to stop.
    #[error("stopped after {done_bytes} of {total_bytes} bytes; nothing was left behind")]
    Stopped {
        /// Bytes of the source that had been gone through.
        done_bytes: u64,
        /// Bytes of the source.
        total_bytes: u64,
    },
    /// The model has no tensor of this name.
    #[error("the model has no tensor {name:?}")]
    NoTensor {
        /// The name, or the pattern that matched none.
        name: String,
    },
    /// A tensor's type has no decoder here.
    #[error("tensor {tensor:?} is of type {found}, which cannot be decoded")]
    UnknownType {
        /// The tensor.
        tensor: String,
        /// Its type.
        found: &'static str,
    },
    /// A tensor cannot have the type that was asked for.
    #[error("tensor {tensor:?} cannot become {wanted}: {reason}")]
    Unfit {
        /// The tensor.
        tensor: String,
        /// The type asked for.
        wanted: &'static str,
        /// Why not.
        reason: &'static str,
    },
    /// A weight is NaN or infinite.
    #[error("tensor {tensor:?} holds {value} at element {index}; the source is damaged")]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// Index of the first such element.
        index: u64,
        /// The value found there.
        value: f32,
    },
    /// Encoding a tensor's rows failed.
    #[error("cannot encode tensor {tensor:?}")]
    Quant {
        /// The tensor.
        tensor: String,
        /// Why.
        source: thalweg_quant::Error,
    },
    /// What was written does not read back as it should.
    #[error("{} was written but does not read back: {what} differs", path.display())]
    Verify {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: String,
    },
    /// A text is not the JSON that it should be.
    #[error("{} is not usable as {what}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A file of another kind or version.
    #[error("{} has {field} {found}, expected {expected}", path.display())]
    WrongFile {
        /// The file.
        path: PathBuf,
        /// What tells files apart.
        field: &'static str,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// Linear algebra failed, which activations as large as f64 can hold may cause.
    #[error("{what} of the activations cannot be computed; are they extremely large?")]
    Unsolvable {
        /// What was sought.
        what: &'static str,
    },
    /// A file that was made for another model.
    #[error("the {what} is of the model with fingerprint {expected}, this one has {found}")]
    WrongModel {
        /// Which file.
        what: &'static str,
        /// Fingerprint of its model.
        expected: String,
        /// Fingerprint of the model at hand.
        found: String,
    },
    /// A figure that cannot be what it should be.
    #[error("{what} is {found}, expected {expected}")]
    OutOfRange {
        /// The figure, with its place.
        what: String,
        /// What it should be.
        expected: String,
        /// Its value.
        found: String,
    },
}

impl Error {
    /// A figure that cannot be what it should be.
    pub(crate) fn out_of_range(
        what: impl Into<String>,
        found: impl ToString,
        expected: impl ToString,
    ) -> Self {
        Self::OutOfRange {
            what: what.into(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// An error of the encoder in the row that starts at element `base`.
    pub(crate) fn in_row(tensor: &str, base: u64, source: thalweg_quant::Error) -> Self {
        let tensor = tensor.to_owned();
        match source {
            thalweg_quant::Error::NonFinite { index, value, .. } => Self::NotFinite {
                tensor,
                index: base + index as u64,
                value,
            },
            source => Self::Quant { tensor, source },
        }
    }
}

//! What can go wrong between a model file and its text.

/// Result with the face's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model file could not be read.
    #[error(transparent)]
    Gguf(#[from] thalweg_gguf::Error),
    /// The tokenizer or the chat template failed.
    #[error(transparent)]
    Text(#[from] thalweg_text::Error),
    /// The engine failed.
    #[error(transparent)]
    Runtime(#[from] thalweg_runtime::Error),
    /// The model file has no chat template.
    #[error("the model file has no chat template; pass the prompt as plain text instead")]
    NoTemplate,
}

impl From<thalweg_runtime::sample::SampleError> for Error {
    fn from(e: thalweg_runtime::sample::SampleError) -> Self {
        Self::Runtime(e.into())
    }
}

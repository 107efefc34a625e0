//! What can go wrong while a token is chosen.

/// A refused option or a row without a usable token.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// An option is NaN or out of its range.
    #[error("{option} must be {expected}, found {found}")]
    Option {
        /// Name of the field of [`SamplerOptions`](super::SamplerOptions).
        option: &'static str,
        /// Its range in words.
        expected: &'static str,
        /// The value.
        found: f32,
    },
    /// No token of the row can be chosen.
    #[error(
        "no token can be chosen: of {n_logits} logits {n_masked} are masked and the others are \
         NaN or negative infinity"
    )]
    NoCandidate {
        /// Length of the row, `n_vocab`.
        n_logits: usize,
        /// Masked tokens among them.
        n_masked: usize,
    },
}

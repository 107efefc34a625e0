//! What can go wrong in a backend.
//!
//! Owns the crate's one error type; an error names the operation and the operand at fault, with
//! what was needed and what was found.

/// Result with the backend's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A buffer or matrix has fewer elements than the operation's shape needs.
    #[error("{op}: {what} holds {found} elements, {expected} needed")]
    Shape {
        /// Operation.
        op: &'static str,
        /// Which operand.
        what: &'static str,
        /// Elements (or bytes) needed.
        expected: usize,
        /// Elements (or bytes) found.
        found: usize,
    },
    /// A size that no operand could make right.
    #[error("{op}: {what} is {found}, but must be {rule}")]
    Argument {
        /// Operation.
        op: &'static str,
        /// Which size.
        what: &'static str,
        /// Its value.
        found: usize,
        /// What it has to satisfy.
        rule: &'static str,
    },
    /// An id is outside its table.
    #[error("{op}: id {id} is outside 0..{limit}")]
    Id {
        /// Operation.
        op: &'static str,
        /// The id.
        id: u64,
        /// First id that is too large.
        limit: u64,
    },
    /// Fewer finite router logits than experts to choose.
    #[error("router of token {token} has {finite} finite logits of {n_expert}, {needed} needed")]
    RouterNotFinite {
        /// Token row within the call.
        token: usize,
        /// Finite logits found.
        finite: usize,
        /// Experts in the router.
        n_expert: usize,
        /// Experts to choose.
        needed: usize,
    },
    /// An allocation failed.
    #[error("cannot allocate {bytes} bytes")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// The thread pool could not be built.
    #[error("cannot start {n_threads} compute threads")]
    Threads {
        /// Threads asked for.
        n_threads: usize,
        /// Reason given by the operating system.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A name of no precision of activations.
    #[error("no activation precision is called {found:?}; there are f32 and q8")]
    UnknownActivations {
        /// The name.
        found: String,
    },
    /// A stored format that the backend cannot run.
    #[error("{backend} has no kernels for {ty} weights")]
    Format {
        /// The backend.
        backend: &'static str,
        /// The format.
        ty: thalweg_quant::QuantType,
    },
    /// The device or its driver failed.
    #[error("{backend} failed")]
    Device {
        /// The backend.
        backend: &'static str,
        /// What the device says.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Bytes of a quantized tensor do not fit their format.
    #[error(transparent)]
    Quant(#[from] thalweg_quant::Error),
}

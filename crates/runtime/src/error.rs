//! What can go wrong while a model runs.

/// Result with the runtime's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed opening or step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model cannot run within the budget.
    #[error(
        "the model needs at least {needed_bytes} bytes but the budget is {budget_bytes}: dense \
         weights {dense_bytes}, sequence state {state_bytes} ({n_ctx} tokens), intermediates \
         {workspace_bytes} (chunk of {chunk_tokens}), threads, buffers of reads and of rows {other_bytes}, \
         {min_slots} expert slots in each layer and those in transit {min_arena_bytes}; raise the \
         budget, or lower what was asked for: ctx, chunk, threads, reads, slots, transit"
    )]
    Budget {
        /// The budget.
        budget_bytes: u64,
        /// Smallest budget that would do.
        needed_bytes: u64,
        /// Resident weights.
        dense_bytes: u64,
        /// Sequence state and its staging.
        state_bytes: u64,
        /// Context that the state is for.
        n_ctx: usize,
        /// Intermediates of a chunk.
        workspace_bytes: u64,
        /// The chunk.
        chunk_tokens: usize,
        /// Threads beyond the first, and the buffers of reads and of table rows.
        other_bytes: u64,
        /// Smallest arena, with its slots in transit.
        min_arena_bytes: u64,
        /// Slots in each layer of the smallest arena.
        min_slots: usize,
    },
    /// The model does not fit what a device may take of its own memory.
    #[error(
        "{needed_bytes} bytes of device memory are needed, {budget_bytes} are allowed: {dense_bytes} \
         for dense weights, {state_bytes} for a sequence of {n_ctx} tokens, {workspace_bytes} for a \
         chunk of {chunk_tokens}, {other_bytes} for uploads and experts in passing; allow \
         more, or lower what was asked for: ctx, chunk"
    )]
    DeviceBudget {
        /// Bytes that are allowed.
        budget_bytes: u64,
        /// Bytes of everything below.
        needed_bytes: u64,
        /// Dense weights.
        dense_bytes: u64,
        /// State of a sequence.
        state_bytes: u64,
        /// Tokens of the sequence.
        n_ctx: usize,
        /// Intermediates of a chunk.
        workspace_bytes: u64,
        /// The chunk.
        chunk_tokens: usize,
        /// What the backend takes for itself.
        other_bytes: u64,
    },
    /// A size in text could not be read.
    #[error(
        "cannot read {text:?} as a size in bytes (examples: 25165824, 24MiB, 3.4GB, 8GiB; units go up to EB and EiB, values to 64 bits)"
    )]
    Size {
        /// The text.
        text: String,
    },
    /// An option has an unusable value.
    #[error("{option} must be {expected}, found {found}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Usable values.
        expected: String,
        /// The value.
        found: String,
    },
    /// Prefill was called without tokens.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// The sequence would outgrow its context.
    #[error(
        "{wanted} tokens do not fit the context of {n_ctx} (the model was made for {n_ctx_train}); \
         shorten the prompt or open the engine with a larger context"
    )]
    Context {
        /// Tokens that the sequence would have.
        wanted: usize,
        /// Tokens that it can have.
        n_ctx: usize,
        /// Context length of the model file.
        n_ctx_train: usize,
    },
    /// An observer ended a prefill.
    #[error("prefill was stopped after {done} of {total} tokens")]
    Stopped {
        /// Tokens that are part of the session.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// The machine ran out of memory to give; see [`Watchdog`](crate::Watchdog).
    #[error("stopped by the watchdog: {reason}")]
    Watchdog {
        /// What it found.
        reason: crate::TripReason,
    },
    /// There is no thread for the watchdog.
    #[error("cannot start the watchdog's thread")]
    WatchdogThread(#[source] std::io::Error),
    /// A session belongs to another engine.
    #[error("the session was made by another engine")]
    ForeignSession,
    /// The model file was changed between two steps of opening it.
    #[error("the model file changed while it was being opened")]
    Changed(#[source] thalweg_gguf::Error),
    /// Reading the model file's header or dense tensors failed.
    #[error(transparent)]
    Gguf(#[from] thalweg_gguf::Error),
    /// Binding or running the model failed.
    #[error(transparent)]
    Model(#[from] thalweg_model::Error),
    /// Cache-aware routing has unusable settings.
    #[error(transparent)]
    Cache(#[from] thalweg_cache::Error),
    /// Fetching experts or rows failed.
    #[error(transparent)]
    Store(#[from] thalweg_store::Error),
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] thalweg_backend::Error),
    /// Choosing a token failed.
    #[error(transparent)]
    Sample(#[from] crate::sample::SampleError),
}

//! Every intermediate of a chunk, by name, allocated once.
//!
//! Memory: [`WorkspaceShape::len_per_token`] floats for each token of the largest chunk. Nothing
//! here outlives a chunk except the allocation.

use thalweg_backend::{Backend, Routing};

use crate::Result;

/// Elements per token of each intermediate. Where two stages never overlap they share one buffer.
#[derive(Debug, Clone, Copy, Default)]
pub struct WorkspaceShape {
    /// Residual, all streams.
    pub residual: usize,
    /// Normed residual; n-gram keys.
    pub normed: usize,
    /// Stream gates; n-gram values after their gate.
    pub gates: usize,
    /// Low-rank bottleneck of the stream gates.
    pub low_rank: usize,
    /// Write weights of the streams.
    pub inject: usize,
    /// Block input and block output.
    pub embd: usize,
    /// Projections: q, k, v of the delta net; queries and gates of attention; convolution input.
    pub proj: usize,
    /// The projections after convolution; queries after norm and rotation.
    pub mixed: usize,
    /// Heads' outputs.
    pub heads: usize,
    /// Output gate of the delta net; keys before their norm; indexer projections.
    pub gate: usize,
    /// Write strength of the delta net; indexer queries.
    pub beta: usize,
    /// Decay input of the delta net.
    pub decay: usize,
    /// Router logits.
    pub router: usize,
    /// Experts chosen, each with an output row of `embd`.
    pub picks: usize,
    /// Hidden width of the shared expert.
    pub shared: usize,
    /// What operations take for their own while they run, counted so that a plan holds.
    pub transient: usize,
}

impl WorkspaceShape {
    /// f32 elements per token of the chunk.
    pub fn len_per_token(&self) -> usize {
        self.residual
            + self.normed
            + self.gates
            + self.low_rank
            + self.inject
            + 5 * self.embd
            + self.proj
            + self.mixed
            + self.heads
            + self.gate
            + self.beta
            + self.decay
            + self.router
            + self.picks * self.embd
            + 2 * self.shared
            + self.transient
            + 1
    }
}

/// Intermediates of one chunk on backend `B`.
#[derive(Debug)]
pub struct Workspace<B: Backend> {
    /// Where operations are recorded.
    pub rec: B::Recorder,
    /// The residual, `[n_tokens, residual_len]`.
    pub residual: B::Buffer,
    /// Input of the current block, which is what experts run on, `[n_tokens, n_embd]`.
    pub input: B::Buffer,
    /// Outputs of routed experts, `[n_tokens * k, n_embd]`, one row a pick.
    pub partial: B::Buffer,
    /// The router's decision for the current layer.
    pub routing: Routing,

    pub(crate) n_tokens: usize,
    pub(crate) capacity: usize,
    pub(crate) normed: B::Buffer,
    pub(crate) gates: B::Buffer,
    pub(crate) low_rank: B::Buffer,
    pub(crate) inject: B::Buffer,
    pub(crate) output: B::Buffer,
    pub(crate) proj: B::Buffer,
    pub(crate) mixed: B::Buffer,
    pub(crate) heads: B::Buffer,
    pub(crate) gate: B::Buffer,
    pub(crate) beta: B::Buffer,
    pub(crate) decay: B::Buffer,
    pub(crate) router: B::Buffer,
    pub(crate) shared_gate: B::Buffer,
    pub(crate) shared_up: B::Buffer,
    pub(crate) shared: B::Buffer,
    pub(crate) shared_scale: B::Buffer,
    /// n-gram embedding of the chunk, `[n_tokens, n_embd]`.
    pub(crate) ngram: B::Buffer,
    /// Logits of one token, `[n_vocab]`.
    pub(crate) logits: B::Buffer,
    /// Host copy of decoded n-gram rows.
    pub(crate) host: Vec<f32>,
}

impl<B: Backend> Workspace<B> {
    /// Intermediates for chunks of up to `capacity` tokens.
    ///
    /// # Errors
    /// [`Error::Backend`](crate::Error::Backend) when memory cannot be had.
    pub fn new(
        backend: &B,
        shape: WorkspaceShape,
        n_vocab: usize,
        capacity: usize,
    ) -> Result<Self> {
        let buffer = |len: usize| backend.alloc(len * capacity);
        Ok(Self {
            rec: backend.recorder(),
            residual: buffer(shape.residual)?,
            input: buffer(shape.embd)?,
            partial: buffer(shape.picks * shape.embd)?,
            routing: Routing::default(),
            n_tokens: 0,
            capacity,
            normed: buffer(shape.normed)?,
            gates: buffer(shape.gates)?,
            low_rank: buffer(shape.low_rank)?,
            inject: buffer(shape.inject)?,
            output: buffer(shape.embd)?,
            proj: buffer(shape.proj)?,
            mixed: buffer(shape.mixed)?,
            heads: buffer(shape.heads)?,
            gate: buffer(shape.gate)?,
            beta: buffer(shape.beta)?,
            decay: buffer(shape.decay)?,
            router: buffer(shape.router)?,
            shared_gate: buffer(shape.shared)?,
            shared_up: buffer(shape.shared)?,
            shared: buffer(shape.embd)?,
            shared_scale: buffer(1)?,
            ngram: buffer(shape.embd)?,
            logits: backend.alloc(n_vocab)?,
            host: Vec::new(),
        })
    }

    /// Tokens of the chunk in work.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Tokens of the largest chunk.
    pub fn capacity(&self) -> usize {
        self.capacity
    }
}

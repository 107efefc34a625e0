//! The operations that a layer is made of.
//!
//! Owns the meaning of each operation (the formula in its documentation); does not own any
//! arithmetic. Memory: none; operands belong to the caller, temporary space to the backend.
//! Invariants, which the `conformance` suite (feature `testing`) checks:
//! 1. operands are checked before anything runs: wrong sizes are errors, never a panic;
//! 2. only what was given as `&mut` changes, and of it only the elements that the shape names;
//! 3. a token's result depends on its own inputs alone, not on what shares the call;
//! 4. sums run in an order that no cache, thread or disk can change.
//!
//! Cost: stated where it is not the size of the operands.

use thalweg_quant::QuantType;

use crate::{ExpertView, MatData, Result, Routing};

/// A compute device, or the CPU.
///
/// Shapes are written with the fastest dimension last. `n_tokens` counts the rows of a chunk.
/// Every operation may be recorded and run later: results exist for the host only after
/// [`read`](Self::read) or [`route`](Self::route).
///
/// Operations check that operands are large enough and return
/// [`Error::Shape`](crate::Error::Shape) otherwise, and
/// [`Error::Argument`](crate::Error::Argument) for sizes that cannot be right whatever the
/// operands are. Larger buffers are fine, so that scratch is allocated once for the largest chunk;
/// elements past the shape keep their values. After an error the contents of outputs are
/// unspecified.
///
/// An output is `&mut` and inputs are `&`, so no operand can alias an output: in-place operation
/// exists only where an operation takes its operand as `&mut` in the first place.
pub trait Backend: std::fmt::Debug + Send + Sync + 'static {
    /// f32 elements on the device.
    type Buffer: std::fmt::Debug + Send + Sync;
    /// A resident matrix in its stored format.
    type Matrix: std::fmt::Debug + Send + Sync;
    /// What operations are recorded into: a command encoder, or nothing at all. Owned by the
    /// caller, one per thread of execution.
    type Recorder: std::fmt::Debug + Send;

    /// Short name for reports: `cpu`.
    fn name(&self) -> &'static str;

    /// Bytes that the backend takes beside buffers and matrices, for a memory plan.
    fn overhead_bytes(&self) -> u64 {
        0
    }

    /// The device's own memory, which holds buffers, matrices and copies of experts; `None` where
    /// that is the host's.
    fn device_memory(&self) -> Option<DeviceMemory> {
        None
    }

    /// A fresh recorder.
    fn recorder(&self) -> Self::Recorder;

    /// A zeroed buffer of `len` elements (`4 * len` bytes).
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::Error::OutOfMemory).
    fn alloc(&self, len: usize) -> Result<Self::Buffer>;

    /// Elements in a buffer.
    fn len(&self, buffer: &Self::Buffer) -> usize;

    /// Makes a matrix resident in its stored format.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::Error::OutOfMemory), or a format that the backend cannot run.
    fn load(&self, matrix: MatData) -> Result<Self::Matrix>;

    /// Copies host values into `buffer` from element `at` on.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if they reach past its end.
    fn write(
        &self,
        rec: &mut Self::Recorder,
        buffer: &mut Self::Buffer,
        at: usize,
        values: &[f32],
    ) -> Result<()>;

    /// Copies elements from `at` on to the host, after everything recorded before has run.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if they reach past the end; on a device, also the
    /// first failure of anything recorded before.
    fn read(
        &self,
        rec: &mut Self::Recorder,
        buffer: &Self::Buffer,
        at: usize,
        out: &mut [f32],
    ) -> Result<()>;

    /// Copies `len` elements between buffers, each from its own first element on.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if they reach past the end of either.
    fn copy(
        &self,
        rec: &mut Self::Recorder,
        from: (&Self::Buffer, usize),
        to: (&mut Self::Buffer, usize),
        len: usize,
    ) -> Result<()>;

    /// Sets every element to zero.
    ///
    /// # Errors
    /// None on a backend that runs operations at once; a device may fail to record.
    fn zero(&self, rec: &mut Self::Recorder, buffer: &mut Self::Buffer) -> Result<()>;

    /// Table rows by id, each repeated `copies` times: `out [n_ids, copies, n_in]`.
    ///
    /// # Errors
    /// [`Error::Id`](crate::Error::Id) for an id that the table does not have;
    /// [`Error::Shape`](crate::Error::Shape) if `out` is too small.
    fn embed(
        &self,
        rec: &mut Self::Recorder,
        table: &Self::Matrix,
        ids: &[u32],
        copies: usize,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// `y[t, o] = sum_i W[o, i] x[t, i]`: `x [n_tokens, n_in]`, `y [n_tokens, n_out]`.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for an operand that is too small.
    fn matmul(
        &self,
        rec: &mut Self::Recorder,
        w: &Self::Matrix,
        x: &Self::Buffer,
        n_tokens: usize,
        y: &mut Self::Buffer,
    ) -> Result<()>;

    /// Root-mean-square norm of each group: `out = x / sqrt(mean(x^2) + eps) * gamma`, with
    /// `x` and `out` `[n_rows, n_groups, width]` and `gamma [n_groups, width]`.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for an operand that is too small.
    fn rms_norm(
        &self,
        rec: &mut Self::Recorder,
        shape: NormShape,
        x: &Self::Buffer,
        gamma: &Self::Buffer,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// `x[i] += y[i]` for the first `len` elements.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for an operand that is too small.
    fn add(
        &self,
        rec: &mut Self::Recorder,
        x: &mut Self::Buffer,
        y: &Self::Buffer,
        len: usize,
    ) -> Result<()>;

    /// `x[i] = silu(x[i] / divisor)` for the first `len` elements.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for an operand that is too small.
    fn silu(
        &self,
        rec: &mut Self::Recorder,
        x: &mut Self::Buffer,
        divisor: f32,
        len: usize,
    ) -> Result<()>;

    /// `gate[i] = silu(gate[i]) * up[i]` for the first `len` elements.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for an operand that is too small.
    fn swiglu(
        &self,
        rec: &mut Self::Recorder,
        gate: &mut Self::Buffer,
        up: &Self::Buffer,
        len: usize,
    ) -> Result<()>;

    /// Gated mean over streams: `out[t, d] = (1/S) sum_s sigmoid(g[t, s, d]) n[t, s, d]`.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for an operand that is too small;
    /// [`Error::Argument`](crate::Error::Argument) without a stream.
    fn gate_streams(
        &self,
        rec: &mut Self::Recorder,
        shape: StreamShape,
        g: &Self::Buffer,
        n: &Self::Buffer,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// Adds a block's output to every stream: `x[t, s, d] += 2 sigmoid(w[t, s] / S) y[t, d]`.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for an operand that is too small.
    fn inject(
        &self,
        rec: &mut Self::Recorder,
        shape: StreamShape,
        w: &Self::Buffer,
        y: &Self::Buffer,
        x: &mut Self::Buffer,
    ) -> Result<()>;

    /// Causal depthwise convolution over time, then silu.
    ///
    /// `out[t, c] = silu(sum_j kernel[c, j] x[t - dilation (taps - 1 - j), c])`, where rows before
    /// the chunk come from `past` (`[(taps - 1) * dilation, channels]`, oldest first). `x` and
    /// `out` are `[n_tokens, channels]`, `kernel` is `[channels, taps]`. `next`, as long as `past`,
    /// receives the history for the following chunk.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for an operand that is too small;
    /// [`Error::Argument`](crate::Error::Argument) without a tap.
    #[allow(clippy::too_many_arguments)] // The symbols of the formula.
    fn causal_conv(
        &self,
        rec: &mut Self::Recorder,
        shape: ConvShape,
        x: &Self::Buffer,
        kernel: &Self::Buffer,
        past: &Self::Buffer,
        next: &mut Self::Buffer,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// Gated delta rule over a chunk, token by token.
    ///
    /// `u [n_tokens, 2 Hk dk + Hv dv]` holds q, k, v after the convolution; q and k are first
    /// normalized per head (`x / sqrt(sum x^2 + 1e-6)`), q is divided by `sqrt(dk)`. Value head `g`
    /// uses key head `g mod Hk`. With `beta = sigmoid(b)`, `decay = exp(a_log * softplus(a + dt))`
    /// and the state `M [Hv, dk, dv]`:
    /// `M *= decay; e = beta (v - k^T M); M += k e^T; o = q^T M`.
    /// Then `out = rms(o) * gamma * sigmoid(z)`, `[n_tokens, Hv dv]`. The state goes in as `past`
    /// and comes out as `next`, both `[Hv, dk, dv]`.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for an operand that is too small;
    /// [`Error::Argument`](crate::Error::Argument) unless `Hv` is a multiple of `Hk`.
    fn delta_rule(
        &self,
        rec: &mut Self::Recorder,
        shape: DeltaShape,
        input: DeltaInput<'_, Self::Buffer>,
        past: &Self::Buffer,
        next: &mut Self::Buffer,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// Norm and rotary embedding of heads: row `t` of `x` holds heads as `from` says; the result
    /// `[n_tokens, n_head, head_dim]` lands in `out` from row `first_row` on.
    ///
    /// Per head: `rms(x) * gamma`, then for pairs `(i, i + n_rot/2)` the rotation by
    /// `p / base^(2i/n_rot)` with `p = first_position + t`. Other rows of `out` stay as they are,
    /// so that `out` can be a cache that grows.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for an operand that is too small;
    /// [`Error::Argument`](crate::Error::Argument) for heads that reach
    /// past their row and an odd or too large `n_rot`.
    #[allow(clippy::too_many_arguments)] // The symbols of the formula.
    fn norm_rope(
        &self,
        rec: &mut Self::Recorder,
        from: HeadLayout,
        rope: Rope,
        n_tokens: usize,
        x: &Self::Buffer,
        gamma: &Self::Buffer,
        out: &mut Self::Buffer,
        first_row: usize,
    ) -> Result<()>;

    /// Pooled indexer keys of the complete blocks `blocks`: mean of the block's raw keys
    /// (`raw [n_cached, index_dim]`), then norm, then rotary embedding at the block's first
    /// position.
    /// Writes rows `blocks` of `pooled [n_blocks, index_dim]` and no others.
    ///
    /// Of the shape, only `block_tokens`, `index_dim`, `rope` and `eps` matter.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for an operand that is too small;
    /// [`Error::Argument`](crate::Error::Argument) without block tokens
    /// and for an odd or too large `n_rot`.
    fn pool_keys(
        &self,
        rec: &mut Self::Recorder,
        shape: AttentionShape,
        blocks: std::ops::Range<usize>,
        raw: &Self::Buffer,
        gamma: &Self::Buffer,
        pooled: &mut Self::Buffer,
    ) -> Result<()>;

    /// Causal attention over the cache, sparse where an indexer selects blocks.
    ///
    /// The query at position `p` sees positions `0..=p`. With an indexer and more than
    /// `budget / block` complete blocks among them, it sees the `budget / block` blocks of highest
    /// score `(1/sqrt(di)) sum_h max(0, iq_h . pooled_b)` (equal scores: lower block first) and the
    /// incomplete tail. A query whose position ends a block has no tail, and its own block competes
    /// like any other. A score that is not a number counts as zero.
    /// `out[t, h] = softmax(q k / sqrt(hd)) v * sigmoid(gate)`, `[n_tokens, n_head, head_dim]`.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for an operand that is too small;
    /// [`Error::Argument`](crate::Error::Argument) unless `n_head` is a
    /// multiple of `n_head_kv`, the gates are one per query and element, and, with an indexer,
    /// `budget_tokens` is a multiple of `block_tokens`, neither being zero.
    ///
    /// # Cost
    /// Beyond the operands, space for one score per visible token and per block.
    fn attention(
        &self,
        rec: &mut Self::Recorder,
        shape: AttentionShape,
        input: AttentionInput<'_, Self::Buffer>,
        cache: AttentionCache<'_, Self::Buffer>,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// Brings router logits `[n_tokens, n_expert]` to the host and chooses experts.
    /// `routing` must have been [`reset`](Routing::reset) to the shape.
    ///
    /// # Errors
    /// As [`Routing::choose`]; [`Error::Shape`](crate::Error::Shape) if `logits` is too small.
    fn route(
        &self,
        rec: &mut Self::Recorder,
        logits: &Self::Buffer,
        routing: &mut Routing,
    ) -> Result<()>;

    /// Runs experts over their tokens: row `first_row + i` of `partial [n_picks, n_embd]` becomes
    /// `down(silu(gate x) * (up x))` of token `tokens[i]` of `x [n_tokens, n_embd]`.
    /// The rows of different jobs must not overlap; rows of no job stay as they are. A job without
    /// tokens does nothing.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for rows that overlap or lie past the end of `partial`
    /// and for matrices that do not fit together; [`Error::Id`](crate::Error::Id) for a token that
    /// `x` does not have.
    fn experts(
        &self,
        rec: &mut Self::Recorder,
        jobs: &[ExpertJob<'_>],
        x: &Self::Buffer,
        partial: &mut Self::Buffer,
    ) -> Result<()>;

    /// Makes room for copies of experts on the device, one entry a layer, and forgets those there
    /// were. From then on [`experts`](Self::experts) fills it as jobs [say](ExpertJob::retain). A
    /// backend without memory of its own keeps none.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::Error::OutOfMemory), or a format that the backend cannot run.
    ///
    /// # Cost
    /// The device memory of all slots, taken at once.
    fn keep_experts(&self, rec: &mut Self::Recorder, layers: &[ExpertRoom]) -> Result<()> {
        let _ = (rec, layers);
        Ok(())
    }

    /// Whether the device holds a copy of an expert, so that
    /// [`held_experts`](Self::held_experts) can run it.
    fn holds(&self, rec: &Self::Recorder, layer: usize, expert: u16) -> bool {
        let _ = (rec, layer, expert);
        false
    }

    /// As [`experts`](Self::experts), with a layer's experts of which the device
    /// [holds](Self::holds) copies: the same rows to the bit.
    ///
    /// # Errors
    /// As [`experts`](Self::experts); [`Error::Id`](crate::Error::Id) for an expert that is not
    /// held.
    fn held_experts(
        &self,
        rec: &mut Self::Recorder,
        layer: usize,
        jobs: &[HeldExpert<'_>],
        x: &Self::Buffer,
        partial: &mut Self::Buffer,
    ) -> Result<()> {
        let _ = (rec, layer, x, partial);
        match jobs.iter().find(|j| !j.tokens.is_empty()) {
            None => Ok(()),
            Some(job) => Err(crate::Error::Id {
                op: "held experts",
                id: job.expert.into(),
                limit: 0,
            }),
        }
    }

    /// Sums a layer's parts in rank order, whatever order they were computed in:
    /// `out[t] = sum_r weights[t, r] partial[rows[t, r]] + sigmoid(shared_gate[t]) shared[t]`.
    ///
    /// `rows` and `weights` are `[n_tokens, k]`, `partial [n_picks, n_embd]`,
    /// `shared [n_tokens, n_embd]`, `shared_gate [n_tokens]`.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for an operand that is too small;
    /// [`Error::Id`](crate::Error::Id) for a row that `partial` does not have.
    #[allow(clippy::too_many_arguments)] // The symbols of the formula.
    fn combine(
        &self,
        rec: &mut Self::Recorder,
        shape: MoeShape,
        rows: &[u32],
        weights: &[f32],
        partial: &Self::Buffer,
        shared: &Self::Buffer,
        shared_gate: &Self::Buffer,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// Gate of the n-gram embedding.
    ///
    /// `kn = rms(key_s) * gamma_key_s`, `qn = rms(x_s) * gamma_query_s`, `t = kn . qn / sqrt(D)`,
    /// `t = sign(t) sqrt(max(|t|, 1e-6))`, `out[t, s, d] = sigmoid(t) value[t, d]`; the sign of zero
    /// is zero. `key` and `query` are a buffer `[n_tokens, n_streams, n_embd]` and its gamma
    /// `[n_streams, n_embd]`.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for an operand that is too small.
    #[allow(clippy::too_many_arguments)] // The symbols of the formula.
    fn ngram_gate(
        &self,
        rec: &mut Self::Recorder,
        shape: StreamShape,
        eps: f32,
        key: (&Self::Buffer, &Self::Buffer),
        query: (&Self::Buffer, &Self::Buffer),
        value: &Self::Buffer,
        out: &mut Self::Buffer,
    ) -> Result<()>;
}

/// Rows, groups and width of a norm: `x [n_rows, n_groups, width]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormShape {
    /// Independent rows.
    pub n_rows: usize,
    /// Groups per row, each normalized on its own; `gamma` is `[n_groups, width]`.
    pub n_groups: usize,
    /// Elements per group.
    pub width: usize,
    /// Added to the mean square.
    pub eps: f32,
}

/// The wide residual of hyper-connections: `[n_tokens, n_streams, n_embd]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StreamShape {
    /// Rows.
    pub n_tokens: usize,
    /// Residual streams per row.
    pub n_streams: usize,
    /// Elements per stream.
    pub n_embd: usize,
}

/// A depthwise convolution over time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConvShape {
    /// Rows of the chunk.
    pub n_tokens: usize,
    /// Independent channels.
    pub channels: usize,
    /// Kernel length; the last tap multiplies the current token.
    pub taps: usize,
    /// Tokens between taps.
    pub dilation: usize,
}

impl ConvShape {
    /// Rows of history that the convolution needs.
    pub fn history(&self) -> usize {
        self.taps.saturating_sub(1).saturating_mul(self.dilation)
    }
}

/// Shape of the gated delta rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeltaShape {
    /// Rows of the chunk.
    pub n_tokens: usize,
    /// Key heads (Hk).
    pub n_head_k: usize,
    /// Value heads (Hv), a multiple of the key heads.
    pub n_head_v: usize,
    /// Dimensions of a key and of a value (dk = dv).
    pub head_dim: usize,
    /// Added to the mean square in the output norm.
    pub eps: f32,
}

impl DeltaShape {
    /// Elements of the recurrent state, `[Hv, dk, dv]`.
    pub fn state_len(&self) -> usize {
        volume([self.n_head_v, self.head_dim, self.head_dim])
    }

    /// Channels of `u`: q, k and v side by side.
    pub fn channels(&self) -> usize {
        let heads = self
            .n_head_k
            .saturating_mul(2)
            .saturating_add(self.n_head_v);
        volume([heads, self.head_dim])
    }
}

/// Operands of the gated delta rule.
#[derive(Debug)]
pub struct DeltaInput<'a, T> {
    /// q, k, v after the convolution, `[n_tokens, 2 Hk dk + Hv dv]`.
    pub u: &'a T,
    /// Write strength before the sigmoid, `[n_tokens, Hv]`.
    pub b: &'a T,
    /// Decay input, `[n_tokens, Hv]`.
    pub a: &'a T,
    /// Output gate before the sigmoid, `[n_tokens, Hv dv]`.
    pub z: &'a T,
    /// Negative decay rate (GGUF `ssm_a` = `-exp(A_log)`), `[Hv]`.
    pub a_log: &'a T,
    /// Decay bias, `[Hv]`.
    pub dt: &'a T,
    /// Output norm, `[dv]`.
    pub gamma: &'a T,
}

/// Where the heads of a row are: head `h` starts at element `offset + h * stride` of a row of
/// `row_len` elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadLayout {
    /// Elements per row.
    pub row_len: usize,
    /// First element of head 0.
    pub offset: usize,
    /// Elements from one head to the next.
    pub stride: usize,
    /// Heads.
    pub n_head: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Added to the mean square.
    pub eps: f32,
}

/// Partial rotary embedding with rotate-half pairing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rope {
    /// Rotated dimensions at the start of each head (even).
    pub n_rot: usize,
    /// Frequency base.
    pub base: f32,
    /// Position of row 0.
    pub first_position: usize,
}

/// Shape of (sparse) attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// Rows of the chunk.
    pub n_tokens: usize,
    /// Position of row 0, which is also the number of cached tokens before the chunk.
    pub first_position: usize,
    /// Query heads.
    pub n_head: usize,
    /// Key and value heads; query head `h` uses `h / (n_head / n_head_kv)`.
    pub n_head_kv: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Tokens per indexer block; 0 means dense attention.
    pub block_tokens: usize,
    /// Tokens that the indexer may select, a multiple of `block_tokens`.
    pub budget_tokens: usize,
    /// Indexer heads.
    pub n_head_index: usize,
    /// Elements per indexer head.
    pub index_dim: usize,
    /// Rotary embedding of the pooled keys (its `first_position` is unused).
    pub rope: Rope,
    /// Added to the mean square in the pooled-key norm.
    pub eps: f32,
}

/// Operands of attention that belong to the chunk.
#[derive(Debug)]
pub struct AttentionInput<'a, T> {
    /// Queries, normed and rotated, `[n_tokens, n_head, head_dim]`.
    pub q: &'a T,
    /// Rows that hold the output gates before the sigmoid, laid out as `gate_layout` says.
    pub gate: &'a T,
    /// Where a head's gate is in its row (its `eps` is unused).
    pub gate_layout: HeadLayout,
    /// Indexer queries; `None` when every visible token is attended to.
    pub indexer: Option<IndexerInput<'a, T>>,
}

/// Operands of block selection.
#[derive(Debug)]
pub struct IndexerInput<'a, T> {
    /// Indexer queries, normed and rotated, `[n_tokens, n_head_index, index_dim]`.
    pub q: &'a T,
    /// Pooled keys, `[n_blocks, index_dim]`.
    pub pooled: &'a T,
}

/// The cached keys and values, the chunk's own included: `[n_cached, n_head_kv, head_dim]`.
#[derive(Debug)]
pub struct AttentionCache<'a, T> {
    /// Keys, normed and rotated.
    pub k: &'a T,
    /// Values.
    pub v: &'a T,
}

/// One expert and the tokens that chose it.
#[derive(Debug, Clone, Copy)]
pub struct ExpertJob<'a> {
    /// The expert's matrices.
    pub expert: ExpertView<'a>,
    /// Rows of `x` that it runs on.
    pub tokens: &'a [u32],
    /// First row of `partial` that it fills.
    pub first_row: usize,
    /// Whether a device keeps its copy of the matrices.
    pub retain: Retain,
}

/// Whether a device keeps its copy of an expert, in the room that
/// [`Backend::keep_experts`] made. Whoever names an expert vouches for its bytes: they are the same
/// each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(clippy::exhaustive_enums, reason = "backends match on it")]
pub enum Retain {
    /// No: it is used once.
    #[default]
    No,
    /// Where a slot of the layer is free.
    IfFree {
        /// Layer of the expert.
        layer: usize,
        /// Its id.
        expert: u16,
    },
    /// In the place of the layer's least recently used one if need be.
    Always {
        /// Layer of the expert.
        layer: usize,
        /// Its id.
        expert: u16,
    },
}

/// An expert of which the device holds a copy, and the tokens that chose it.
#[derive(Debug, Clone, Copy)]
pub struct HeldExpert<'a> {
    /// Its id.
    pub expert: u16,
    /// Rows of `x` that it runs on.
    pub tokens: &'a [u32],
    /// First row of `partial` that it fills.
    pub first_row: usize,
}

/// Room for copies of a layer's experts on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertRoom {
    /// Experts of the layer.
    pub n_expert: usize,
    /// Copies that fit.
    pub n_slots: usize,
    /// Shapes of gate, up and down.
    pub parts: [MatShape; 3],
}

/// A matrix without its weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatShape {
    /// Stored type.
    pub ty: QuantType,
    /// Weights per row.
    pub n_in: usize,
    /// Rows.
    pub n_out: usize,
}

/// What a device's own memory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Most bytes for everything together; `None` where nobody said: then weights, state and
    /// intermediates take what they need and copies of experts take `expert_bytes`.
    pub budget_bytes: Option<u64>,
    /// Most bytes for copies of experts where there is no budget.
    pub expert_bytes: u64,
    /// Bytes that the backend takes there beside buffers, matrices and copies of experts.
    pub overhead_bytes: u64,
}

/// Shape of the weighted sum over experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MoeShape {
    /// Rows of the chunk.
    pub n_tokens: usize,
    /// Experts per token.
    pub k: usize,
    /// Elements per row.
    pub n_embd: usize,
}

/// Elements of an array of these dimensions; one too large for memory is `usize::MAX`.
pub(crate) fn volume<const N: usize>(dims: [usize; N]) -> usize {
    dims.into_iter().fold(1, usize::saturating_mul)
}

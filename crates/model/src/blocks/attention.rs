//! Gated attention with partial rotary embedding, sparse where an indexer selects blocks (QSA).
//!
//! Keys are cached after norm and rotation, values as they are, indexer keys raw and, for each
//! complete block, pooled. A block's pooled key depends on its own tokens alone and is computed
//! once, when the block fills.

use thalweg_backend::{
    AttentionCache, AttentionInput, AttentionShape, Backend, HeadLayout, IndexerInput, Rope,
};

use crate::weights::{Check, Loader};
use crate::{AttentionState, Result, Workspace};

/// Sizes of an attention layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionConfig {
    pub(crate) n_embd: usize,
    pub(crate) n_head: usize,
    pub(crate) n_head_kv: usize,
    pub(crate) head_dim: usize,
    pub(crate) n_rot: usize,
    pub(crate) rope_base: f32,
    pub(crate) eps: f32,
    /// Tokens per block; 0 where attention is dense.
    pub(crate) block_tokens: usize,
    pub(crate) budget_tokens: usize,
    pub(crate) n_head_index: usize,
    pub(crate) index_dim: usize,
}

impl AttentionConfig {
    /// Width of queries and of the output.
    pub(crate) fn width(&self) -> usize {
        self.n_head * self.head_dim
    }

    pub(crate) fn kv_width(&self) -> usize {
        self.n_head_kv * self.head_dim
    }

    pub(crate) fn index_width(&self) -> usize {
        self.n_head_index * self.index_dim
    }

    /// f32 elements of one layer's caches for `n_ctx` tokens.
    pub(crate) fn state_len(&self, n_ctx: usize) -> usize {
        let index = match self.block_tokens {
            0 => 0,
            block => (n_ctx + n_ctx.div_ceil(block)) * self.index_dim,
        };
        2 * n_ctx * self.kv_width() + index
    }

    pub(crate) fn state<B: Backend>(&self, b: &B, n_ctx: usize) -> Result<AttentionState<B>> {
        let index = match self.block_tokens {
            0 => None,
            block => Some((
                b.alloc(n_ctx * self.index_dim)?,
                b.alloc(n_ctx.div_ceil(block) * self.index_dim)?,
            )),
        };
        let kv = n_ctx * self.kv_width();
        Ok(AttentionState {
            k: b.alloc(kv)?,
            v: b.alloc(kv)?,
            index,
        })
    }

    /// Heads side by side in a row of their own.
    fn heads(&self, n_head: usize, head_dim: usize) -> HeadLayout {
        let row_len = n_head * head_dim;
        HeadLayout {
            row_len,
            offset: 0,
            stride: head_dim,
            n_head,
            head_dim,
            eps: self.eps,
        }
    }

    /// One half of the query projection, in which each head's queries and gates alternate.
    fn query_half(&self, offset: usize) -> HeadLayout {
        HeadLayout {
            row_len: 2 * self.width(),
            offset,
            stride: 2 * self.head_dim,
            n_head: self.n_head,
            head_dim: self.head_dim,
            eps: self.eps,
        }
    }
}

/// Weights of one attention layer.
#[derive(Debug)]
pub(crate) struct SparseAttention<B: Backend> {
    q: B::Matrix,
    k: B::Matrix,
    v: B::Matrix,
    out: B::Matrix,
    q_norm: B::Buffer,
    k_norm: B::Buffer,
    indexer: Option<Indexer<B>>,
}

/// Weights of block selection.
#[derive(Debug)]
struct Indexer<B: Backend> {
    q: B::Matrix,
    k: B::Matrix,
    q_norm: B::Buffer,
    k_norm: B::Buffer,
}

pub(crate) fn expect(check: &mut Check<'_>, blk: &str, c: AttentionConfig) {
    check.matrix(
        &format!("{blk}.attn_q.weight"),
        &[&[c.n_embd, 2 * c.width()]],
    );
    check.matrix(
        &format!("{blk}.attn_k.weight"),
        &[&[c.n_embd, c.kv_width()]],
    );
    check.matrix(
        &format!("{blk}.attn_v.weight"),
        &[&[c.n_embd, c.kv_width()]],
    );
    check.matrix(
        &format!("{blk}.attn_output.weight"),
        &[&[c.width(), c.n_embd]],
    );
    check.vector(&format!("{blk}.attn_q_norm.weight"), &[&[c.head_dim]]);
    check.vector(&format!("{blk}.attn_k_norm.weight"), &[&[c.head_dim]]);
    if c.block_tokens > 0 {
        check.matrix(
            &format!("{blk}.indexer.q_proj.weight"),
            &[&[c.n_embd, c.index_width()]],
        );
        check.matrix(
            &format!("{blk}.indexer.k_proj.weight"),
            &[&[c.n_embd, c.index_dim]],
        );
        check.vector(&format!("{blk}.indexer.q_norm.weight"), &[&[c.index_dim]]);
        check.vector(&format!("{blk}.indexer.k_norm.weight"), &[&[c.index_dim]]);
    }
}

impl<B: Backend> SparseAttention<B> {
    pub(crate) fn load(loader: &mut Loader<'_, B>, blk: &str, c: AttentionConfig) -> Result<Self> {
        let indexer = match c.block_tokens {
            0 => None,
            _ => Some(Indexer {
                q: loader.matrix(&format!("{blk}.indexer.q_proj.weight"))?,
                k: loader.matrix(&format!("{blk}.indexer.k_proj.weight"))?,
                q_norm: loader.vector(&format!("{blk}.indexer.q_norm.weight"))?,
                k_norm: loader.vector(&format!("{blk}.indexer.k_norm.weight"))?,
            }),
        };
        Ok(Self {
            q: loader.matrix(&format!("{blk}.attn_q.weight"))?,
            k: loader.matrix(&format!("{blk}.attn_k.weight"))?,
            v: loader.matrix(&format!("{blk}.attn_v.weight"))?,
            out: loader.matrix(&format!("{blk}.attn_output.weight"))?,
            q_norm: loader.vector(&format!("{blk}.attn_q_norm.weight"))?,
            k_norm: loader.vector(&format!("{blk}.attn_k_norm.weight"))?,
            indexer,
        })
    }

    /// `ws.input` to `ws.output`, with the chunk's keys and values written behind the `n_past`
    /// cached ones.
    pub(crate) fn forward(
        &self,
        b: &B,
        ws: &mut Workspace<B>,
        c: AttentionConfig,
        n_past: usize,
        cache: &mut AttentionState<B>,
    ) -> Result<()> {
        let n = ws.n_tokens;
        let rec = &mut ws.rec;
        let rope = Rope {
            n_rot: c.n_rot,
            base: c.rope_base,
            first_position: n_past,
        };
        let shape = AttentionShape {
            n_tokens: n,
            first_position: n_past,
            n_head: c.n_head,
            n_head_kv: c.n_head_kv,
            head_dim: c.head_dim,
            block_tokens: c.block_tokens,
            budget_tokens: c.budget_tokens,
            n_head_index: c.n_head_index,
            index_dim: c.index_dim,
            rope,
            eps: c.eps,
        };

        // Indexer: raw keys are always cached, pooled keys for each block that is now complete;
        // queries only where some query sees more than the budget.
        let mut sparse = false;
        if let (Some(indexer), Some((raw, pooled))) = (&self.indexer, &mut cache.index) {
            b.matmul(rec, &indexer.k, &ws.input, n, &mut ws.gate)?;
            b.copy(
                rec,
                (&ws.gate, 0),
                (&mut *raw, n_past * c.index_dim),
                n * c.index_dim,
            )?;
            let blocks = n_past / c.block_tokens..(n_past + n) / c.block_tokens;
            b.pool_keys(rec, shape, blocks, raw, &indexer.k_norm, pooled)?;
            sparse = (n_past + n) / c.block_tokens > c.budget_tokens / c.block_tokens;
            if sparse {
                b.matmul(rec, &indexer.q, &ws.input, n, &mut ws.gate)?;
                let heads = c.heads(c.n_head_index, c.index_dim);
                b.norm_rope(
                    rec,
                    heads,
                    rope,
                    n,
                    &ws.gate,
                    &indexer.q_norm,
                    &mut ws.beta,
                    0,
                )?;
            }
        }

        b.matmul(rec, &self.k, &ws.input, n, &mut ws.gate)?;
        let kv = c.heads(c.n_head_kv, c.head_dim);
        b.norm_rope(
            rec,
            kv,
            rope,
            n,
            &ws.gate,
            &self.k_norm,
            &mut cache.k,
            n_past,
        )?;
        b.matmul(rec, &self.v, &ws.input, n, &mut ws.gate)?;
        let at = n_past * c.kv_width();
        b.copy(rec, (&ws.gate, 0), (&mut cache.v, at), n * c.kv_width())?;

        b.matmul(rec, &self.q, &ws.input, n, &mut ws.proj)?;
        b.norm_rope(
            rec,
            c.query_half(0),
            rope,
            n,
            &ws.proj,
            &self.q_norm,
            &mut ws.mixed,
            0,
        )?;
        let pooled = cache.index.as_ref().map(|(_, pooled)| pooled);
        let input = AttentionInput {
            q: &ws.mixed,
            gate: &ws.proj,
            gate_layout: c.query_half(c.head_dim),
            indexer: pooled.filter(|_| sparse).map(|pooled| IndexerInput {
                q: &ws.beta,
                pooled,
            }),
        };
        let kv = AttentionCache {
            k: &cache.k,
            v: &cache.v,
        };
        b.attention(rec, shape, input, kv, &mut ws.heads)?;
        b.matmul(rec, &self.out, &ws.heads, n, &mut ws.output)?;
        Ok(())
    }
}

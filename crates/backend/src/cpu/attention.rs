//! Causal attention over a cache, with block selection by an indexer.
//!
//! Scores, softmax and sums run in rising position order whatever order the blocks were ranked in.
//! Temporary space per thread: one score per block and per visible position.

use std::ops::Range;

use thalweg_quant::dot_f32;

use super::norm::{norm_into, rotate};
use super::{CpuBuffer, Team, sigmoid, take, take_mut};
use crate::Result;
use crate::contract::{AttentionCache, AttentionInput, AttentionShape};

pub(super) fn pool_keys(
    team: &Team,
    shape: AttentionShape,
    blocks: Range<usize>,
    raw: &CpuBuffer,
    gamma: &CpuBuffer,
    pooled: &mut CpuBuffer,
) -> Result<()> {
    let AttentionShape { block_tokens, index_dim, eps, rope, .. } = shape;
    let raw = take("pool_keys", "raw", raw, blocks.end * block_tokens * index_dim)?;
    let gamma = take("pool_keys", "gamma", gamma, index_dim)?;
    let pooled = take_mut("pool_keys", "pooled", pooled, blocks.end * index_dim)?;
    let first = blocks.start;
    let out = &mut pooled[first * index_dim..];
    team.blocks(out, index_dim, 8 * index_dim, |block, out| {
        let mut mean = vec![0.0; index_dim];
        for (i, out) in out.chunks_exact_mut(index_dim).enumerate() {
            let position = (first + block + i) * block_tokens;
            mean.fill(0.0);
            let keys = raw[position * index_dim..].chunks_exact(index_dim);
            for key in keys.take(block_tokens) {
                for (m, k) in mean.iter_mut().zip(key) {
                    *m += k;
                }
            }
            for m in &mut mean {
                *m /= block_tokens as f32;
            }
            norm_into(&mean, gamma, eps, out);
            rotate(rope, position, out);
        }
        Ok(())
    })
}

pub(super) fn attention(
    team: &Team,
    shape: AttentionShape,
    input: &AttentionInput<'_, CpuBuffer>,
    cache: &AttentionCache<'_, CpuBuffer>,
    out: &mut CpuBuffer,
) -> Result<()> {
    let AttentionShape { n_tokens, first_position, n_head, n_head_kv, head_dim, .. } = shape;
    let op = "attention";
    let n_cached = first_position + n_tokens;
    let width = n_head * head_dim;
    let kv_width = n_head_kv * head_dim;
    let gates = input.gate_layout;
    let q = take(op, "q", input.q, n_tokens * width)?;
    let gate = take(op, "gate", input.gate, n_tokens * gates.row_len)?;
    let k = take(op, "k", cache.k, n_cached * kv_width)?;
    let v = take(op, "v", cache.v, n_cached * kv_width)?;
    let n_blocks = n_cached.checked_div(shape.block_tokens).unwrap_or(0);
    let indexer = match &input.indexer {
        None => None,
        Some(i) => Some((
            take(op, "indexer q", i.q, n_tokens * shape.n_head_index * shape.index_dim)?,
            take(op, "pooled", i.pooled, n_blocks * shape.index_dim)?,
        )),
    };
    let out = take_mut(op, "out", out, n_tokens * width)?;
    team.blocks(out, width, n_cached * 2 * width, |first, out| {
        let mut visible = Visible::default();
        let mut scores = Vec::new();
        for (i, out) in out.chunks_exact_mut(width).enumerate() {
            let t = first + i;
            match indexer {
                Some((iq, pooled)) => {
                    let row = shape.n_head_index * shape.index_dim;
                    visible.select(shape, first_position + t, &iq[t * row..(t + 1) * row], pooled);
                }
                None => visible.all(first_position + t),
            }
            for (h, out) in out.chunks_exact_mut(head_dim).enumerate() {
                let kv_at = h / (n_head / n_head_kv) * head_dim;
                let key = |p: usize| &k[p * kv_width + kv_at..][..head_dim];
                let value = |p: usize| &v[p * kv_width + kv_at..][..head_dim];
                let q = &q[t * width + h * head_dim..][..head_dim];
                let gate = &gate[t * gates.row_len + gates.offset + h * gates.stride..];

                scores.clear();
                scores.extend(
                    visible.positions().map(|p| dot_f32(q, key(p)) / (head_dim as f32).sqrt()),
                );
                let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let mut total = 0.0;
                for s in &mut scores {
                    *s = (*s - max).exp();
                    total += *s;
                }
                out.fill(0.0);
                for (p, s) in visible.positions().zip(&scores) {
                    let a = s / total;
                    for (o, v) in out.iter_mut().zip(value(p)) {
                        *o += a * v;
                    }
                }
                for (o, g) in out.iter_mut().zip(gate) {
                    *o *= sigmoid(*g);
                }
            }
        }
        Ok(())
    })
}

/// The positions that one query attends to, as rising ranges.
#[derive(Default)]
struct Visible {
    ranges: Vec<Range<usize>>,
    ranked: Vec<(f32, usize)>,
}

impl Visible {
    fn positions(&self) -> impl Iterator<Item = usize> {
        self.ranges.iter().flat_map(Clone::clone)
    }

    /// Every position up to `position`.
    fn all(&mut self, position: usize) {
        self.ranges.clear();
        self.ranges.push(0..position + 1);
    }

    /// The blocks of highest indexer score and the incomplete tail.
    fn select(&mut self, shape: AttentionShape, position: usize, iq: &[f32], pooled: &[f32]) {
        let AttentionShape { block_tokens, budget_tokens, index_dim, .. } = shape;
        let n_visible = position + 1;
        let n_blocks = n_visible / block_tokens;
        let n_selected = budget_tokens / block_tokens;
        if n_blocks <= n_selected {
            return self.all(position);
        }
        self.ranked.clear();
        let keys = pooled.chunks_exact(index_dim).take(n_blocks);
        self.ranked.extend(keys.enumerate().map(|(b, key)| {
            let hits = iq.chunks_exact(index_dim).map(|q| dot_f32(q, key).max(0.0));
            (hits.sum::<f32>() / (index_dim as f32).sqrt(), b)
        }));
        // Higher score first, then the lower block: a total order, so any sort gives one answer.
        let order = |a: &(f32, usize), b: &(f32, usize)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        self.ranked.select_nth_unstable_by(n_selected - 1, order);
        let chosen = &mut self.ranked[..n_selected];
        chosen.sort_unstable_by_key(|c| c.1);
        self.ranges.clear();
        for &(_, b) in chosen.iter() {
            self.ranges.push(b * block_tokens..(b + 1) * block_tokens);
        }
        self.ranges.push(n_blocks * block_tokens..n_visible);
    }
}

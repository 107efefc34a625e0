//! Causal attention over a cache, with block selection by an indexer.
//!
//! Scores, softmax and sums run in rising position order whatever order the blocks were ranked in.
//! Temporary space per thread: one score per block and per visible position.

use std::ops::Range;

use thalweg_quant::{Loops, dot_f32};

use super::columns::{self, Columns};
use super::math::exp;
use super::norm::{Rotation, check_layout, check_rope, norm_into};
use super::{CpuBuffer, Team, require, sigmoid, take, take_mut};
use crate::Result;
use crate::contract::{AttentionCache, AttentionInput, AttentionShape, volume};

pub(super) fn pool_keys(
    team: &Team,
    shape: AttentionShape,
    blocks: Range<usize>,
    raw: &CpuBuffer,
    gamma: &CpuBuffer,
    pooled: &mut CpuBuffer,
) -> Result<()> {
    let AttentionShape {
        block_tokens,
        index_dim,
        eps,
        rope,
        ..
    } = shape;
    let op = "pool_keys";
    require(
        block_tokens > 0,
        op,
        "block_tokens",
        block_tokens,
        "at least 1",
    )?;
    check_rope(op, rope, index_dim)?;
    if blocks.is_empty() {
        return Ok(());
    }
    let raw = take(op, "raw", raw, [blocks.end, block_tokens, index_dim])?;
    let gamma = take(op, "gamma", gamma, [index_dim])?;
    let pooled = take_mut(op, "pooled", pooled, [blocks.end, index_dim])?;
    let first = blocks.start;
    let out = &mut pooled[first * index_dim..];
    team.blocks(
        out,
        index_dim,
        volume([block_tokens.saturating_add(8), index_dim]),
        |block, out| {
            let mut rotation = Rotation::new(rope);
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
                rotation.turn_to(position);
                rotation.apply(out);
            }
            Ok(())
        },
    )
}

pub(super) fn attention(
    team: &Team,
    shape: AttentionShape,
    input: &AttentionInput<'_, CpuBuffer>,
    cache: &AttentionCache<'_, CpuBuffer>,
    out: &mut CpuBuffer,
) -> Result<()> {
    let AttentionShape {
        n_tokens,
        first_position,
        n_head,
        n_head_kv,
        head_dim,
        ..
    } = shape;
    let op = "attention";
    check_shape(op, &shape, input)?;
    let n_cached = first_position.saturating_add(n_tokens);
    let width = volume([n_head, head_dim]);
    let kv_width = volume([n_head_kv, head_dim]);
    let gates = input.gate_layout;
    let q = take(op, "q", input.q, [n_tokens, width])?;
    let gate = take(op, "gate", input.gate, [n_tokens, gates.row_len])?;
    let k = take(op, "k", cache.k, [n_cached, kv_width])?;
    let v = take(op, "v", cache.v, [n_cached, kv_width])?;
    let n_blocks = n_cached.checked_div(shape.block_tokens).unwrap_or(0);
    let indexer = match &input.indexer {
        None => None,
        Some(i) => Some((
            take(
                op,
                "indexer q",
                i.q,
                [n_tokens, shape.n_head_index, shape.index_dim],
            )?,
            take(op, "pooled", i.pooled, [n_blocks, shape.index_dim])?,
        )),
    };
    let out = take_mut(op, "out", out, [n_tokens, width])?;
    team.blocks(out, width, volume([2, n_cached, width]), |first, out| {
        let mut visible = Visible::default();
        let mut scores = Vec::new();
        for (i, out) in out.chunks_exact_mut(width).enumerate() {
            let t = first + i;
            match indexer {
                Some((iq, pooled)) => {
                    let row = shape.n_head_index * shape.index_dim;
                    visible.select(
                        shape,
                        first_position + t,
                        &iq[t * row..(t + 1) * row],
                        pooled,
                    );
                }
                None => visible.all(first_position + t),
            }
            for (h, out) in out.chunks_exact_mut(head_dim).enumerate() {
                let kv_at = h / (n_head / n_head_kv) * head_dim;
                let key = |p: usize| &k[p * kv_width + kv_at..][..head_dim];
                let q = &q[t * width + h * head_dim..][..head_dim];
                let gate = &gate[t * gates.row_len + gates.offset + h * gates.stride..];

                scores.clear();
                scores.extend(
                    visible
                        .positions()
                        .map(|p| dot_f32(q, key(p)) / (head_dim as f32).sqrt()),
                );
                let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                team.kernels().run(Softmax {
                    max,
                    scores: &mut scores,
                });
                let mean = Mean {
                    ranges: &visible.ranges,
                    shares: &scores,
                    values: &v[kv_at..],
                    stride: kv_width,
                    out,
                };
                columns::run(team.kernels(), mean);
                for (o, g) in out.iter_mut().zip(gate) {
                    *o *= sigmoid(*g);
                }
            }
        }
        Ok(())
    })
}

/// Scores become shares: `exp(s - max)` over their sum, which is taken in rising order.
struct Softmax<'a> {
    max: f32,
    scores: &'a mut [f32],
}

impl Loops for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for s in self.scores.iter_mut() {
            *s = exp(*s - self.max);
        }
        let mut total = 0.0;
        for s in self.scores.iter() {
            total += s;
        }
        for s in self.scores.iter_mut() {
            *s /= total;
        }
    }
}

/// The mean of the visible values, weighted by their shares, in rising order of positions.
struct Mean<'a> {
    ranges: &'a [Range<usize>],
    shares: &'a [f32],
    /// Rows `stride` apart, from the head's first column on.
    values: &'a [f32],
    stride: usize,
    out: &'a mut [f32],
}

impl Columns for Mean<'_> {
    fn n_columns(&self) -> usize {
        self.out.len()
    }

    #[inline(always)]
    fn columns<const W: usize>(&mut self, c: usize) {
        let mut sums = [0.0_f32; W];
        let mut shares = self.shares.iter();
        for range in self.ranges {
            for (p, share) in range.clone().zip(&mut shares) {
                let values = &self.values[p * self.stride + c..][..W];
                for j in 0..W {
                    sums[j] += share * values[j];
                }
            }
        }
        self.out[c..c + W].copy_from_slice(&sums);
    }
}

/// Fails for sizes that no operands could satisfy.
fn check_shape(
    op: &'static str,
    shape: &AttentionShape,
    input: &AttentionInput<'_, CpuBuffer>,
) -> Result<()> {
    let AttentionShape {
        n_head,
        n_head_kv,
        head_dim,
        ..
    } = *shape;
    let grouped = n_head_kv > 0 && n_head.is_multiple_of(n_head_kv);
    require(grouped, op, "n_head", n_head, "a multiple of n_head_kv")?;
    let gates = input.gate_layout;
    check_layout(op, gates)?;
    require(
        gates.n_head == n_head,
        op,
        "gate heads",
        gates.n_head,
        "n_head",
    )?;
    require(
        gates.head_dim == head_dim,
        op,
        "gate dimensions",
        gates.head_dim,
        "head_dim",
    )?;
    if input.indexer.is_some() {
        let AttentionShape {
            block_tokens,
            budget_tokens,
            n_head_index,
            index_dim,
            ..
        } = *shape;
        require(
            block_tokens > 0,
            op,
            "block_tokens",
            block_tokens,
            "at least 1",
        )?;
        let whole = budget_tokens > 0 && budget_tokens.is_multiple_of(block_tokens);
        require(
            whole,
            op,
            "budget_tokens",
            budget_tokens,
            "a multiple of block_tokens",
        )?;
        require(
            n_head_index > 0,
            op,
            "n_head_index",
            n_head_index,
            "at least 1",
        )?;
        require(index_dim > 0, op, "index_dim", index_dim, "at least 1")?;
    }
    Ok(())
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
        let AttentionShape {
            block_tokens,
            budget_tokens,
            index_dim,
            ..
        } = shape;
        let n_visible = position + 1;
        let n_blocks = n_visible / block_tokens;
        let n_selected = budget_tokens / block_tokens;
        if n_blocks <= n_selected {
            return self.all(position);
        }
        self.ranked.clear();
        let keys = pooled.chunks_exact(index_dim).take(n_blocks);
        self.ranked.extend(keys.enumerate().map(|(b, key)| {
            let hits = iq.chunks_exact(index_dim).map(|q| dot_f32(q, key));
            // No score is -0.0 or NaN, which `total_cmp` would rank: neither passes the test.
            let score = hits.fold(0.0, |sum, hit| if hit > 0.0 { sum + hit } else { sum });
            (score / (index_dim as f32).sqrt(), b)
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::contract::Rope;

    proptest! {
        #[test]
        fn selection_is_a_stable_sort_by_score_cut_short(
            block_tokens in 1..5usize,
            n_selected in 1..6usize,
            n_tokens in 1..120usize,
            // Few distinct scores, so that most are tied; zeros of both signs and NaN among them.
            keys in proptest::collection::vec(
                prop::sample::select(vec![-1.0f32, -0.0, 0.0, 1.0, 2.0, f32::NAN]),
                120,
            ),
        ) {
            let rope = Rope { n_rot: 0, base: 1e4, first_position: 0 };
            let shape = AttentionShape {
                n_tokens: 1,
                first_position: 0,
                n_head: 1,
                n_head_kv: 1,
                head_dim: 1,
                block_tokens,
                budget_tokens: n_selected * block_tokens,
                n_head_index: 2,
                index_dim: 1,
                rope,
                eps: 0.0,
            };
            let n_blocks = n_tokens / block_tokens;
            let mut blocks: Vec<usize> = (0..n_blocks).collect();
            // A score is what is above zero of the key.
            let score = |b: &usize| if keys[*b] > 0.0 { keys[*b] as i32 } else { 0 };
            blocks.sort_by_key(|b| std::cmp::Reverse(score(b)));
            blocks.truncate(n_selected);
            let mut expected: Vec<usize> = blocks
                .iter()
                .flat_map(|b| b * block_tokens..(b + 1) * block_tokens)
                .chain(n_blocks * block_tokens..n_tokens)
                .collect();
            expected.sort_unstable();

            let mut visible = Visible::default();
            visible.select(shape, n_tokens - 1, &[1.0, 0.5], &keys);
            prop_assert_eq!(visible.positions().collect::<Vec<_>>(), expected);
        }
    }
}

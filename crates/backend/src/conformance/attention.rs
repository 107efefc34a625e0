//! Pooled keys, dense attention and sparse attention.
//!
//! Indexer operands are small whole numbers: scores are then exact on any device, so that the
//! selection is a matter of rank and not of rounding, and equal scores are common.

use std::ops::Range;

use super::SUM;
use super::naive;
use super::rig::{
    Rig, assert_close, assert_same_bits, assert_splits_agree, gammas, rows, values, whole,
};
use crate::contract::*;

/// Blocks of odd sizes, from the first on and from the middle.
pub fn pooled_keys_are_mean_then_norm_then_rotation<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    for (block_tokens, index_dim, n_rot) in [(1, 1, 0), (4, 16, 8), (3, 33, 32), (4, 7, 6)] {
        let rope = Rope {
            n_rot,
            base: 1e4,
            first_position: 9,
        };
        let shape = AttentionShape {
            block_tokens,
            index_dim,
            rope,
            ..SMALL
        };
        let raw = values(9 * block_tokens * index_dim, 1);
        let gamma = gammas(index_dim, 2);
        for blocks in [0..1, 0..9, 4..7, 8..9, 5..5] {
            let keys = blocks
                .clone()
                .map(|block| naive::pool_key(shape, block, &raw, &gamma));
            let expected: Vec<f64> = keys.flatten().collect();
            let what = format!("pool_keys {blocks:?} of {block_tokens} x {index_dim}");
            assert_close(
                &what,
                &rig.pool_keys(shape, blocks, &raw, &gamma),
                &expected,
                SUM,
            );
        }
    }
}

/// Dense: one head, several heads per key head, gates beside queries, a long past.
pub fn attention_is_gated_softmax<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    for (n_head, n_head_kv, head_dim) in [(1, 1, 1), (3, 1, 7), (4, 2, 16), (6, 3, 33)] {
        let shape = AttentionShape {
            n_head,
            n_head_kv,
            head_dim,
            block_tokens: 0,
            ..SMALL
        };
        let operands = Operands::new(shape, 70);
        for positions in [0..1, 0..3, 0..33, 37..38, 67..70] {
            operands.check(&mut rig, positions, false);
        }
    }
    // Scores far apart, where a softmax without its maximum taken off would overflow.
    let shape = AttentionShape {
        block_tokens: 0,
        ..SMALL
    };
    let mut operands = Operands::new(shape, 20);
    for q in &mut operands.q {
        *q *= 400.0;
    }
    operands.check(&mut rig, 0..20, false);
}

/// Around the first position with more complete blocks than the budget, and far beyond it.
pub fn sparse_attention_switches_at_the_budget<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    // With budget 8 and blocks of 4: 11 tokens are the last to be all visible, 12 the first not.
    for (block_tokens, budget_tokens) in [(4, 8), (4, 4), (1, 3), (3, 9)] {
        let shape = AttentionShape {
            block_tokens,
            budget_tokens,
            ..SMALL
        };
        let edge = budget_tokens + block_tokens;
        let operands = Operands::new(shape, edge + 40);
        for n_tokens in edge - 1..edge + 2 {
            operands.check(&mut rig, n_tokens - 1..n_tokens, true);
        }
        operands.check(&mut rig, 0..edge + 40, true);
    }
    // Long pasts, in which all but a few tokens are passed over.
    for n_tokens in [2_047, 2_048, 2_049, 2_052, 8_193] {
        let operands = Operands::new(SMALL, n_tokens);
        operands.check(&mut rig, n_tokens - 3..n_tokens, true);
    }
}

/// Equal scores go to the lower block, and so do scores that are all zero, whatever their sign.
pub fn equal_scores_select_the_lower_block<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    let n_tokens = 4 * 9 + 2;
    let mut operands = Operands::new(SMALL, n_tokens);
    let last = n_tokens - 1..n_tokens;
    let mut seen = |operands: &Operands| {
        let found = operands.run(&mut rig, last.clone(), true);
        operands.check(&mut rig, last.clone(), true);
        found
    };
    // Keys of zero, of minus zero and against the query: every score is zero.
    for (b, key) in operands
        .pooled
        .chunks_exact_mut(SMALL.index_dim)
        .enumerate()
    {
        key.fill([0.0, -0.0, -1.0][(b + 1) % 3]);
    }
    operands.iq.fill(1.0);
    let zero = seen(&operands);
    // The first two blocks and the tail, by hand.
    let positions: Vec<usize> = (0..8).chain(36..38).collect();
    let expected = operands.expected(n_tokens - 1, &positions);
    assert_close("all scores zero", &zero, &expected, SUM);

    // One clear winner at the end; the others are equal.
    operands.pooled.fill(1.0);
    operands.pooled[7 * SMALL.index_dim..8 * SMALL.index_dim].fill(2.0);
    let found = seen(&operands);
    let positions: Vec<usize> = (0..4).chain(28..32).chain(36..38).collect();
    assert_close(
        "one winner",
        &found,
        &operands.expected(n_tokens - 1, &positions),
        SUM,
    );
}

/// A query that ends a block has no tail: its own block may lose, and then its own key is unseen.
pub fn a_block_that_scores_least_is_not_seen_even_by_its_own_query<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    let mut operands = Operands::new(SMALL, 12);
    operands.iq.fill(1.0);
    operands.pooled[..2 * SMALL.index_dim].fill(2.0);
    operands.pooled[2 * SMALL.index_dim..].fill(1.0);
    let before = operands.run(&mut rig, 11..12, true);
    operands.check(&mut rig, 11..12, true);
    let own = 11 * SMALL.n_head_kv * SMALL.head_dim;
    operands.k[own..].fill(100.0);
    operands.v[own..].fill(100.0);
    assert_same_bits(
        "own key unseen",
        &operands.run(&mut rig, 11..12, true),
        &before,
    );
    // One token earlier the block is incomplete, a tail, and always seen.
    operands.check(&mut rig, 10..11, true);
}

/// With a budget for all blocks, an indexer changes nothing.
pub fn selecting_every_block_is_dense_bit_for_bit<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    for n_tokens in [11_usize, 12, 2_047, 2_048, 2_049, 2_052, 8_193] {
        let budget_tokens = n_tokens.next_multiple_of(4);
        let operands = Operands::new(
            AttentionShape {
                budget_tokens,
                ..SMALL
            },
            n_tokens,
        );
        let last = n_tokens.saturating_sub(5)..n_tokens;
        let dense = operands.run(&mut rig, last.clone(), false);
        let sparse = operands.run(&mut rig, last.clone(), true);
        assert_same_bits(&format!("{n_tokens} tokens, all selected"), &sparse, &dense);
        operands.check(&mut rig, last, true);
    }
}

/// Dense and sparse, over a cache that grows and over pooled keys that are computed as blocks fill.
pub fn attention_is_the_same_whatever_the_chunks<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    let n = 71;
    for sparse in [false, true] {
        let operands = Operands::new(SMALL, n);
        assert_splits_agree("attention", n, |chunks| {
            chunks
                .iter()
                .flat_map(|c| operands.run(&mut rig, c.clone(), sparse))
                .collect()
        });
    }
    let raw = values(n * SMALL.index_dim, 3);
    let gamma = gammas(SMALL.index_dim, 4);
    let c = SMALL.block_tokens;
    assert_splits_agree("pool_keys", n, |chunks| {
        let blocks = chunks.iter().map(|t| t.start / c..t.end / c);
        blocks
            .flat_map(|blocks| rig.pool_keys(SMALL, blocks, &raw, &gamma))
            .collect()
    });
}

/// Results for [`assert_same_results`](super::assert_same_results).
pub(super) fn results<B: Backend>(b: &B) -> Vec<(String, Vec<f32>)> {
    let mut rig = Rig::new(b);
    let operands = Operands::new(SMALL, 150);
    let (raw, gamma) = (
        values(2_000 * SMALL.index_dim, 5),
        gammas(SMALL.index_dim, 6),
    );
    vec![
        ("attention".into(), operands.run(&mut rig, 50..150, false)),
        (
            "sparse attention".into(),
            operands.run(&mut rig, 50..150, true),
        ),
        (
            "pool_keys".into(),
            rig.pool_keys(SMALL, 100..500, &raw, &gamma),
        ),
    ]
}

/// Several heads per key head, two blocks of four tokens to select.
pub(super) const SMALL: AttentionShape = AttentionShape {
    n_tokens: 0,
    first_position: 0,
    n_head: 4,
    n_head_kv: 2,
    head_dim: 12,
    block_tokens: 4,
    budget_tokens: 8,
    n_head_index: 3,
    index_dim: 20,
    rope: Rope {
        n_rot: 8,
        base: 1e4,
        first_position: 0,
    },
    eps: 1e-6,
};

/// Operands for a sequence whose every token has been cached.
///
/// A query must not see what lies behind it, so the cache may hold the whole sequence from the
/// start. Gates lie behind their head's query, as in a joint projection.
struct Operands {
    shape: AttentionShape,
    q: Vec<f32>,
    gate: Vec<f32>,
    iq: Vec<f32>,
    pooled: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Operands {
    fn new(shape: AttentionShape, n: usize) -> Self {
        let width = shape.n_head * shape.head_dim;
        let kv_width = shape.n_head_kv * shape.head_dim;
        let n_blocks = n.checked_div(shape.block_tokens).unwrap_or(0);
        Self {
            shape,
            q: values(n * width, 10).iter().map(|q| 3.0 * q).collect(),
            gate: values(n * 2 * width, 11),
            iq: whole(n * shape.n_head_index * shape.index_dim, 12),
            pooled: whole(n_blocks * shape.index_dim, 13),
            k: values(n * kv_width, 14),
            v: values(n * kv_width, 15),
        }
    }

    fn gate_layout(&self) -> HeadLayout {
        let AttentionShape {
            n_head, head_dim, ..
        } = self.shape;
        HeadLayout {
            row_len: 2 * n_head * head_dim,
            offset: head_dim,
            stride: 2 * head_dim,
            n_head,
            head_dim,
            eps: 0.0,
        }
    }

    fn run<B: Backend>(
        &self,
        rig: &mut Rig<'_, B>,
        positions: Range<usize>,
        sparse: bool,
    ) -> Vec<f32> {
        let width = self.shape.n_head * self.shape.head_dim;
        let index_width = self.shape.n_head_index * self.shape.index_dim;
        let shape = AttentionShape {
            n_tokens: positions.len(),
            first_position: positions.start,
            ..self.shape
        };
        let q = rig.up(&rows(&self.q, &positions, width));
        let gate = rig.up(&rows(&self.gate, &positions, 2 * width));
        let iq = rig.up(&rows(&self.iq, &positions, index_width));
        let [pooled, k, v] = [&self.pooled, &self.k, &self.v].map(|x| rig.up(x));
        let mut out = rig.output(positions.len() * width);
        let input = AttentionInput {
            q: &q,
            gate: &gate,
            gate_layout: self.gate_layout(),
            indexer: sparse.then_some(IndexerInput {
                q: &iq,
                pooled: &pooled,
            }),
        };
        let cache = AttentionCache { k: &k, v: &v };
        rig.b
            .attention(&mut rig.rec, shape, input, cache, &mut out)
            .unwrap();
        rig.down(&out, positions.len() * width)
    }

    /// Compares with the naive result.
    fn check<B: Backend>(&self, rig: &mut Rig<'_, B>, positions: Range<usize>, sparse: bool) {
        let index_width = self.shape.n_head_index * self.shape.index_dim;
        let mut expected = vec![];
        for p in positions.clone() {
            let iq = &self.iq[p * index_width..(p + 1) * index_width];
            let visible = match sparse {
                true => naive::visible(self.shape, p, iq, &self.pooled),
                false => (0..=p).collect(),
            };
            expected.extend(self.expected(p, &visible));
        }
        let what = format!("attention, sparse: {sparse}, positions {positions:?}");
        assert_close(&what, &self.run(rig, positions, sparse), &expected, SUM);
    }

    /// Naive output of the query at `position` over `visible`.
    fn expected(&self, position: usize, visible: &[usize]) -> Vec<f64> {
        let AttentionShape {
            n_head, head_dim, ..
        } = self.shape;
        let kv = (&self.k[..], &self.v[..]);
        let head = |h: usize| {
            let at = (position * n_head + h) * head_dim;
            let gate = (position * n_head + h) * 2 * head_dim + head_dim;
            let (q, gate) = (
                &self.q[at..at + head_dim],
                &self.gate[gate..gate + head_dim],
            );
            naive::attend(self.shape, h, visible, q, gate, kv)
        };
        (0..n_head).flat_map(head).collect()
    }
}

//! Host to host: each operation as a function of vectors, and how results are compared.
//!
//! Outputs start as a mark and are a little longer than needed, so that an element that was not
//! written, or should not have been, is seen.

use std::ops::Range;

use crate::contract::*;
use crate::{MatData, Result};

/// Elements that every buffer has beyond its shape.
const PAD: usize = 5;

/// What outputs hold before an operation.
pub(super) const MARK: f32 = -1.5e30;

/// A backend with a recorder.
pub(super) struct Rig<'b, B: Backend> {
    pub(super) b: &'b B,
    pub(super) rec: B::Recorder,
}

impl<'b, B: Backend> Rig<'b, B> {
    pub(super) fn new(b: &'b B) -> Self {
        Self {
            b,
            rec: b.recorder(),
        }
    }

    /// A buffer of these values.
    pub(super) fn up(&mut self, values: &[f32]) -> B::Buffer {
        let mut buffer = self.output(values.len());
        self.b.write(&mut self.rec, &mut buffer, 0, values).unwrap();
        buffer
    }

    /// A buffer to write `len` elements into.
    pub(super) fn output(&mut self, len: usize) -> B::Buffer {
        let mut buffer = self.b.alloc(len + PAD).unwrap();
        self.b
            .write(&mut self.rec, &mut buffer, 0, &vec![MARK; len + PAD])
            .unwrap();
        buffer
    }

    /// The first `len` elements of a buffer of [`Rig::up`] or [`Rig::output`].
    pub(super) fn down(&mut self, buffer: &B::Buffer, len: usize) -> Vec<f32> {
        let mut all = vec![0.0; len + PAD];
        self.b.read(&mut self.rec, buffer, 0, &mut all).unwrap();
        for x in all.drain(len..) {
            assert_eq!(x.to_bits(), MARK.to_bits(), "wrote past element {len}");
        }
        all
    }

    pub(super) fn matrix(&self, n_in: usize, n_out: usize, values: &[f32]) -> B::Matrix {
        self.b
            .load(MatData::from_f32(n_in, n_out, values).unwrap())
            .unwrap()
    }

    pub(super) fn embed(
        &mut self,
        table: &B::Matrix,
        n_in: usize,
        ids: &[u32],
        copies: usize,
    ) -> Vec<f32> {
        let mut out = self.output(ids.len() * copies * n_in);
        self.b
            .embed(&mut self.rec, table, ids, copies, &mut out)
            .unwrap();
        self.down(&out, ids.len() * copies * n_in)
    }

    pub(super) fn matmul(
        &mut self,
        w: &B::Matrix,
        n_out: usize,
        x: &[f32],
        n_tokens: usize,
    ) -> Vec<f32> {
        let x = self.up(x);
        let mut y = self.output(n_tokens * n_out);
        self.b
            .matmul(&mut self.rec, w, &x, n_tokens, &mut y)
            .unwrap();
        self.down(&y, n_tokens * n_out)
    }

    pub(super) fn rms_norm(&mut self, shape: NormShape, x: &[f32], gamma: &[f32]) -> Vec<f32> {
        let (x_in, gamma) = (self.up(x), self.up(gamma));
        let mut out = self.output(x.len());
        self.b
            .rms_norm(&mut self.rec, shape, &x_in, &gamma, &mut out)
            .unwrap();
        self.down(&out, x.len())
    }

    pub(super) fn add(&mut self, x: &[f32], y: &[f32]) -> Vec<f32> {
        let (mut buffer, y) = (self.up(x), self.up(y));
        self.b.add(&mut self.rec, &mut buffer, &y, x.len()).unwrap();
        self.down(&buffer, x.len())
    }

    pub(super) fn silu(&mut self, x: &[f32], divisor: f32) -> Vec<f32> {
        let mut buffer = self.up(x);
        self.b
            .silu(&mut self.rec, &mut buffer, divisor, x.len())
            .unwrap();
        self.down(&buffer, x.len())
    }

    pub(super) fn swiglu(&mut self, gate: &[f32], up: &[f32]) -> Vec<f32> {
        let (mut buffer, up) = (self.up(gate), self.up(up));
        self.b
            .swiglu(&mut self.rec, &mut buffer, &up, gate.len())
            .unwrap();
        self.down(&buffer, gate.len())
    }

    pub(super) fn gate_streams(&mut self, shape: StreamShape, g: &[f32], n: &[f32]) -> Vec<f32> {
        let len = shape.n_tokens * shape.n_embd;
        let (g, n, mut out) = (self.up(g), self.up(n), self.output(len));
        self.b
            .gate_streams(&mut self.rec, shape, &g, &n, &mut out)
            .unwrap();
        self.down(&out, len)
    }

    pub(super) fn inject(
        &mut self,
        shape: StreamShape,
        w: &[f32],
        y: &[f32],
        x: &[f32],
    ) -> Vec<f32> {
        let (w, y, mut buffer) = (self.up(w), self.up(y), self.up(x));
        self.b
            .inject(&mut self.rec, shape, &w, &y, &mut buffer)
            .unwrap();
        self.down(&buffer, x.len())
    }

    /// Output and history.
    pub(super) fn causal_conv(
        &mut self,
        shape: ConvShape,
        x: &[f32],
        kernel: &[f32],
        past: &[f32],
    ) -> (Vec<f32>, Vec<f32>) {
        let mut next = self.output(past.len());
        let mut out = self.output(x.len());
        let (x_in, kernel, past_in) = (self.up(x), self.up(kernel), self.up(past));
        self.b
            .causal_conv(
                &mut self.rec,
                shape,
                &x_in,
                &kernel,
                &past_in,
                &mut next,
                &mut out,
            )
            .unwrap();
        (self.down(&out, x.len()), self.down(&next, past.len()))
    }

    /// Output and state.
    pub(super) fn delta_rule(
        &mut self,
        shape: DeltaShape,
        input: &DeltaInput<'_, Vec<f32>>,
        past: &[f32],
    ) -> (Vec<f32>, Vec<f32>) {
        let len = shape.n_tokens * shape.n_head_v * shape.head_dim;
        let [u, b, a, z, a_log, dt, gamma] = [
            input.u,
            input.b,
            input.a,
            input.z,
            input.a_log,
            input.dt,
            input.gamma,
        ]
        .map(|v| self.up(v));
        let (past_in, mut next, mut out) =
            (self.up(past), self.output(past.len()), self.output(len));
        let input = DeltaInput {
            u: &u,
            b: &b,
            a: &a,
            z: &z,
            a_log: &a_log,
            dt: &dt,
            gamma: &gamma,
        };
        self.b
            .delta_rule(&mut self.rec, shape, input, &past_in, &mut next, &mut out)
            .unwrap();
        (self.down(&out, len), self.down(&next, past.len()))
    }

    /// Rows `first_row..` of an output; the rows before must stay.
    pub(super) fn norm_rope(
        &mut self,
        from: HeadLayout,
        rope: Rope,
        n_tokens: usize,
        x: &[f32],
        gamma: &[f32],
        first_row: usize,
    ) -> Vec<f32> {
        let width = from.n_head * from.head_dim;
        let len = (first_row + n_tokens) * width;
        let (x, gamma, mut out) = (self.up(x), self.up(gamma), self.output(len));
        self.b
            .norm_rope(
                &mut self.rec,
                from,
                rope,
                n_tokens,
                &x,
                &gamma,
                &mut out,
                first_row,
            )
            .unwrap();
        self.tail(&out, len, first_row * width)
    }

    /// Rows `blocks` of the pooled keys; the rows before must stay.
    pub(super) fn pool_keys(
        &mut self,
        shape: AttentionShape,
        blocks: Range<usize>,
        raw: &[f32],
        gamma: &[f32],
    ) -> Vec<f32> {
        let len = blocks.end * shape.index_dim;
        let (raw, gamma, mut pooled) = (self.up(raw), self.up(gamma), self.output(len));
        let kept = blocks.start * shape.index_dim;
        self.b
            .pool_keys(&mut self.rec, shape, blocks, &raw, &gamma, &mut pooled)
            .unwrap();
        self.tail(&pooled, len, kept)
    }

    pub(super) fn combine(
        &mut self,
        shape: MoeShape,
        rows: &[u32],
        weights: &[f32],
        partial: &[f32],
        shared: &[f32],
        shared_gate: &[f32],
    ) -> Vec<f32> {
        let len = shape.n_tokens * shape.n_embd;
        let [partial, shared, gate] = [partial, shared, shared_gate].map(|v| self.up(v));
        let mut out = self.output(len);
        self.b
            .combine(
                &mut self.rec,
                shape,
                rows,
                weights,
                &partial,
                &shared,
                &gate,
                &mut out,
            )
            .unwrap();
        self.down(&out, len)
    }

    pub(super) fn ngram_gate(
        &mut self,
        shape: StreamShape,
        eps: f32,
        key: (&[f32], &[f32]),
        query: (&[f32], &[f32]),
        value: &[f32],
    ) -> Vec<f32> {
        let len = shape.n_tokens * shape.n_streams * shape.n_embd;
        let [key, gamma_key, query, gamma_query, value] =
            [key.0, key.1, query.0, query.1, value].map(|v| self.up(v));
        let mut out = self.output(len);
        let (key, query) = ((&key, &gamma_key), (&query, &gamma_query));
        self.b
            .ngram_gate(&mut self.rec, shape, eps, key, query, &value, &mut out)
            .unwrap();
        self.down(&out, len)
    }

    /// Runs experts into a marked output of `n_rows` rows.
    pub(super) fn experts(
        &mut self,
        jobs: &[ExpertJob<'_>],
        x: &[f32],
        n_rows: usize,
        n_embd: usize,
    ) -> Result<Vec<f32>> {
        let (x, mut partial) = (self.up(x), self.output(n_rows * n_embd));
        self.b.experts(&mut self.rec, jobs, &x, &mut partial)?;
        Ok(self.down(&partial, n_rows * n_embd))
    }

    /// Makes room for copies of experts.
    pub(super) fn keep_experts(&mut self, layers: &[ExpertRoom]) {
        self.b.keep_experts(&mut self.rec, layers).unwrap();
    }

    /// Whether there is a copy of an expert.
    pub(super) fn holds(&self, layer: usize, expert: u16) -> bool {
        self.b.holds(&self.rec, layer, expert)
    }

    /// Runs copies of experts into a marked output of `n_rows` rows.
    pub(super) fn held_experts(
        &mut self,
        layer: usize,
        held: &[HeldExpert<'_>],
        x: &[f32],
        n_rows: usize,
        n_embd: usize,
    ) -> Result<Vec<f32>> {
        let (x, mut partial) = (self.up(x), self.output(n_rows * n_embd));
        self.b
            .held_experts(&mut self.rec, layer, held, &x, &mut partial)?;
        Ok(self.down(&partial, n_rows * n_embd))
    }

    /// Runs copies of experts and others into one marked output of `n_rows` rows.
    pub(super) fn experts_in_tiers(
        &mut self,
        layer: usize,
        held: &[HeldExpert<'_>],
        others: &[ExpertJob<'_>],
        x: &[f32],
        n_rows: usize,
        n_embd: usize,
    ) -> Vec<f32> {
        let (x, mut partial) = (self.up(x), self.output(n_rows * n_embd));
        self.b
            .held_experts(&mut self.rec, layer, held, &x, &mut partial)
            .unwrap();
        self.b
            .experts(&mut self.rec, others, &x, &mut partial)
            .unwrap();
        self.down(&partial, n_rows * n_embd)
    }

    /// Elements from `kept` on, once those before are seen to be untouched.
    fn tail(&mut self, buffer: &B::Buffer, len: usize, kept: usize) -> Vec<f32> {
        let mut all = self.down(buffer, len);
        for x in all.drain(..kept) {
            assert_eq!(x.to_bits(), MARK.to_bits(), "wrote before element {kept}");
        }
        all
    }
}

/// `n` values in `-1.0..1.0`, the same for the same seed.
pub(super) fn values(n: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    (0..n)
        .map(|_| (random.next() >> 40) as f32 / (1 << 23) as f32 - 1.0)
        .collect()
}

/// `n` values in `0.5..1.5`.
pub(super) fn gammas(n: usize, seed: u64) -> Vec<f32> {
    values(n, seed).into_iter().map(|x| 1.0 + x / 2.0).collect()
}

/// `n` small whole numbers in `-2..=2`, whose sums of products are exact in any order.
pub(super) fn whole(n: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    (0..n).map(|_| (random.next() % 5) as f32 - 2.0).collect()
}

/// SplitMix64.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `limit`.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// Fails unless each element is within `tolerance * max(1, |expected|)`.
pub(super) fn assert_close(what: &str, found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*f) - e).abs();
        // Also false for NaN.
        let close = error <= tolerance * e.abs().max(1.0);
        assert!(close, "{what}: element {i} is {f}, expected {e}");
    }
}

/// Fails unless all elements have the same bits.
pub(super) fn assert_same_bits(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert_eq!(
            f.to_bits(),
            e.to_bits(),
            "{what}: element {i} is {f:?}, expected {e:?}"
        );
    }
}

/// Ways to cut `n` tokens into chunks: one by one, by 7 and by 64.
pub(super) fn splits(n: usize) -> impl Iterator<Item = Vec<Range<usize>>> {
    [1, 7, 64].into_iter().map(move |size| {
        (0..n)
            .step_by(size)
            .map(|first| first..(first + size).min(n))
            .collect()
    })
}

/// Fails unless a result is the same for all tokens at once and for every split.
///
/// `run` maps chunks to the concatenated results, state included.
pub(super) fn assert_splits_agree(
    what: &str,
    n: usize,
    mut run: impl FnMut(&[Range<usize>]) -> Vec<f32>,
) {
    let at_once = run(std::slice::from_ref(&(0..n)));
    for chunks in splits(n) {
        let what = format!("{what}, {n} tokens as {} chunks", chunks.len());
        assert_same_bits(&what, &run(&chunks), &at_once);
    }
}

/// [`assert_splits_agree`] for an operation without state.
pub(super) fn assert_rows_stand_alone(
    what: &str,
    n: usize,
    mut run: impl FnMut(Range<usize>) -> Vec<f32>,
) {
    assert_splits_agree(what, n, |chunks| {
        chunks.iter().flat_map(|c| run(c.clone())).collect()
    });
}

/// Rows `chunk` of a matrix with rows of `width`.
pub(super) fn rows(x: &[f32], chunk: &Range<usize>, width: usize) -> Vec<f32> {
    x[chunk.start * width..chunk.end * width].to_vec()
}

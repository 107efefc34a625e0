//! Operations over time with state: the convolution and the delta rule; heads and the n-gram gate.

use super::naive;
use super::rig::{Rig, assert_close, assert_same_bits, assert_splits_agree, gammas, rows, values};
use super::{ELEMENT, SUM};
use crate::contract::*;

const TOKENS: [usize; 3] = [1, 3, 33];

/// Taps and dilations of one to four and three, chunks shorter and longer than the history.
pub fn convolution_reaches_back_by_dilation<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    for (taps, dilation) in [(1, 1), (2, 1), (4, 1), (4, 3), (3, 5)] {
        for channels in [1, 7, 40] {
            for n_tokens in TOKENS {
                let shape = ConvShape {
                    n_tokens,
                    channels,
                    taps,
                    dilation,
                };
                let x = values(n_tokens * channels, 1);
                let kernel = values(channels * taps, 2);
                let past = values(shape.history() * channels, 3);
                let what = format!("causal_conv {shape:?}");
                let (out, next) = rig.causal_conv(shape, &x, &kernel, &past);
                let (expected, history) = naive::causal_conv(shape, &x, &kernel, &past);
                assert_close(&what, &out, &expected, ELEMENT);
                assert_same_bits(&what, &next, &history);
            }
        }
    }
}

/// The convolution with its history carried over, dilation one and three.
pub fn convolution_is_the_same_whatever_the_chunks<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    let (n, channels) = (71, 19);
    for (taps, dilation) in [(4, 1), (4, 3)] {
        let shape = |n_tokens| ConvShape {
            n_tokens,
            channels,
            taps,
            dilation,
        };
        let x = values(n * channels, 4);
        let kernel = values(channels * taps, 5);
        let start = values(shape(0).history() * channels, 6);
        assert_splits_agree("causal_conv", n, |chunks| {
            let mut past = start.clone();
            let mut all = vec![];
            for c in chunks {
                let x = rows(&x, c, channels);
                let (out, next) = rig.causal_conv(shape(c.len()), &x, &kernel, &past);
                all.extend(out);
                past = next;
            }
            all.extend(past);
            all
        });
    }
}

/// One head, several value heads per key head, head sizes that are no multiple of 16.
pub fn delta_rule_follows_the_recurrence<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    for (n_head_k, n_head_v, head_dim) in [(1, 1, 1), (1, 3, 5), (2, 2, 16), (2, 6, 33)] {
        for n_tokens in TOKENS {
            let shape = DeltaShape {
                n_tokens,
                n_head_k,
                n_head_v,
                head_dim,
                eps: 1e-6,
            };
            let operands = Delta::new(shape);
            let (out, state) = rig.delta_rule(shape, &operands.input(), &operands.past);
            let (expected, next) = naive::delta_rule(shape, &operands.input(), &operands.past);
            let what = format!("delta_rule {shape:?}");
            assert_close(&what, &out, &expected, SUM);
            assert_close(&what, &state, &next, SUM);
        }
    }
}

/// Zero keys, a state that decays at once, a decay input far beyond the softplus's linear end.
pub fn delta_rule_survives_extreme_decay<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    let shape = DeltaShape {
        n_tokens: 4,
        n_head_k: 1,
        n_head_v: 2,
        head_dim: 8,
        eps: 1e-6,
    };
    let mut operands = Delta::new(shape);
    // Softplus is linear, as good as zero, at its bend; the last token has q = k = 0.
    operands.a = vec![90.0, 19.9, 20.1, -90.0, 0.0, 1e4, -1e4, 3.0];
    operands.a_log = vec![-0.01, -0.02];
    operands.b = vec![-90.0, 90.0, 0.0, -1.0, 1.0, 2.0, 3.0, 4.0];
    let channels = shape.channels();
    operands.u[3 * channels..3 * channels + 16].fill(0.0);
    let (out, state) = rig.delta_rule(shape, &operands.input(), &operands.past);
    let (expected, next) = naive::delta_rule(shape, &operands.input(), &operands.past);
    assert_close(
        "delta_rule, extremes",
        &out[..out.len() - 16],
        &expected[..expected.len() - 16],
        SUM,
    );
    // Query zero: the norm of a zero vector is zero.
    assert!(out[out.len() - 16..].iter().all(|o| *o == 0.0));
    assert_close("delta_rule, extremes", &state, &next, SUM);
}

/// The recurrence with its state carried over.
pub fn delta_rule_is_the_same_whatever_the_chunks<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    let n = 71;
    let shape = |n_tokens| DeltaShape {
        n_tokens,
        n_head_k: 2,
        n_head_v: 4,
        head_dim: 12,
        eps: 1e-6,
    };
    let whole = Delta::new(shape(n));
    assert_splits_agree("delta_rule", n, |chunks| {
        let mut part = whole.clone();
        let mut all = vec![];
        for c in chunks {
            let shape = shape(c.len());
            part.u = rows(&whole.u, c, shape.channels());
            part.b = rows(&whole.b, c, 4);
            part.a = rows(&whole.a, c, 4);
            part.z = rows(&whole.z, c, 48);
            let (out, next) = rig.delta_rule(shape, &part.input(), &part.past);
            all.extend(out);
            part.past = next;
        }
        all.extend(part.past);
        all
    });
}

/// Heads side by side and interleaved with something else, rotated in part, in whole, not at all.
pub fn heads_are_normed_and_rotated<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    let layouts = [
        // One head; three heads; three heads whose rows alternate with gates, read at an offset.
        HeadLayout {
            row_len: 8,
            offset: 0,
            stride: 8,
            n_head: 1,
            head_dim: 8,
            eps: 1e-6,
        },
        HeadLayout {
            row_len: 99,
            offset: 0,
            stride: 33,
            n_head: 3,
            head_dim: 33,
            eps: 1e-6,
        },
        HeadLayout {
            row_len: 120,
            offset: 20,
            stride: 40,
            n_head: 3,
            head_dim: 20,
            eps: 1e-3,
        },
    ];
    for from in layouts {
        for n_rot in [0, 2, 6, from.head_dim / 2 * 2] {
            for (n_tokens, first_position, first_row) in [(1, 0, 0), (3, 60, 2), (33, 7, 7)] {
                let rope = Rope {
                    n_rot,
                    base: 1e4,
                    first_position,
                };
                let x = values(n_tokens * from.row_len, 7);
                let gamma = gammas(from.head_dim, 8);
                let found = rig.norm_rope(from, rope, n_tokens, &x, &gamma, first_row);
                let expected = naive::norm_rope(from, rope, n_tokens, &x, &gamma);
                // An angle has an error of its own size times the precision of f32.
                let what = format!("norm_rope {from:?} {rope:?}");
                assert_close(&what, &found, &expected, SUM);
            }
        }
    }
    // The far end of a long context: half precision or a wrapped position would show.
    let rope = Rope {
        n_rot: 8,
        base: 1e7,
        first_position: 262_142,
    };
    let (x, gamma) = (values(2 * layouts[0].row_len, 9), gammas(8, 10));
    let found = rig.norm_rope(layouts[0], rope, 2, &x, &gamma, 0);
    let expected = naive::norm_rope(layouts[0], rope, 2, &x, &gamma);
    assert_close("norm_rope at a far position", &found, &expected, 0.02);
}

/// Signs, sizes and the exact zero of the gate's argument.
pub fn ngram_gate_is_a_signed_root<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    for (n_streams, n_embd) in [(1, 1), (2, 7), (4, 33)] {
        for n_tokens in TOKENS {
            let shape = StreamShape {
                n_tokens,
                n_streams,
                n_embd,
            };
            let wide = n_streams * n_embd;
            let [key, query] = [11, 12].map(|seed| values(n_tokens * wide, seed));
            let [of_key, of_query] = [13, 14].map(|seed| gammas(wide, seed));
            let value = values(n_tokens * n_embd, 15);
            let (key, query) = ((&key[..], &of_key[..]), (&query[..], &of_query[..]));
            let found = rig.ngram_gate(shape, 1e-6, key, query, &value);
            let expected = naive::ngram_gate(shape, 1e-6, key, query, &value);
            // The root makes small errors of a small argument larger.
            assert_close(&format!("ngram_gate {shape:?}"), &found, &expected, 2e-4);
        }
    }
    // Orthogonal: exactly half. Hardly aligned: the root of the floor, with the sign kept.
    let shape = StreamShape {
        n_tokens: 3,
        n_streams: 1,
        n_embd: 2,
    };
    let key = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0];
    let query = [0.0, 1.0, 1e-9, 1.0, -1e-9, 1.0];
    let ones = [1.0; 2];
    let found = rig.ngram_gate(shape, 0.0, (&key, &ones), (&query, &ones), &[1.0; 6]);
    let above = naive::sigmoid(1e-3);
    let expected = [0.5, 0.5, above, above, 1.0 - above, 1.0 - above];
    assert_close("ngram_gate near zero", &found, &expected, 1e-6);
}

/// Results for [`assert_same_results`](super::assert_same_results).
pub(super) fn results<B: Backend>(b: &B) -> Vec<(String, Vec<f32>)> {
    let mut rig = Rig::new(b);
    let mut all = vec![];
    let shape = ConvShape {
        n_tokens: 130,
        channels: 200,
        taps: 4,
        dilation: 3,
    };
    let x = values(130 * 200, 16);
    let (out, next) = rig.causal_conv(shape, &x, &values(800, 17), &values(9 * 200, 18));
    all.push(("causal_conv".into(), [out, next].concat()));
    let shape = DeltaShape {
        n_tokens: 40,
        n_head_k: 2,
        n_head_v: 6,
        head_dim: 32,
        eps: 1e-6,
    };
    let operands = Delta::new(shape);
    let (out, next) = rig.delta_rule(shape, &operands.input(), &operands.past);
    all.push(("delta_rule".into(), [out, next].concat()));
    let from = HeadLayout {
        row_len: 256,
        offset: 0,
        stride: 64,
        n_head: 4,
        head_dim: 64,
        eps: 1e-6,
    };
    let rope = Rope {
        n_rot: 32,
        base: 1e7,
        first_position: 1_000,
    };
    let found = rig.norm_rope(from, rope, 100, &x, &gammas(64, 19), 0);
    all.push(("norm_rope".into(), found));
    all
}

/// Operands of a delta rule, decaying slowly enough that every token matters to the last.
#[derive(Clone)]
struct Delta {
    u: Vec<f32>,
    b: Vec<f32>,
    a: Vec<f32>,
    z: Vec<f32>,
    a_log: Vec<f32>,
    dt: Vec<f32>,
    gamma: Vec<f32>,
    past: Vec<f32>,
}

impl Delta {
    fn new(shape: DeltaShape) -> Self {
        let (n, heads) = (shape.n_tokens, shape.n_head_v);
        Self {
            u: values(n * shape.channels(), 20),
            b: values(n * heads, 21),
            a: values(n * heads, 22),
            z: values(n * heads * shape.head_dim, 23),
            a_log: gammas(heads, 24).iter().map(|a| -0.1 * a).collect(),
            dt: values(heads, 25),
            gamma: gammas(shape.head_dim, 26),
            past: values(shape.state_len(), 27),
        }
    }

    fn input(&self) -> DeltaInput<'_, Vec<f32>> {
        DeltaInput {
            u: &self.u,
            b: &self.b,
            a: &self.a,
            z: &self.z,
            a_log: &self.a_log,
            dt: &self.dt,
            gamma: &self.gamma,
        }
    }
}

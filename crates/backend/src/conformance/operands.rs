//! Every operation that takes buffers, with the exact length that each of its operands needs.

use super::limits::{delta_input, square_expert};
use crate::contract::*;
use crate::{MatData, Result, Routing};

/// An operation with the exact lengths of its operands.
pub(super) struct Call<B: Backend> {
    pub(super) op: &'static str,
    pub(super) lens: Vec<usize>,
    #[allow(clippy::type_complexity)]
    pub(super) run: Box<dyn Fn(&B, &mut [B::Buffer]) -> Result<()>>,
}

/// Every operation that takes buffers.
pub(super) fn calls<B: Backend>() -> Vec<Call<B>> {
    let mut all: Vec<Call<B>> = vec![];
    // A macro, because the number of operands is the pattern's.
    macro_rules! call {
        ($op:literal, $b:ident, $rec:ident, [$($operand:ident: $len:expr),+], $run:expr) => {
            all.push(Call {
                op: $op,
                lens: vec![$($len),+],
                run: Box::new(move |$b, operands| {
                    let [$($operand),+] = operands else {
                        panic!("{} takes other operands", $op)
                    };
                    let mut recorder = $b.recorder();
                    let $rec = &mut recorder;
                    $run
                }),
            });
        };
    }
    let eps = 1e-6;
    let matrix = |b: &B| {
        b.load(MatData::from_f32(3, 5, &[0.5; 15]).unwrap())
            .unwrap()
    };

    call!("write", b, rec, [x: 7], b.write(rec, x, 4, &[0.0; 3]));
    call!("read", b, rec, [x: 7], b.read(rec, x, 4, &mut [0.0; 3]));
    call!("copy", b, rec, [x: 7, y: 5], b.copy(rec, (x, 4), (y, 2), 3));
    call!("embed", b, rec, [out: 12], b.embed(rec, &matrix(b), &[4, 0], 2, out));
    call!("matmul", b, rec, [x: 6, y: 10], b.matmul(rec, &matrix(b), x, 2, y));
    call!("add", b, rec, [x: 7, y: 7], b.add(rec, x, y, 7));
    call!("silu", b, rec, [x: 7], b.silu(rec, x, 1.0, 7));
    call!("swiglu", b, rec, [x: 7, y: 7], b.swiglu(rec, x, y, 7));
    let norm = NormShape {
        n_rows: 3,
        n_groups: 2,
        width: 5,
        eps,
    };
    call!("rms_norm", b, rec, [x: 30, gamma: 10, out: 30], b.rms_norm(rec, norm, x, gamma, out));
    let streams = StreamShape {
        n_tokens: 3,
        n_streams: 2,
        n_embd: 5,
    };
    call!("gate_streams", b, rec, [g: 30, n: 30, out: 15], b.gate_streams(rec, streams, g, n, out));
    call!("inject", b, rec, [w: 6, y: 15, x: 30], b.inject(rec, streams, w, y, x));
    call!(
        "ngram_gate", b, rec,
        [key: 30, of_key: 10, query: 30, of_query: 10, value: 15, out: 30],
        b.ngram_gate(rec, streams, eps, (key, of_key), (query, of_query), value, out)
    );
    let conv = ConvShape {
        n_tokens: 3,
        channels: 5,
        taps: 4,
        dilation: 2,
    };
    call!(
        "causal_conv", b, rec, [x: 15, kernel: 20, past: 30, next: 30, out: 15],
        b.causal_conv(rec, conv, x, kernel, past, next, out)
    );
    let delta = DeltaShape {
        n_tokens: 3,
        n_head_k: 1,
        n_head_v: 2,
        head_dim: 4,
        eps,
    };
    call!(
        "delta_rule", b, rec,
        [u: 48, beta: 6, a: 6, z: 24, a_log: 2, dt: 2, gamma: 4, past: 32, next: 32, out: 24],
        b.delta_rule(rec, delta, delta_input(&[u, beta, a, z, a_log, dt, gamma]), past, next, out)
    );
    let heads = HeadLayout {
        row_len: 13,
        offset: 1,
        stride: 6,
        n_head: 2,
        head_dim: 5,
        eps,
    };
    let rope = Rope {
        n_rot: 4,
        base: 1e4,
        first_position: 9,
    };
    call!(
        "norm_rope", b, rec, [x: 39, gamma: 5, out: 50],
        b.norm_rope(rec, heads, rope, 3, x, gamma, out, 2)
    );
    let attention = AttentionShape {
        n_tokens: 3,
        first_position: 9,
        n_head: 2,
        n_head_kv: 1,
        head_dim: 5,
        block_tokens: 2,
        budget_tokens: 4,
        n_head_index: 3,
        index_dim: 4,
        rope,
        eps,
    };
    call!(
        "pool_keys", b, rec, [raw: 48, gamma: 4, pooled: 24],
        b.pool_keys(rec, attention, 2..6, raw, gamma, pooled)
    );
    call!(
        "attention", b, rec, [q: 30, gate: 39, iq: 36, pooled: 24, k: 60, v: 60, out: 30],
        {
            let indexer = Some(IndexerInput { q: &*iq, pooled: &*pooled });
            let input = AttentionInput { q: &*q, gate: &*gate, gate_layout: heads, indexer };
            b.attention(rec, attention, input, AttentionCache { k: &*k, v: &*v }, out)
        }
    );
    call!("route", b, rec, [logits: 12], {
        let mut routing = Routing::default();
        routing.reset(3, 4, 2);
        b.route(rec, logits, &mut routing)
    });
    call!("experts", b, rec, [partial: 6], {
        let expert = MatData::from_f32(2, 2, &[0.5; 4]).unwrap();
        let x = b.alloc(4)?;
        let job = ExpertJob { expert: square_expert(&expert), tokens: &[1, 0], first_row: 1, retain: Retain::No };
        b.experts(rec, &[job], &x, partial)
    });
    let moe = MoeShape {
        n_tokens: 3,
        k: 2,
        n_embd: 5,
    };
    call!("combine", b, rec, [shared: 15, gate: 3, out: 15], {
        let partial = b.alloc(10)?;
        b.combine(rec, moe, &[0, 1, 1, 0, 0, 0], &[0.5; 6], &partial, shared, gate, out)
    });
    // Lists on the host: as many operands' worth of rows and weights as the shape says.
    call!("combine", b, rec, [rows: 6], {
        let [partial, shared, gate] = [10, 15, 3].map(|len| b.alloc(len).unwrap());
        let (rows, mut out) = (vec![0; b.len(rows)], b.alloc(15)?);
        b.combine(rec, moe, &rows, &[0.5; 6], &partial, &shared, &gate, &mut out)
    });
    call!("combine", b, rec, [weights: 6], {
        let [partial, shared, gate] = [10, 15, 3].map(|len| b.alloc(len).unwrap());
        let (weights, mut out) = (vec![0.5; b.len(weights)], b.alloc(15)?);
        b.combine(rec, moe, &[0; 6], &weights, &partial, &shared, &gate, &mut out)
    });
    all
}

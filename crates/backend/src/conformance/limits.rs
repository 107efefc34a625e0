//! What must be refused: operands that are too small, ids out of range, sizes that make no sense.

use super::operands::calls;
use super::rig::{Random, Rig, values};
use crate::contract::*;
use crate::{Error, MatData, Result, Routing};

/// Every operand of every operation, one element too short, is a `Shape` error of that operation.
pub fn short_operands_are_shape_errors<B: Backend>(b: &B) {
    for call in calls::<B>() {
        let alloc = |lens: &[usize]| -> Vec<B::Buffer> {
            lens.iter().map(|len| b.alloc(*len).unwrap()).collect()
        };
        // The lengths are exact: with them, the operation runs.
        (call.run)(b, &mut alloc(&call.lens))
            .unwrap_or_else(|e| panic!("{} with operands that fit: {e}", call.op));
        for short in 0..call.lens.len() {
            let mut lens = call.lens.clone();
            lens[short] -= 1;
            match (call.run)(b, &mut alloc(&lens)) {
                Err(Error::Shape {
                    op,
                    expected,
                    found,
                    ..
                }) => {
                    assert_eq!(op, call.op);
                    assert!(found < expected, "{op}: {found} of {expected}");
                }
                result => panic!("{}, operand {short} short: {result:?}", call.op),
            }
        }
    }
}

/// Table rows, partial rows and tokens that do not exist are `Id` errors with the id and the limit.
pub fn ids_out_of_range_are_id_errors<B: Backend>(b: &B) {
    let mut rec = b.recorder();
    let id_error = |what: &str, result: Result<()>, expected: (u64, u64)| match result {
        Err(Error::Id { op, id, limit }) => {
            assert_eq!((op, id, limit), (what, expected.0, expected.1));
        }
        result => panic!("{what}: {result:?}"),
    };
    let table = b.load(MatData::from_f32(2, 3, &[0.0; 6]).unwrap()).unwrap();
    let mut out = b.alloc(8).unwrap();
    for id in [3, u32::MAX] {
        let result = b.embed(&mut rec, &table, &[2, id], 2, &mut out);
        id_error("embed", result, (id.into(), 3));
    }
    let [partial, shared, gate] = [4, 4, 2].map(|len| b.alloc(len).unwrap());
    for id in [2, u32::MAX] {
        let shape = MoeShape {
            n_tokens: 2,
            k: 1,
            n_embd: 2,
        };
        let (rows, weights) = ([1, id], [0.5; 2]);
        let result = b.combine(
            &mut rec, shape, &rows, &weights, &partial, &shared, &gate, &mut out,
        );
        id_error("combine", result, (id.into(), 2));
    }
    let expert = MatData::from_f32(2, 2, &[0.0; 4]).unwrap();
    for id in [2, u32::MAX] {
        let expert = square_expert(&expert);
        let job = ExpertJob {
            expert,
            tokens: &[1, id],
            first_row: 0,
            retain: Retain::No,
        };
        let result = b.experts(&mut rec, &[job], &shared, &mut out);
        id_error("experts", result, (id.into(), 2));
    }
}

/// Sizes that no operand could satisfy are `Argument` errors.
pub fn impossible_sizes_are_argument_errors<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    let fails = |what: &str, result: Result<()>| {
        assert!(
            matches!(result, Err(Error::Argument { .. })),
            "{what}: {result:?}"
        );
    };
    let [x, y, z] = [1, 2, 3].map(|seed| rig.up(&values(4_000, seed)));
    let [mut out, mut next] = [4_000; 2].map(|len| rig.output(len));
    let rec = &mut rig.rec;

    let shape = StreamShape {
        n_tokens: 1,
        n_streams: 0,
        n_embd: 4,
    };
    fails("no streams", b.gate_streams(rec, shape, &x, &y, &mut out));
    let shape = ConvShape {
        n_tokens: 1,
        channels: 4,
        taps: 0,
        dilation: 1,
    };
    fails(
        "no taps",
        b.causal_conv(rec, shape, &x, &y, &z, &mut next, &mut out),
    );
    for (n_head_k, n_head_v) in [(0, 2), (2, 3), (4, 2)] {
        let shape = DeltaShape {
            n_tokens: 1,
            n_head_k,
            n_head_v,
            head_dim: 4,
            eps: 1e-6,
        };
        let result = b.delta_rule(rec, shape, delta_input(&[&x; 7]), &y, &mut next, &mut out);
        fails("delta heads", result);
    }

    let heads = HeadLayout {
        row_len: 24,
        offset: 0,
        stride: 8,
        n_head: 3,
        head_dim: 8,
        eps: 1e-6,
    };
    let rope = Rope {
        n_rot: 4,
        base: 1e4,
        first_position: 0,
    };
    for (what, heads, rope) in [
        (
            "last head past its row",
            HeadLayout {
                row_len: 23,
                ..heads
            },
            rope,
        ),
        (
            "offset past the row",
            HeadLayout { offset: 1, ..heads },
            rope,
        ),
        (
            "offset without end",
            HeadLayout {
                offset: usize::MAX,
                ..heads
            },
            rope,
        ),
        (
            "stride without end",
            HeadLayout {
                stride: usize::MAX,
                ..heads
            },
            rope,
        ),
        ("odd rotation", heads, Rope { n_rot: 3, ..rope }),
        (
            "rotation beyond the head",
            heads,
            Rope { n_rot: 10, ..rope },
        ),
    ] {
        fails(what, b.norm_rope(rec, heads, rope, 1, &x, &y, &mut out, 0));
    }

    let small = super::attention::SMALL;
    for (what, shape) in [
        (
            "blocks of nothing",
            AttentionShape {
                block_tokens: 0,
                ..small
            },
        ),
        (
            "odd rotation",
            AttentionShape {
                rope: Rope { n_rot: 5, ..rope },
                ..small
            },
        ),
        (
            "rotation too wide",
            AttentionShape {
                rope: Rope { n_rot: 22, ..rope },
                ..small
            },
        ),
    ] {
        fails(what, b.pool_keys(rec, shape, 0..1, &x, &y, &mut out));
    }

    let (n_head, head_dim) = (small.n_head, small.head_dim);
    let row_len = n_head * head_dim;
    let gates = HeadLayout {
        row_len,
        offset: 0,
        stride: head_dim,
        n_head,
        head_dim,
        eps: 0.0,
    };
    let small = AttentionShape {
        n_tokens: 2,
        ..small
    };
    for (what, shape, gate_layout) in [
        (
            "no key heads",
            AttentionShape {
                n_head_kv: 0,
                ..small
            },
            gates,
        ),
        (
            "more key heads than heads",
            AttentionShape {
                n_head_kv: 8,
                ..small
            },
            gates,
        ),
        (
            "heads that do not group",
            AttentionShape {
                n_head_kv: 3,
                ..small
            },
            gates,
        ),
        ("gate heads", small, HeadLayout { n_head: 3, ..gates }),
        (
            "gate dimensions",
            small,
            HeadLayout {
                head_dim: 11,
                ..gates
            },
        ),
        (
            "gates past their row",
            small,
            HeadLayout { offset: 1, ..gates },
        ),
        (
            "blocks of nothing",
            AttentionShape {
                block_tokens: 0,
                ..small
            },
            gates,
        ),
        (
            "no budget",
            AttentionShape {
                budget_tokens: 0,
                ..small
            },
            gates,
        ),
        (
            "less than a block",
            AttentionShape {
                budget_tokens: 3,
                ..small
            },
            gates,
        ),
        (
            "part of a block",
            AttentionShape {
                budget_tokens: 9,
                ..small
            },
            gates,
        ),
        (
            "no indexer heads",
            AttentionShape {
                n_head_index: 0,
                ..small
            },
            gates,
        ),
        (
            "indexer heads of nothing",
            AttentionShape {
                index_dim: 0,
                ..small
            },
            gates,
        ),
    ] {
        let indexer = Some(IndexerInput { q: &x, pooled: &z });
        let input = AttentionInput {
            q: &x,
            gate: &y,
            gate_layout,
            indexer,
        };
        let cache = AttentionCache { k: &x, v: &z };
        fails(what, b.attention(rec, shape, input, cache, &mut out));
    }

    let mut routing = Routing::default();
    for (n_expert, k) in [(4, 0), (65_537, 1)] {
        routing.reset(1, n_expert, k);
        let logits = b.alloc(n_expert).unwrap();
        fails("router", b.route(rec, &logits, &mut routing));
    }
}

/// Zero, enormous and mixed sizes on small buffers: an error or nothing done, never a panic.
pub fn absurd_sizes_are_errors_or_nothing<B: Backend>(b: &B) {
    const SIZES: [usize; 11] = [
        0,
        0,
        1,
        1,
        2,
        3,
        4,
        8,
        1 << 20,
        usize::MAX / 2 + 1,
        usize::MAX,
    ];
    let mut random = Random(4);
    let mut n = move || SIZES[random.below(SIZES.len())];
    let mut rig = Rig::new(b);
    let w = rig.matrix(2, 3, &[0.5; 6]);
    let empty = rig.matrix(0, 3, &[]);
    let expert = MatData::from_f32(2, 2, &[0.5; 4]).unwrap();
    let [x, y] = [5, 6].map(|seed| rig.up(&values(64, seed)));
    let [mut out, mut next] = [64; 2].map(|len| rig.output(len));
    let rec = &mut rig.rec;
    let eps = 1e-6;
    let mut n_done = 0;
    let mut try_one = |result: Result<()>| n_done += usize::from(result.is_ok());
    for _ in 0..3_000 {
        try_one(b.write(rec, &mut out, n(), &[0.0; 3]));
        try_one(b.read(rec, &x, n(), &mut [0.0; 3]));
        try_one(b.copy(rec, (&x, n()), (&mut out, n()), n()));
        try_one(b.embed(rec, &w, &[0, 2], n(), &mut out));
        try_one(b.embed(rec, &empty, &[0, 2], n(), &mut out));
        try_one(b.matmul(rec, &w, &x, n(), &mut out));
        try_one(b.matmul(rec, &empty, &x, n(), &mut out));
        let shape = NormShape {
            n_rows: n(),
            n_groups: n(),
            width: n(),
            eps,
        };
        try_one(b.rms_norm(rec, shape, &x, &y, &mut out));
        try_one(b.add(rec, &mut out, &y, n()));
        try_one(b.silu(rec, &mut out, 1.0, n()));
        try_one(b.swiglu(rec, &mut out, &y, n()));
        let shape = StreamShape {
            n_tokens: n(),
            n_streams: n(),
            n_embd: n(),
        };
        try_one(b.gate_streams(rec, shape, &x, &y, &mut out));
        try_one(b.inject(rec, shape, &x, &y, &mut out));
        try_one(b.ngram_gate(rec, shape, eps, (&x, &y), (&y, &x), &x, &mut out));
        let shape = ConvShape {
            n_tokens: n(),
            channels: n(),
            taps: n(),
            dilation: n(),
        };
        try_one(b.causal_conv(rec, shape, &x, &y, &x, &mut next, &mut out));
        let (n_head_k, n_head_v) = (n(), n());
        let shape = DeltaShape {
            n_tokens: n(),
            n_head_k,
            n_head_v,
            head_dim: n(),
            eps,
        };
        try_one(b.delta_rule(rec, shape, delta_input(&[&x; 7]), &y, &mut next, &mut out));
        let (row_len, n_head, head_dim) = (n(), n(), n());
        let heads = HeadLayout {
            row_len,
            offset: n(),
            stride: n(),
            n_head,
            head_dim,
            eps,
        };
        let rope = Rope {
            n_rot: n(),
            base: 1e4,
            first_position: n(),
        };
        try_one(b.norm_rope(rec, heads, rope, n(), &x, &y, &mut out, n()));
        let shape = AttentionShape {
            n_tokens: n(),
            first_position: n(),
            // Mostly as the gates have it, or few draws would come far.
            n_head,
            n_head_kv: n(),
            head_dim,
            block_tokens: n(),
            budget_tokens: n(),
            n_head_index: n(),
            index_dim: n(),
            rope,
            eps,
        };
        try_one(b.pool_keys(rec, shape, n()..n(), &x, &y, &mut out));
        for indexer in [None, Some(IndexerInput { q: &x, pooled: &y })] {
            let input = AttentionInput {
                q: &x,
                gate: &y,
                gate_layout: heads,
                indexer,
            };
            let cache = AttentionCache { k: &x, v: &y };
            try_one(b.attention(rec, shape, input, cache, &mut out));
        }
        let tokens = [n() as u32, 0];
        let job = ExpertJob {
            expert: square_expert(&expert),
            tokens: &tokens,
            first_row: n(),
            retain: Retain::No,
        };
        try_one(b.experts(rec, &[job], &x, &mut out));
        let shape = MoeShape {
            n_tokens: n(),
            k: n(),
            n_embd: n(),
        };
        let rows = [0, n() as u32, 1, 2];
        try_one(b.combine(rec, shape, &rows, &[0.5; 4], &x, &y, &x, &mut out));
    }
    assert!(
        n_done > 3_000,
        "only {n_done} calls got past the checks: this tests too little"
    );
}

/// Operands in the order u, b, a, z, a_log, dt, gamma.
pub(super) fn delta_input<'a, T>(operands: &[&'a T; 7]) -> DeltaInput<'a, T> {
    let [u, b, a, z, a_log, dt, gamma] = *operands;
    DeltaInput {
        u,
        b,
        a,
        z,
        a_log,
        dt,
        gamma,
    }
}

/// An expert whose three matrices are one square matrix.
pub(super) fn square_expert(matrix: &MatData) -> crate::ExpertView<'_> {
    crate::ExpertView {
        gate: matrix.view(),
        up: matrix.view(),
        down: matrix.view(),
    }
}

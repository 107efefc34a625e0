//! Transfers, matrices, norms and element-wise operations.

use thalweg_quant::QuantType;

use super::naive;
use super::rig::{Random, Rig, assert_close, assert_rows_stand_alone, gammas, rows, values};
use super::{ELEMENT, SUM};
use crate::contract::*;
use crate::{Error, MatData};

/// Rows of a chunk: one, an odd few, and more than a tile of any kernel.
const TOKENS: [usize; 3] = [1, 3, 33];

/// Inputs and outputs of a matrix, few of them multiples of anything.
const MATRICES: [(usize, usize); 6] = [(1, 1), (5, 3), (16, 1), (33, 17), (160, 65), (257, 4)];

/// Buffers hold zeros, then what was written or copied, and nothing else moves.
pub fn buffers_start_zeroed_and_keep_what_is_written<B: Backend>(b: &B) {
    let mut rec = b.recorder();
    let read = |rec: &mut B::Recorder, buffer: &B::Buffer| {
        let mut out = vec![f32::NAN; b.len(buffer)];
        b.read(rec, buffer, 0, &mut out).unwrap();
        out
    };
    let mut x = b.alloc(6).unwrap();
    assert_eq!(b.len(&x), 6);
    assert_eq!(read(&mut rec, &x), [0.0; 6]);
    b.write(&mut rec, &mut x, 2, &[1.0, 2.0, 3.0]).unwrap();
    assert_eq!(read(&mut rec, &x), [0.0, 0.0, 1.0, 2.0, 3.0, 0.0]);

    let mut y = b.alloc(4).unwrap();
    b.copy(&mut rec, (&x, 3), (&mut y, 1), 2).unwrap();
    assert_eq!(read(&mut rec, &y), [0.0, 2.0, 3.0, 0.0]);
    let mut part = vec![0.0; 2];
    b.read(&mut rec, &x, 2, &mut part).unwrap();
    assert_eq!(part, [1.0, 2.0]);

    // Nothing, at the very end.
    b.write(&mut rec, &mut x, 6, &[]).unwrap();
    b.copy(&mut rec, (&x, 6), (&mut y, 4), 0).unwrap();
    b.zero(&mut rec, &mut x).unwrap();
    assert_eq!(read(&mut rec, &x), [0.0; 6]);
    assert_eq!(read(&mut rec, &y), [0.0, 2.0, 3.0, 0.0]);
    assert_eq!(b.len(&b.alloc(0).unwrap()), 0);
}

/// Rows come in the order of the ids, repeated ids and copies included.
pub fn embed_copies_rows_by_id<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    for n_in in [1, 7, 33] {
        let table = values(5 * n_in, 1);
        let matrix = rig.matrix(n_in, 5, &table);
        for (ids, copies) in [
            (&[4u32][..], 1),
            (&[0, 4, 4, 2], 3),
            (&[1; 33], 4),
            (&[], 2),
        ] {
            let found = rig.embed(&matrix, n_in, ids, copies);
            let row =
                |id: &u32| table[*id as usize * n_in..(*id as usize + 1) * n_in].repeat(copies);
            assert_eq!(found, ids.iter().flat_map(row).collect::<Vec<f32>>());
        }
    }
}

/// f32 matrices of odd sizes, with one token, a few and many.
pub fn matmul_is_a_dot_product_per_row<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    // The last one has more rows than are likely to be worked on at once.
    for (n_in, n_out) in MATRICES.into_iter().chain([(3, 2_050)]) {
        let w = values(n_in * n_out, 2);
        let matrix = rig.matrix(n_in, n_out, &w);
        for n in TOKENS {
            let x = values(n * n_in, 3);
            let what = format!("matmul {n_in} x {n_out}, {n} tokens");
            let expected = naive::matmul(&w, n_in, n_out, &x, n);
            assert_close(&what, &rig.matmul(&matrix, n_out, &x, n), &expected, SUM);
        }
    }
}

/// Every stored format that the backend takes agrees with its decoded rows; f32 is one of them.
pub fn every_quant_type_multiplies_and_embeds<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    for &ty in QuantType::ALL {
        let (n_in, n_out, n) = (2 * ty.block_len(), 5, 3);
        let (data, decoded) = random_matrix(ty, n_in, n_out, 4);
        let matrix = match b.load(data) {
            Err(Error::Format { .. }) if ty != QuantType::F32 => continue,
            loaded => loaded.unwrap(),
        };

        // Weights may be large, so the tolerance is relative to the sum of magnitudes.
        let x = values(n * n_in, 5);
        let y = rig.matmul(&matrix, n_out, &x, n);
        let [w_abs, x_abs] = [&decoded, &x].map(|v| v.iter().map(|a| a.abs()).collect::<Vec<_>>());
        let size = naive::matmul(&w_abs, n_in, n_out, &x_abs, n);
        let expected = naive::matmul(&decoded, n_in, n_out, &x, n);
        for (i, ((y, e), size)) in y.iter().zip(&expected).zip(&size).enumerate() {
            let close = (f64::from(*y) - e).abs() <= SUM * size;
            assert!(close, "matmul {ty}: element {i} is {y}, expected {e}");
        }

        let ids = [3, 0, 3];
        let rows = ids.map(|id| &decoded[id as usize * n_in..(id as usize + 1) * n_in]);
        let found = rig.embed(&matrix, n_in, &ids, 1);
        for (i, (f, e)) in found.iter().zip(rows.concat()).enumerate() {
            let close = (f - e).abs() <= e.abs() * 1e-6;
            assert!(close, "embed {ty}: element {i} is {f}, expected {e}");
        }
    }
}

/// Groups of odd width, alone and side by side; a zero group stays zero.
pub fn norms_are_per_group<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    for (n_groups, width) in [(1, 1), (1, 33), (4, 17), (3, 256)] {
        for n_rows in TOKENS {
            let shape = NormShape {
                n_rows,
                n_groups,
                width,
                eps: 1e-6,
            };
            let mut x = values(n_rows * n_groups * width, 6);
            x[..width].fill(0.0);
            let gamma = gammas(n_groups * width, 7);
            let expected = naive::rms_norm(shape, &x, &gamma);
            let what = format!("rms_norm {shape:?}");
            assert_close(&what, &rig.rms_norm(shape, &x, &gamma), &expected, ELEMENT);
        }
    }
    // Where the mean square is of the size of eps, eps counts.
    let shape = NormShape {
        n_rows: 1,
        n_groups: 1,
        width: 4,
        eps: 0.25,
    };
    let found = rig.rms_norm(shape, &[0.5, -0.5, 0.5, 0.5], &[1.0, 2.0, 3.0, 4.0]);
    let root = 0.5f64.sqrt();
    let expected = [0.5 / root, -1.0 / root, 1.5 / root, 2.0 / root];
    assert_close("rms_norm with a large eps", &found, &expected, ELEMENT);
}

/// `add`, `silu` and `swiglu`, with lengths around powers of two and large arguments.
pub fn sums_and_activations_are_per_element<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    for len in [0, 1, 3, 33, 255, 4_097, 9_000] {
        let mut x: Vec<f32> = values(len, 8).iter().map(|x| 6.0 * x).collect();
        for (x, large) in x.iter_mut().zip([0.0, -120.0, 120.0, -1e30, 1e30]) {
            *x = large;
        }
        let y = values(len, 9);
        let each = |f: &dyn Fn(f64, f64) -> f64| -> Vec<f64> {
            x.iter()
                .zip(&y)
                .map(|(x, y)| f(f64::from(*x), f64::from(*y)))
                .collect()
        };
        assert_close("add", &rig.add(&x, &y), &each(&|x, y| x + y), ELEMENT);
        let expected = each(&|x, y| naive::silu(x) * y);
        assert_close("swiglu", &rig.swiglu(&x, &y), &expected, ELEMENT);
        for divisor in [1.0, 3.0, 4.0] {
            let expected = each(&|x, _| naive::silu(x / f64::from(divisor)));
            assert_close("silu", &rig.silu(&x, divisor), &expected, ELEMENT);
        }
    }
}

/// `gate_streams` and `inject` over one to four streams.
pub fn streams_are_gated_and_injected<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    for (n_streams, n_embd) in [(1, 1), (2, 7), (3, 33), (4, 80)] {
        for n_tokens in TOKENS {
            let shape = StreamShape {
                n_tokens,
                n_streams,
                n_embd,
            };
            let wide = n_tokens * n_streams * n_embd;
            let g: Vec<f32> = values(wide, 10).iter().map(|g| 8.0 * g).collect();
            let n = values(wide, 11);
            let found = rig.gate_streams(shape, &g, &n);
            let expected = naive::gate_streams(shape, &g, &n);
            assert_close(
                &format!("gate_streams {shape:?}"),
                &found,
                &expected,
                ELEMENT,
            );

            let w: Vec<f32> = values(n_tokens * n_streams, 12)
                .iter()
                .map(|w| 8.0 * w)
                .collect();
            let y = values(n_tokens * n_embd, 13);
            let found = rig.inject(shape, &w, &y, &n);
            let expected = naive::inject(shape, &w, &y, &n);
            assert_close(&format!("inject {shape:?}"), &found, &expected, ELEMENT);
        }
    }
}

/// What has no state gives a token the same bits alone, in sevens, in 64s and all at once.
pub fn per_token_results_are_the_same_whatever_the_chunks<B: Backend>(b: &B) {
    let mut rig = Rig::new(b);
    let n = 71;
    let (s, d) = (3, 37);
    let wide = s * d;
    let [x, y] = [14, 15].map(|seed| values(n * wide, seed));
    let [gamma, gamma_query] = [16, 17].map(|seed| gammas(wide, seed));
    let streams = |n_tokens| StreamShape {
        n_tokens,
        n_streams: s,
        n_embd: d,
    };

    for ty in [QuantType::F32, QuantType::Q8_0, QuantType::IQ3_S] {
        let n_in = ty.block_len().max(96);
        let (data, _) = random_matrix(ty, n_in, 11, 18);
        let (w, x) = (b.load(data).unwrap(), values(n * n_in, 19));
        assert_rows_stand_alone(&format!("matmul {ty}"), n, |c| {
            rig.matmul(&w, 11, &rows(&x, &c, n_in), c.len())
        });
        let ids: Vec<u32> = (0..n as u32).map(|t| t * 7 % 11).collect();
        assert_rows_stand_alone("embed", n, |c| rig.embed(&w, n_in, &ids[c], 2));
    }
    assert_rows_stand_alone("rms_norm", n, |c| {
        let shape = NormShape {
            n_rows: c.len(),
            n_groups: s,
            width: d,
            eps: 1e-6,
        };
        rig.rms_norm(shape, &rows(&x, &c, wide), &gamma)
    });
    assert_rows_stand_alone("add", n, |c| {
        rig.add(&rows(&x, &c, wide), &rows(&y, &c, wide))
    });
    assert_rows_stand_alone("silu", n, |c| rig.silu(&rows(&x, &c, wide), 3.0));
    assert_rows_stand_alone("swiglu", n, |c| {
        rig.swiglu(&rows(&x, &c, wide), &rows(&y, &c, wide))
    });
    assert_rows_stand_alone("gate_streams", n, |c| {
        rig.gate_streams(streams(c.len()), &rows(&x, &c, wide), &rows(&y, &c, wide))
    });
    assert_rows_stand_alone("inject", n, |c| {
        let (w, small) = (rows(&y, &c, s), rows(&y, &c, d));
        rig.inject(streams(c.len()), &w, &small, &rows(&x, &c, wide))
    });
    assert_rows_stand_alone("ngram_gate", n, |c| {
        let (key, query) = (rows(&x, &c, wide), rows(&y, &c, wide));
        let (key, query) = ((&key[..], &gamma[..]), (&query[..], &gamma_query[..]));
        rig.ngram_gate(streams(c.len()), 1e-6, key, query, &rows(&y, &c, d))
    });
    assert_rows_stand_alone("norm_rope", n, |c| {
        let from = HeadLayout {
            row_len: wide,
            offset: 1,
            stride: d,
            n_head: s,
            head_dim: 36,
            eps: 1e-6,
        };
        let rope = Rope {
            n_rot: 10,
            base: 1e4,
            first_position: 500 + c.start,
        };
        rig.norm_rope(from, rope, c.len(), &rows(&x, &c, wide), &gamma[..36], 0)
    });
}

/// Results for [`assert_same_results`](super::assert_same_results).
pub(super) fn results<B: Backend>(b: &B) -> Vec<(String, Vec<f32>)> {
    let mut rig = Rig::new(b);
    let mut all = vec![];
    for &ty in QuantType::ALL {
        let n_in = 512;
        for (n_out, n) in [(300, 1), (1_100, 35)] {
            // Many rows of formats that all take the same path would only cost time.
            let n_out = if ty == QuantType::F32 {
                n_out
            } else {
                n_out / 10
            };
            let (data, _) = random_matrix(ty, n_in, n_out, 20);
            let (w, x) = (b.load(data).unwrap(), values(n * n_in, 21));
            all.push((format!("matmul {ty}"), rig.matmul(&w, n_out, &x, n)));
            let ids: Vec<u32> = (0..100).map(|i| i * 7 % n_out as u32).collect();
            all.push((format!("embed {ty}"), rig.embed(&w, n_in, &ids, 2)));
        }
    }
    let (n_tokens, n_streams, n_embd) = (130, 4, 96);
    let shape = StreamShape {
        n_tokens,
        n_streams,
        n_embd,
    };
    let wide = n_streams * n_embd;
    let [x, y] = [22, 23].map(|seed| values(n_tokens * wide, seed));
    let gamma = gammas(wide, 24);
    let norm = NormShape {
        n_rows: n_tokens,
        n_groups: n_streams,
        width: n_embd,
        eps: 1e-6,
    };
    all.push(("rms_norm".into(), rig.rms_norm(norm, &x, &gamma)));
    all.push(("add".into(), rig.add(&x, &y)));
    all.push(("silu".into(), rig.silu(&x, 4.0)));
    all.push(("swiglu".into(), rig.swiglu(&x, &y)));
    all.push(("gate_streams".into(), rig.gate_streams(shape, &x, &y)));
    let inject = rig.inject(
        shape,
        &x[..n_tokens * n_streams],
        &y[..n_tokens * n_embd],
        &x,
    );
    all.push(("inject".into(), inject));
    let gate = rig.ngram_gate(
        shape,
        1e-6,
        (&x, &gamma),
        (&y, &gamma),
        &x[..n_tokens * n_embd],
    );
    all.push(("ngram_gate".into(), gate));
    all
}

/// A matrix of random blocks with finite weights of moderate size, and its weights.
pub(crate) fn random_matrix(
    ty: QuantType,
    n_in: usize,
    n_out: usize,
    seed: u64,
) -> (MatData, Vec<f32>) {
    let mut random = Random(seed);
    let mut bytes = vec![];
    let mut decoded = vec![];
    let mut weights = vec![0.0; ty.block_len()];
    while decoded.len() < n_in * n_out {
        // Any bytes are a block; scales may be huge or not a number, and those are drawn again.
        let block: Vec<u8> = (0..ty.block_bytes()).map(|_| random.next() as u8).collect();
        ty.decode_row(&block, &mut weights).unwrap();
        let largest = weights.iter().fold(0.0, |max: f32, w| max.max(w.abs()));
        let finite = weights.iter().all(|w| w.is_finite());
        if finite && (1e-3..=1e2).contains(&largest) {
            bytes.extend(block);
            decoded.extend_from_slice(&weights);
        }
    }
    (MatData::new(ty, n_in, n_out, bytes).unwrap(), decoded)
}

//! Products with vectors of eight bits: equal bits on every instruction set, exact where rounding
//! has nothing to do, and within the bound of the vectors' rounding elsewhere.

use proptest::prelude::*;
use thalweg_quant::{Error, Kernels, Q8Vectors, QuantType, dot_f32};

use super::{decode_reference, rows, vectors};
use crate::support::assert_same_bits;

/// The formats that have integer kernels.
fn formats() -> impl Iterator<Item = QuantType> {
    QuantType::ALL
        .iter()
        .copied()
        .filter(|format| Q8Vectors::supports(*format))
}

fn product(
    kernels: Kernels,
    format: QuantType,
    bytes: &[u8],
    x: &[f32],
    n_tokens: usize,
) -> Vec<f32> {
    let n_rows = bytes.len() / format.row_bytes(x.len() / n_tokens).expect("whole blocks");
    let x = Q8Vectors::new(kernels, format, x, n_tokens).expect("a format with kernels");
    let mut out = vec![f32::NAN; n_rows * n_tokens];
    kernels
        .matmul_q8(format, bytes, &x, 0..n_tokens, &mut out)
        .expect("lengths agree");
    out
}

#[test]
fn the_formats_with_integer_kernels_are_those_of_the_readme() {
    let names: Vec<&str> = formats().map(QuantType::name).collect();
    let expected =
        "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ3_S IQ4_XS MXFP4 Q2_0";
    assert_eq!(names.join(" "), expected);
}

#[test]
fn every_set_gives_the_bits_of_the_reference_for_every_shape() {
    for format in formats() {
        for n_blocks in [1, 2, 3, 7] {
            let n_in = n_blocks * format.block_len();
            for (n_rows, n_tokens) in [(1, 1), (4, 1), (7, 1), (3, 2), (2, 4), (5, 5), (1, 9)] {
                let bytes = rows(format, n_in, n_rows, 3);
                let x = vectors(n_in, n_tokens);
                let expected = product(Kernels::scalar(), format, &bytes, &x, n_tokens);
                for kernels in Kernels::available() {
                    let found = product(kernels, format, &bytes, &x, n_tokens);
                    assert_same_bits(&found, &expected);
                }
            }
        }
    }
}

/// More rows, vectors and steps than a kernel takes at once, and remainders of each.
#[test]
fn every_set_gives_the_bits_of_the_reference_for_large_shapes() {
    for format in formats() {
        let n_in = (2 * 1024 + 256) / format.block_len() * format.block_len();
        let bytes = rows(format, n_in, 67, 3);
        let x = vectors(n_in, 71);
        let expected = product(Kernels::scalar(), format, &bytes, &x, 71);
        for kernels in Kernels::available() {
            assert_same_bits(&product(kernels, format, &bytes, &x, 71), &expected);
        }
    }
}

#[test]
fn a_token_alone_has_the_bits_that_it_has_among_others() {
    for (format, kernels) in formats().flat_map(|f| Kernels::available().map(move |k| (f, k))) {
        let n_in = 2 * format.block_len();
        let bytes = rows(format, n_in, 5, 4);
        let x = vectors(n_in, 7);
        let together = product(kernels, format, &bytes, &x, 7);
        for t in 0..7 {
            let alone = product(kernels, format, &bytes, &x[t * n_in..(t + 1) * n_in], 1);
            let column: Vec<f32> = together.chunks(7).map(|row| row[t]).collect();
            assert_same_bits(&alone, &column);
        }
        // And a range of tokens has its part of the whole.
        let vectors = Q8Vectors::new(kernels, format, &x, 7).expect("a format with kernels");
        let mut some = vec![f32::NAN; 5 * 3];
        kernels
            .matmul_q8(format, &bytes, &vectors, 2..5, &mut some)
            .expect("lengths agree");
        let expected: Vec<f32> = together
            .chunks(7)
            .flat_map(|row| row[2..5].to_vec())
            .collect();
        assert_same_bits(&some, &expected);
    }
}

#[test]
fn whole_numbers_up_to_127_give_the_exact_integer() {
    for (format, kernels) in formats().flat_map(|f| Kernels::available().map(move |k| (f, k))) {
        let n_in = 4 * format.block_len();
        let mut bytes = rows(format, n_in, 3, 5);
        for block in bytes.chunks_mut(format.block_bytes()) {
            make_weights_whole(format, block);
        }
        let weights = decode_reference(format, &bytes);
        // Whatever shares a scale holds 127, so the scale is 1 and the codes are the values.
        let x: Vec<f32> = (0..n_in)
            .map(|i| {
                if i % 4 < 2 {
                    127.0
                } else {
                    (i as f32 * 7.0) % 255.0 - 127.0
                }
            })
            .collect();
        let exact = |row: &[f32]| -> f32 {
            let products = row.iter().zip(&x).map(|(w, x)| f64::from(w * x));
            let magnitude: f64 = products.clone().map(f64::abs).sum();
            assert!(
                magnitude < 2_f64.powi(24),
                "{format}: sums are whole in f32"
            );
            products.sum::<f64>() as f32
        };
        let expected: Vec<f32> = weights.chunks(n_in).map(exact).collect();
        assert_same_bits(&product(kernels, format, &bytes, &x, 1), &expected);
    }
}

/// Scales become small whole numbers, and the extremes of the codes are among the weights.
fn make_weights_whole(format: QuantType, block: &mut [u8]) {
    let one = [0x00, 0x3c];
    // Where the fields of one block lie: halves that become 1, and where four codes become extreme.
    let (halves, codes): (&[usize], usize) = match format {
        QuantType::Q4_0
        | QuantType::Q8_0
        | QuantType::IQ4_NL
        | QuantType::IQ3_S
        | QuantType::Q2_0 => (&[0], 2),
        QuantType::Q5_0 => (&[0], 6),
        QuantType::Q4_1 => (&[0, 2], 4),
        QuantType::Q5_1 => (&[0, 2], 8),
        QuantType::MXFP4 => {
            // 2^(128 - 128).
            block[0] = 128;
            (&[], 1)
        }
        QuantType::Q2_K => (&[80, 82], 16),
        QuantType::Q3_K => {
            // Low nibbles as they are, and 32 above them: 0 to 15.
            block[104..108].fill(0xaa);
            (&[108], 32)
        }
        QuantType::Q4_K | QuantType::Q5_K => {
            // The last four have bits of the first four on top; without them they are below 16.
            block[4..12].iter_mut().for_each(|byte| *byte &= 0x0f);
            (&[0, 2], if format == QuantType::Q4_K { 16 } else { 48 })
        }
        QuantType::Q6_K => {
            block[192..208].iter_mut().for_each(|byte| *byte %= 7);
            block[192] = 0xff;
            (&[208], 0)
        }
        QuantType::IQ4_XS => {
            block[2..4].fill(0xaa);
            block[4..8].iter_mut().for_each(|byte| *byte &= 0x33);
            (&[0], 8)
        }
        _ => panic!("{format} has integer kernels but no line in this test"),
    };
    for &at in halves {
        block[at..at + 2].copy_from_slice(&one);
    }
    block[codes..codes + 4].copy_from_slice(&[0x80, 0x80, 0xff, 0x00]);
}

/// Which elements share a scale: those of the same number.
fn scale_of(format: QuantType, i: usize) -> usize {
    match format.block_len() {
        256 => i / 32,
        64 => i / 16 * 2 + i % 2,
        _ => i / 4,
    }
}

#[test]
fn the_error_is_at_most_half_a_step_of_each_scale() {
    for format in formats() {
        let n_in = 3 * format.block_len();
        let bytes = rows(format, n_in, 8, 6);
        let weights = decode_reference(format, &bytes);
        // Elements of very different magnitude.
        let x: Vec<f32> = vectors(n_in, 1)
            .iter()
            .enumerate()
            .map(|(i, x)| x * 2_f32.powi((i % 9) as i32 - 4))
            .collect();
        let mut max = vec![0.0_f32; n_in];
        for (i, x) in x.iter().enumerate() {
            let max = &mut max[scale_of(format, i)];
            *max = max.max(x.abs());
        }
        let found = product(Kernels::best(), format, &bytes, &x, 1);
        for (found, row) in found.iter().zip(weights.chunks(n_in)) {
            let half_steps = row.iter().enumerate();
            let bound: f32 = half_steps
                .map(|(i, w)| w.abs() * max[scale_of(format, i)] / 254.0)
                .sum();
            let error = (found - dot_f32(row, &x)).abs();
            assert!(
                error <= 1.001 * bound + 1e-5,
                "{format}: {error} against {bound}"
            );
        }
    }
}

#[test]
fn zeros_tiny_values_and_values_that_are_not_finite_do_not_mislead() {
    for (format, kernels) in formats().flat_map(|f| Kernels::available().map(move |k| (f, k))) {
        let n_in = 2 * format.block_len();
        let bytes = rows(format, n_in, 2, 7);
        for tiny in [0.0, -0.0, 1e-45, -1e-40] {
            let out = product(kernels, format, &bytes, &vec![tiny; n_in], 1);
            assert!(out.iter().all(|y| y.abs() < 1e-30), "{format}: {out:?}");
        }
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = vectors(n_in, 1);
            x[n_in - 3] = bad;
            let out = product(kernels, format, &bytes, &x, 1);
            assert!(out.iter().all(|y| y.is_nan()), "{format}: {out:?}");
        }
    }
}

#[test]
fn vectors_of_another_kind_or_length_are_errors() {
    let kernels = Kernels::best();
    assert_eq!(
        Q8Vectors::new(kernels, QuantType::F32, &[0.0; 32], 1).map(|_| ()),
        Err(Error::NoIntegerKernel { format: "F32" })
    );
    assert!(Q8Vectors::new(kernels, QuantType::Q8_0, &[0.0; 33], 1).is_err());
    assert!(Q8Vectors::new(kernels, QuantType::Q8_0, &[0.0; 65], 2).is_err());
    let x = Q8Vectors::new(kernels, QuantType::Q8_0, &[0.0; 64], 2).expect("two vectors");
    assert_eq!((x.n_in(), x.n_tokens()), (32, 2));
    let (q4_0, q8_0) = ([0; 18], [0; 34]);
    let mut out = [7.0; 2];
    let refused = |found| {
        Err(Error::Q8Vectors {
            format: found,
            n_elements: 32,
            found: 32,
        })
    };
    assert_eq!(
        kernels.matmul_q8(QuantType::Q4_0, &q4_0, &x, 0..2, &mut out),
        refused("Q4_0")
    );
    assert_eq!(
        kernels.matmul_q8(QuantType::Q8_0, &q8_0, &x, 1..3, &mut out),
        refused("Q8_0")
    );
    assert!(
        kernels
            .matmul_q8(QuantType::Q8_0, &q8_0[1..], &x, 0..2, &mut out)
            .is_err()
    );
    assert!(
        kernels
            .matmul_q8(QuantType::Q8_0, &q8_0, &x, 0..2, &mut [7.0; 3])
            .is_err()
    );
    assert!(out.iter().all(|y| y.to_bits() == 7_f32.to_bits()));
    assert_eq!(
        kernels.matmul_q8(QuantType::Q8_0, &q8_0, &x, 0..2, &mut out),
        Ok(())
    );
    assert_eq!(out.map(f32::to_bits), [0, 0]);
    assert_eq!(
        kernels.matmul_q8(QuantType::Q8_0, &[], &x, 0..0, &mut []),
        Ok(())
    );
}

proptest! {
    #[test]
    fn any_bytes_and_any_vectors_give_the_bits_of_the_reference(
        n_blocks in 1..3_usize,
        n_rows in 1..6_usize,
        n_tokens in 1..6_usize,
        bytes in prop::collection::vec(any::<u8>(), 5 * 2 * 210),
        seed in prop::collection::vec(any::<f32>(), 512),
    ) {
        for format in formats() {
            let n_in = n_blocks * format.block_len();
            let bytes = &bytes[..n_rows * n_blocks * format.block_bytes()];
            let x: Vec<f32> = seed.iter().copied().cycle().take(n_in * n_tokens).collect();
            let expected = product(Kernels::scalar(), format, bytes, &x, n_tokens);
            for kernels in Kernels::available() {
                assert_same_bits(&product(kernels, format, bytes, &x, n_tokens), &expected);
            }
        }
    }
}

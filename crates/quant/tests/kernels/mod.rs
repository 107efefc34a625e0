//! Every kernel set of this machine against the portable reference, bit for bit.

mod q8;

use proptest::prelude::*;
use thalweg_quant::arch::scalar;
use thalweg_quant::{BlockFormat, Error, Kernels, QuantType, for_each_format, formats};

use crate::support::assert_same_bits;

/// Row lengths in elements that end inside groups of rows, chunks and vectors alike.
fn lengths(format: QuantType) -> impl Iterator<Item = usize> {
    let some = [1, 2, 3, 5, 9, 15, 16, 17, 31, 33, 511, 513, 1040];
    let blocks = move |n: usize| n.div_ceil(format.block_len()) * format.block_len();
    some.into_iter().map(blocks)
}

/// Bytes of `n_rows` rows with finite scales, and of both signs.
fn rows(format: QuantType, n_in: usize, n_rows: usize, seed: u32) -> Vec<u8> {
    let n_bytes = n_rows * format.row_bytes(n_in).expect("whole blocks");
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
    let bytes = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Bit 6 clear in every byte: no f16, bf16 or f32 exponent is all ones.
        (state >> 24) as u8 & 0xbf
    });
    bytes.take(n_bytes).collect()
}

fn vectors(n: usize, n_tokens: usize) -> Vec<f32> {
    (0..n * n_tokens)
        .map(|i| ((i * 7919 % 2003) as f32 - 1001.0) / 977.0)
        .collect()
}

/// Decodes with the format's own code.
fn decode_reference(format: QuantType, bytes: &[u8]) -> Vec<f32> {
    macro_rules! by_format {
        ($(($name:ident, $module:ident)),+ $(,)?) => {
            match format {
                $(QuantType::$name => {
                    type Format = formats::$name;
                    let blocks: &[<Format as BlockFormat>::Block] = bytemuck::cast_slice(bytes);
                    let mut out = vec![f32::NAN; blocks.len() * Format::BLOCK_LEN];
                    Format::decode_blocks(blocks, &mut out);
                    out
                })+
                _ => panic!("{format} is not in the list"),
            }
        };
    }
    for_each_format!(by_format)
}

#[test]
fn the_reference_is_always_there_and_the_best_is_among_the_available() {
    let all: Vec<Kernels> = Kernels::available().collect();
    assert_eq!(all[0], Kernels::scalar());
    assert_eq!(all.last(), Some(&Kernels::best()));
    assert_eq!(Kernels::scalar().name(), "scalar");
}

#[test]
fn every_set_decodes_every_format_to_the_bits_of_the_reference() {
    for kernels in Kernels::available() {
        for &format in QuantType::ALL {
            for n in lengths(format) {
                let bytes = rows(format, n, 1, 1);
                let mut out = vec![f32::NAN; n];
                kernels
                    .decode_row(format, &bytes, &mut out)
                    .expect("whole blocks");
                assert_same_bits(&out, &decode_reference(format, &bytes));
            }
        }
    }
}

#[test]
fn every_product_has_the_bits_of_the_reference_dot_of_the_decoded_row() {
    for kernels in Kernels::available() {
        for &format in QuantType::ALL {
            for (n_in, (n_rows, n_tokens)) in lengths(format).flat_map(|n| {
                [(1, 1), (4, 1), (7, 1), (5, 2), (4, 4), (3, 7), (1, 67)].map(|shape| (n, shape))
            }) {
                let bytes = rows(format, n_in, n_rows, 2);
                let x = vectors(n_in, n_tokens);
                let mut out = vec![f32::NAN; n_rows * n_tokens];
                kernels
                    .matmul(format, &bytes, &x, n_tokens, &mut out)
                    .expect("lengths agree");
                let weights = decode_reference(format, &bytes);
                let expected: Vec<f32> = weights
                    .chunks(n_in)
                    .flat_map(|row| x.chunks(n_in).map(move |x| scalar::dot_f32(row, x)))
                    .collect();
                assert_same_bits(&out, &expected);
            }
        }
    }
}

#[test]
fn dot_products_of_every_length_have_the_bits_of_the_reference() {
    let (a, b) = (vectors(300, 1), vectors(301, 1));
    for kernels in Kernels::available() {
        for n in 0..300 {
            let expected = scalar::dot_f32(&a[..n], &b[1..n + 1]);
            let found = kernels.dot_f32(&a[..n], &b[1..n + 1]);
            assert_eq!(
                found.to_bits(),
                expected.to_bits(),
                "{} {n}",
                kernels.name()
            );
            // What exceeds the shorter slice is ignored.
            let found = kernels.dot_f32(&a[..n], &b[1..]);
            assert_eq!(
                found.to_bits(),
                expected.to_bits(),
                "{} {n}",
                kernels.name()
            );
        }
    }
}

#[test]
fn negative_zeros_and_cancelling_sums_keep_their_sign() {
    // All products are zeros of either sign, or cancel: the reference's zero must come out.
    for kernels in Kernels::available() {
        for n in [1, 15, 16, 17, 48, 50] {
            let a: Vec<f32> = (0..n).map(|i| [-0.0, 0.0, 1.0, -1.0][i % 4]).collect();
            let b: Vec<f32> = (0..n).map(|i| [1.0, -1.0, 1.0, 1.0][i / 2 % 4]).collect();
            for (a, b) in [(&a, &b), (&vec![-0.0; n], &vec![1.0; n])] {
                let found = kernels.dot_f32(a, b);
                assert_eq!(found.to_bits(), scalar::dot_f32(a, b).to_bits(), "{n}");
            }
        }
    }
}

#[test]
fn a_closure_run_for_an_instruction_set_keeps_its_bits() {
    let (a, b) = (vectors(1000, 1), vectors(1001, 1));
    let sums =
        |a: &[f32], b: &[f32]| -> Vec<f32> { a.iter().zip(b).map(|(a, b)| a * b + 0.1).collect() };
    for kernels in Kernels::available() {
        assert_same_bits(&kernels.vectorize(|| sums(&a, &b)), &sums(&a, &b));
    }
}

#[test]
fn shapes_that_do_not_fit_are_errors_and_nothing_is_written() {
    let kernels = Kernels::best();
    let bytes = rows(QuantType::Q2_0, 128, 3, 5);
    let x = vectors(128, 2);
    let mut out = [7.0; 6];
    let q2_0 = QuantType::Q2_0;
    let byte_length = |found_bytes: usize| Error::ByteLength {
        format: "Q2_0",
        n_elements: 384,
        expected_bytes: 108,
        found_bytes,
    };
    assert_eq!(
        kernels.matmul(q2_0, &bytes[1..], &x, 2, &mut out),
        Err(byte_length(107))
    );
    assert_eq!(
        kernels.matmul(q2_0, &bytes, &x[1..], 2, &mut out),
        Err(Error::ElementCount {
            format: "Q2_0",
            expected: 254,
            found: 255
        })
    );
    assert_eq!(
        kernels.matmul(q2_0, &bytes, &x, 2, &mut out[1..]),
        Err(Error::ElementCount {
            format: "Q2_0",
            expected: 4,
            found: 5
        })
    );
    assert!(
        kernels
            .matmul(q2_0, &bytes, &x[..100], 2, &mut out)
            .is_err()
    );
    assert!(kernels.matmul(q2_0, &bytes, &x, 0, &mut out).is_err());
    assert!(kernels.dot_row(q2_0, &bytes, &x[..128]).is_err());
    assert!(out.iter().all(|y| y.to_bits() == 7_f32.to_bits()));
}

#[test]
fn rows_or_tokens_may_be_none() {
    for kernels in Kernels::available() {
        for &format in QuantType::ALL {
            let mut out = [7.0; 2];
            assert_eq!(kernels.matmul(format, &[], &[], 0, &mut []), Ok(()));
            assert_eq!(kernels.matmul(format, &[], &[], 1, &mut out), Ok(()));
            assert_eq!(out.map(f32::to_bits), [0, 0], "a sum of nothing is zero");
            let x = vectors(format.block_len(), 1);
            assert_eq!(kernels.matmul(format, &[], &x, 1, &mut []), Ok(()));
            assert_eq!(kernels.dot_row(format, &[], &[]), Ok(0.0));
        }
    }
}

macro_rules! any_bytes {
    ($(($name:ident, $module:ident)),+ $(,)?) => { $(
        proptest! {
            /// Scales that are infinite or NaN, and halves that are subnormal, among them.
            #[test]
            fn $module(
                (n_rows, bytes) in (1..6_usize, 1..3_usize).prop_flat_map(|(n_rows, n_blocks)| {
                    let n = n_rows * n_blocks * QuantType::$name.block_bytes();
                    (Just(n_rows), prop::collection::vec(any::<u8>(), n))
                }),
                n_tokens in 1..3_usize,
            ) {
                let format = QuantType::$name;
                let n_in = bytes.len() / n_rows / format.block_bytes() * format.block_len();
                let weights = decode_reference(format, &bytes);
                let x = vectors(n_in, n_tokens);
                let expected: Vec<f32> = weights
                    .chunks(n_in)
                    .flat_map(|row| x.chunks(n_in).map(move |x| scalar::dot_f32(row, x)))
                    .collect();
                for kernels in Kernels::available() {
                    let mut out = vec![f32::NAN; weights.len()];
                    kernels.decode_row(format, &bytes, &mut out).expect("whole blocks");
                    assert_same_bits(&out, &weights);
                    let mut out = vec![f32::NAN; n_rows * n_tokens];
                    kernels.matmul(format, &bytes, &x, n_tokens, &mut out).expect("lengths agree");
                    assert_same_bits(&out, &expected);
                }
            }
        }
    )+ };
}

mod any_bytes_give_the_bits_of_the_reference {
    use super::*;
    for_each_format!(any_bytes);
}

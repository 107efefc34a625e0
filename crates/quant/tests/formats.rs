//! One suite for every format, stamped from `for_each_format!`.
//!
//! `tests/data` holds blocks and values with the results of an independent implementation; see
//! `tools/make_vectors.py`, which wrote it.

mod kernels;
mod support;

use proptest::prelude::*;
use support::{
    assert_same_bits, bytes_to_f32, decode, f32_blocks, quantize, quantize_vectors, vectors,
};
use thalweg_quant::{BlockFormat, Error, QuantType, RowView, for_each_format, formats};

/// Bytes of up to five blocks.
fn any_row(format: QuantType) -> impl Strategy<Value = Vec<u8>> {
    (0..=5_usize).prop_flat_map(move |n_blocks| {
        prop::collection::vec(any::<u8>(), n_blocks * format.block_bytes())
    })
}

/// Finite values of up to five blocks, each block on its own scale.
fn any_values(format: QuantType) -> impl Strategy<Value = Vec<f32>> {
    let block = (
        prop::collection::vec(-1.0_f32..1.0, format.block_len()),
        -40..15_i32,
    )
        .prop_map(|(block, exponent)| block.into_iter().map(move |x| x * 2_f32.powi(exponent)));
    prop::collection::vec(block, 0..=5).prop_map(|blocks| blocks.into_iter().flatten().collect())
}

macro_rules! suite {
    ($(($name:ident, $module:ident)),+ $(,)?) => { $(
        mod $module {
            use super::*;

            const FORMAT: QuantType = QuantType::$name;
            type Format = formats::$name;

            #[test]
            fn decode_equals_ggml_bit_for_bit() {
                let data = include_bytes!(concat!("data/decode/", stringify!($name), ".bin"));
                let (blocks, weights) = vectors(data, FORMAT);
                assert_same_bits(&decode(FORMAT, blocks), &bytes_to_f32(weights));
            }

            #[test]
            fn enum_and_trait_tell_the_same() {
                assert_eq!(FORMAT.name(), stringify!($name));
                assert_eq!(FORMAT.to_string(), Format::NAME);
                assert_eq!(FORMAT.ggml_type(), Format::GGML_TYPE);
                assert_eq!(FORMAT.block_len(), Format::BLOCK_LEN);
                assert_eq!(FORMAT.block_bytes(), size_of::<<Format as BlockFormat>::Block>());
                assert_eq!(FORMAT.can_quantize(), Format::CAN_QUANTIZE);
                assert_eq!(QuantType::from_ggml(Format::GGML_TYPE), Some(FORMAT));
                assert_eq!(QuantType::from_name(&Format::NAME.to_lowercase()), Some(FORMAT));
                assert_eq!(Format::NAME.parse(), Ok(FORMAT));
            }

            #[test]
            fn wrong_lengths_are_errors() {
                support::wrong_lengths_are_errors(FORMAT);
            }

            #[test]
            fn a_row_of_no_elements_is_accepted() {
                assert_eq!(FORMAT.row_bytes(0), Ok(0));
                assert_eq!(FORMAT.decode_row(&[], &mut []), Ok(()));
                assert_eq!(FORMAT.first_non_finite(&[]), Ok(None));
                assert_eq!(FORMAT.dot_row(&[], &[]), Ok(0.0));
                assert!(RowView::new(FORMAT, &[], 0).expect("an empty row").is_empty());
            }

            #[test]
            fn a_spoiled_block_is_found_where_it_starts() {
                let mut bytes = vec![0; 3 * FORMAT.block_bytes()];
                assert_eq!(FORMAT.first_non_finite(&bytes), Ok(None));
                bytes[FORMAT.block_bytes()..].fill(0xff);
                assert_eq!(FORMAT.first_non_finite(&bytes), Ok(Some(FORMAT.block_len())));
            }

            #[test]
            fn quantizer_refuses_or_writes_as_can_quantize_says() {
                if FORMAT.can_quantize() {
                    support::zeros_and_tiny_values_quantize_to_zero_or_themselves(FORMAT);
                    support::values_that_are_not_finite_are_refused_with_their_index(FORMAT);
                    support::values_beyond_the_range_are_refused_with_their_index(FORMAT);
                } else {
                    let mut bytes = vec![0xaa; FORMAT.block_bytes()];
                    assert_eq!(
                        FORMAT.quantize_row(&vec![0.0; FORMAT.block_len()], &mut bytes),
                        Err(Error::NoQuantizer { format: FORMAT.name() })
                    );
                    assert!(bytes.iter().all(|&byte| byte == 0xaa), "nothing is written");
                }
            }

            proptest! {
                #[test]
                fn the_check_for_finite_weights_agrees_with_decode(bytes in any_row(FORMAT)) {
                    support::the_check_for_finite_weights_agrees_with_decode(FORMAT, &bytes);
                }

                #[test]
                fn alignment_of_the_source_does_not_matter(
                    bytes in any_row(FORMAT),
                    shift in 1_usize..8,
                ) {
                    let mut moved = vec![0; shift];
                    moved.extend_from_slice(&bytes);
                    assert_same_bits(&decode(FORMAT, &moved[shift..]), &decode(FORMAT, &bytes));
                }

                #[test]
                fn dot_equals_decode_then_dot(bytes in any_row(FORMAT)) {
                    support::dot_equals_decode_then_dot::<Format>(FORMAT, &bytes);
                }

                #[test]
                fn round_trip_error_is_bounded(values in any_values(FORMAT)) {
                    if FORMAT.can_quantize() {
                        support::round_trip_error_is_bounded(FORMAT, &values);
                    }
                }

                #[test]
                fn quantizing_decoded_weights_changes_none(values in any_values(FORMAT)) {
                    if FORMAT.can_quantize() {
                        let once = decode(FORMAT, &quantize(FORMAT, &values));
                        let twice = decode(FORMAT, &quantize(FORMAT, &once));
                        // Of weights that are zero, the sign may change.
                        prop_assert!(once.iter().zip(&twice).all(|(a, b)| (a - b).abs() <= 0.0));
                    }
                }
            }
        }
    )+ };
}

for_each_format!(suite);

#[test]
fn quantizers_write_the_bytes_of_the_reference() {
    for format in QuantType::ALL
        .iter()
        .copied()
        .filter(|format| format.can_quantize())
    {
        let Some(data) = quantize_vectors(format) else {
            assert_eq!(
                format,
                QuantType::F32,
                "{format} has a quantizer but no vectors"
            );
            continue;
        };
        let (values, expected) = f32_blocks(data, format);
        let bytes = quantize(format, &values);
        for (block, (found, expected)) in bytes
            .chunks(format.block_bytes())
            .zip(expected.chunks(format.block_bytes()))
            .enumerate()
        {
            assert_eq!(found, expected, "{format}, block {block}");
        }
    }
}

#[test]
fn unknown_and_removed_ids_are_no_format() {
    // Removed types, integer types, types that files never hold, types of forks.
    for id in [
        4,
        5,
        9,
        15,
        24,
        25,
        26,
        27,
        28,
        31,
        32,
        33,
        36,
        37,
        38,
        40,
        43,
        142,
        143,
        u32::MAX,
    ] {
        assert_eq!(QuantType::from_ggml(id), None, "{id}");
    }
}

#[test]
fn an_unknown_name_is_an_error_that_repeats_it() {
    assert_eq!(QuantType::from_name("Q2_1"), None);
    assert_eq!(
        "Q2_1".parse::<QuantType>(),
        Err(Error::UnknownName {
            name: "Q2_1".to_owned()
        })
    );
}

#[test]
fn a_row_too_large_for_the_address_space_is_an_error() {
    let n_elements = usize::MAX - 255;
    assert_eq!(
        QuantType::F32.row_bytes(n_elements),
        Err(Error::RowTooLarge {
            format: "F32",
            n_elements
        })
    );
    assert!(QuantType::Q2_0.row_bytes(n_elements).is_ok());
}

#[test]
fn the_table_in_the_readme_is_the_list_of_formats() {
    let documented: Vec<String> = include_str!("../README.md")
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let expected: Vec<String> = QuantType::ALL
        .iter()
        .map(|format| {
            format!(
                "| `{format}` | {} | {} | {} | {} | yes | {} |",
                format.ggml_type(),
                format.block_len(),
                format.block_bytes(),
                format.bits_per_weight(),
                if format.can_quantize() { "yes" } else { "no" },
            )
        })
        .collect();
    assert_eq!(documented, expected);
}

#[test]
fn every_file_of_formats_is_in_the_list() {
    macro_rules! modules {
        ($(($name:ident, $module:ident)),+ $(,)?) => { [$(concat!(stringify!($module), ".rs")),+] };
    }
    let mut listed: Vec<String> = for_each_format!(modules)
        .into_iter()
        .map(str::to_owned)
        .collect();
    listed.extend(["mod.rs", "codebook.rs", "grids.rs"].map(str::to_owned));
    listed.sort();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/formats");
    let mut files: Vec<String> = std::fs::read_dir(folder)
        .expect("the sources are at hand")
        .map(|entry| {
            entry
                .expect("a readable folder")
                .file_name()
                .into_string()
                .expect("UTF-8")
        })
        .collect();
    files.sort();
    assert_eq!(files, listed);
}

#[test]
fn a_view_refuses_bytes_and_slices_of_other_lengths() {
    let bytes = [0; 36];
    assert_eq!(
        RowView::new(QuantType::Q2_0, &bytes, 64).expect_err("two blocks, not one"),
        Error::ByteLength {
            format: "Q2_0",
            n_elements: 64,
            expected_bytes: 18,
            found_bytes: 36
        }
    );
    let row = RowView::new(QuantType::Q2_0, &bytes, 128).expect("two blocks");
    assert_eq!(
        (row.format(), row.bytes(), row.len()),
        (QuantType::Q2_0, &bytes[..], 128)
    );
    assert_eq!(row.decode_into(&mut [1.0; 128]), Ok(()));
    let refused = Err(Error::ElementCount {
        format: "Q2_0",
        expected: 128,
        found: 64,
    });
    assert_eq!(row.decode_into(&mut [0.0; 64]), refused);
    assert_eq!(row.dot(&[0.0; 64]).map(|_| ()), refused);
    assert_eq!(row.first_non_finite(), Ok(None));
}

#[test]
fn blocks_may_be_quantized_one_by_one_and_keep_their_bytes_on_an_error() {
    let mut block = formats::BlockQ8_0 {
        d: formats::F16Le::from_f32(3.0),
        qs: [7; 32],
    };
    let before = block;
    let mut values = [1.0; 32];
    values[9] = f32::NAN;
    assert!(matches!(
        formats::Q8_0::quantize(&values, &mut block),
        Err(Error::NonFinite { format: "Q8_0", index: 9, value }) if value.is_nan()
    ));
    assert_eq!(
        formats::Q8_0::quantize(&values[..8], &mut block),
        Err(Error::ElementCount {
            format: "Q8_0",
            expected: 32,
            found: 8
        })
    );
    assert_eq!(block, before);
}

//! What the suite shares: reading the vector files, comparing bits, bounds, bad input.

use thalweg_quant::{BlockFormat, Error, QuantType, RowView, dot_f32};

/// A vector file of decode: the blocks and the bytes of their weights.
pub(crate) fn vectors(data: &[u8], format: QuantType) -> (&[u8], &[u8]) {
    let n_blocks = data.len() / (format.block_bytes() + 4 * format.block_len());
    assert!(n_blocks >= 16, "{format}: too few vectors");
    assert!(
        data.len()
            .is_multiple_of(format.block_bytes() + 4 * format.block_len())
    );
    data.split_at(n_blocks * format.block_bytes())
}

/// A vector file of quantize: the values and the bytes of their blocks.
pub(crate) fn f32_blocks(data: &[u8], format: QuantType) -> (Vec<f32>, &[u8]) {
    let n_blocks = data.len() / (format.block_bytes() + 4 * format.block_len());
    assert!(n_blocks >= 16, "{format}: too few vectors");
    let (values, blocks) = data.split_at(n_blocks * 4 * format.block_len());
    (bytes_to_f32(values), blocks)
}

/// The vector file of a format's quantizer. F32 copies bytes and needs none.
pub(crate) fn quantize_vectors(format: QuantType) -> Option<&'static [u8]> {
    Some(match format {
        QuantType::F16 => include_bytes!("../data/quantize/F16.bin"),
        QuantType::BF16 => include_bytes!("../data/quantize/BF16.bin"),
        QuantType::Q8_0 => include_bytes!("../data/quantize/Q8_0.bin"),
        QuantType::Q4_0 => include_bytes!("../data/quantize/Q4_0.bin"),
        QuantType::Q2_0 => include_bytes!("../data/quantize/Q2_0.bin"),
        _ => return None,
    })
}

pub(crate) fn bytes_to_f32(bytes: &[u8]) -> Vec<f32> {
    bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|&bytes| f32::from_le_bytes(bytes))
        .collect()
}

/// Equal bits, the sign of zero included; any NaN equals any NaN.
#[track_caller]
pub(crate) fn assert_same_bits(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let same = found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan());
        assert!(same, "element {i}: found {found:?}, expected {expected:?}");
    }
}

/// The weights of a row, which must be whole blocks.
pub(crate) fn decode(format: QuantType, bytes: &[u8]) -> Vec<f32> {
    let n_elements = bytes.len() / format.block_bytes() * format.block_len();
    let mut out = vec![f32::NAN; n_elements];
    format
        .decode_row(bytes, &mut out)
        .expect("whole blocks decode");
    out
}

/// The bytes of a row of values that the format can hold.
pub(crate) fn quantize(format: QuantType, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0xaa; format.row_bytes(values.len()).expect("whole blocks")];
    format
        .quantize_row(values, &mut bytes)
        .expect("finite values in range quantize");
    bytes
}

pub(crate) fn the_check_for_finite_weights_agrees_with_decode(format: QuantType, bytes: &[u8]) {
    let not_finite = decode(format, bytes)
        .iter()
        .position(|weight| !weight.is_finite());
    // MXFP4's NaN scale decodes to a number, as in ggml.
    let nan_scale = bytes
        .chunks(format.block_bytes())
        .position(|block| format == QuantType::MXFP4 && block[0] == 255)
        .map(|block| block * format.block_len());
    let expected = [not_finite, nan_scale].into_iter().flatten().min();
    assert_eq!(format.first_non_finite(bytes), Ok(expected), "{format}");
}

pub(crate) fn dot_equals_decode_then_dot<F: BlockFormat>(format: QuantType, bytes: &[u8]) {
    let weights = decode(format, bytes);
    let x: Vec<f32> = (0..weights.len())
        .map(|i| ((i * 37 % 101) as f32 - 50.0) / 7.0)
        .collect();
    let expected = dot_f32(&weights, &x);
    let row = RowView::new(format, bytes, weights.len()).expect("lengths agree");
    assert_same_bits(&[row.dot(&x).expect("lengths agree")], &[expected]);
    let blocks: &[F::Block] = bytemuck::cast_slice(bytes);
    assert_same_bits(&[F::dot_reference(blocks, &x)], &[expected]);
}

pub(crate) fn round_trip_error_is_bounded(format: QuantType, values: &[f32]) {
    let weights = decode(format, &quantize(format, values));
    let blocks = values
        .chunks(format.block_len())
        .zip(weights.chunks(format.block_len()));
    for (values, weights) in blocks {
        let bound = round_trip_bound(format, values);
        for (x, weight) in values.iter().zip(weights) {
            assert!(
                (x - weight).abs() <= bound,
                "{format}: {x} became {weight}, bound {bound}"
            );
        }
    }
}

/// The largest error that a correct quantizer of the format makes in a block of these values.
fn round_trip_bound(format: QuantType, values: &[f32]) -> f32 {
    let max = values.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
    // Rounding of the scale to a half moves every weight by so much: relative for normal halves,
    // at most half the smallest subnormal (2^-25) times the largest code below that.
    let scale_error = |largest_code: f32| max * 2_f32.powi(-11) + largest_code * 2_f32.powi(-25);
    match format {
        QuantType::F32 => 0.0,
        QuantType::F16 => scale_error(1.0),
        QuantType::BF16 => max * 2_f32.powi(-8),
        // Half a step, a little more for f32 rounding.
        QuantType::Q8_0 => max / 254.0 * 1.001 + scale_error(127.0),
        // A whole step at the end opposite to the extreme, which would need code 16.
        QuantType::Q4_0 => max / 8.0 * 1.001 + scale_error(8.0),
        QuantType::Q2_0 => max / 2.0 * 1.001 + scale_error(1.0),
        _ => panic!("{format} has a quantizer but no bound in this test"),
    }
}

pub(crate) fn wrong_lengths_are_errors(format: QuantType) {
    let (len, bytes) = (format.block_len(), format.block_bytes());
    let src = vec![0; 2 * bytes];
    let mut out = vec![1.0; 2 * len];
    for found_bytes in [0, 1, bytes, 2 * bytes - 1] {
        assert_eq!(
            format.decode_row(&src[..found_bytes], &mut out),
            Err(Error::ByteLength {
                format: format.name(),
                n_elements: 2 * len,
                expected_bytes: 2 * bytes,
                found_bytes,
            })
        );
        assert!(
            out.iter()
                .all(|&weight| weight.to_bits() == 1_f32.to_bits()),
            "{format}: written"
        );
        assert!(format.dot_row(&src[..found_bytes], &out).is_err());
    }
    if len > 1 {
        for n_elements in [1, len - 1, len + 1] {
            let refused = Error::PartialBlock {
                format: format.name(),
                block_len: len,
                n_elements,
            };
            assert_eq!(format.row_bytes(n_elements), Err(refused.clone()));
            assert_eq!(
                format.decode_row(&src, &mut out[..n_elements]),
                Err(refused)
            );
        }
    }
    if bytes > 1 {
        assert_eq!(
            format.first_non_finite(&src[..bytes + 1]),
            Err(Error::PartialBlockBytes {
                format: format.name(),
                block_bytes: bytes,
                found_bytes: bytes + 1
            })
        );
    }
    if format.can_quantize() {
        let mut short = vec![0; 2 * bytes - 1];
        assert!(matches!(
            format.quantize_row(&out, &mut short),
            Err(Error::ByteLength { .. })
        ));
    }
}

/// A row of three blocks in which one element is `value` and the rest are 1; the error it gives.
fn refusal(format: QuantType, index: usize, value: f32) -> Result<(), Error> {
    let mut values = vec![1.0; 3 * format.block_len()];
    values[index] = value;
    format.quantize_row(&values, &mut vec![0; 3 * format.block_bytes()])
}

pub(crate) fn values_that_are_not_finite_are_refused_with_their_index(format: QuantType) {
    let index = 2 * format.block_len() - 1;
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        match refusal(format, index, bad) {
            Err(Error::NonFinite {
                format: name,
                index: found,
                value,
            }) => {
                assert_eq!((name, found), (format.name(), index));
                assert_eq!(value.to_bits(), bad.to_bits());
            }
            other => panic!("{format}, {bad}: {other:?}"),
        }
    }
}

pub(crate) fn values_beyond_the_range_are_refused_with_their_index(format: QuantType) {
    let index = 2 * format.block_len() - 1;
    let found = refusal(format, index, -f32::MAX);
    if format == QuantType::F32 {
        assert_eq!(found, Ok(()));
    } else {
        let value = -f32::MAX;
        assert_eq!(
            found,
            Err(Error::OutOfRange {
                format: format.name(),
                index,
                value
            })
        );
    }
}

pub(crate) fn zeros_and_tiny_values_quantize_to_zero_or_themselves(format: QuantType) {
    let len = format.block_len();
    // Down to the smallest subnormal, whose reciprocal overflows.
    for tiny in [0.0, 1e-30, -1e-30, 1e-38, 1e-45, -1e-45] {
        let mut bytes = vec![0xaa; 2 * format.block_bytes()];
        let mut values = vec![0.0; 2 * len];
        values[len..].fill(tiny);
        format.quantize_row(&values, &mut bytes).expect("finite");
        let mut weights = vec![f32::NAN; 2 * len];
        format
            .decode_row(&bytes, &mut weights)
            .expect("whole blocks");
        // Of either sign: Q4_0's scale of a block of zeros is minus zero, as in llama.cpp.
        let all_zero = weights[..len]
            .iter()
            .all(|weight| weight.abs().to_bits() == 0);
        assert!(all_zero, "{format}: zeros became {:?}", &weights[..len]);
        let keeps = matches!(format, QuantType::F32)
            || (format == QuantType::BF16 && tiny.abs() > 1e-40_f32);
        for &weight in &weights[len..] {
            assert!(
                weight.abs() <= tiny.abs() * 1.01,
                "{format}: {tiny} became {weight}"
            );
            assert!(
                keeps || weight.abs().to_bits() == 0,
                "{format}: {tiny} became {weight}"
            );
        }
    }
}

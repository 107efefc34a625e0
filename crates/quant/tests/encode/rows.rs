//! What holds for every format that can be encoded.

use thalweg_quant::{Error, QuantType, encode};

use super::{SplitMix64, encoded, error_of};

fn encodable() -> impl Iterator<Item = QuantType> {
    QuantType::ALL
        .iter()
        .copied()
        .filter(|format| encode::can_encode(*format))
}

fn fitted() -> impl Iterator<Item = QuantType> {
    encodable().filter(|format| encode::is_fitted(*format))
}

#[test]
fn formats_without_a_fit_get_the_bytes_of_the_reference() {
    let values = SplitMix64(1).gaussians(512);
    for format in encodable().filter(|format| !encode::is_fitted(*format)) {
        let mut reference = vec![0; format.row_bytes(512).expect("whole blocks")];
        format
            .quantize_row(&values, &mut reference)
            .expect("finite values");
        assert_eq!(encoded(format, &values, None), reference, "{format}");
    }
    let refused = encode::encode_row(QuantType::IQ1_S, &values, None, &mut []);
    assert_eq!(refused, Err(Error::NoQuantizer { format: "IQ1_S" }));
}

#[test]
fn bad_values_and_bad_weights_are_named_and_nothing_is_written() {
    for format in fitted() {
        let len = format.block_len();
        let mut bytes = vec![0xaa; 3 * format.block_bytes()];
        let index = 2 * len + 3;
        let ones = vec![1.0; 3 * len];
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = ones.clone();
            values[index] = bad;
            // A weight of zero excuses nothing.
            let mut weights = ones.clone();
            weights[index] = 0.0;
            let found = encode::encode_row(format, &values, Some(&weights), &mut bytes);
            assert!(
                matches!(found, Err(Error::NonFinite { index: i, value, .. })
                    if i == index && value.to_bits() == bad.to_bits()),
                "{found:?}"
            );
        }
        for bad in [f32::NAN, f32::INFINITY, -1.0] {
            let mut weights = ones.clone();
            weights[index] = bad;
            let found = encode::encode_row(format, &ones, Some(&weights), &mut bytes);
            assert!(
                matches!(found, Err(Error::Importance { index: i, value, .. })
                    if i == index && value.to_bits() == bad.to_bits()),
                "{found:?}"
            );
        }
        let found = encode::encode_row(format, &ones, Some(&ones[1..]), &mut bytes);
        let expected = 3 * len;
        assert_eq!(
            found,
            Err(Error::ElementCount {
                format: format.name(),
                expected,
                found: expected - 1
            })
        );
        assert!(encode::encode_row(format, &ones, None, &mut bytes[1..]).is_err());
        assert!(encode::encode_row(format, &ones[1..], None, &mut bytes).is_err());
        assert!(bytes.iter().all(|&byte| byte == 0xaa), "{format}: written");
    }
}

#[test]
fn blocks_are_fitted_each_for_itself_and_weights_count_relative_to_each_other() {
    let mut random = SplitMix64(8);
    for format in fitted() {
        let (len, size) = (format.block_len(), format.block_bytes());
        let values = random.gaussians(3 * len);
        let weights = random.weights(3 * len);
        let row = encoded(format, &values, Some(&weights));
        for (i, block) in row.chunks(size).enumerate() {
            let here = i * len..(i + 1) * len;
            let alone = encoded(format, &values[here.clone()], Some(&weights[here]));
            assert_eq!(block, alone, "{format}, block {i}");
        }
        // A power of two, so that no rounding differs.
        let fourfold: Vec<f32> = weights.iter().map(|w| 4.0 * w).collect();
        assert_eq!(row, encoded(format, &values, Some(&fourfold)), "{format}");
    }
}

#[test]
fn weights_of_zero_everywhere_count_as_none() {
    let mut random = SplitMix64(9);
    for format in fitted() {
        let len = format.block_len();
        let values = random.gaussians(2 * len);
        let mut weights = random.weights(2 * len);
        weights[len..].fill(0.0);
        let bytes = encoded(format, &values, Some(&weights));
        let plain = encoded(format, &values, None);
        let (size, half) = (format.block_bytes(), len);
        assert_eq!(bytes[size..], plain[size..], "{format}");
        assert_ne!(
            bytes[..size],
            plain[..size],
            "{format}: weights had no effect"
        );
        let of_second = error_of(format, &bytes[size..], &values[half..], None);
        let of_both = error_of(format, &bytes, &values, Some(&weights));
        let of_first = error_of(
            format,
            &bytes[..size],
            &values[..half],
            Some(&weights[..half]),
        );
        super::assert_close(of_both, of_first + of_second, 1e-9 * of_both);
    }
}

#[test]
fn weights_lower_the_error_where_they_are_large() {
    let mut random = SplitMix64(10);
    for format in fitted() {
        let values = random.gaussians(8 * 256);
        let weights = random.weights(8 * 256);
        let with = encoded(format, &values, Some(&weights));
        let without = encoded(format, &values, None);
        let weighted = |bytes: &[u8]| error_of(format, bytes, &values, Some(&weights));
        assert!(weighted(&with) < weighted(&without), "{format}");
        let plain = |bytes: &[u8]| error_of(format, bytes, &values, None);
        assert!(plain(&without) < plain(&with), "{format}");
    }
}

#[test]
fn any_finite_values_are_encoded_to_finite_weights() {
    for format in fitted() {
        let len = format.block_len();
        for magnitude in [
            0.0,
            1e-45,
            1e-38,
            1e-30,
            6e-8,
            1e-5,
            1.0,
            65504.0,
            1e9,
            f32::MAX,
        ] {
            for pattern in 0..4_u8 {
                let values: Vec<f32> = (0..len)
                    .map(|i| match pattern {
                        0 => magnitude,
                        1 => -magnitude,
                        2 => magnitude * (i as f32 / len as f32 - 0.5),
                        _ => {
                            if i == 5 {
                                -magnitude
                            } else {
                                0.0
                            }
                        }
                    })
                    .collect();
                for weight in [1e-45, 1.0, f32::MAX] {
                    let bytes = encoded(format, &values, Some(&vec![weight; len]));
                    assert_eq!(format.first_non_finite(&bytes), Ok(None), "{format}");
                    let mut out = vec![0.0; len];
                    format.decode_row(&bytes, &mut out).expect("one block");
                    // Never beyond twice the largest value.
                    assert!(
                        out.iter().all(|y| y.abs() <= 2.0 * magnitude),
                        "{format}, {magnitude}"
                    );
                }
            }
        }
    }
}

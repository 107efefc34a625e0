//! IQ4_NL and Q4_0: one scale and sixteen levels.

use thalweg_quant::QuantType;
use thalweg_quant::formats::F16Le;

use super::{SplitMix64, assert_close, encoded, error_of};

const LEVELS_IQ4_NL: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

fn levels(format: QuantType) -> [i8; 16] {
    if format == QuantType::IQ4_NL {
        return LEVELS_IQ4_NL;
    }
    std::array::from_fn(|code| code as i8 - 8)
}

/// The least error over every finite half as the scale, each value at its nearest level.
fn error_over_all_halves(format: QuantType, values: &[f32], weights: &[f32]) -> f64 {
    let levels = levels(format).map(f64::from);
    let mut best = f64::INFINITY;
    for bits in 0..0x7c00_u16 {
        let d = f64::from(F16Le::from_bits(bits).to_f32());
        for d in [d, -d] {
            let mut error = 0.0;
            for (&x, &w) in values.iter().zip(weights) {
                let x = f64::from(x);
                let off = levels
                    .iter()
                    .map(|level| (x - level * d).abs())
                    .fold(f64::INFINITY, f64::min);
                error += f64::from(w) * off * off;
                if error > best {
                    break;
                }
            }
            best = best.min(error);
        }
    }
    best
}

#[test]
fn no_half_and_no_codes_beat_the_encoded_block() {
    let mut random = SplitMix64(21);
    for format in [QuantType::IQ4_NL, QuantType::Q4_0] {
        for exponent in [0, 0, 4, -14, -17, -19, -21, 19, 22] {
            let values: Vec<f32> = random
                .gaussians(32)
                .into_iter()
                .map(|x| x * 2_f32.powi(exponent))
                .collect();
            let weights = random.weights(32);
            let bytes = encoded(format, &values, Some(&weights));
            let found = error_of(format, &bytes, &values, Some(&weights));
            let best = error_over_all_halves(format, &values, &weights);
            assert_close(found / best, 1.0, 1e-10);
        }
    }
}

#[test]
fn weights_that_the_levels_hold_are_found_again() {
    for format in [QuantType::IQ4_NL, QuantType::Q4_0] {
        for scale in [0.25_f32, -0.25, 3.0, -1e-3] {
            let scale = F16Le::from_f32(scale).to_f32();
            let values: Vec<f32> = (0..32)
                .map(|i| scale * f32::from(levels(format)[(i * 5) % 16]))
                .collect();
            let bytes = encoded(format, &values, None);
            let mut out = [f32::NAN; 32];
            format.decode_row(&bytes, &mut out).expect("one block");
            let same = out.iter().zip(&values).all(|(a, b)| (a - b).abs() <= 0.0);
            assert!(same, "{format}, {scale}: {out:?}");
        }
    }
}

#[test]
fn the_fit_of_q4_0_is_never_worse_than_the_reference() {
    let mut random = SplitMix64(22);
    for _ in 0..300 {
        let values = random.gaussians(32);
        let mut reference = [0; 18];
        QuantType::Q4_0
            .quantize_row(&values, &mut reference)
            .expect("finite values");
        let ours = encoded(QuantType::Q4_0, &values, None);
        let error = |bytes| error_of(QuantType::Q4_0, bytes, &values, None);
        assert!(error(&ours) <= error(&reference));
    }
}

#[test]
fn zeros_give_a_scale_of_zero_and_the_codes_nearest_to_zero() {
    let mut expected = [0x88; 18];
    expected[..2].fill(0);
    for format in [QuantType::IQ4_NL, QuantType::Q4_0] {
        for zero in [0.0, -0.0, 1e-45, -1e-30] {
            assert_eq!(
                encoded(format, &[zero; 32], None),
                expected,
                "{format}, {zero:?}"
            );
        }
    }
}

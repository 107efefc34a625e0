//! Q2_0. Worked numbers were computed in Python from the definition, to the digits shown.

use thalweg_quant::encode::{self, fit_exact, fit_lloyd, nearest_levels};
use thalweg_quant::formats::F16Le;
use thalweg_quant::{Error, QuantType};

use super::{SplitMix64, assert_close, encoded, error_of};

const FORMAT: QuantType = QuantType::Q2_0;

fn energy(values: &[f32], weights: Option<&[f32]>) -> f64 {
    values
        .iter()
        .enumerate()
        .map(|(i, &x)| f64::from(weights.map_or(1.0, |w| w[i])) * f64::from(x).powi(2))
        .sum()
}

/// Scale, levels and error of the exact fit.
fn fitted(values: &[f32], weights: Option<&[f32]>) -> (f64, Vec<i8>, f64) {
    let fit = fit_exact(values, weights).expect("finite values");
    let mut levels = vec![9; values.len()];
    nearest_levels(values, fit.scale, &mut levels);
    (fit.scale, levels, energy(values, weights) - fit.gain)
}

fn stored_scale(block: &[u8]) -> f32 {
    F16Le::from_bits(u16::from_le_bytes([block[0], block[1]])).to_f32()
}

#[test]
fn worked_blocks_of_four() {
    let x = [1.0, -0.4, 2.1, -1.1];
    let (scale, levels, error) = fitted(&x, None);
    assert_close(scale, 1.05, 1e-6);
    assert_eq!(levels, [1, 0, 2, -1]);
    assert_close(error, 0.165, 1e-6);

    let (scale, levels, error) = fitted(&x, Some(&[1.0, 1.0, 1.0, 9.0]));
    assert_close(scale, 1.078_571, 1e-6);
    assert_eq!(levels, [1, 0, 2, -1]);
    assert_close(error, 0.173_571, 1e-6);

    let (scale, levels, error) = fitted(&[-2.0, -1.9, 1.0, 0.1], None);
    assert_close(scale, -0.977_778, 1e-6);
    assert_eq!(levels, [2, 2, -1, 0]);
    assert_close(error, 0.015_556, 1e-6);
}

#[test]
fn worked_block_of_gaussians() {
    let values = SplitMix64(2024).gaussians(64);
    assert_close(energy(&values, None), 62.278_407, 2e-6);

    let mut reference = [0; 18];
    FORMAT
        .quantize_row(&values, &mut reference)
        .expect("finite values");
    assert_close(
        error_of(FORMAT, &reference, &values, None),
        46.046_047,
        2e-6,
    );

    let max = values.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
    let lloyd = fit_lloyd(&values, None, f64::from(max), 50).expect("finite values");
    assert_close(energy(&values, None) - lloyd.gain, 11.931_881, 2e-6);

    let (scale, _, error) = fitted(&values, None);
    assert_close(scale, -0.930_176, 5e-5);
    // The published 6.899339 is with the scale as a half; without it is a little less.
    assert_close(error, 6.899_339, 1e-4);
    let bytes = encoded(FORMAT, &values, None);
    assert_close(error_of(FORMAT, &bytes, &values, None), 6.899_339, 2e-6);
    // The half that prints as -0.930176.
    assert_eq!(
        stored_scale(&bytes).to_bits(),
        (-1905.0_f32 / 2048.0).to_bits()
    );
}

#[test]
fn the_exact_fit_equals_the_search_over_all_codes() {
    let mut random = SplitMix64(5);
    for _ in 0..300 {
        let values: Vec<f32> = (0..5).map(|_| (4.0 * random.unit() - 2.0) as f32).collect();
        let weights: Vec<f32> = (0..5).map(|_| (random.unit() + 0.05) as f32).collect();
        let mut best = 0.0_f64;
        for pattern in 0..4_usize.pow(5) {
            let (mut a, mut b) = (0.0, 0.0);
            for (j, (&x, &w)) in values.iter().zip(&weights).enumerate() {
                let level = (pattern >> (2 * j) & 3) as f64 - 1.0;
                a += f64::from(w) * f64::from(x) * level;
                b += f64::from(w) * level * level;
            }
            if b > 0.0 {
                best = best.max(a * a / b);
            }
        }
        let fit = fit_exact(&values, Some(&weights)).expect("finite values");
        assert_close(fit.gain, best, 1e-12);
    }
}

/// The least error over every finite half as the scale, with the nearest levels of each.
fn error_over_all_halves(values: &[f32], weights: &[f32]) -> f64 {
    let mut best = f64::INFINITY;
    for bits in 0..0x7c00_u16 {
        let d = f64::from(F16Le::from_bits(bits).to_f32());
        for sign in [1.0, -1.0] {
            let mut error = 0.0;
            for (&x, &w) in values.iter().zip(weights) {
                let x = sign * f64::from(x);
                let level = f64::from(
                    u8::from(x > -0.5 * d) + u8::from(x >= 0.5 * d) + u8::from(x >= 1.5 * d),
                ) - 1.0;
                error += f64::from(w) * (x - level * d).powi(2);
            }
            best = best.min(error);
        }
    }
    best
}

#[test]
fn no_half_and_no_codes_beat_the_encoded_block() {
    let mut random = SplitMix64(11);
    // Ordinary blocks, blocks whose scale is a subnormal half, blocks beyond the largest half.
    for exponent in [
        0, 0, 3, -6, -18, -21, -22, -23, -24, -26, 13, 15, 16, 17, 20,
    ] {
        let values: Vec<f32> = random
            .gaussians(64)
            .into_iter()
            .map(|x| x * 2_f32.powi(exponent))
            .collect();
        let weights = random.weights(64);
        let bytes = encoded(FORMAT, &values, Some(&weights));
        let found = error_of(FORMAT, &bytes, &values, Some(&weights));
        let best = error_over_all_halves(&values, &weights);
        assert_close(found / best, 1.0, 1e-12);
    }
}

#[test]
fn exact_is_never_worse_than_lloyd_nor_lloyd_than_the_reference() {
    let mut random = SplitMix64(77);
    for _ in 0..300 {
        let values = random.gaussians(64);
        let weights = random.weights(64);
        let total = energy(&values, Some(&weights));
        let mut reference = [0; 18];
        FORMAT
            .quantize_row(&values, &mut reference)
            .expect("finite values");
        let of_reference = error_of(FORMAT, &reference, &values, Some(&weights));
        let max = values.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
        let start = f64::from(F16Le::from_f32(max).to_f32());
        let lloyd = fit_lloyd(&values, Some(&weights), start, 50).expect("finite values");
        let exact = fit_exact(&values, Some(&weights)).expect("finite values");
        assert!(total - lloyd.gain <= of_reference * (1.0 + 1e-12));
        assert!(exact.gain >= lloyd.gain * (1.0 - 1e-12));
        let bytes = encoded(FORMAT, &values, Some(&weights));
        // The half moves the scale by at most 2^-11 of it.
        let slack = exact.gain * 2_f64.powi(-22);
        let of_exact = error_of(FORMAT, &bytes, &values, Some(&weights));
        assert!(of_exact <= total - exact.gain + slack * (1.0 + 1e-6));
        assert!(of_exact <= of_reference);
    }
}

#[test]
fn negation_keeps_the_gain_and_scaling_moves_the_scale() {
    let mut random = SplitMix64(3);
    for _ in 0..50 {
        let values = random.gaussians(64);
        let weights = random.weights(64);
        let fit = fit_exact(&values, Some(&weights)).expect("finite values");
        let negated: Vec<f32> = values.iter().map(|x| -x).collect();
        let mirrored = fit_exact(&negated, Some(&weights)).expect("finite values");
        assert_eq!(mirrored.gain.to_bits(), fit.gain.to_bits());
        assert_eq!(mirrored.scale.to_bits(), (-fit.scale).to_bits());
        let eightfold: Vec<f32> = values.iter().map(|x| 8.0 * x).collect();
        let scaled = fit_exact(&eightfold, Some(&weights)).expect("finite values");
        assert_eq!(scaled.scale.to_bits(), (8.0 * fit.scale).to_bits());
    }
}

#[test]
fn equal_magnitudes_and_equal_halves_are_no_obstacle() {
    // Every value twice and many at the thresholds of a scale of 1; both signs do equally well.
    let values: Vec<f32> = (0..64_i16).map(|i| f32::from(i / 8 - 4) / 2.0).collect();
    let bytes = encoded(FORMAT, &values, None);
    let best = error_over_all_halves(&values, &[1.0; 64]);
    assert_close(error_of(FORMAT, &bytes, &values, None), best, 1e-12 * best);

    let all_equal = encoded(FORMAT, &[0.75; 64], None);
    assert_close(error_of(FORMAT, &all_equal, &[0.75; 64], None), 0.0, 0.0);
    let mut symmetric = [0.0; 64];
    symmetric[..2].copy_from_slice(&[1.0, -1.0]);
    assert!(stored_scale(&encoded(FORMAT, &symmetric, None)) > 0.0);
}

#[test]
fn zeros_of_either_sign_give_a_scale_of_zero_and_codes_of_zero() {
    for zero in [0.0, -0.0, 1e-45, -1e-30] {
        let mut values = [zero; 64];
        values[7] = -zero;
        let mut expected = [0x55; 18];
        expected[..2].fill(0);
        assert_eq!(encoded(FORMAT, &values, None), expected, "{zero:?}");
    }
}

#[test]
fn a_scale_beyond_the_largest_half_is_capped() {
    let mut values = [0.0; 64];
    values[..2].copy_from_slice(&[f32::MAX, -1e30]);
    let bytes = encoded(FORMAT, &values, None);
    assert_eq!(stored_scale(&bytes).abs().to_bits(), 65504_f32.to_bits());
    let mut decoded = [0.0; 64];
    FORMAT.decode_row(&bytes, &mut decoded).expect("one block");
    assert!(decoded[0] > 1e5 && decoded[1] < -6e4);
}

#[test]
fn fits_take_at_most_a_block_and_name_what_they_refuse() {
    assert_eq!(
        fit_exact(&[1.0; 65], None),
        Err(Error::ElementCount {
            format: "Q2_0",
            expected: 64,
            found: 65
        })
    );
    assert!(matches!(
        fit_lloyd(&[1.0, f32::NAN], None, 1.0, 9),
        Err(Error::NonFinite { index: 1, .. })
    ));
    assert!(matches!(
        fit_exact(&[1.0, 2.0], Some(&[1.0, -1.0])),
        Err(Error::Importance { index: 1, .. })
    ));
    let empty = fit_exact(&[], None).expect("nothing to fit");
    assert_close(empty.gain, 0.0, 0.0);
    for start in [0.0, f64::NAN, f64::INFINITY] {
        let fit = fit_lloyd(&[1.0, 2.0], None, start, 9).expect("finite values");
        assert_close(fit.gain, 0.0, 0.0);
        assert_close(fit.scale, 0.0, 0.0);
    }
    assert_eq!(encode::LEVELS_Q2_0, [-1, 0, 1, 2]);
}

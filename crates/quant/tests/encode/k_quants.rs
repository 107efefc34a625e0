//! Q4_K and Q6_K: runs with scales of their own, which share the block's halves.

use thalweg_quant::QuantType;

use super::{SplitMix64, encoded, error_of};

/// The step of a run of `len` values with `codes` levels that cover them evenly from end to end.
fn even_step(values: &[f32], codes: f32) -> f32 {
    let (low, high) = values.iter().fold((0.0_f32, 0.0_f32), |(low, high), &x| {
        (low.min(x), high.max(x))
    });
    (high - low) / (codes - 1.0)
}

#[test]
fn errors_stay_near_half_a_step_of_each_run() {
    let mut random = SplitMix64(41);
    for (format, run, codes) in [(QuantType::Q4_K, 32, 16.0), (QuantType::Q6_K, 16, 64.0)] {
        for exponent in [-10, 0, 12] {
            let values: Vec<f32> = random
                .gaussians(256)
                .into_iter()
                .map(|x| x * 2_f32.powi(exponent))
                .collect();
            let bytes = encoded(format, &values, None);
            let mut decoded = vec![f32::NAN; 256];
            format.decode_row(&bytes, &mut decoded).expect("one block");
            for (values, decoded) in values.chunks(run).zip(decoded.chunks(run)) {
                // Q6_K's levels are even around zero: the range is twice the extreme.
                let step = if format == QuantType::Q6_K {
                    let max = values.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
                    even_step(&[-max, max], codes)
                } else {
                    even_step(values, codes)
                };
                let squares = values.iter().zip(decoded).map(|(x, y)| (x - y).powi(2));
                let rms = (squares.sum::<f32>() / run as f32).sqrt();
                // Uniform errors in a step have an RMS of 0.29 of it.
                assert!(rms < 0.4 * step, "{format}, {exponent}: {rms} of {step}");
            }
        }
    }
}

#[test]
fn runs_on_scales_of_their_own_each_keep_their_precision() {
    let mut random = SplitMix64(42);
    for (format, run) in [(QuantType::Q4_K, 32), (QuantType::Q6_K, 16)] {
        let mut values = random.gaussians(256);
        for x in &mut values[..run] {
            *x *= 12.0;
        }
        let error = |values: &[f32]| {
            let bytes = encoded(format, values, None);
            let mut decoded = vec![f32::NAN; 256];
            format.decode_row(&bytes, &mut decoded).expect("one block");
            let rest = values[run..].iter().zip(&decoded[run..]);
            rest.map(|(x, y)| f64::from(x - y).powi(2)).sum::<f64>()
        };
        let beside_a_large_run = error(&values);
        values[..run].fill(0.0);
        // A scale for all runs would be twelve times as coarse, an error of 144 times. Scales of a
        // twelfth of the largest are 5 and 10 of their own steps, so something is lost.
        let ratio = beside_a_large_run / error(&values);
        assert!(ratio < 5.0, "{format}: {ratio}");
    }
}

#[test]
fn a_block_of_zeros_decodes_to_zeros() {
    for format in [QuantType::Q4_K, QuantType::Q6_K] {
        for zero in [0.0, -0.0] {
            let bytes = encoded(format, &[zero; 256], None);
            let mut decoded = vec![f32::NAN; 256];
            format.decode_row(&bytes, &mut decoded).expect("one block");
            assert!(decoded.iter().all(|y| y.abs() <= 0.0), "{format}");
        }
    }
}

#[test]
fn a_block_far_above_zero_takes_offsets_above_zero() {
    let values: Vec<f32> = SplitMix64(43)
        .gaussians(256)
        .iter()
        .map(|x| 50.0 + x)
        .collect();
    let bytes = encoded(QuantType::Q4_K, &values, None);
    // The sign bit of dmin: an offset is -dmin * min.
    assert_eq!(bytes[3] >> 7, 1);
    let mean = error_of(QuantType::Q4_K, &bytes, &values, None) / 256.0;
    // Offsets are multiples of about 50 / 63, so steps are coarser than for values around zero;
    // levels that start at zero would be 3.3 apart, an error of 0.9.
    assert!(mean < 0.1, "{mean}");
    let below: Vec<f32> = values.iter().map(|x| -x).collect();
    let bytes = encoded(QuantType::Q4_K, &below, None);
    assert_eq!(bytes[3] >> 7, 0);
    assert!(error_of(QuantType::Q4_K, &bytes, &below, None) / 256.0 < 0.1);
}

#[test]
fn values_below_the_smallest_half_and_beyond_the_largest_are_used_as_far_as_halves_reach() {
    let values = SplitMix64(44).gaussians(256);
    for format in [QuantType::Q4_K, QuantType::Q6_K] {
        // Halves of 2^-24 times multiples: coarse, but far better than zeros.
        let tiny: Vec<f32> = values.iter().map(|x| x * 1e-6).collect();
        let energy = tiny.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
        let bytes = encoded(format, &tiny, None);
        assert!(
            error_of(format, &bytes, &tiny, None) < 0.02 * energy,
            "{format}"
        );
        // The largest weight is 65504 times multiple and code.
        let huge: Vec<f32> = values.iter().map(|x| x * 1e12).collect();
        let bytes = encoded(format, &huge, None);
        assert_eq!(format.first_non_finite(&bytes), Ok(None));
        let mut decoded = vec![0.0; 256];
        format.decode_row(&bytes, &mut decoded).expect("one block");
        let signs_kept = huge
            .iter()
            .zip(&decoded)
            .all(|(x, y)| y.abs() <= 0.0 || x.is_sign_negative() == y.is_sign_negative());
        assert!(signs_kept, "{format}");
        assert!(decoded.iter().any(|y| y.abs() > 5e7), "{format}");
    }
}

//! Importance weights. Worked numbers were computed in Python from the formulas.

use thalweg_quant::encode::importance::{hidden_moments, normalize, projected_moment, temper};
use thalweg_quant::{Error, QuantType};

use super::{SplitMix64, assert_close, encoded};

const MOMENTS: [f64; 2] = [4.0, 1.0];

#[test]
fn worked_weights_of_gate_and_up() {
    let mut moments = MOMENTS;
    temper(&mut moments, 0.5).expect("an exponent between 0 and 1");
    assert_eq!(moments.map(f64::to_bits), [2.0_f64, 1.0].map(f64::to_bits));
    let mut weights = [0.0; 2];
    normalize(&moments, &mut weights).expect("finite moments");
    assert_close(f64::from(weights[0]), 4.0 / 3.0, 1e-7);
    assert_close(f64::from(weights[1]), 2.0 / 3.0, 1e-7);
}

#[test]
fn worked_weight_of_down() {
    let (gate, up) = ([1.0, 2.0], [0.5, -1.0]);
    let of_gate = projected_moment(&gate, &MOMENTS).expect("two of each");
    assert_close(of_gate.sqrt(), 2.828_427, 1e-6);
    let of_up = projected_moment(&up, &MOMENTS).expect("two of each");
    assert_close(of_up.sqrt(), std::f64::consts::SQRT_2, 1e-12);
    let mut hidden = [0.0];
    hidden_moments(&gate, &up, &MOMENTS, &mut hidden).expect("one row of each");
    assert_close(hidden[0], 16.0, 1e-12);
    temper(&mut hidden, 0.25).expect("an exponent between 0 and 1");
    assert_close(hidden[0], 2.0, 1e-12);
}

#[test]
fn each_row_gives_the_moment_of_its_own_column() {
    let gate = [1.0, 0.0, 0.0, 3.0, 2.0, 2.0];
    let up = [1.0, 1.0, 1.0, 0.0, 0.0, 0.0];
    let mut hidden = [9.0; 3];
    hidden_moments(&gate, &up, &MOMENTS, &mut hidden).expect("three rows of two");
    // 4 * (4 + 1), 9 * 4, 20 * 0
    assert_eq!(
        hidden.map(f64::to_bits),
        [20.0_f64, 36.0, 0.0].map(f64::to_bits)
    );
}

#[test]
fn weights_have_mean_one_however_large_the_moments_are() {
    for scale in [1e-300, 1.0, 1e308] {
        let moments = [scale, scale / 2.0, 0.0, scale / 2.0];
        let mut weights = [9.0; 4];
        normalize(&moments, &mut weights).expect("finite moments");
        let expected = [2.0_f32, 1.0, 0.0, 1.0];
        assert_eq!(weights.map(f32::to_bits), expected.map(f32::to_bits));
    }
    let mut weights = [9.0; 4];
    normalize(&[0.0; 4], &mut weights).expect("zeros are moments");
    assert_eq!(weights.map(f32::to_bits), [0; 4]);
}

#[test]
fn bad_moments_exponents_and_sizes_are_named() {
    for bad in [f64::NAN, f64::INFINITY, -1.0] {
        let mut moments = [1.0, bad];
        let found = temper(&mut moments, 0.5);
        assert!(
            matches!(found, Err(Error::Moment { index: 1, .. })),
            "{found:?}"
        );
        assert!(normalize(&[1.0, bad], &mut [0.0; 2]).is_err());
        assert!(projected_moment(&[1.0; 2], &[1.0, bad]).is_err());
        assert!(hidden_moments(&[1.0; 2], &[1.0; 2], &[1.0, bad], &mut [0.0]).is_err());
        let found = temper(&mut [1.0], bad);
        assert!(matches!(found, Err(Error::Exponent { .. })), "{found:?}");
    }
    let found = temper(&mut [1.0, 1e200], 2.0);
    assert!(
        matches!(found, Err(Error::Moment { index: 1, .. })),
        "{found:?}"
    );
    let refused = Err(Error::MomentCount {
        expected: 4,
        found: 3,
    });
    let found = hidden_moments(&[1.0; 3], &[1.0; 4], &MOMENTS, &mut [0.0; 2]);
    assert_eq!(found, refused);
    assert!(hidden_moments(&[1.0; 4], &[1.0; 3], &MOMENTS, &mut [0.0; 2]).is_err());
    assert!(normalize(&MOMENTS, &mut [0.0; 3]).is_err());
    assert_eq!(hidden_moments(&[], &[], &[], &mut [0.0; 2]), Ok(()));
}

/// Output error `sum_t (sum_d (w_d - q_d) x_td)^2` over inputs whose first elements are outliers.
#[test]
fn tempered_weights_lower_the_output_error_on_inputs_they_have_not_seen() {
    const N: usize = 128;
    let mut random = SplitMix64(31);
    let mut inputs = |n: usize| -> Vec<Vec<f64>> {
        (0..n)
            .map(|_| {
                (0..N)
                    .map(|d| random.gauss() * if d % 16 == 0 { 12.0 } else { 1.0 })
                    .collect()
            })
            .collect()
    };
    let (calibration, held_out) = (inputs(64), inputs(64));
    let mut moments: Vec<f64> = (0..N)
        .map(|d| calibration.iter().map(|x| x[d] * x[d]).sum::<f64>() / 64.0)
        .collect();
    temper(&mut moments, 0.5).expect("finite moments");
    let mut weights = vec![0.0; N];
    normalize(&moments, &mut weights).expect("finite moments");

    let mut random = SplitMix64(32);
    let mut errors = [0.0; 2];
    for _ in 0..16 {
        let row = random.gaussians(N);
        for (error, importance) in errors.iter_mut().zip([None, Some(&weights[..])]) {
            let bytes = encoded(QuantType::Q2_0, &row, importance);
            let mut decoded = vec![0.0; N];
            QuantType::Q2_0
                .decode_row(&bytes, &mut decoded)
                .expect("two blocks");
            for x in &held_out {
                let off: f64 = (0..N).map(|d| f64::from(row[d] - decoded[d]) * x[d]).sum();
                *error += off * off;
            }
        }
    }
    assert!(errors[1] < 0.9 * errors[0], "{errors:?}");
}

//! Importance weights from the second moments of activations.
//!
//! Owns the few formulas between a calibration run and [`encode_row`](super::encode_row): the
//! moments of a hidden vector, tempering, scaling. Does not run a model nor collect moments.
//! Memory: the caller's slices; nothing is allocated.
//! Invariants: (1) a moment is finite and not negative; (2) weights have mean 1 unless all moments
//! are 0, and then are all 0, which fits take as no weights.
//! Cost: one pass over the inputs.

use crate::{Error, Result};

/// The second moment of a projection's output, `sum_d row[d]^2 moments[d]`, for inputs whose
/// elements are independent with these second moments (`[n_embd]`, as is `row`).
///
/// # Errors
/// [`Error::MomentCount`] if the lengths differ; [`Error::Moment`] for the first moment that is NaN,
/// infinite or negative.
pub fn projected_moment(row: &[f32], moments: &[f64]) -> Result<f64> {
    check_count(row.len(), moments.len())?;
    check_moments(moments)?;
    Ok(projection(row, moments))
}

/// Second moments of the hidden vector of a gated feed-forward layer, the input of its down
/// projection, into `out` (`[n_ff]`).
///
/// `gate` and `up` are `[n_ff, n_embd]`, `moments` is `[n_embd]`. The moment of column c is the
/// product of those of the two projections' outputs: the activation function is taken as the
/// identity and its two inputs as independent, which keeps the order of columns rather than their
/// size.
///
/// # Errors
/// As [`projected_moment`], with the sizes of whole matrices.
pub fn hidden_moments(gate: &[f32], up: &[f32], moments: &[f64], out: &mut [f64]) -> Result<()> {
    let expected = out.len().saturating_mul(moments.len());
    check_count(expected, gate.len())?;
    check_count(expected, up.len())?;
    check_moments(moments)?;
    if moments.is_empty() {
        out.fill(0.0);
        return Ok(());
    }
    let rows = gate
        .chunks_exact(moments.len())
        .zip(up.chunks_exact(moments.len()));
    for (out, (gate, up)) in out.iter_mut().zip(rows) {
        *out = projection(gate, moments) * projection(up, moments);
    }
    Ok(())
}

/// Raises second moments to the power `exponent`, in place.
///
/// 1 weighs by what an error costs in the layer's output; 0 weighs all alike; in between, columns
/// that the calibration text hardly used are not given up. Customary: 0.5 for gate and up, 0.25 for
/// down with [`hidden_moments`].
///
/// # Errors
/// [`Error::Moment`] as [`projected_moment`], also for moments that become infinite;
/// [`Error::Exponent`] if `exponent` is NaN, infinite or negative. The moments before the one at
/// fault may already be raised.
pub fn temper(moments: &mut [f64], exponent: f64) -> Result<()> {
    if !(exponent >= 0.0 && exponent.is_finite()) {
        return Err(Error::Exponent { value: exponent });
    }
    check_moments(moments)?;
    for moment in &mut *moments {
        *moment = moment.powf(exponent);
    }
    check_moments(moments)
}

/// Scales moments to weights of mean 1, into `out` (of the same length). All-zero moments give
/// all-zero weights.
///
/// # Errors
/// [`Error::MomentCount`] if the lengths differ; [`Error::Moment`] as [`projected_moment`].
pub fn normalize(moments: &[f64], out: &mut [f32]) -> Result<()> {
    check_count(out.len(), moments.len())?;
    check_moments(moments)?;
    // By the largest first: a sum of finite moments may be infinite.
    let max = moments.iter().copied().fold(0.0, f64::max);
    if max <= 0.0 {
        out.fill(0.0);
        return Ok(());
    }
    let mean = moments.iter().map(|moment| moment / max).sum::<f64>() / moments.len() as f64;
    for (weight, moment) in out.iter_mut().zip(moments) {
        // At most the number of elements.
        *weight = (moment / max / mean) as f32;
    }
    Ok(())
}

fn projection(row: &[f32], moments: &[f64]) -> f64 {
    let terms = row.iter().zip(moments);
    terms
        .map(|(&x, moment)| f64::from(x) * f64::from(x) * moment)
        .sum()
}

fn check_count(expected: usize, found: usize) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    Err(Error::MomentCount { expected, found })
}

fn check_moments(moments: &[f64]) -> Result<()> {
    match moments
        .iter()
        .position(|&moment| !(moment >= 0.0 && moment.is_finite()))
    {
        Some(index) => Err(Error::Moment {
            index,
            value: moments[index],
        }),
        None => Ok(()),
    }
}

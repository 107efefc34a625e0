//! Fitted quantizers: f32 rows to blocks with the least weighted error this crate can find.
//!
//! Owns [`encode_row`], the one face of all fits, [`weighted_error`], by which they are compared,
//! and the checks of importance weights. Does not own llama.cpp's reference quantizers, which are
//! [`BlockFormat::quantize`] and write given bytes rather than the best ones.
//! Memory: the caller's slices and a few KiB of stack; nothing is allocated. Rows are independent,
//! so a caller runs them on as many threads as it likes.
//! Invariants: (1) the objective is `F = sum_j w_j (x_j - weight_j)^2` of what decode returns, the
//! rounding of scales to halves included; (2) a block depends on its own values and weights alone.

mod candidates;
pub mod importance;
mod q2_0;
mod q4_k;
mod q6_k;
mod sixteen;

pub use q2_0::{LEVELS_Q2_0, Q2Fit, fit_exact, fit_lloyd, nearest_levels};

use crate::formats::F16Le;
use crate::{BlockFormat, Error, QuantType, Result, formats};

/// The largest finite half.
const MAX_HALF: f64 = 65504.0;

/// Weights of a block that has none of its own.
const ONES: [f32; 256] = [1.0; 256];

/// Whether [`encode_row`] can write this format.
#[must_use]
pub fn can_encode(format: QuantType) -> bool {
    is_fitted(format) || format.can_quantize()
}

/// Whether [`encode_row`] fits this format, that is, whether importance weights change its bytes.
#[must_use]
pub fn is_fitted(format: QuantType) -> bool {
    matches!(
        format,
        QuantType::Q2_0 | QuantType::IQ4_NL | QuantType::Q4_0 | QuantType::Q6_K | QuantType::Q4_K
    )
}

/// Quantizes `values` (`[n]`) into `out`, minimizing the error weighted by `importance` (`[n]`).
///
/// Q2_0, IQ4_NL and Q4_0 are fitted exactly: no scale of either sign, rounded to a half, and no
/// codes give a smaller weighted error of a block. Q4_K and Q6_K are searched for: their runs share
/// a scale, so that the result is good, not exact.
/// Formats that only have a reference quantizer get its bytes, whatever the importance;
/// [`is_fitted`] tells. Weights matter relative to each other within a block; a block of weights
/// that are all zero counts as one without weights. Scales of fitted formats that a half cannot
/// hold are capped at 65504.
///
/// ```
/// use thalweg_quant::{QuantType, encode};
///
/// # fn main() -> thalweg_quant::Result<()> {
/// let values: Vec<f32> = (0..64).map(|i| (i as f32 * 0.7).sin()).collect();
/// let (mut fitted, mut reference) = ([0; 18], [0; 18]);
/// encode::encode_row(QuantType::Q2_0, &values, None, &mut fitted)?;
/// QuantType::Q2_0.quantize_row(&values, &mut reference)?;
/// let error = |bytes| encode::weighted_error(QuantType::Q2_0, bytes, &values, None);
/// assert!(error(&fitted)? < error(&reference)?);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::NoQuantizer`] unless [`can_encode`]; length errors as [`QuantType::quantize_row`], and
/// [`Error::ElementCount`] for the length of `importance`; [`Error::NonFinite`] for the first value
/// that is NaN or infinite; [`Error::Importance`] for the first weight that is NaN, infinite or
/// negative. `out` is then unchanged. Reference quantizers add [`Error::OutOfRange`], with the
/// blocks before already written.
///
/// # Cost
/// No allocation. `benches/benches/encode.rs` measures each format.
pub fn encode_row(
    format: QuantType,
    values: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
) -> Result<()> {
    if !can_encode(format) {
        return Err(Error::NoQuantizer {
            format: format.name(),
        });
    }
    format.check_row(out.len(), values.len())?;
    check_values(format.name(), values)?;
    check_importance(format.name(), values.len(), importance)?;
    match format {
        QuantType::Q2_0 => {
            encode_blocks::<formats::Q2_0, 64>(values, importance, out, q2_0::encode);
        }
        QuantType::IQ4_NL => {
            encode_blocks::<formats::IQ4_NL, 32>(values, importance, out, sixteen::encode_iq4_nl);
        }
        QuantType::Q4_0 => {
            encode_blocks::<formats::Q4_0, 32>(values, importance, out, sixteen::encode_q4_0);
        }
        QuantType::Q4_K => {
            encode_blocks::<formats::Q4_K, 256>(values, importance, out, q4_k::encode);
        }
        QuantType::Q6_K => {
            encode_blocks::<formats::Q6_K, 256>(values, importance, out, q6_k::encode);
        }
        _ => return format.quantize_row(values, out),
    }
    Ok(())
}

/// The error that fits minimize: the sum of `importance * (value - weight)^2` over a row, in f64.
///
/// Without importance, or in blocks where it is all zero, every weight counts as 1. The result is
/// not finite if a weight decodes to NaN or an infinity.
///
/// # Errors
/// Length errors as [`QuantType::decode_row`]; values and importance as [`encode_row`].
///
/// # Cost
/// One decode of the row, in pieces of at most 1 KiB on the stack.
pub fn weighted_error(
    format: QuantType,
    bytes: &[u8],
    values: &[f32],
    importance: Option<&[f32]>,
) -> Result<f64> {
    format.check_row(bytes.len(), values.len())?;
    check_values(format.name(), values)?;
    check_importance(format.name(), values.len(), importance)?;
    let mut decoded = [0.0; 256];
    let mut total = 0.0;
    let blocks = bytes
        .chunks_exact(format.block_bytes())
        .zip(values.chunks_exact(format.block_len()));
    for (i, (block, values)) in blocks.enumerate() {
        let decoded = &mut decoded[..format.block_len()];
        format.decode_row(block, decoded)?;
        let weights = block_weights(importance, i * format.block_len(), format.block_len());
        for ((&x, &weight), &w) in values.iter().zip(&*decoded).zip(weights) {
            let off = f64::from(x) - f64::from(weight);
            total += f64::from(w) * off * off;
        }
    }
    Ok(total)
}

/// Runs a block's fit over a row whose lengths have been checked.
fn encode_blocks<F: BlockFormat, const N: usize>(
    values: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
    encode: fn(&[f32; N], &[f32; N]) -> F::Block,
) {
    const { assert!(N == F::BLOCK_LEN) };
    let blocks = out
        .chunks_exact_mut(size_of::<F::Block>())
        .zip(values.as_chunks::<N>().0);
    for (i, (out, values)) in blocks.enumerate() {
        let weights = block_weights(importance, i * N, N)
            .try_into()
            .expect("block_weights returns as many as it was asked for");
        out.copy_from_slice(bytemuck::bytes_of(&encode(values, weights)));
    }
}

/// The weights of the `len <= 256` elements from `start`: ones where nothing tells them apart.
fn block_weights(importance: Option<&[f32]>, start: usize, len: usize) -> &[f32] {
    match importance.map(|all| &all[start..start + len]) {
        Some(weights) if weights.iter().any(|&w| w > 0.0) => weights,
        _ => &ONES[..len],
    }
}

/// The nearest half; the largest or smallest one for scales beyond it, so that only 0 becomes 0.
fn half_of(scale: f64) -> F16Le {
    const MIN: f64 = 1.0 / (1 << 24) as f64;
    match scale.abs() {
        zero if zero <= 0.0 => F16Le::default(),
        some => {
            let scale = some.clamp(MIN, MAX_HALF).copysign(scale);
            F16Le::from_bits(half::f16::from_f64(scale).to_bits())
        }
    }
}

/// The integer nearest to `x` of those from `lowest` to `highest`, at most some thousands.
#[inline]
fn nearest_integer(x: f64, lowest: f64, highest: f64) -> f64 {
    // Of a sum this large the last bit is 1; unlike f64::round it needs no call on old processors.
    const LAST_BIT_IS_ONE: f64 = 1.5 * (1_u64 << 52) as f64;
    (x.max(lowest).min(highest) + LAST_BIT_IS_ONE) - LAST_BIT_IS_ONE
}

/// Every value must be finite.
fn check_values(format: &'static str, values: &[f32]) -> Result<()> {
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(Error::NonFinite {
            format,
            index,
            value: values[index],
        }),
        None => Ok(()),
    }
}

/// As many weights as elements, each finite and not negative.
fn check_importance(
    format: &'static str,
    n_elements: usize,
    importance: Option<&[f32]>,
) -> Result<()> {
    let Some(importance) = importance else {
        return Ok(());
    };
    if importance.len() != n_elements {
        return Err(Error::ElementCount {
            format,
            expected: n_elements,
            found: importance.len(),
        });
    }
    match importance
        .iter()
        .position(|&w| !(w >= 0.0 && w.is_finite()))
    {
        Some(index) => Err(Error::Importance {
            format,
            index,
            value: importance[index],
        }),
        None => Ok(()),
    }
}

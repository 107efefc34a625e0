//! Elementary functions whose bits do not depend on the machine, written so that loops of them
//! vectorize.
//!
//! Owns [`exp`] and what is built on it. A C library's `expf` differs from one system to the next
//! and cannot be vectorized. Memory: none.
//! Invariants: (1) plain products and sums, none of them fused.
//! Cost: about thirty operations on f64, four or eight elements at a time.

/// `e^x`, within 0.501 units in the last place of f32: computed in f64 and rounded once.
///
/// `x = n ln 2 + r` with whole `n` and `|r| <= ln(2)/2`; then `e^r` by its series up to `r^10`,
/// whose remainder is below 3e-13, times `2^n` made from its bits. Beyond f32's range the result is
/// infinite or zero; NaN gives NaN.
#[inline]
pub(super) fn exp(x: f32) -> f32 {
    /// Adding it leaves the nearest whole number in the low bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    /// `ln 2` in two parts; the first has 32 bits, so that its products with `n` are exact.
    const LN_2_HIGH: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
    const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    // Comparisons that are false for NaN, which therefore passes.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let x = f64::from(x);
    let shifted = x * std::f64::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut series = 1.0 / 3_628_800.0;
    for reciprocal in [
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        series = series * r + reciprocal;
    }
    // The exponent's bits of 2^n: what `n` has below bit 11 moves to the top.
    let power = f64::from_bits((shifted.to_bits() << 52).wrapping_add(1023 << 52));
    (series * power) as f32
}

/// `1 / (1 + e^-x)`.
#[inline]
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x sigmoid(x)`.
#[inline]
pub(super) fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_the_exact_value_rounded_or_next_to_it() {
        let mut worst = 0.0_f64;
        for bits in (0..u32::from(u16::MAX)).map(|i| i << 16 | (i * 40_503) & 0xffff) {
            let x = f32::from_bits(bits);
            if !x.is_finite() || !(-87.0..88.7).contains(&x) {
                continue;
            }
            let (found, exact) = (exp(x), f64::from(x).exp());
            let ulp = f64::from(found.next_up()) - f64::from(found);
            worst = worst.max((f64::from(found) - exact).abs() / ulp);
        }
        assert!(worst < 0.501, "{worst}");
    }

    #[test]
    fn exp_ends_in_infinity_zero_and_nan() {
        for x in [88.73, 89.0, 1e9, f32::INFINITY] {
            assert_eq!(exp(x).to_bits(), f32::INFINITY.to_bits(), "{x}");
        }
        for x in [-104.0, -1e9, f32::NEG_INFINITY] {
            assert_eq!(exp(x).to_bits(), 0, "{x}");
        }
        // Subnormal results are rounded like others.
        for x in [-88.0, -95.5, -103.0] {
            assert_eq!(
                exp(x).to_bits(),
                (f64::from(x).exp() as f32).to_bits(),
                "{x}"
            );
        }
        assert!(exp(f32::NAN).is_nan());
        for x in [0.0, -0.0, 1e-45] {
            assert_eq!(exp(x).to_bits(), 1_f32.to_bits());
        }
    }

    #[test]
    fn sigmoid_and_silu_are_finite_at_the_ends() {
        assert_eq!(sigmoid(f32::NEG_INFINITY).to_bits(), 0);
        assert_eq!(sigmoid(f32::INFINITY).to_bits(), 1_f32.to_bits());
        assert_eq!(sigmoid(0.0).to_bits(), 0.5_f32.to_bits());
        assert_eq!(silu(-200.0).to_bits(), (-0.0_f32).to_bits());
        assert_eq!(silu(200.0).to_bits(), 200_f32.to_bits());
    }
}

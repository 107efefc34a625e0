//! The exponential of numbers up to zero, the same on every platform.
//!
//! The standard library's `exp` may differ in the last bit from one system to the next, and with it
//! a drawn token. Here: x = n ln 2 + r with |r| <= ln 2 / 2, e^x = 2^n e^r, e^r by its Taylor
//! polynomial of degree 7 (remainder below 6e-9), with f32 operations that IEEE 754 defines to the
//! bit. Relative error below 2e-7, e^0 is exactly 1. Vectorizes.

/// Below this the result is zero; the true value is under 2^-125.
const UNDERFLOW: f32 = -87.0;
/// Added and subtracted, it rounds to an integer, which stands in the low bits in between.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
/// ln 2 in two parts; the first has 9 bits, so that its product with n is exact.
const LN_2_HIGH: f32 = 355.0 / 512.0;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// e^x for x <= 0; 0 for x < -87. Anything goes for other x, but no panic.
#[inline]
pub(super) fn exp_up_to_zero(x: f32) -> f32 {
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut e = 1.0 / 5040.0;
    for coefficient in [
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        e = e * r + coefficient;
    }
    // n as a biased exponent: -126 <= n <= 0 where the result is used.
    let power = f32::from_bits((rounded.to_bits() << 23).wrapping_add(127 << 23));
    if x < UNDERFLOW { 0.0 } else { e * power }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_within_the_documented_bound() {
        let mut worst: f64 = 0.0;
        for i in 0..=870_000_u32 {
            let x = -(f64::from(i) * 1e-4) as f32;
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp_up_to_zero(x)) / exact - 1.0).abs());
        }
        assert!(worst < 2e-7, "{worst:e}");
    }

    #[test]
    fn ends_of_the_range_are_exact() {
        assert_eq!(exp_up_to_zero(0.0).to_bits(), 1_f32.to_bits());
        assert_eq!(exp_up_to_zero(-0.0).to_bits(), 1_f32.to_bits());
        for x in [-87.001, -1e4, f32::MIN, f32::NEG_INFINITY] {
            assert_eq!(exp_up_to_zero(x).to_bits(), 0, "{x}");
        }
        assert!(exp_up_to_zero(-87.0) > 0.0);
    }

    #[test]
    fn results_never_exceed_one_and_never_rise_by_more_than_rounding() {
        let mut previous = 1.0;
        for bits in (0..(-UNDERFLOW).to_bits()).step_by(997) {
            let e = exp_up_to_zero(-f32::from_bits(bits));
            assert!(e <= 1.0 && e <= previous * (1.0 + 2e-7));
            previous = e;
        }
    }
}

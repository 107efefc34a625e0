//! Portable arithmetic: the reference order of additions and the half-precision conversion.
//!
//! Owns: [`dot_f32`], [`Lanes`], and small numeric primitives that formats share.
//! Memory: none beyond its arguments.
//! Invariants: (1) products and sums are single f32 operations, never fused, so results are equal
//! on every machine; (2) the order of additions depends on the length alone.
//! Cost: written so that the compiler vectorizes it for the baseline instruction set.

/// Number of independent partial sums.
const LANES: usize = 16;

/// Rows that a product of several tokens takes at once.
pub(crate) const TILE_ROWS: usize = 4;

/// Weights of a row that such a product decodes at a time: a multiple of every block length and of
/// the number of lanes.
pub(crate) const CHUNK_LEN: usize = 512;

/// Dot product of `a` and `b` in f32: the reference order of additions.
///
/// Product `i` is added to lane `i % 16`, in rising order of `i`; a tail shorter than 16 goes into
/// the same lanes. Then lane `j` takes lane `j + 8`, then `j + 4`, `j + 2`, `j + 1`; lane 0 is the
/// result. Lanes start at `+0.0`. No product is fused with its addition. Elements beyond the
/// shorter slice are ignored.
///
/// ```
/// # use thalweg_quant::arch::scalar::dot_f32;
/// assert_eq!(dot_f32(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]), 32.0);
/// ```
#[must_use]
pub fn dot_f32(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = Lanes::default();
    lanes.add_products(a, b);
    lanes.sum()
}

/// The partial sums of [`dot_f32`], for callers that see a row in pieces.
///
/// Feeding pieces whose lengths are multiples of 16 (but for the last) gives the bits of one call.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lanes([f32; LANES]);

impl Lanes {
    /// Adds the products of `a` and `b`, element `i` into lane `i % 16`.
    #[inline]
    pub fn add_products(&mut self, a: &[f32], b: &[f32]) {
        // A local copy stays in registers; `self` might not.
        let mut lanes = self.0;
        let (a_whole, a_tail) = a[..a.len().min(b.len())].as_chunks::<LANES>();
        let (b_whole, b_tail) = b[..a.len().min(b.len())].as_chunks::<LANES>();
        for (a, b) in a_whole.iter().zip(b_whole) {
            for j in 0..LANES {
                lanes[j] += a[j] * b[j];
            }
        }
        for ((lane, a), b) in lanes.iter_mut().zip(a_tail).zip(b_tail) {
            *lane += a * b;
        }
        self.0 = lanes;
    }

    /// The lanes themselves, for kernels that hold them in registers.
    #[inline]
    #[cfg(target_arch = "x86_64")]
    pub(crate) const fn as_array(&self) -> &[f32; LANES] {
        &self.0
    }

    /// The lanes themselves, to be written back.
    #[inline]
    #[cfg(target_arch = "x86_64")]
    pub(crate) const fn as_array_mut(&mut self) -> &mut [f32; LANES] {
        &mut self.0
    }

    /// The sum of the lanes by the pairwise tree of [`dot_f32`].
    #[must_use]
    pub fn sum(self) -> f32 {
        let mut lanes = self.0;
        let mut width = LANES / 2;
        while width > 0 {
            let (low, high) = lanes.split_at_mut(width);
            for (low, high) in low.iter_mut().zip(high.iter()) {
                *low += *high;
            }
            width /= 2;
        }
        lanes[0]
    }
}

/// Adds to `lanes[t][r]` the products of `rows[r]` with token `t`, which starts at `x[t * stride]`.
///
/// The rows have one length, a multiple of 16 but for the last piece of a row.
pub(crate) fn add_tiles(
    rows: [&[f32]; TILE_ROWS],
    x: &[f32],
    stride: usize,
    lanes: &mut [[Lanes; TILE_ROWS]],
) {
    for (t, lanes) in lanes.iter_mut().enumerate() {
        let x = &x[t * stride..];
        for (lanes, row) in lanes.iter_mut().zip(rows) {
            lanes.add_products(row, x);
        }
    }
}

/// An IEEE half from its bits, exactly; without branches, so that loops of it vectorize.
///
/// Shifts exponent and mantissa into place and multiplies by 2^112, which fixes the exponent's bias
/// and makes subnormals normal. Infinity and NaN are what lands at or above 2^16: their exponent is
/// set to all ones. A NaN keeps its payload, in the top bits.
#[inline]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    const REBIAS: f32 = f32::from_bits((127 + 112) << 23);
    const FIRST_SPECIAL: f32 = 65536.0;
    let bits = u32::from(bits);
    let magnitude = f32::from_bits((bits & 0x7fff) << 13) * REBIAS;
    let special = if magnitude >= FIRST_SPECIAL {
        0x7f80_0000
    } else {
        0
    };
    f32::from_bits(magnitude.to_bits() | special | ((bits & 0x8000) << 16))
}

/// Rounds half away from zero, like C's `roundf`, for magnitudes below 2^23.
///
/// `f32::round` is a library call on baseline x86-64; this is an addition and a truncation. Adding
/// the largest f32 below one half instead of one half keeps 0.49999997 at zero.
#[inline]
pub(crate) fn round_half_away(x: f32) -> i32 {
    const ALMOST_HALF: f32 = f32::from_bits(0x3eff_ffff);
    // The bounded cast: NaN gives 0, out of range saturates.
    (x + ALMOST_HALF.copysign(x)) as i32
}

/// `magnitude` with its sign flipped where `negative`: exact, as a multiplication by -1 would be.
#[inline]
pub(crate) fn with_sign(magnitude: f32, negative: bool) -> f32 {
    f32::from_bits(magnitude.to_bits() ^ if negative { 0x8000_0000 } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_converts_exactly() {
        for bits in 0..=u16::MAX {
            let expected = half::f16::from_bits(bits);
            let found = f16_to_f32(bits);
            if expected.is_nan() {
                assert!(found.is_nan(), "{bits:#06x}");
                assert_eq!(
                    found.is_sign_negative(),
                    expected.is_sign_negative(),
                    "{bits:#06x}"
                );
            } else {
                assert_eq!(
                    found.to_bits(),
                    expected.to_f32_const().to_bits(),
                    "{bits:#06x}"
                );
            }
        }
    }

    #[test]
    fn rounding_is_that_of_the_standard_library() {
        // Every f32 around the halves up to 200, and a sweep of bit patterns below 2^23.
        for half in -400..=400 {
            let center = half as f32 / 2.0;
            for x in [
                center.next_down().next_down(),
                center.next_down(),
                center,
                center.next_up(),
            ] {
                assert_eq!(round_half_away(x), x.round() as i32, "{x:?}");
            }
        }
        for bits in (0..(8_388_608_f32).to_bits()).step_by(4099) {
            let x = f32::from_bits(bits);
            assert_eq!(round_half_away(x), x.round() as i32, "{x:?}");
            assert_eq!(round_half_away(-x), (-x).round() as i32, "{x:?}");
        }
        assert_eq!(round_half_away(f32::NAN), 0);
    }

    /// The order of additions as the documentation states it, index by index.
    fn dot_by_the_book(a: &[f32], b: &[f32]) -> f32 {
        let mut lanes = [0.0_f32; 16];
        for i in 0..a.len() {
            lanes[i % 16] += a[i] * b[i];
        }
        for width in [8, 4, 2, 1] {
            for j in 0..width {
                lanes[j] += lanes[j + width];
            }
        }
        lanes[0]
    }

    fn values(n: usize, mut state: u32) -> Vec<f32> {
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        };
        (0..n).map(|_| next()).collect()
    }

    #[test]
    fn dot_adds_in_the_documented_order_for_every_length() {
        for n in 0..200 {
            let (a, b) = (values(n, 1), values(n, 2));
            assert_eq!(
                dot_f32(&a, &b).to_bits(),
                dot_by_the_book(&a, &b).to_bits(),
                "{n}"
            );
        }
    }

    #[test]
    fn lanes_fed_in_pieces_of_sixteen_give_the_same_bits() {
        let (a, b) = (values(333, 3), values(333, 4));
        let mut lanes = Lanes::default();
        for (a, b) in a.chunks(48).zip(b.chunks(48)) {
            lanes.add_products(a, b);
        }
        assert_eq!(lanes.sum().to_bits(), dot_f32(&a, &b).to_bits());
    }

    #[test]
    fn dot_ignores_what_exceeds_the_shorter_slice() {
        assert_eq!(
            dot_f32(&[1.0, 2.0, f32::NAN], &[3.0, 4.0]).to_bits(),
            11_f32.to_bits()
        );
    }
}

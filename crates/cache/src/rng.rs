//! `SplitMix64`: the generator behind every drawn lot and every synthetic trace.
//!
//! Owns 8 bytes of state. Same sequence on every platform. Source of the constants: Steele, Lea,
//! Flood, "Fast splittable pseudorandom number generators" (2014). Cost: a few operations a draw.

/// A small, seedable generator; not for secrets.
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// A generator whose sequence depends on the seed alone.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `[0, 1)` with 53 random bits.
    pub fn unit(&mut self) -> f64 {
        // Both conversions are exact: 53 bits, and a power of two.
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// A number in `0..n`, or 0 when `n` is 0. The bias of the remainder is below `n / 2^64`.
    pub const fn below(&mut self, n: u64) -> u64 {
        let bits = self.next_u64();
        if n == 0 { 0 } else { bits % n }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        // First outputs for seed 1234567, as printed by the reference C code.
        let mut rng = SplitMix64::new(1_234_567);
        let first = [rng.next_u64(), rng.next_u64(), rng.next_u64()];
        assert_eq!(
            first,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn units_stay_below_one_and_bounds_are_kept() {
        let mut rng = SplitMix64::new(3);
        for n in 0..1000 {
            let u = rng.unit();
            assert!((0.0..1.0).contains(&u));
            assert!(rng.below(n) < n.max(1));
        }
    }
}

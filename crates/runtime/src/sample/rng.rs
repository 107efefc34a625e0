//! The random generator: SplitMix64.
//!
//! Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; constants
//! as in Vigna's splitmix64.c. One word of state, which is the seed plus a constant for each number
//! taken: a saved state and a seed are the same kind of number.

/// A sequence of 64-bit numbers.
#[derive(Debug, Clone)]
pub(super) struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    pub(super) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub(super) fn state(&self) -> u64 {
        self.state
    }

    /// The next number, from 0 to below 1, in steps of 2^-53.
    pub(super) fn next_unit(&mut self) -> f64 {
        // 53 bits fit an f64 exactly.
        (self.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_first_numbers_are_met() {
        let mut rng = SplitMix64::new(1_234_567);
        let numbers: [u64; 5] = std::array::from_fn(|_| rng.next_u64());
        assert_eq!(
            numbers,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821,
            ]
        );
    }

    #[test]
    fn units_are_below_one_and_spread() {
        let mut rng = SplitMix64::new(0);
        let mut sum = 0.0;
        for _ in 0..10_000 {
            let unit = rng.next_unit();
            assert!((0.0..1.0).contains(&unit));
            sum += unit;
        }
        // Standard deviation of the sum is 29.
        assert!((sum - 5_000.0_f64).abs() < 120.0, "{sum}");
    }

    #[test]
    fn a_state_taken_as_seed_continues_the_sequence() {
        let mut rng = SplitMix64::new(9);
        rng.next_u64();
        let mut copy = SplitMix64::new(rng.state());
        assert_eq!(rng.next_u64(), copy.next_u64());
    }
}

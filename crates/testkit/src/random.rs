//! The random numbers of small models. Owns: one stream a tensor, uniform and normal values.
//! Does not own: which tensor gets which distribution.
//!
//! Invariants: 1. only integer arithmetic and correctly rounded operations (no `ln`, no `cos`), so
//! that a seed gives the same bits everywhere. 2. A tensor's values depend on the seed and its own
//! name alone: adding a layer or a tensor leaves the others as they were.
//! Cost: one 64-bit step a value.

/// A SplitMix64 stream (Steele, Lea, Flood: "Fast splittable pseudorandom number generators").
#[derive(Debug)]
pub(crate) struct Random {
    state: u64,
}

impl Random {
    /// The stream of one tensor of the model with this seed.
    pub(crate) fn for_tensor(seed: u64, name: &str) -> Self {
        // FNV-1a, then one step to part seeds that differ in few bits.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let state = Self { state: seed }.next_u64() ^ hash;
        Self { state }
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        finish(self.state)
    }

    /// Uniform in `[0, 1)`, a multiple of 2^-24.
    pub(crate) fn unit(&mut self) -> f32 {
        // 24 bits convert without rounding.
        (self.next_u64() >> 40) as f32 / 16_777_216.0
    }

    /// Nearly normal with mean 0 and deviation 1: the sum of four 16-bit uniforms, which ends at
    /// 3.46 deviations. Box-Muller would need `ln` and `cos`, whose last bits differ by system.
    pub(crate) fn normal(&mut self) -> f32 {
        let bits = self.next_u64();
        let sum: u64 = (0..4).map(|i| bits >> (16 * i) & 0xffff).sum();
        // The mean of the sum is 4 * 65535 / 2, its deviation sqrt(4 / 12) * 65536.
        let centered = sum as f64 - 131_070.0;
        (centered / (65_536.0 * (1.0_f64 / 3.0).sqrt())) as f32
    }
}

/// SplitMix64's output function.
pub(crate) fn finish(state: u64) -> u64 {
    let mut x = state;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_splitmix64() {
        let mut random = Random { state: 1_234_567 };
        // First outputs for this seed as the generator's public test vectors give them.
        assert_eq!(random.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(random.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn normal_values_have_mean_zero_and_deviation_one() {
        let mut random = Random::for_tensor(7, "x");
        let values: Vec<f64> = (0..100_000).map(|_| f64::from(random.normal())).collect();
        let mean = values.iter().sum::<f64>() / 1e5;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.02, "{mean}");
        assert!((variance - 1.0).abs() < 0.02, "{variance}");
    }

    #[test]
    fn tensors_have_streams_of_their_own() {
        let first = |seed, name| Random::for_tensor(seed, name).next_u64();
        assert_ne!(first(1, "a"), first(1, "b"));
        assert_ne!(first(1, "a"), first(2, "a"));
        assert_eq!(first(1, "a"), first(1, "a"));
    }
}

//! `Synthetic`: router logits of a model that is not there.
//!
//! Owns the generator and its state, one number an expert. The logit of an expert is the sum of
//! what it always has (its popularity) and what drifts (a first-order autoregressive process): skew
//! and temporal correlation are set apart. Invariant: the same settings give the same rows
//! everywhere. Memory: 16 bytes an expert. Cost: four draws an expert and row.

use alloc::vec::Vec;

use crate::math::{exp, ln};
use crate::{Error, KeySpace, SplitMix64};

/// Settings of a [`Synthetic`] router.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct SyntheticConfig {
    /// Standard deviation of popularity over the experts of a layer, in nats: 0 uses all alike.
    /// Default 1.
    pub skew: f64,
    /// Standard deviation of the drifting part, in nats; above 0. Default 1.5.
    pub spread: f64,
    /// Correlation of the drifting part between neighboring tokens, 0 up to but not including 1.
    /// Default 0.8.
    pub persistence: f64,
    /// Seed. Default 1.
    pub seed: u64,
}

impl Default for SyntheticConfig {
    fn default() -> Self {
        Self {
            skew: 1.0,
            spread: 1.5,
            persistence: 0.8,
            seed: 1,
        }
    }
}

/// Makes rows of logits, token by token.
///
/// ```
/// use thalweg_cache::sim::{self, SimConfig, Synthetic, SyntheticConfig};
/// use thalweg_cache::{KeySpace, Moce, PolicyKind};
/// let space = KeySpace::new(2, 64);
/// let mut router = Synthetic::new(space, &SyntheticConfig::default())?;
/// let config = SimConfig::new(PolicyKind::Lru, space, 40, 4);
/// let report = sim::route(100, &config, &Moce::default(), |_, layer, row| {
///     router.row(layer, row);
/// })?;
/// assert!(report.cache.total.hit_rate() > Some(0.2));
/// # Ok::<(), thalweg_cache::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Synthetic {
    n_expert: usize,
    persistence: f64,
    /// What is new at each token, so that the spread stays the same.
    innovation: f64,
    popularity: Vec<f64>,
    drift: Vec<f64>,
    rng: SplitMix64,
}

impl Synthetic {
    /// A router for the layers and experts of `space`.
    ///
    /// # Errors
    /// [`Error::BadTuning`] for a setting out of its range.
    pub fn new(space: KeySpace, config: &SyntheticConfig) -> Result<Self, Error> {
        for (name, found, min, max) in [
            ("skew", config.skew, 0.0, 100.0),
            ("spread", config.spread, 1e-6, 100.0),
            ("persistence", config.persistence, 0.0, 0.999_999),
        ] {
            // Written so that a NaN fails.
            if !(found >= min && found <= max) {
                return Err(Error::BadTuning {
                    name,
                    found,
                    min,
                    max,
                });
            }
        }
        let mut rng = SplitMix64::new(config.seed);
        let n_keys = space.n_keys() as usize;
        let popularity = (0..n_keys).map(|_| config.skew * normal(&mut rng));
        let popularity = popularity.collect();
        let drift = (0..n_keys).map(|_| config.spread * normal(&mut rng));
        let drift = drift.collect();
        // The square root, which `core` lacks.
        let rest = 1.0 - config.persistence * config.persistence;
        Ok(Self {
            n_expert: usize::from(space.n_expert()),
            persistence: config.persistence,
            innovation: config.spread * exp(0.5 * ln(rest)),
            popularity,
            drift,
            rng,
        })
    }

    /// Writes a layer's logits for its next token, `[n_expert]`. Layers out of range give zeros.
    pub fn row(&mut self, layer: u16, out: &mut [f32]) {
        out.fill(0.0);
        let start = usize::from(layer) * self.n_expert;
        let drift = self.drift.iter_mut().skip(start).take(self.n_expert);
        let popularity = self.popularity.iter().skip(start);
        for ((z, drift), popularity) in out.iter_mut().zip(drift).zip(popularity) {
            *drift = self.persistence * *drift + self.innovation * normal(&mut self.rng);
            *z = (popularity + *drift) as f32;
        }
    }
}

/// Nearly a standard normal number: the sum of four uniform ones, which has its first two moments
/// and ends at 3.5 deviations.
fn normal(rng: &mut SplitMix64) -> f64 {
    const SQRT_3: f64 = 1.732_050_807_568_877_2;
    let sum: f64 = (0..4).map(|_| rng.unit()).sum();
    (sum - 2.0) * SQRT_3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{SimConfig, route};
    use crate::{Moce, PolicyKind};

    fn rows(config: &SyntheticConfig, n: usize) -> Vec<Vec<f32>> {
        let mut router = Synthetic::new(KeySpace::new(1, 64), config).expect("valid");
        (0..n)
            .map(|_| {
                let mut row = alloc::vec![0.0; 64];
                router.row(0, &mut row);
                row
            })
            .collect()
    }

    #[test]
    fn spread_and_correlation_are_what_was_asked_for() {
        let config = SyntheticConfig {
            skew: 0.0,
            spread: 2.0,
            persistence: 0.9,
            seed: 5,
        };
        let rows = rows(&config, 4000);
        let (mut square, mut product) = (0.0, 0.0);
        for pair in rows.windows(2) {
            for (a, b) in pair[0].iter().zip(&pair[1]) {
                square += f64::from(*a) * f64::from(*a);
                product += f64::from(*a) * f64::from(*b);
            }
        }
        let n = 3999.0 * 64.0;
        assert!((square / n - 4.0).abs() < 0.1, "{}", square / n);
        assert!(
            (product / square - 0.9).abs() < 0.01,
            "{}",
            product / square
        );
        assert_eq!(self::rows(&config, 3), rows[..3]);
    }

    #[test]
    fn skew_and_persistence_both_make_caching_easier() {
        let misses = |skew, persistence| {
            let config = SyntheticConfig {
                skew,
                persistence,
                ..SyntheticConfig::default()
            };
            let space = KeySpace::new(2, 32);
            let mut router = Synthetic::new(space, &config).expect("valid");
            let sim = SimConfig::new(PolicyKind::Lru, space, 16, 4);
            let row = |_, layer, out: &mut [f32]| router.row(layer, out);
            let report = route(400, &sim, &Moce::default(), row).expect("valid");
            report.cache.total.n_misses
        };
        let base = misses(0.0, 0.0);
        assert!(misses(2.0, 0.0) < base && misses(0.0, 0.95) < base);
        assert!(misses(2.0, 0.95) < misses(2.0, 0.0));
    }

    #[test]
    fn settings_out_of_range_are_refused_and_layers_out_of_range_are_empty() {
        let space = KeySpace::new(1, 4);
        for (skew, spread, persistence) in [
            (-1.0, 1.0, 0.5),
            (f64::NAN, 1.0, 0.5),
            (1.0, 0.0, 0.5),
            (1.0, 1.0, 1.0),
        ] {
            let config = SyntheticConfig {
                skew,
                spread,
                persistence,
                seed: 1,
            };
            assert!(Synthetic::new(space, &config).is_err());
        }
        let mut router = Synthetic::new(space, &SyntheticConfig::default()).expect("valid");
        let mut row = [1.0; 4];
        router.row(9, &mut row);
        assert_eq!(row.map(f32::to_bits), [0; 4]);
    }
}

//! Synthetic accesses: router logits with drift, and skewed random batches.
//!
//! Owns the generators; the same seed gives the same accesses everywhere.

use alloc::vec::Vec;

use crate::math::exp;
use crate::{Access, AccessLog, Key, Probs, SplitMix64};

/// Router logits with drift: `z[t][e] = 3 u(phase, e) + 1.5 u(t, e)`, `u` uniform in `[0, 1)`.
///
/// The phases divide the tokens evenly, so that what is popular changes twice in a run of three.
#[derive(Clone, Debug)]
pub struct Synth {
    n_tokens: usize,
    n_expert: usize,
    logits: Vec<f64>,
}

impl Synth {
    /// Three phases; the same seed gives the same logits everywhere.
    #[must_use]
    pub fn new(seed: u64, n_tokens: usize, n_expert: usize) -> Self {
        const N_PHASE: usize = 3;
        let mut rng = SplitMix64::new(seed);
        let base: Vec<f64> = (0..N_PHASE * n_expert).map(|_| 3.0 * rng.unit()).collect();
        let mut logits = Vec::with_capacity(n_tokens * n_expert);
        for t in 0..n_tokens {
            let phase = t * N_PHASE / n_tokens;
            for e in 0..n_expert {
                logits.push(base[phase * n_expert + e] + 1.5 * rng.unit());
            }
        }
        Self {
            n_tokens,
            n_expert,
            logits,
        }
    }

    /// The logits of a token, `[n_expert]`.
    #[must_use]
    pub fn row(&self, token: usize) -> &[f64] {
        &self.logits[token * self.n_expert..(token + 1) * self.n_expert]
    }

    /// Experts of a token in descending order, ties to the lower id.
    #[must_use]
    pub fn ranked(&self, token: usize) -> Vec<u32> {
        let row = self.row(token);
        let mut ids: Vec<u32> = (0..self.n_expert as u32).collect();
        ids.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]));
        ids
    }

    /// The `k` best of every token as accesses, with near keys and probabilities.
    #[must_use]
    pub fn log(&self, k: usize) -> AccessLog {
        let mut log = AccessLog::new();
        for token in 0..self.n_tokens {
            let keys: Vec<Key> = self.ranked(token).into_iter().map(Key::new).collect();
            let greatest = self.row(token)[keys[0].index()];
            let raised: Vec<f64> = self.row(token).iter().map(|z| exp(z - greatest)).collect();
            let sum: f64 = raised.iter().sum();
            let probs: Vec<f32> = raised.iter().map(|p| (p / sum) as f32).collect();
            let near = &keys[k..(2 * k).min(keys.len())];
            log.push(
                &Access::new(token as u64, &keys[..k])
                    .with_near(near)
                    .with_probs(Probs::new(Key::new(0), &probs)),
            );
        }
        log
    }
}

/// Batches of distinct keys, low ids more often, without near keys and probabilities.
#[must_use]
pub fn random_log(seed: u64, n_accesses: u64, n_keys: u32, batch: usize) -> AccessLog {
    let mut rng = SplitMix64::new(seed);
    let mut log = AccessLog::new();
    let mut keys = Vec::with_capacity(batch);
    for clock in 0..n_accesses {
        keys.clear();
        while keys.len() < batch {
            let (a, b) = (rng.below(n_keys.into()), rng.below(n_keys.into()));
            let key = Key::new(a.min(b) as u32);
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        log.push(&Access::new(clock, &keys));
    }
    log
}

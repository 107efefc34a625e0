//! EMA: evict the key with the least exponential moving average of "was picked".
//!
//! s <- (1 - rho) s + rho * credit for every key at every access; ties by least recent use.
//! Owns `Decayed`, the scores that `ema` and `near_pick_ema` share. Instead of shrinking all
//! scores at each access, the credit grows by 1 / (1 - rho), and all scores are scaled down by a
//! power of two (which is exact) when it becomes large: the order is the same. Invariant: the heap
//! holds exactly the inserted keys. Memory: 20 bytes a key, 8 a slot. Cost: O(log C) a credited
//! key and a victim; O(keys) once in 139 / rho accesses.

use crate::heap::KeyHeap;
use crate::{Access, Error, Key, Policy, PolicyConfig};

/// Scores are scaled down when the credit passes this.
const GAIN_LIMIT: f64 = (1u128 << 100) as f64 * (1u128 << 100) as f64;

/// Exponential moving average of picks: frequency with a memory of about 1 / rho accesses.
#[derive(Debug)]
pub struct Ema {
    scores: Decayed,
}

impl Ema {
    /// An empty policy.
    ///
    /// # Errors
    /// What [`PolicyConfig::check`] finds.
    pub fn new(config: &PolicyConfig<'_>) -> Result<Self, Error> {
        config.check()?;
        Ok(Self {
            scores: Decayed::new(config),
        })
    }
}

impl Policy for Ema {
    fn begin(&mut self, access: &Access<'_>) {
        self.scores.decay();
        for &key in access.keys {
            self.scores.credit(key, 1.0);
        }
    }

    fn on_hit(&mut self, _key: Key) {}

    fn victim(&mut self, evictable: &dyn Fn(Key) -> bool) -> Option<Key> {
        self.scores.heap.first(evictable)
    }

    fn on_evict(&mut self, key: Key) {
        self.scores.heap.remove(key);
    }

    fn on_insert(&mut self, key: Key) {
        self.scores.insert(key);
    }

    fn end(&mut self, access: &Access<'_>) {
        self.scores.stamp(access);
    }

    fn validate(&self) -> Result<(), Error> {
        self.scores.heap.validate("ema")
    }
}

/// Decaying scores with recency stamps for ties.
#[derive(Debug)]
pub(super) struct Decayed {
    /// (score times the gain of its time, stamp of the last use)
    pub(super) heap: KeyHeap<(f64, u64)>,
    decay: Decay,
    stamp: u64,
}

impl Decayed {
    pub(super) fn new(config: &PolicyConfig<'_>) -> Self {
        Self {
            heap: KeyHeap::new(config.n_keys, config.capacity, (0.0, 0)),
            decay: Decay::new(config.tuning.ema_rho),
            stamp: 0,
        }
    }

    /// One access passes.
    pub(super) fn decay(&mut self) {
        if let Some(factor) = self.decay.step() {
            self.heap.update_all(|rank| rank.0 *= factor);
        }
    }

    pub(super) fn credit(&mut self, key: Key, credit: f64) {
        let gained = self.decay.credit(credit);
        self.heap.update(key, |rank| rank.0 += gained);
    }

    pub(super) fn insert(&mut self, key: Key) {
        self.touch(key);
        self.heap.insert(key);
    }

    pub(super) fn stamp(&mut self, access: &Access<'_>) {
        for key in access.ascending() {
            self.touch(key);
        }
    }

    fn touch(&mut self, key: Key) {
        self.stamp += 1;
        let stamp = self.stamp;
        self.heap.update(key, |rank| rank.1 = stamp);
    }
}

/// The growing credit that stands for shrinking scores.
#[derive(Debug)]
pub(super) struct Decay {
    rho: f64,
    gain: f64,
}

impl Decay {
    pub(super) const fn new(rho: f64) -> Self {
        Self { rho, gain: 1.0 }
    }

    /// One access passes; the factor by which all scores are to be multiplied now, if any.
    pub(super) fn step(&mut self) -> Option<f64> {
        self.gain /= 1.0 - self.rho;
        if self.gain < GAIN_LIMIT {
            return None;
        }
        let factor = 1.0 / GAIN_LIMIT;
        self.gain *= factor;
        Some(factor)
    }

    pub(super) fn credit(&self, credit: f64) -> f64 {
        self.rho * credit * self.gain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaling_the_scores_down_does_not_change_the_order() {
        // 139 / rho accesses pass the limit; compare with scores that are shrunk each time.
        let mut config = PolicyConfig::new(4, 4, 1);
        config.tuning.ema_rho = 0.3;
        let mut policy = Ema::new(&config).expect("valid");
        let mut plain = [0.0f64; 4];
        for id in 0..4 {
            policy.on_insert(Key::new(id));
        }
        let mut rng = crate::SplitMix64::new(11);
        for t in 0..5000 {
            let id = rng.below(4) as u32;
            for (other, score) in plain.iter_mut().enumerate() {
                let credit = if other == id as usize { 0.3 } else { 0.0 };
                *score = 0.7 * *score + credit;
            }
            let keys = [Key::new(id)];
            let access = Access::new(t, &keys);
            policy.begin(&access);
            policy.on_hit(keys[0]);
            policy.end(&access);
            policy.validate().expect("sound");
            let least = (0..4u32).min_by(|&a, &b| plain[a as usize].total_cmp(&plain[b as usize]));
            if t > 50 {
                assert_eq!(policy.victim(&|_| true).map(Key::id), least, "access {t}");
            }
        }
    }
}

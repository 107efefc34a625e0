//! Inverse-router EMA: evict the key with the greatest inverse of its average probability.
//!
//! Every key of `Access::probs` earns its probability as credit, so a key may gain standing
//! without being picked. Without probabilities the batch earns 1 each, as in `ema`. Owns scores
//! and stamps of all keys and the set of inserted ones. No heap: an access changes the scores of a
//! whole layer, so keeping an order would cost more than looking for the least. Memory: 20 bytes a
//! key, 4 a slot. Cost: O(probabilities) an access, O(C) a victim; O(keys) once in 139 / rho
//! accesses.

use alloc::vec;
use alloc::vec::Vec;

use super::ema::Decay;
use crate::set::KeySet;
use crate::{Access, Error, Key, Policy, PolicyConfig};

/// Moving average of the router's probability for every key.
#[derive(Debug)]
pub struct InverseRouterEma {
    scores: Vec<f64>,
    stamps: Vec<u64>,
    resident: KeySet,
    decay: Decay,
    stamp: u64,
}

impl InverseRouterEma {
    /// An empty policy.
    ///
    /// # Errors
    /// What [`PolicyConfig::check`] finds.
    pub fn new(config: &PolicyConfig<'_>) -> Result<Self, Error> {
        config.check()?;
        Ok(Self {
            scores: vec![0.0; config.n_keys as usize],
            stamps: vec![0; config.n_keys as usize],
            resident: KeySet::new(config.n_keys, config.capacity),
            decay: Decay::new(config.tuning.ema_rho),
            stamp: 0,
        })
    }

    fn credit(&mut self, key: Key, credit: f64) {
        if let Some(score) = self.scores.get_mut(key.index()) {
            *score += self.decay.credit(credit);
        }
    }

    fn touch(&mut self, key: Key) {
        self.stamp += 1;
        if let Some(stamp) = self.stamps.get_mut(key.index()) {
            *stamp = self.stamp;
        }
    }

    /// Whether `a` is to be evicted before `b`.
    fn before(&self, a: Key, b: Key) -> bool {
        let rank = |key: Key| (self.scores[key.index()], self.stamps[key.index()], key);
        rank(a) < rank(b)
    }
}

impl Policy for InverseRouterEma {
    fn begin(&mut self, access: &Access<'_>) {
        if let Some(factor) = self.decay.step() {
            self.scores.iter_mut().for_each(|score| *score *= factor);
        }
        match access.probs {
            Some(probs) => {
                for (key, p) in probs.iter() {
                    self.credit(key, f64::from(p));
                }
            }
            None => {
                for &key in access.keys {
                    self.credit(key, 1.0);
                }
            }
        }
    }

    fn on_hit(&mut self, _key: Key) {}

    fn victim(&mut self, evictable: &dyn Fn(Key) -> bool) -> Option<Key> {
        // Members of the set are below `n_keys`, so their scores exist. Whether a key may leave is
        // asked only of those that would be the least so far: that is the dearer question.
        let mut least = None;
        for key in self.resident.iter() {
            if least.is_none_or(|least| self.before(key, least)) && evictable(key) {
                least = Some(key);
            }
        }
        least
    }

    fn on_evict(&mut self, key: Key) {
        self.resident.remove(key);
    }

    fn on_insert(&mut self, key: Key) {
        self.touch(key);
        self.resident.insert(key);
    }

    fn end(&mut self, access: &Access<'_>) {
        for key in access.ascending() {
            self.touch(key);
        }
    }

    fn validate(&self) -> Result<(), Error> {
        self.resident.validate("inverse_router_ema")
    }
}

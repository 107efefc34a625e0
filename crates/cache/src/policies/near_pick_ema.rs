//! Near-pick EMA: like `ema`, but a key that nearly was picked earns a part of the credit.
//!
//! Credit 1 for the batch, `near_credit` for `Access::near`. Owns what `ema` owns. Invariant: the
//! heap holds exactly the inserted keys. Memory: 20 bytes a key, 8 a slot. Cost: as `ema`, the near
//! keys counted as credited; finding them takes O(k) comparisons for each.

use super::ema::Decayed;
use crate::{Access, Error, Key, Policy, PolicyConfig};

/// Moving average of picks and near picks. Equals [`Ema`](super::Ema) when accesses have no near
/// keys.
#[derive(Debug)]
pub struct NearPickEma {
    scores: Decayed,
    near_credit: f64,
}

impl NearPickEma {
    /// An empty policy.
    ///
    /// # Errors
    /// What [`PolicyConfig::check`] finds.
    pub fn new(config: &PolicyConfig<'_>) -> Result<Self, Error> {
        config.check()?;
        Ok(Self {
            scores: Decayed::new(config),
            near_credit: config.tuning.near_credit,
        })
    }
}

impl Policy for NearPickEma {
    fn begin(&mut self, access: &Access<'_>) {
        self.scores.decay();
        for &key in access.keys {
            self.scores.credit(key, 1.0);
        }
        for key in access.near {
            // A key that was picked has its credit already.
            if !access.keys.contains(key) {
                self.scores.credit(*key, self.near_credit);
            }
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
        self.scores.heap.validate("near_pick_ema")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_key_earns_its_share_and_a_picked_one_not_twice() {
        let mut policy = NearPickEma::new(&PolicyConfig::new(4, 3, 1)).expect("valid");
        let [twice, picked, near] = [0, 1, 2].map(Key::new);
        for key in [twice, picked, near] {
            policy.on_insert(key);
        }
        let mut access = |keys: &[Key], near: &[Key]| {
            let access = Access::new(0, keys).with_near(near);
            policy.begin(&access);
            policy.end(&access);
        };
        // Named among the near keys of its own access: that must not count.
        access(&[twice], &[twice]);
        access(&[picked], &[near]);
        access(&[picked], &[near]);
        // Scores in units of rho: 0.9025; 1.95; 0.975.
        assert_eq!(policy.victim(&|_| true), Some(twice));
        policy.on_evict(twice);
        assert_eq!(policy.victim(&|_| true), Some(near));
    }
}

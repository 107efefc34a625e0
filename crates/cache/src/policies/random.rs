//! Random: evict any key, all equally likely.
//!
//! Owns the set of inserted keys and a generator. Invariant: the set holds exactly the inserted
//! keys. Memory: 4 bytes a key and 4 a slot. Cost: O(1) expected while at most half of the keys
//! are pinned; otherwise `victim` may count all C of them.

use crate::set::KeySet;
use crate::{Error, Key, Policy, PolicyConfig, SplitMix64};

/// Draws before the evictable keys are counted instead.
const MAX_DRAWS: u32 = 16;

/// Uniform choice; the baseline without any knowledge. Repeatable by its seed.
#[derive(Debug)]
pub struct Random {
    resident: KeySet,
    rng: SplitMix64,
}

impl Random {
    /// An empty policy.
    ///
    /// # Errors
    /// What [`PolicyConfig::check`] finds.
    pub fn new(config: &PolicyConfig<'_>) -> Result<Self, Error> {
        config.check()?;
        Ok(Self {
            resident: KeySet::new(config.n_keys, config.capacity),
            rng: SplitMix64::new(config.seed),
        })
    }

    fn draw(&mut self, n: usize) -> usize {
        // The result is below `n`, so it fits again.
        self.rng.below(n as u64) as usize
    }
}

impl Policy for Random {
    fn on_hit(&mut self, _key: Key) {}

    fn victim(&mut self, evictable: &dyn Fn(Key) -> bool) -> Option<Key> {
        // Rejected draws leave the others equally likely.
        for _ in 0..MAX_DRAWS {
            let index = self.draw(self.resident.len());
            let key = self.resident.member(index)?;
            if evictable(key) {
                return Some(key);
            }
        }
        let n_evictable = self.resident.iter().filter(|&key| evictable(key)).count();
        let index = self.draw(n_evictable);
        self.resident
            .iter()
            .filter(|&key| evictable(key))
            .nth(index)
    }

    fn on_evict(&mut self, key: Key) {
        self.resident.remove(key);
    }

    fn on_insert(&mut self, key: Key) {
        self.resident.insert(key);
    }

    fn validate(&self) -> Result<(), Error> {
        self.resident.validate("random")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_evictable_key_is_drawn_about_equally_often() {
        let mut policy = Random::new(&PolicyConfig::new(8, 8, 1)).expect("valid");
        for id in 0..8 {
            policy.on_insert(Key::new(id));
        }
        let mut counts = [0; 8];
        for _ in 0..8000 {
            let key = policy.victim(&|key| key.id() != 3).expect("seven remain");
            counts[key.index()] += 1;
        }
        assert_eq!(counts[3], 0);
        for (id, &count) in counts.iter().enumerate() {
            assert!(id == 3 || (1000..1300).contains(&count), "{counts:?}");
        }
    }

    #[test]
    fn a_single_evictable_key_among_many_is_found() {
        let mut policy = Random::new(&PolicyConfig::new(1000, 1000, 1)).expect("valid");
        for id in 0..1000 {
            policy.on_insert(Key::new(id));
        }
        assert_eq!(policy.victim(&|key| key.id() == 777), Some(Key::new(777)));
        assert_eq!(policy.victim(&|_| false), None);
    }
}

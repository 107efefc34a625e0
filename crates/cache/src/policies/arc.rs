//! ARC: recency and frequency lists that trade space by their ghosts (Megiddo, Modha, 2003).
//!
//! Owns T1 (used once), T2 (used again), their ghost lists B1 and B2, and the target size p of T1,
//! a real number. Which list loses a key depends on the key that comes in, so the case is settled
//! by `on_miss`. REPLACE takes the oldest unpinned key of the list chosen, else of the other.
//! Invariants: T1 and T2 together hold exactly the inserted keys; 1. T1 + B1 <= C; 2. all four
//! together <= 2 C; 3. 0 <= p <= C. Memory: 10 bytes a key. Cost: O(1), plus the pinned keys passed
//! over.

use crate::lists::Lists;
use crate::{Error, Key, Policy, PolicyConfig};

const T1: u16 = 0;
const T2: u16 = 1;
const B1: u16 = 2;
const B2: u16 = 3;

/// Adaptive replacement cache.
#[derive(Debug)]
pub struct Arc {
    lists: Lists,
    capacity: u32,
    /// Target size of T1.
    p: f64,
    /// The key that comes in, and how room is made for it.
    incoming: Option<(Key, Room)>,
    /// The victim last proposed, and whether it leaves a ghost.
    proposed: Option<(Key, bool)>,
}

#[derive(Clone, Copy, Debug)]
enum Room {
    Replace {
        returns_from_b2: bool,
    },
    /// T1 fills the whole cache: its oldest key leaves without a ghost.
    DropFromT1,
}

impl Arc {
    /// An empty policy.
    ///
    /// # Errors
    /// What [`PolicyConfig::check`] finds.
    pub fn new(config: &PolicyConfig<'_>) -> Result<Self, Error> {
        config.check()?;
        Ok(Self {
            lists: Lists::new(config.n_keys, 4),
            capacity: config.capacity,
            p: 0.0,
            incoming: None,
            proposed: None,
        })
    }

    fn len(&self, list: u16) -> f64 {
        f64::from(self.lists.len(list))
    }

    /// Keys in some lists; u64 because four lists of u32 could exceed u32.
    fn total(&self, lists: &[u16]) -> u64 {
        lists.iter().map(|&l| u64::from(self.lists.len(l))).sum()
    }

    /// Adapts to the key that comes in and trims the ghosts.
    fn admit(&mut self, key: Key) -> Room {
        let capacity = u64::from(self.capacity);
        match self.lists.list_of(key) {
            Some(B1) => {
                let step = (self.len(B2) / self.len(B1)).max(1.0);
                self.p = (self.p + step).min(f64::from(self.capacity));
            }
            Some(B2) => {
                let step = (self.len(B1) / self.len(B2)).max(1.0);
                self.p = (self.p - step).max(0.0);
                return Room::Replace {
                    returns_from_b2: true,
                };
            }
            _ if self.total(&[T1, B1]) >= capacity => {
                if self.total(&[T1]) >= capacity {
                    return Room::DropFromT1;
                }
                self.lists.pop_front(B1);
            }
            _ => {
                if self.total(&[T1, T2, B1, B2]) >= 2 * capacity {
                    self.lists.pop_front(B2);
                }
            }
        }
        Room::Replace {
            returns_from_b2: false,
        }
    }

    fn replace(&self, returns_from_b2: bool, evictable: &dyn Fn(Key) -> bool) -> Option<Key> {
        let n_t1 = self.len(T1);
        let t1_first = n_t1 > 0.0 && (n_t1 > self.p || (returns_from_b2 && n_t1 >= self.p));
        let order = if t1_first { [T1, T2] } else { [T2, T1] };
        order
            .into_iter()
            .find_map(|list| self.lists.oldest(list, evictable))
    }

    fn is_resident(&self, key: Key) -> bool {
        matches!(self.lists.list_of(key), Some(T1 | T2))
    }
}

impl Policy for Arc {
    fn on_hit(&mut self, key: Key) {
        if self.is_resident(key) {
            self.lists.push_back(T2, key);
        }
    }

    fn on_miss(&mut self, key: Key) {
        // A retried load must not adapt twice.
        if self.incoming.is_none_or(|(known, _)| known != key) && !self.is_resident(key) {
            self.incoming = Some((key, self.admit(key)));
        }
    }

    fn victim(&mut self, evictable: &dyn Fn(Key) -> bool) -> Option<Key> {
        let room = self.incoming.map(|(_, room)| room);
        let dropped = match room {
            Some(Room::DropFromT1) => self.lists.oldest(T1, evictable),
            _ => None,
        };
        self.proposed = match (dropped, room) {
            (Some(key), _) => Some((key, false)),
            (None, Some(Room::Replace { returns_from_b2 })) => self
                .replace(returns_from_b2, evictable)
                .map(|key| (key, true)),
            (None, _) => self.replace(false, evictable).map(|key| (key, true)),
        };
        self.proposed.map(|(key, _)| key)
    }

    fn on_evict(&mut self, key: Key) {
        let leaves_ghost = self.proposed.take() == Some((key, true));
        if !self.is_resident(key) {
            return;
        }
        let from = self.lists.remove(key);
        if leaves_ghost {
            self.lists
                .push_back(if from == Some(T1) { B1 } else { B2 }, key);
        }
    }

    fn on_insert(&mut self, key: Key) {
        self.incoming = None;
        match self.lists.list_of(key) {
            Some(B1 | B2) => self.lists.push_back(T2, key),
            Some(_) => {}
            None => self.lists.push_back(T1, key),
        }
    }

    fn validate(&self) -> Result<(), Error> {
        let capacity = u64::from(self.capacity);
        let facts = [
            self.total(&[T1, B1]) <= capacity,
            self.total(&[T1, T2, B1, B2]) <= 2 * capacity,
            (0.0..=f64::from(self.capacity)).contains(&self.p),
        ];
        for (invariant, holds) in (1..).zip(facts) {
            if !holds {
                return Err(Error::Broken {
                    owner: "arc",
                    invariant,
                    key: None,
                });
            }
        }
        self.lists.validate("arc")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(policy: &mut Arc, id: u32, n_misses: u32) {
        let key = Key::new(id);
        for _ in 0..n_misses {
            policy.on_miss(key);
        }
        if policy.total(&[T1, T2]) == u64::from(policy.capacity) {
            let victim = policy.victim(&|_| true).expect("all may leave");
            policy.on_evict(victim);
        }
        policy.on_insert(key);
        policy.validate().expect("sound");
    }

    #[test]
    fn a_retried_load_adapts_once() {
        let run = |n_misses| {
            let mut policy = Arc::new(&PolicyConfig::new(20, 4, 1)).expect("valid");
            for id in 0..4 {
                load(&mut policy, id, 1);
            }
            policy.on_hit(Key::new(0));
            // Key 1 leaves T1 for its ghost list, then returns.
            load(&mut policy, 5, n_misses);
            assert!(policy.lists.contains(B1, Key::new(1)));
            load(&mut policy, 1, n_misses);
            assert!(policy.lists.contains(T2, Key::new(1)));
            policy.p
        };
        let once = run(1);
        assert!(once > 0.0);
        assert!((run(3) - once).abs() < 1e-12);
    }
}

//! W-TinyLFU: a recency window in front of a frequency-guarded main part (Einziger et al., 2017).
//!
//! Owns a window (LRU), a main part of probation and protected (segmented LRU), and a use count a
//! key, halved every 10 C uses. The window's oldest key replaces the main part's only if it was
//! used strictly more often. The window is never below one batch, which has to stay as a whole.
//! Counts are exact, not a sketch: keys are dense. Invariants: the three lists together hold
//! exactly the inserted keys; 1. the protected part keeps its share. Memory: 14 bytes a key. Cost:
//! O(1), plus the pinned keys passed over; O(keys) once in 10 C uses.

use alloc::vec;
use alloc::vec::Vec;

use crate::lists::Lists;
use crate::{Access, Error, Key, Policy, PolicyConfig};

const WINDOW: u16 = 0;
const PROBATION: u16 = 1;
const PROTECTED: u16 = 2;
/// Uses between halvings, in capacities.
const HALVE_AFTER: u64 = 10;

/// Frequency decides who enters, recency who leaves.
#[derive(Debug)]
pub struct WTinyLfu {
    lists: Lists,
    counts: Vec<u32>,
    n_uses: u64,
    halve_at: u64,
    n_window: u32,
    n_protected: u32,
}

impl WTinyLfu {
    /// An empty policy.
    ///
    /// # Errors
    /// What [`PolicyConfig::check`] finds.
    pub fn new(config: &PolicyConfig<'_>) -> Result<Self, Error> {
        config.check()?;
        let capacity = config.capacity;
        let n_window = round_up(f64::from(capacity) * config.tuning.window_share)
            .max(config.batch)
            .min(capacity);
        // Shares are at most 1, so the products fit; this cast rounds down.
        let n_protected = (config.tuning.protected_share * f64::from(capacity - n_window)) as u32;
        Ok(Self {
            lists: Lists::new(config.n_keys, 3),
            counts: vec![0; config.n_keys as usize],
            n_uses: 0,
            halve_at: HALVE_AFTER * u64::from(capacity),
            n_window,
            n_protected,
        })
    }

    fn count(&self, key: Key) -> u32 {
        self.counts.get(key.index()).copied().unwrap_or(0)
    }
}

impl Policy for WTinyLfu {
    fn begin(&mut self, access: &Access<'_>) {
        for key in access.keys {
            if let Some(count) = self.counts.get_mut(key.index()) {
                *count = count.saturating_add(1);
                self.n_uses += 1;
            }
        }
        if self.n_uses >= self.halve_at {
            self.n_uses = 0;
            self.counts.iter_mut().for_each(|count| *count >>= 1);
        }
    }

    fn on_hit(&mut self, key: Key) {
        match self.lists.list_of(key) {
            Some(WINDOW) => self.lists.push_back(WINDOW, key),
            Some(_) => {
                self.lists.push_back(PROTECTED, key);
                if self.lists.len(PROTECTED) > self.n_protected
                    && let Some(demoted) = self.lists.front(PROTECTED)
                {
                    self.lists.push_back(PROBATION, demoted);
                }
            }
            None => {}
        }
    }

    fn victim(&mut self, evictable: &dyn Fn(Key) -> bool) -> Option<Key> {
        let candidate = self.lists.oldest(WINDOW, evictable);
        let main = self
            .lists
            .oldest(PROBATION, evictable)
            .or_else(|| self.lists.oldest(PROTECTED, evictable));
        let (Some(candidate), Some(main)) = (candidate, main) else {
            return candidate.or(main);
        };
        let window_has_room = self.lists.len(WINDOW) < self.n_window;
        let candidate_wins = self.count(candidate) > self.count(main);
        Some(if window_has_room || candidate_wins {
            main
        } else {
            candidate
        })
    }

    fn on_evict(&mut self, key: Key) {
        self.lists.remove(key);
    }

    fn on_insert(&mut self, key: Key) {
        if key.index() >= self.counts.len() || self.lists.list_of(key).is_some() {
            return;
        }
        if self.lists.len(WINDOW) >= self.n_window
            && let Some(oldest) = self.lists.front(WINDOW)
        {
            self.lists.push_back(PROBATION, oldest);
        }
        self.lists.push_back(WINDOW, key);
    }

    fn validate(&self) -> Result<(), Error> {
        if self.lists.len(PROTECTED) > self.n_protected {
            return Err(Error::Broken {
                owner: "wtinylfu",
                invariant: 1,
                key: None,
            });
        }
        self.lists.validate("wtinylfu")
    }
}

/// The least integer not below `x`, for `x` within `u32`.
fn round_up(x: f64) -> u32 {
    let down = x as u32;
    down + u32::from(f64::from(down) < x)
}

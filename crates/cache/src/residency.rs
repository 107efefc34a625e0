//! `Residency`: which key sits in which slot, who pins it, and whether it has been loaded.
//!
//! Owns the key -> slot and slot -> key tables, states, pins and generations. Does not own the
//! bytes in the slots, nor the order of eviction (a `Policy` does). Memory: 8 bytes a key and 20 a
//! slot, allocated by `new`. Invariants (checked by `validate`): 1. a key has at most one slot and
//! both tables agree; 2. a free slot has no key and no pin, and is in the free list once; 3. a
//! loading slot has a pin; 4. `n_pinned` and `n_resident` equal a count over all slots; 5. only an
//! unpinned resident slot is ever evicted.
//! Cost: O(1) an operation, plus the policy's own when a victim is needed.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use crate::{Error, Key, Policy, SlotId};

const NIL: u32 = u32::MAX;

/// What a slot holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SlotState {
    /// Nothing.
    Free,
    /// A key whose bytes are still on their way; pinned by whoever loads it.
    Loading,
    /// A key whose bytes are complete.
    Resident,
}

impl fmt::Display for SlotState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Free => "free",
            Self::Loading => "loading",
            Self::Resident => "resident",
        })
    }
}

/// A slot taken for a key by [`Residency::reserve`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct Reservation {
    /// The slot to load the key into.
    pub slot: SlotId,
    /// The key that had to leave it, if it was not free.
    pub evicted: Option<Key>,
    /// The slot's new [`generation`](Residency::generation).
    pub generation: u32,
}

/// The table of keys and slots.
///
/// ```
/// use thalweg_cache::{Key, PolicyConfig, PolicyKind, Residency, SlotState};
/// let mut policy = PolicyKind::Lru.build(&PolicyConfig::new(10, 2, 1))?;
/// let mut table = Residency::new(10, 2)?;
/// let taken = table.reserve(Key::new(7), &mut *policy)?;
/// assert_eq!(table.state(taken.slot), Some(SlotState::Loading)); // read the bytes now ...
/// table.complete(taken.slot)?;
/// table.unpin(Key::new(7))?; // ... and release it when the last reader is done
/// assert_eq!(table.slot(Key::new(7)), Some(taken.slot));
/// # Ok::<(), thalweg_cache::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Residency {
    slot_of: Vec<u32>,
    slots: Vec<Slot>,
    /// Free slots, the next one to hand out last.
    free: Vec<u32>,
    n_pinned: u32,
    n_resident: u32,
    /// Scratch of `check_batch`: the number of the last batch that named a key.
    seen: Vec<u32>,
    batch: u32,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    key: u32,
    pins: u32,
    generation: u32,
    state: SlotState,
}

impl Residency {
    /// An empty table of `n_slots` slots for the keys `0..n_keys`.
    ///
    /// # Errors
    /// [`Error::BadShape`] when either is `u32::MAX`, which marks "none" in the tables.
    pub fn new(n_keys: u32, n_slots: u32) -> Result<Self, Error> {
        for (name, found) in [("n_keys", n_keys), ("n_slots", n_slots)] {
            if found == NIL {
                return Err(Error::BadShape {
                    name,
                    found,
                    min: 0,
                    max: NIL - 1,
                });
            }
        }
        let empty = Slot {
            key: NIL,
            pins: 0,
            generation: 0,
            state: SlotState::Free,
        };
        Ok(Self {
            slot_of: vec![NIL; n_keys as usize],
            slots: vec![empty; n_slots as usize],
            free: (0..n_slots).rev().collect(),
            n_pinned: 0,
            n_resident: 0,
            seen: vec![0; n_keys as usize],
            batch: 0,
        })
    }

    /// Keys are `0..n_keys`.
    #[must_use]
    pub fn n_keys(&self) -> u32 {
        // The length came from a u32 in `new`.
        self.slot_of.len() as u32
    }

    /// Slots are `0..n_slots`.
    #[must_use]
    pub fn n_slots(&self) -> u32 {
        // The length came from a u32 in `new`.
        self.slots.len() as u32
    }

    /// Slots that hold nothing.
    #[must_use]
    pub fn n_free(&self) -> u32 {
        // At most `n_slots` entries.
        self.free.len() as u32
    }

    /// Slots with at least one pin, loading ones included.
    #[must_use]
    pub const fn n_pinned(&self) -> u32 {
        self.n_pinned
    }

    /// Slots in state [`SlotState::Resident`].
    #[must_use]
    pub const fn n_resident(&self) -> u32 {
        self.n_resident
    }

    /// The slot of a key, loading or resident.
    #[must_use]
    pub fn slot(&self, key: Key) -> Option<SlotId> {
        let slot = *self.slot_of.get(key.index())?;
        (slot != NIL).then_some(SlotId::new(slot))
    }

    /// Whether the key's bytes are complete.
    #[must_use]
    pub fn is_resident(&self, key: Key) -> bool {
        self.slot(key)
            .is_some_and(|slot| self.state(slot) == Some(SlotState::Resident))
    }

    /// The state of a slot; `None` out of range.
    #[must_use]
    pub fn state(&self, slot: SlotId) -> Option<SlotState> {
        self.slots.get(slot.index()).map(|s| s.state)
    }

    /// The key in a slot; `None` when the slot is free or out of range.
    #[must_use]
    pub fn key_of(&self, slot: SlotId) -> Option<Key> {
        let key = self.slots.get(slot.index())?.key;
        (key != NIL).then_some(Key::new(key))
    }

    /// How often the slot has been reserved (wrapping); `None` out of range.
    ///
    /// A holder of a slot number compares generations to learn that the slot was given to
    /// another key in the meantime.
    #[must_use]
    pub fn generation(&self, slot: SlotId) -> Option<u32> {
        self.slots.get(slot.index()).map(|s| s.generation)
    }

    /// Pins on a key; zero when it has no slot.
    #[must_use]
    pub fn pins(&self, key: Key) -> u32 {
        self.slot(key)
            .map_or(0, |slot| self.slots[slot.index()].pins)
    }

    /// Every resident key with its slot, in slot order.
    pub fn residents(&self) -> impl Iterator<Item = (Key, SlotId)> + '_ {
        (0u32..)
            .zip(&self.slots)
            .filter(|(_, s)| s.state == SlotState::Resident)
            .map(|(id, s)| (Key::new(s.key), SlotId::new(id)))
    }

    /// Checks that a batch can be served: keys in range, distinct, not more than slots.
    ///
    /// # Errors
    /// [`Error::KeyOutOfRange`], [`Error::DuplicateKey`], [`Error::BatchTooLarge`].
    ///
    /// # Cost
    /// O(batch), no allocation (hence `&mut self`: a scratch table marks the keys seen).
    pub fn check_batch(&mut self, keys: &[Key]) -> Result<(), Error> {
        if keys.len() > self.slots.len() {
            return Err(Error::BatchTooLarge {
                batch: keys.len(),
                n_slots: self.n_slots(),
            });
        }
        self.batch = self.batch.wrapping_add(1);
        if self.batch == 0 {
            // The counter went round: old marks would look new.
            self.seen.fill(0);
            self.batch = 1;
        }
        for &key in keys {
            self.check_key(key)?;
            if core::mem::replace(&mut self.seen[key.index()], self.batch) == self.batch {
                return Err(Error::DuplicateKey { key });
            }
        }
        Ok(())
    }

    /// Takes a slot for `key`: a free one, or that of the policy's victim.
    ///
    /// The slot becomes [`Loading`](SlotState::Loading) with one pin, which the caller releases
    /// with [`unpin`](Self::unpin) some time after [`complete`](Self::complete). Calls, in this
    /// order, the policy's `on_miss`, `victim` and `on_evict` (only if no slot is free),
    /// `on_insert`.
    ///
    /// # Errors
    /// [`Error::KeyOutOfRange`]; [`Error::AlreadyPresent`] (join the load in flight, or pin);
    /// [`Error::AllPinned`] when nothing may leave; [`Error::NoVictim`] and [`Error::BadVictim`]
    /// for a faulty policy. The table is unchanged on error.
    pub fn reserve(&mut self, key: Key, policy: &mut dyn Policy) -> Result<Reservation, Error> {
        self.check_key(key)?;
        if let Some(slot) = self.slot(key) {
            return Err(Error::AlreadyPresent { key, slot });
        }
        if self.n_pinned == self.n_slots() {
            return Err(Error::AllPinned {
                n_slots: self.n_slots(),
                n_pinned: self.n_pinned,
            });
        }
        policy.on_miss(key);
        let (slot, evicted) = match self.free.pop() {
            Some(slot) => (SlotId::new(slot), None),
            None => {
                let (slot, victim) = self.choose_victim(policy)?;
                policy.on_evict(victim);
                self.slot_of[victim.index()] = NIL;
                self.n_resident -= 1;
                (slot, Some(victim))
            }
        };
        self.slot_of[key.index()] = slot.id();
        let entry = &mut self.slots[slot.index()];
        entry.key = key.id();
        entry.pins = 1;
        entry.generation = entry.generation.wrapping_add(1);
        entry.state = SlotState::Loading;
        let generation = entry.generation;
        self.n_pinned += 1;
        policy.on_insert(key);
        Ok(Reservation {
            slot,
            evicted,
            generation,
        })
    }

    /// The bytes of a loading slot are complete: it becomes resident and keeps its pins.
    ///
    /// # Errors
    /// [`Error::SlotOutOfRange`], [`Error::WrongState`] unless the slot is loading.
    pub fn complete(&mut self, slot: SlotId) -> Result<(), Error> {
        self.expect_state(slot, SlotState::Loading)?;
        self.slots[slot.index()].state = SlotState::Resident;
        self.n_resident += 1;
        Ok(())
    }

    /// A load failed: the slot becomes free, its pins vanish, the policy forgets the key.
    ///
    /// Others that pinned the key while it was loading find no slot for it afterward and must not
    /// unpin it.
    ///
    /// # Errors
    /// [`Error::SlotOutOfRange`], [`Error::WrongState`] unless the slot is loading.
    pub fn abort(&mut self, slot: SlotId, policy: &mut dyn Policy) -> Result<Key, Error> {
        self.expect_state(slot, SlotState::Loading)?;
        let key = Key::new(self.slots[slot.index()].key);
        self.n_pinned -= 1;
        self.release(slot, policy);
        Ok(key)
    }

    /// Drops an unpinned resident key, as when the arena shrinks; returns the slot it leaves.
    ///
    /// # Errors
    /// [`Error::KeyOutOfRange`], [`Error::NotPresent`], [`Error::Pinned`].
    pub fn evict(&mut self, key: Key, policy: &mut dyn Policy) -> Result<SlotId, Error> {
        self.check_key(key)?;
        let slot = self.slot(key).ok_or(Error::NotPresent { key })?;
        // A loading slot is pinned, so this covers it.
        let pins = self.slots[slot.index()].pins;
        if pins > 0 {
            return Err(Error::Pinned { key, pins });
        }
        self.n_resident -= 1;
        self.release(slot, policy);
        Ok(slot)
    }

    /// Adds a pin, which keeps the key from being evicted; returns its slot.
    ///
    /// # Errors
    /// [`Error::KeyOutOfRange`], [`Error::NotPresent`].
    pub fn pin(&mut self, key: Key) -> Result<SlotId, Error> {
        self.check_key(key)?;
        let slot = self.slot(key).ok_or(Error::NotPresent { key })?;
        let entry = &mut self.slots[slot.index()];
        if entry.pins == 0 {
            self.n_pinned += 1;
        }
        // 2^32 live pins would need more memory than the pinned slots have.
        entry.pins = entry.pins.saturating_add(1);
        Ok(slot)
    }

    /// Releases a pin; returns how many remain.
    ///
    /// # Errors
    /// [`Error::KeyOutOfRange`], [`Error::NotPresent`]; [`Error::NotPinned`] when there is no pin,
    /// or when the last one belongs to a load that has not completed.
    pub fn unpin(&mut self, key: Key) -> Result<u32, Error> {
        self.check_key(key)?;
        let slot = self.slot(key).ok_or(Error::NotPresent { key })?;
        let entry = &mut self.slots[slot.index()];
        let held_by_load = u32::from(entry.state == SlotState::Loading);
        if entry.pins <= held_by_load {
            return Err(Error::NotPinned { key });
        }
        entry.pins -= 1;
        if entry.pins == 0 {
            self.n_pinned -= 1;
        }
        Ok(entry.pins)
    }

    /// Checks invariants 1 to 4; for tests, O(keys + slots).
    ///
    /// # Errors
    /// [`Error::Broken`] names the first invariant found broken.
    pub fn validate(&self) -> Result<(), Error> {
        let broken = |invariant, key| Error::Broken {
            owner: "residency",
            invariant,
            key,
        };
        for (id, &slot) in (0u32..).zip(&self.slot_of) {
            if slot == NIL {
                continue;
            }
            let known = self.slots.get(slot as usize);
            if known.is_none_or(|s| s.key != id || s.state == SlotState::Free) {
                return Err(broken(1, Some(Key::new(id))));
            }
        }
        let mut free = vec![false; self.slots.len()];
        for &slot in &self.free {
            match free.get_mut(slot as usize) {
                Some(mark) if !*mark => *mark = true,
                _ => return Err(broken(2, None)),
            }
        }
        let (mut n_pinned, mut n_resident) = (0, 0);
        for (id, (slot, &listed)) in (0u32..).zip(self.slots.iter().zip(&free)) {
            let is_free = slot.state == SlotState::Free;
            if is_free != listed || (is_free && (slot.key != NIL || slot.pins != 0)) {
                return Err(broken(2, self.key_of(SlotId::new(id))));
            }
            if !is_free && self.slot_of.get(slot.key as usize) != Some(&id) {
                return Err(broken(1, self.key_of(SlotId::new(id))));
            }
            if slot.state == SlotState::Loading && slot.pins == 0 {
                return Err(broken(3, self.key_of(SlotId::new(id))));
            }
            n_pinned += u32::from(slot.pins > 0);
            n_resident += u32::from(slot.state == SlotState::Resident);
        }
        if n_pinned != self.n_pinned || n_resident != self.n_resident {
            return Err(broken(4, None));
        }
        Ok(())
    }

    fn choose_victim(&self, policy: &mut dyn Policy) -> Result<(SlotId, Key), Error> {
        let evictable = |key: Key| self.evictable_slot(key).is_some();
        let key = policy.victim(&evictable).ok_or_else(|| Error::NoVictim {
            n_slots: self.n_slots(),
            n_pinned: self.n_pinned,
        })?;
        let slot = self.evictable_slot(key).ok_or(Error::BadVictim { key })?;
        Ok((slot, key))
    }

    fn evictable_slot(&self, key: Key) -> Option<SlotId> {
        let slot = self.slot(key)?;
        let entry = &self.slots[slot.index()];
        (entry.state == SlotState::Resident && entry.pins == 0).then_some(slot)
    }

    /// Frees an occupied slot; the caller adjusts the counters.
    fn release(&mut self, slot: SlotId, policy: &mut dyn Policy) {
        let entry = &mut self.slots[slot.index()];
        let key = Key::new(entry.key);
        entry.key = NIL;
        entry.pins = 0;
        entry.state = SlotState::Free;
        self.slot_of[key.index()] = NIL;
        self.free.push(slot.id());
        policy.on_evict(key);
    }

    fn check_key(&self, key: Key) -> Result<(), Error> {
        if key.index() < self.slot_of.len() {
            return Ok(());
        }
        Err(Error::KeyOutOfRange {
            key,
            n_keys: self.n_keys(),
        })
    }

    fn expect_state(&self, slot: SlotId, expected: SlotState) -> Result<(), Error> {
        let n_slots = self.n_slots();
        let found = self
            .state(slot)
            .ok_or(Error::SlotOutOfRange { slot, n_slots })?;
        if found != expected {
            return Err(Error::WrongState {
                slot,
                expected,
                found,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_marks_do_not_look_new_when_the_batch_counter_goes_round() {
        let mut table = Residency::new(4, 4).expect("small");
        let batch = [0, 1].map(Key::new);
        table.check_batch(&batch).expect("distinct");
        // The marks now say 1, which is what the counter restarts with.
        table.batch = u32::MAX;
        table.check_batch(&batch).expect("distinct");
        table.check_batch(&batch).expect("distinct");
    }

    #[test]
    fn validate_finds_each_broken_invariant() {
        struct First;
        impl Policy for First {
            fn on_hit(&mut self, _: Key) {}
            fn victim(&mut self, _: &dyn Fn(Key) -> bool) -> Option<Key> {
                None
            }
            fn on_evict(&mut self, _: Key) {}
            fn on_insert(&mut self, _: Key) {}
        }
        let mut sound = Residency::new(4, 3).expect("small");
        let first = sound.reserve(Key::new(2), &mut First).expect("free");
        sound.complete(first.slot).expect("loading");
        sound.reserve(Key::new(3), &mut First).expect("free");
        sound.validate().expect("sound");
        let broken = |damage: &dyn Fn(&mut Residency)| {
            let mut table = sound.clone();
            damage(&mut table);
            match table.validate() {
                Err(Error::Broken { invariant, .. }) => invariant,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(broken(&|t| t.slot_of[0] = 0), 1);
        assert_eq!(broken(&|t| t.slot_of[2] = NIL), 1);
        assert_eq!(broken(&|t| t.slot_of[2] = 7), 1);
        assert_eq!(broken(&|t| t.free.push(2)), 2);
        assert_eq!(broken(&|t| t.free.clear()), 2);
        assert_eq!(broken(&|t| t.slots[2].pins = 1), 2);
        assert_eq!(broken(&|t| t.slots[1].pins = 0), 3);
        assert_eq!(broken(&|t| t.n_pinned += 1), 4);
        assert_eq!(broken(&|t| t.n_resident = 0), 4);
    }
}

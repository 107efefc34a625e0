//! Transit slots: where experts are on their way, outside the arena's layers.
//!
//! Owns the state of the slots that read-ahead and streams load into, and the guesses in them. Does
//! not own their bytes (`Arena`, its last region) nor the reads (`Flights`). A guess that is asked
//! for changes places with the slot that was reserved for it, so tables and policies see the same
//! with and without read-ahead. Memory: a few words a slot.
//! Invariants: 1. an expert is guessed in at most one slot, and not resident then; 2. a slot's buffer
//! is away exactly while its read is under way; 3. a slot that a miss waits for is the one that the
//! miss has joined; 4. in debug builds free slots hold poison. Cost: O(slots), a few tens.

use super::ExpertStore;
use super::flights::Target;
use crate::arena::POISON;
use crate::{Error, Priority, Result};

/// A slot outside the layers.
#[derive(Debug)]
pub(super) struct TransitSlot {
    /// Within the arena.
    pub(super) place: usize,
    pub(super) layer: usize,
    pub(super) expert: u16,
    pub(super) state: TransitState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TransitState {
    Free,
    /// A read is under way.
    Loading {
        id: u64,
        wanted_by: Wanted,
    },
    /// Loaded, and nobody has asked for it yet.
    Ready {
        wanted_by: Wanted,
    },
    /// Part of the batch that a stream has handed out.
    InUse,
}

/// Who wants what is on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    /// Nobody yet: a guess.
    Guess,
    /// A miss of the current lease, by its number among the loads.
    Load(usize),
    /// The current stream.
    Stream,
    /// The current stream, which found it under way as a guess.
    StreamGuess,
    /// Nobody any more.
    Nobody,
}

impl ExpertStore {
    /// Starts reading experts that `layer` may need soon, best guess first, after everything that
    /// is demanded. Returns how many reads were started.
    ///
    /// Guesses go to transit slots: residency, policies and what counts as a hit stay as they are.
    /// A guess is forgotten when its layer is acquired without it. Experts that are resident or on
    /// their way, unknown ids, and guesses beyond the free transit slots are passed over.
    ///
    /// # Cost
    /// O(experts * transit slots), no waiting.
    pub fn read_ahead(&mut self, layer: usize, experts: &[u16]) -> usize {
        self.absorb();
        let mut n = 0;
        for &expert in experts {
            if self.layers.get(layer).is_none()
                || self.is_resident(layer, expert)
                || self.guess_of(layer, expert).is_some()
            {
                continue;
            }
            let Some(index) = self.free_transit() else {
                break;
            };
            if self.start_transit(index, layer, expert, Priority::Readahead, Wanted::Guess) {
                n += 1;
                self.stats.guesses += 1;
            }
        }
        self.flights.push();
        n
    }

    /// Transit slots of the store.
    #[must_use]
    pub fn n_transit(&self) -> usize {
        self.transit.len()
    }

    /// The transit slot in which a live guess of this expert is, or is going to be.
    pub(super) fn guess_of(&self, layer: usize, expert: u16) -> Option<usize> {
        self.transit.iter().position(|slot| {
            (slot.layer, slot.expert) == (layer, expert)
                && matches!(
                    slot.state,
                    TransitState::Ready {
                        wanted_by: Wanted::Guess
                    } | TransitState::Loading {
                        wanted_by: Wanted::Guess,
                        ..
                    }
                )
        })
    }

    /// A free transit slot whose buffer has not been lost.
    pub(super) fn free_transit(&self) -> Option<usize> {
        self.transit.iter().position(|slot| {
            slot.state == TransitState::Free && self.arena.get(slot.place).is_some()
        })
    }

    /// Starts a read into a free transit slot; false if there is no such expert.
    pub(super) fn start_transit(
        &mut self,
        index: usize,
        layer: usize,
        expert: u16,
        priority: Priority,
        wanted_by: Wanted,
    ) -> bool {
        let place = self.transit[index].place;
        let Some(segments) = self.layout.segments(layer, expert) else {
            return false;
        };
        let Some(mut buf) = self.arena.take(place) else {
            return false;
        };
        super::serve::poison(&mut buf);
        let target = Target::Transit { index };
        let id = self.flights.start(target, priority, segments, buf);
        let slot = &mut self.transit[index];
        (slot.layer, slot.expert) = (layer, expert);
        slot.state = TransitState::Loading { id, wanted_by };
        true
    }

    /// Forgets guesses for `layer` that nobody asked for, or all guesses.
    pub(super) fn drop_guesses(&mut self, layer: Option<usize>) {
        for index in 0..self.transit.len() {
            let slot = &mut self.transit[index];
            if layer.is_some_and(|layer| slot.layer != layer) {
                continue;
            }
            match slot.state {
                TransitState::Ready {
                    wanted_by: Wanted::Guess,
                } => {
                    slot.state = TransitState::Free;
                    self.stats.wasted_bytes += self.layout.expert_bytes(slot.layer);
                    self.clear(index);
                }
                TransitState::Loading {
                    id,
                    wanted_by: Wanted::Guess,
                } => {
                    slot.state = TransitState::Loading {
                        id,
                        wanted_by: Wanted::Nobody,
                    };
                    self.flights.cancel(id);
                }
                _ => {}
            }
        }
    }

    /// Nobody waits for reads that the backend has lost. Their slots stay out of use.
    pub(super) fn forget_lost(&mut self) {
        for slot in &mut self.transit {
            if let TransitState::Loading { id, .. } = slot.state
                && !self.flights.is_known(id)
            {
                let wanted_by = Wanted::Nobody;
                slot.state = TransitState::Loading { id, wanted_by };
            }
        }
    }

    /// A free slot holds nothing, visibly so in debug builds.
    pub(super) fn clear(&mut self, index: usize) {
        let place = self.transit[index].place;
        if let Some(buf) = self.arena.get_mut(place) {
            super::serve::poison(buf);
        }
    }

    /// Moves a loaded expert from transit into the slot at `place`.
    pub(super) fn take_over(&mut self, index: usize, place: usize) {
        let from = self.transit[index].place;
        if !self.arena.swap(from, place) {
            // Slots of different sizes: the layers' strides differ.
            if let Some(buf) = self.arena.take(from) {
                if let Some(to) = self.arena.get_mut(place) {
                    let n = to.len().min(buf.len());
                    to[..n].copy_from_slice(&buf[..n]);
                }
                let put = self.arena.put(from, buf);
                debug_assert!(put.is_ok(), "the buffer was taken from this slot");
            }
        }
        self.transit[index].state = TransitState::Free;
        self.clear(index);
    }

    /// Waits until nothing is under way; what was only guessed is given up.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire) for a backend that breaks its contract.
    pub fn settle(&mut self) -> Result<()> {
        self.release();
        self.drop_guesses(None);
        self.absorb();
        while self.flights.n_out() > 0 {
            self.wait_once()?;
        }
        Ok(())
    }

    /// Checks the invariants of this module and that free slots hold poison.
    pub(super) fn validate_transit(&self) -> Result<()> {
        let broken = |invariant, slot: &TransitSlot| {
            Err(Error::Broken {
                owner: "transit slots",
                invariant,
                place: slot.place as u64,
            })
        };
        for (index, slot) in self.transit.iter().enumerate() {
            let (mut is_guess, mut is_away, mut is_claimed) = (false, false, true);
            match slot.state {
                TransitState::Ready { wanted_by } => is_guess = wanted_by == Wanted::Guess,
                TransitState::Loading { id, wanted_by } => {
                    is_guess = wanted_by == Wanted::Guess;
                    is_away = self.flights.is_known(id);
                    if let Wanted::Load(at) = wanted_by {
                        is_claimed = self.lease.is_open && self.has_joined(at, index);
                    }
                }
                TransitState::Free | TransitState::InUse => {}
            }
            let first = || self.guess_of(slot.layer, slot.expert) == Some(index);
            if is_guess && (!first() || self.is_resident(slot.layer, slot.expert)) {
                return broken(1, slot);
            }
            let buf = self.arena.get(slot.place);
            if buf.is_none() != is_away {
                return broken(2, slot);
            }
            if !is_claimed {
                return broken(3, slot);
            }
            let is_empty = slot.state == TransitState::Free;
            if cfg!(debug_assertions)
                && is_empty
                && buf.is_some_and(|buf| buf.iter().any(|b| *b != POISON))
            {
                return broken(4, slot);
            }
        }
        Ok(())
    }
}

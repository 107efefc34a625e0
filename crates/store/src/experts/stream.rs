//! `Stream`: experts of one layer passing through, each read once, none made resident.
//!
//! Owns the order in which a long list of experts is brought: residents first, where they are, then
//! the others in file order through the transit slots, while the caller works on what is here; what
//! had been guessed is joined. Does not change residency and tells policies nothing: a long prompt does not flush what decode needs.
//! Memory: the list. Invariants: 1. the residents of the list are pinned until the stream ends;
//! 2. an expert of the list is handed out once; 3. a batch's transit slots are not loaded into
//! before the next batch is asked for. Cost: a read an expert that is not resident.

use std::collections::VecDeque;

use super::transit::{TransitState, Wanted};
use super::{ExpertStore, LayerCache, key};
use crate::{Error, Priority, Result};

/// Experts of a layer in batches; see [`ExpertStore::stream`].
#[derive(Debug)]
pub struct Stream<'a> {
    store: &'a mut ExpertStore,
}

/// What the current stream has done and has to do.
#[derive(Default)]
pub(super) struct StreamState {
    layer: usize,
    /// To be read, in file order.
    pending: VecDeque<u16>,
    /// Residents, pinned, not handed out yet.
    residents: Vec<Streamed>,
    pinned: Vec<u16>,
    batch: Vec<Streamed>,
    /// Experts that had been guessed when the stream began, and whether they were still on their
    /// way.
    guessed: Vec<(u16, bool)>,
    failure: Option<(u16, Error)>,
    /// Something was read: the files have to be looked at in the end.
    has_read: bool,
}

#[derive(Clone, Copy, Debug)]
struct Streamed {
    expert: u16,
    /// Within the arena.
    place: usize,
    transit: Option<usize>,
}

impl ExpertStore {
    /// Brings distinct experts of `layer` through memory, each once, in batches whose size depends
    /// on what has arrived. Residency does not change and policies learn nothing.
    ///
    /// # Errors
    /// [`Error::LayerOutOfRange`], [`Error::ExpertOutOfRange`], [`Error::DuplicateExpert`];
    /// [`Error::NoTransit`] if something has to be read and the store has no transit slots.
    pub fn stream(&mut self, layer: usize, experts: &[u16]) -> Result<Stream<'_>> {
        self.release();
        let n_layer = self.layers.len();
        let cache = self
            .layers
            .get_mut(layer)
            .ok_or(Error::LayerOutOfRange { layer, n_layer })?;
        let n_expert = self.layout.n_expert(layer);
        let mut seen = vec![false; n_expert];
        for &expert in experts {
            match seen.get_mut(usize::from(expert)) {
                None => {
                    return Err(Error::ExpertOutOfRange {
                        layer,
                        expert,
                        n_expert,
                    });
                }
                Some(true) => return Err(Error::DuplicateExpert { layer, expert }),
                Some(seen) => *seen = true,
            }
        }
        let state = &mut self.stream;
        state.layer = layer;
        let mut to_read = Vec::new();
        for &expert in experts {
            if !cache.residency.is_resident(key(expert)) {
                to_read.push(expert);
            }
        }
        if !to_read.is_empty() && self.transit.is_empty() {
            return Err(Error::NoTransit { layer });
        }
        for &expert in experts {
            if let Ok(slot) = cache.residency.pin(key(expert)) {
                state.pinned.push(expert);
                state.residents.push(Streamed {
                    expert,
                    place: self.arena.slot(layer, slot.index()).unwrap_or(usize::MAX),
                    transit: None,
                });
            }
        }
        to_read.retain(|e| !self.join_guess(layer, *e));
        // What was guessed and is not on the list is of no use: its slots are needed.
        self.drop_guesses(None);
        let layout = &self.layout;
        to_read.sort_by_cached_key(|e| {
            let segments = layout.segments(layer, *e);
            segments.and_then(|s| s.first().map(|s| (s.file, s.offset_bytes)))
        });
        self.stream.pending.extend(to_read);
        self.feed_stream();
        Ok(Stream { store: self })
    }

    /// Makes a guess the stream's, if there is one for this expert.
    fn join_guess(&mut self, layer: usize, expert: u16) -> bool {
        let Some(index) = self.guess_of(layer, expert) else {
            return false;
        };
        let is_late = match self.transit[index].state {
            TransitState::Loading { id, .. } => {
                let wanted_by = Wanted::StreamGuess;
                self.transit[index].state = TransitState::Loading { id, wanted_by };
                self.flights.promote(id);
                true
            }
            _ => {
                self.land_streamed(index, Ok(()));
                false
            }
        };
        self.stream.guessed.push((expert, is_late));
        true
    }

    /// Starts as many of the stream's reads as there are free transit slots.
    fn feed_stream(&mut self) {
        self.absorb();
        while self.stream.failure.is_none()
            && let Some(index) = self.free_transit()
            && let Some(expert) = self.stream.pending.pop_front()
        {
            let layer = self.stream.layer;
            if !self.start_transit(index, layer, expert, Priority::Demand, Wanted::Stream) {
                let error = Error::SlotLost {
                    slot: self.transit[index].place,
                };
                self.stream.failure = Some((expert, error));
            }
        }
        self.flights.push();
    }

    /// A read of the stream came back.
    pub(super) fn land_streamed(&mut self, index: usize, result: Result<()>) {
        let slot = &self.transit[index];
        let (layer, expert, place) = (slot.layer, slot.expert, slot.place);
        match result.and_then(|()| self.check_contents(layer, expert, place)) {
            Ok(()) => {
                self.stream.has_read = true;
                self.transit[index].state = TransitState::Ready {
                    wanted_by: Wanted::Stream,
                };
            }
            Err(error) => {
                self.free_transit_slot(index);
                let first = &self.stream.failure;
                if !matches!(error, Error::Cancelled)
                    && first.as_ref().is_none_or(|(e, _)| expert < *e)
                {
                    self.stream.failure = Some((expert, error));
                }
            }
        }
    }

    /// The next batch into `stream.batch`; false at the end.
    fn next_of_stream(&mut self) -> Result<bool> {
        let handed_out: Vec<_> = self.stream.batch.drain(..).collect();
        for index in handed_out.into_iter().filter_map(|s| s.transit) {
            self.free_transit_slot(index);
        }
        self.feed_stream();
        if !self.stream.residents.is_empty() {
            let StreamState {
                batch, residents, ..
            } = &mut self.stream;
            batch.append(residents);
            let n_hits = self.stream.batch.len() as u64;
            self.stats.hits += n_hits;
            self.layer_stats[self.stream.layer].hits += n_hits;
            return Ok(true);
        }
        loop {
            if let Some((expert, error)) = self.stream.failure.take() {
                let layer = self.stream.layer;
                self.verify_files(layer)?;
                return Err(Error::Expert {
                    layer,
                    expert,
                    source: Box::new(error),
                });
            }
            self.collect_batch();
            if !self.stream.batch.is_empty() {
                self.count_batch_of_stream();
                return Ok(true);
            }
            let is_loading = self.transit.iter().any(|slot| {
                matches!(slot.state, TransitState::Loading { wanted_by, .. }
                    if matches!(wanted_by, Wanted::Stream | Wanted::StreamGuess))
            });
            if !is_loading && self.stream.pending.is_empty() {
                if self.stream.has_read {
                    self.verify_files(self.stream.layer)?;
                }
                return Ok(false);
            }
            if self.flights.n_out() == 0 {
                // Nothing comes, and no slot is left to read into: the backend has lost them all.
                let slot = self.transit.first().map_or(usize::MAX, |slot| slot.place);
                return Err(Error::SlotLost { slot });
            }
            self.wait_once()?;
            self.feed_stream();
        }
    }

    /// Hands out what is ready, up to half of the transit slots: the others go on loading.
    fn collect_batch(&mut self) {
        let most = self.transit.len().div_ceil(2);
        for index in 0..self.transit.len() {
            if self.stream.batch.len() == most {
                break;
            }
            let slot = &mut self.transit[index];
            let ready = TransitState::Ready {
                wanted_by: Wanted::Stream,
            };
            if slot.state == ready {
                slot.state = TransitState::InUse;
                self.stream.batch.push(Streamed {
                    expert: slot.expert,
                    place: slot.place,
                    transit: Some(index),
                });
            }
        }
    }

    fn count_batch_of_stream(&mut self) {
        let StreamState { batch, guessed, .. } = &self.stream;
        let of = |late_alone: bool| {
            let counts = |s: &&Streamed| {
                let guess = guessed.iter().find(|(e, _)| *e == s.expert);
                guess.is_some_and(|(_, is_late)| *is_late || !late_alone)
            };
            batch.iter().filter(counts).count() as u64
        };
        let (n_guessed, n_late) = (of(false), of(true));
        let n_misses = batch.len() as u64 - n_guessed;
        self.stats.misses += n_misses;
        self.stats.guessed_hits += n_guessed;
        self.stats.late_guesses += n_late;
        let by_layer = &mut self.layer_stats[self.stream.layer];
        by_layer.misses += n_misses;
        by_layer.guessed_hits += n_guessed;
    }

    /// Ends a stream, whole or not: pins vanish, reads that were not begun are given up.
    pub(super) fn end_stream(&mut self) {
        let state = &mut self.stream;
        state.has_read = false;
        state.failure = None;
        state.pending.clear();
        state.residents.clear();
        state.batch.clear();
        state.guessed.clear();
        if let Some(LayerCache { residency, .. }) = self.layers.get_mut(state.layer) {
            for expert in state.pinned.drain(..) {
                let unpinned = residency.unpin(key(expert));
                debug_assert!(unpinned.is_ok(), "{unpinned:?}");
            }
        }
        for index in 0..self.transit.len() {
            match self.transit[index].state {
                TransitState::InUse => self.free_transit_slot(index),
                TransitState::Ready {
                    wanted_by: Wanted::Stream,
                } => {
                    let layer = self.transit[index].layer;
                    self.stats.wasted_bytes += self.layout.expert_bytes(layer);
                    self.free_transit_slot(index);
                }
                TransitState::Loading {
                    id,
                    wanted_by: Wanted::Stream | Wanted::StreamGuess,
                } => {
                    self.transit[index].state = TransitState::Loading {
                        id,
                        wanted_by: Wanted::Nobody,
                    };
                    self.flights.cancel(id);
                }
                _ => {}
            }
        }
    }
}

impl StreamState {
    /// A guess has failed: it is read once more, as a demand with its own error.
    pub(super) fn ask_again(&mut self, expert: u16) {
        self.pending.push_front(expert);
    }

    /// Pins that the stream holds in a layer.
    pub(super) fn n_pinned(&self, layer: usize) -> usize {
        match layer == self.layer {
            true => self.pinned.len(),
            false => 0,
        }
    }
}

impl Stream<'_> {
    /// Brings the next batch; the one before it is no longer accessible. False at the end, when
    /// every expert of the list has been handed out once. What was computed counts only then: a
    /// file that was changed while it was read is found at the end.
    ///
    /// # Errors
    /// As [`ExpertStore::acquire`]: the first read that failed. The stream is then over.
    pub fn next_batch(&mut self) -> Result<bool> {
        let more = self.store.next_of_stream();
        if more.is_err() {
            self.store.stats.failures += 1;
            self.store.end_stream();
        }
        more
    }

    /// As [`ExpertStore::read_ahead`], into slots that the stream has no more use for.
    pub fn read_ahead(&mut self, layer: usize, experts: &[u16]) -> usize {
        match self.store.stream.pending.is_empty() {
            true => self.store.read_ahead(layer, experts),
            false => 0,
        }
    }

    /// As [`ExpertStore::is_resident`].
    #[must_use]
    pub fn is_resident(&self, layer: usize, expert: u16) -> bool {
        self.store.is_resident(layer, expert)
    }

    /// Experts of the batch.
    #[must_use]
    pub fn n(&self) -> usize {
        self.store.stream.batch.len()
    }

    /// The `i`-th expert of the batch; `None` out of range.
    #[must_use]
    pub fn expert(&self, i: usize) -> Option<u16> {
        self.store.stream.batch.get(i).map(|s| s.expert)
    }

    /// The bytes of part `part` of the `i`-th expert of the batch; empty out of range.
    #[must_use]
    pub fn part(&self, i: usize, part: usize) -> &[u8] {
        let stream = &self.store.stream;
        let at = stream.batch.get(i);
        at.map_or(&[], |s| self.store.part_in(s.place, stream.layer, part))
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        self.store.end_stream();
    }
}

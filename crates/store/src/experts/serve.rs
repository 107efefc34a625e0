//! Serving a batch: pins, victims, reads, and the way back when one of them fails.
//!
//! Owns the order of steps (the batch contract documented at [`Access`]) and scratch that is reused
//! by every acquire. Does not own tables, policies or slots.
//! Invariants: 1. an error after `open` goes through `undo`; 2. buffers that went into the batch's
//! reads are home again before it ends, whichever way; 3. nothing becomes resident before all reads
//! of the batch succeeded, the files are unchanged and the content check passed; 4. a part can be
//! seen only after its own content check.

use thalweg_cache::{Access, Key, Probs, SlotId};

use super::flights::{Landed, Target};
use super::lease::Leased;
use super::transit::{TransitState, Wanted};
use super::{ExpertAccess, ExpertStore, LayerCache, key};
use crate::arena::POISON;
use crate::{Arena, Error, Priority, ReadDone, Result};

/// Reused by every acquire.
#[derive(Default)]
pub(super) struct Scratch {
    keys: Vec<Key>,
    near: Vec<Key>,
    /// The policy's other inputs, kept until the batch ends.
    clock: u64,
    probs: Vec<f32>,
    /// The misses of the batch.
    pub(super) loads: Vec<Load>,
    /// The failure of the batch that lies first in the arena.
    failure: Option<(usize, Error)>,
}

/// A miss that has its slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    expert: u16,
    /// Its place in the lease.
    pick: usize,
    /// Within the layer's table.
    slot: SlotId,
    /// Within the arena.
    place: usize,
    state: LoadState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LoadState {
    /// Its own read is under way.
    Reading(u64),
    /// A guess that is under way will bring it.
    Joined(usize),
    /// It can be used.
    Here,
    /// It cannot be had.
    Failed,
}

impl ExpertStore {
    /// Starts a batch: hits can be used at once, reads of misses are under way.
    pub(super) fn open(&mut self, access: &ExpertAccess<'_>) -> Result<()> {
        let layer = access.layer;
        self.begin(access)?;
        let opened = self
            .pin_hits(layer)
            .and_then(|()| self.reserve_misses(layer))
            .and_then(|()| self.start_loads(layer));
        if let Err(error) = opened {
            self.drain_loads();
            self.undo();
            return Err(error);
        }
        // What was guessed for this layer and not asked for is of no use to it any more.
        self.drop_guesses(Some(layer));
        self.flights.push();
        self.lease.is_open = true;
        Ok(())
    }

    /// Waits until at least one more of the batch can be used, or all can.
    pub(super) fn await_any(&mut self) -> Result<()> {
        let n_here = self.n_here();
        while n_here == self.n_here() && n_here < self.scratch.loads.len() {
            if self.scratch.failure.is_some() {
                return Ok(());
            }
            self.wait_once()?;
        }
        Ok(())
    }

    /// Waits for the rest of the batch and makes it resident; on errors, that of the waiting so far
    /// included, the batch is undone.
    pub(super) fn close(&mut self, waited: Result<()>) -> Result<()> {
        let layer = self.lease.layer;
        self.lease.is_open = false;
        let mut finished = waited;
        while finished.is_ok()
            && self.scratch.failure.is_none()
            && self.n_here() < self.scratch.loads.len()
        {
            finished = self.await_any();
        }
        if finished.is_err() || self.scratch.failure.is_some() {
            self.drain_loads();
            // A file that was changed explains a failed read better than the system does.
            let explained = self.verify_files(layer);
            let failure = self.scratch.failure.take();
            let error = match (explained, failure) {
                (Err(changed), _) => changed,
                (Ok(()), Some((place, error))) => self.in_expert(layer, place, error),
                (Ok(()), None) => finished.err().unwrap_or(Error::Cancelled),
            };
            self.undo();
            return Err(error);
        }
        // Checked after the reads, so that a change while they were under way is seen as well.
        if !self.scratch.loads.is_empty()
            && let Err(error) = self.verify_files(layer)
        {
            self.undo();
            return Err(error);
        }
        let LayerCache { residency, policy } = &mut self.layers[layer];
        for load in &self.scratch.loads {
            // The slot has been loading since `reserve_misses`.
            let completed = residency.complete(load.slot);
            debug_assert!(completed.is_ok(), "{completed:?}");
        }
        policy.end(&self.scratch.batch());
        self.count_batch();
        Ok(())
    }

    /// Gives up a batch that was opened and not closed.
    pub(super) fn abandon(&mut self) {
        self.lease.is_open = false;
        self.drain_loads();
        self.scratch.failure = None;
        self.undo();
    }

    fn count_batch(&mut self) {
        let layer = self.lease.layer;
        let n_picks = self.lease.picks.len() as u64;
        let n_missed = self.scratch.loads.len() as u64;
        let n_guessed = self.lease.picks.iter().filter(|p| p.guessed).count() as u64;
        let n_late = self.lease.picks.iter().filter(|p| p.late).count() as u64;
        self.stats.hits += n_picks - n_missed;
        self.stats.guessed_hits += n_guessed;
        self.stats.late_guesses += n_late;
        self.stats.misses += n_missed - n_guessed;
        let by_layer = &mut self.layer_stats[layer];
        by_layer.hits += n_picks - n_missed;
        by_layer.guessed_hits += n_guessed;
        by_layer.misses += n_missed - n_guessed;
    }

    /// Checks the batch, tells the policy, and looks up which picks are hits.
    fn begin(&mut self, access: &ExpertAccess<'_>) -> Result<()> {
        let layer = access.layer;
        let n_layer = self.layers.len();
        let LayerCache { residency, policy } = self
            .layers
            .get_mut(layer)
            .ok_or(Error::LayerOutOfRange { layer, n_layer })?;
        let scratch = &mut self.scratch;
        for (ids, keys) in [
            (access.picks, &mut scratch.keys),
            (access.near, &mut scratch.near),
        ] {
            keys.clear();
            keys.extend(ids.iter().map(|id| key(*id)));
        }
        scratch.loads.clear();
        scratch.failure = None;
        scratch.clock = access.clock;
        scratch.probs.clear();
        scratch.probs.extend_from_slice(access.probs.unwrap_or(&[]));
        residency
            .check_batch(&scratch.keys)
            .map_err(|error| batch_error(error, layer))?;
        self.lease.layer = layer;
        self.lease.picks.extend(access.picks.iter().map(|&expert| {
            let is_resident = residency.is_resident(key(expert));
            Leased {
                expert,
                slot: usize::MAX,
                missed: !is_resident,
                guessed: false,
                late: false,
                is_here: is_resident,
            }
        }));
        policy.begin(&scratch.batch());
        Ok(())
    }

    /// Pins the hits, lightest first.
    fn pin_hits(&mut self, layer: usize) -> Result<()> {
        let LayerCache { residency, policy } = &mut self.layers[layer];
        for pick in self
            .lease
            .picks
            .iter_mut()
            .rev()
            .filter(|pick| !pick.missed)
        {
            let key = key(pick.expert);
            let slot = residency
                .pin(key)
                .map_err(|source| Error::Cache { layer, source })?;
            pick.slot = place(&self.arena, layer, slot);
            policy.on_hit(key);
        }
        Ok(())
    }

    /// Takes a slot for each miss, lightest first.
    fn reserve_misses(&mut self, layer: usize) -> Result<()> {
        let LayerCache { residency, policy } = &mut self.layers[layer];
        for (at, pick) in self.lease.picks.iter_mut().enumerate().rev() {
            if !pick.missed {
                continue;
            }
            let taken = residency
                .reserve(key(pick.expert), &mut **policy)
                .map_err(|source| Error::Cache { layer, source })?;
            pick.slot = place(&self.arena, layer, taken.slot);
            self.stats.evictions += u64::from(taken.evicted.is_some());
            self.scratch.loads.push(Load {
                expert: pick.expert,
                pick: at,
                slot: taken.slot,
                place: pick.slot,
                state: LoadState::Failed,
            });
        }
        Ok(())
    }

    /// Brings the misses on their way: guesses are joined, the others read in file order.
    fn start_loads(&mut self, layer: usize) -> Result<()> {
        if self.scratch.loads.is_empty() {
            return Ok(());
        }
        self.absorb();
        let offset = |load: &Load| {
            let segments = self.layout.segments(layer, load.expert);
            segments.and_then(|s| s.first().map(|s| (s.file, s.offset_bytes)))
        };
        self.scratch.loads.sort_by_cached_key(offset);
        for at in 0..self.scratch.loads.len() {
            let load = self.scratch.loads[at];
            let Some(index) = self.guess_of(layer, load.expert) else {
                self.start_load(layer, at)?;
                continue;
            };
            self.lease.picks[load.pick].guessed = true;
            if let TransitState::Loading { id, .. } = self.transit[index].state {
                self.lease.picks[load.pick].late = true;
                self.transit[index].state = TransitState::Loading {
                    id,
                    wanted_by: Wanted::Load(at),
                };
                self.scratch.loads[at].state = LoadState::Joined(index);
                self.flights.promote(id);
            } else {
                self.take_over(index, load.place);
                self.arrive(at);
            }
        }
        Ok(())
    }

    /// Starts the read of a miss into its own slot.
    fn start_load(&mut self, layer: usize, at: usize) -> Result<()> {
        let load = &mut self.scratch.loads[at];
        // The expert is in range: the residency table has as many keys.
        let segments = self.layout.segments(layer, load.expert).unwrap_or_default();
        let lost = Error::SlotLost { slot: load.place };
        let mut buf = self.arena.take(load.place).ok_or(lost)?;
        poison(&mut buf);
        let target = Target::Slot { place: load.place };
        let id = self.flights.start(target, Priority::Demand, segments, buf);
        load.state = LoadState::Reading(id);
        Ok(())
    }

    /// The bytes of a miss are in its slot: checks them and lets them be seen.
    fn arrive(&mut self, at: usize) {
        let Load { pick, place, .. } = self.scratch.loads[at];
        match self.check_load(at) {
            Ok(()) => {
                self.scratch.loads[at].state = LoadState::Here;
                self.lease.picks[pick].is_here = true;
            }
            Err(error) => {
                self.scratch.loads[at].state = LoadState::Failed;
                self.note_failure(place, error);
            }
        }
    }

    /// Takes in every read that has come back, for whomever it is.
    pub(super) fn absorb(&mut self) {
        self.flights.poll();
        while let Some(landed) = self.flights.pop() {
            let (id, target) = (landed.id, landed.target);
            let result = self.bring_home(landed);
            match target {
                Target::Slot { place } => self.land_load(id, place, result),
                Target::Transit { index } => self.land_transit(index, result),
            }
        }
    }

    /// Counts a read that came back and puts its buffer into its slot.
    pub(super) fn bring_home(&mut self, landed: Landed) -> Result<()> {
        let ReadDone { op, result } = landed.done;
        if !matches!(result, Err(Error::Cancelled)) {
            self.stats.reads += op.segments.len() as u64;
        }
        if result.is_ok() {
            self.stats.bytes_read += op.len_bytes();
        }
        let slot = match landed.target {
            Target::Slot { place } => place,
            Target::Transit { index } => self.transit[index].place,
        };
        // A backend that gives back another buffer than it got has lost this one.
        let put = self.arena.put(slot, op.buf);
        result.and_then(|()| put.map_err(|_| Error::SlotLost { slot }))
    }

    fn land_load(&mut self, id: u64, place: usize, result: Result<()>) {
        let mut loads = self.scratch.loads.iter();
        let Some(at) = loads.position(|load| load.state == LoadState::Reading(id)) else {
            return;
        };
        match result {
            Ok(()) => self.arrive(at),
            Err(error) => {
                self.scratch.loads[at].state = LoadState::Failed;
                self.note_failure(place, error);
            }
        }
    }

    fn land_transit(&mut self, index: usize, result: Result<()>) {
        let TransitState::Loading { wanted_by, .. } = self.transit[index].state else {
            return;
        };
        let layer = self.transit[index].layer;
        match (wanted_by, result) {
            (Wanted::Load(at), Ok(())) => {
                let place = self.scratch.loads[at].place;
                self.take_over(index, place);
                self.arrive(at);
            }
            (Wanted::Load(at), Err(_)) => {
                // A guess that failed is asked for once more, as a demand with its own error.
                self.free_transit_slot(index);
                let place = self.scratch.loads[at].place;
                if let Err(error) = self.start_load(layer, at) {
                    self.scratch.loads[at].state = LoadState::Failed;
                    self.note_failure(place, error);
                }
            }
            (Wanted::Guess, Ok(())) => {
                self.transit[index].state = TransitState::Ready { wanted_by }
            }
            (Wanted::Nobody, Ok(())) => {
                self.stats.wasted_bytes += self.layout.expert_bytes(layer);
                self.free_transit_slot(index);
            }
            (Wanted::Guess | Wanted::Nobody, Err(_)) => self.free_transit_slot(index),
            (Wanted::Stream, result) => self.land_streamed(index, result),
            (Wanted::StreamGuess, Ok(())) => self.land_streamed(index, Ok(())),
            (Wanted::StreamGuess, Err(_)) => {
                let expert = self.transit[index].expert;
                self.free_transit_slot(index);
                self.stream.ask_again(expert);
            }
        }
    }

    pub(super) fn free_transit_slot(&mut self, index: usize) {
        self.transit[index].state = TransitState::Free;
        self.clear(index);
    }

    /// Keeps the failure that lies first in the arena; a read that was given up is none.
    fn note_failure(&mut self, place: usize, error: Error) {
        if matches!(error, Error::Cancelled) {
            return;
        }
        if self
            .scratch
            .failure
            .as_ref()
            .is_none_or(|(p, _)| place < *p)
        {
            self.scratch.failure = Some((place, error));
        }
    }

    /// Gives up the batch's reads and waits until their buffers are home.
    fn drain_loads(&mut self) {
        for at in 0..self.scratch.loads.len() {
            match self.scratch.loads[at].state {
                LoadState::Reading(id) => self.flights.cancel(id),
                LoadState::Joined(index) => self.unclaim(index),
                LoadState::Here | LoadState::Failed => {}
            }
        }
        self.absorb();
        while self
            .scratch
            .loads
            .iter()
            .any(|load| matches!(load.state, LoadState::Reading(id) if self.flights.is_out(id)))
        {
            if self.wait_once().is_err() {
                // The backend lost them; `validate` and the next use of their slots say so.
                break;
            }
        }
    }

    /// A guess that a miss had joined is nobody's again.
    fn unclaim(&mut self, index: usize) {
        if let TransitState::Loading { id, .. } = self.transit[index].state {
            self.transit[index].state = TransitState::Loading {
                id,
                wanted_by: Wanted::Nobody,
            };
            self.flights.cancel(id);
        }
    }

    /// Whether a miss waits for this transit slot.
    pub(super) fn has_joined(&self, at: usize, index: usize) -> bool {
        let load = self.scratch.loads.get(at);
        load.is_some_and(|load| load.state == LoadState::Joined(index))
    }

    fn n_here(&self) -> usize {
        let here = |load: &&Load| load.state == LoadState::Here;
        self.scratch.loads.iter().filter(here).count()
    }

    pub(super) fn verify_files(&self, layer: usize) -> Result<()> {
        self.layout
            .files_of(layer)
            .try_for_each(|file| self.files.verify(file))
    }

    fn check_load(&self, at: usize) -> Result<()> {
        let Load { expert, place, .. } = self.scratch.loads[at];
        if self.arena.get(place).is_none() {
            // The backend lost it in an earlier read.
            return Err(Error::SlotLost { slot: place });
        }
        self.check_contents(self.lease.layer, expert, place)
    }

    /// Runs the content check over an expert's parts in a slot.
    pub(super) fn check_contents(&self, layer: usize, expert: u16, place: usize) -> Result<()> {
        let Some(check) = &self.check else {
            return Ok(());
        };
        for part in 0..self.layout.n_parts(layer) {
            let bytes = self.part_in(place, layer, part);
            if let Err(source) = check(layer, usize::from(expert), part, bytes) {
                let at = self.layout.part(layer, expert, part);
                return Err(Error::Rejected {
                    path: at.map_or_else(Default::default, |s| self.files.path_or_empty(s.file)),
                    offset_bytes: at.map_or(0, |s| s.offset_bytes),
                    part,
                    source,
                });
            }
        }
        Ok(())
    }

    /// Takes back what an acquire has done so far: its slots become free, its pins vanish.
    fn undo(&mut self) {
        let LayerCache { residency, policy } = &mut self.layers[self.lease.layer];
        for load in self.scratch.loads.drain(..) {
            let aborted = residency.abort(load.slot, &mut **policy);
            debug_assert!(aborted.is_ok(), "{aborted:?}");
            if let Some(buf) = self.arena.get_mut(load.place) {
                poison(buf);
            }
        }
        self.lease
            .picks
            .retain(|pick| !pick.missed && pick.slot != usize::MAX);
        self.release();
    }

    /// Names the expert whose slot is `place`.
    fn in_expert(&self, layer: usize, place: usize, error: Error) -> Error {
        match self.scratch.loads.iter().find(|load| load.place == place) {
            Some(load) => Error::Expert {
                layer,
                expert: load.expert,
                source: Box::new(error),
            },
            None => error,
        }
    }

    /// Waits until some read has come back, and takes it in.
    pub(super) fn wait_once(&mut self) -> Result<()> {
        let waited = self.flights.wait();
        self.absorb();
        match waited {
            Ok(time) => {
                self.stats.wait += time;
                Ok(())
            }
            Err(error) => {
                self.forget_lost();
                Err(error)
            }
        }
    }
}

impl Scratch {
    pub(super) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// The access in terms of keys.
    fn batch(&self) -> Access<'_> {
        let batch = Access::new(self.clock, &self.keys).with_near(&self.near);
        match self.probs.is_empty() {
            true => batch,
            false => batch.with_probs(Probs::new(key(0), &self.probs)),
        }
    }
}

/// Says in terms of experts what is wrong with a batch of keys.
fn batch_error(error: thalweg_cache::Error, layer: usize) -> Error {
    use thalweg_cache::Error as Cache;
    // Keys were made from u16 ids, so the conversions back are exact.
    match error {
        Cache::KeyOutOfRange { key, n_keys } => Error::ExpertOutOfRange {
            layer,
            expert: key.id() as u16,
            n_expert: n_keys as usize,
        },
        Cache::DuplicateKey { key } => Error::DuplicateExpert {
            layer,
            expert: key.id() as u16,
        },
        Cache::BatchTooLarge { batch, n_slots } => Error::BatchTooLarge {
            layer,
            picks: batch,
            slots: n_slots as usize,
        },
        source => Error::Cache { layer, source },
    }
}

/// The arena's number of a layer's slot. The arena has a region a layer with as many slots.
fn place(arena: &Arena, layer: usize, slot: SlotId) -> usize {
    arena.slot(layer, slot.index()).unwrap_or(usize::MAX)
}

/// Makes stale use of a slot visible, in debug builds.
pub(super) fn poison(buf: &mut [u8]) {
    if cfg!(debug_assertions) {
        buf.fill(POISON);
    }
}

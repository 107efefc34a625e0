//! Serving a batch: pins, victims, reads, and the way back when one of them fails.
//!
//! Owns the order of steps (the batch contract documented at [`Access`]) and scratch that is reused
//! by every acquire. Does not own tables, policies or slots.
//! Invariants: 1. an error after `begin` goes through `undo`; 2. buffers that went into reads are
//! home again before anything else is done; 3. nothing becomes resident before all its reads
//! succeeded, the files are unchanged and the content check passed.

use std::time::Instant;

use thalweg_cache::{Access, Key, Probs, SlotId};

use super::lease::Leased;
use super::{ExpertAccess, ExpertStore, LayerCache, key};
use crate::arena::POISON;
use crate::io::run_all;
use crate::{Arena, Error, Priority, ReadDone, ReadOp, Result};

/// Reused by every acquire.
#[derive(Default)]
pub(super) struct Scratch {
    keys: Vec<Key>,
    near: Vec<Key>,
    loads: Vec<Load>,
    ops: Vec<ReadOp>,
    done: Vec<ReadDone>,
}

/// A miss that has its slot.
#[derive(Clone, Copy)]
struct Load {
    expert: u16,
    /// Within the layer's table.
    slot: SlotId,
    /// Within the arena; the number of the read.
    place: usize,
}

impl ExpertStore {
    /// Follows the batch contract documented at [`Access`].
    pub(super) fn serve(&mut self, access: &ExpertAccess<'_>) -> Result<()> {
        let layer = access.layer;
        self.begin(access)?;
        // From here on an error has to be undone.
        let served = self
            .pin_hits(layer)
            .and_then(|()| self.reserve_misses(layer))
            .and_then(|()| self.load(layer));
        if let Err(error) = served {
            self.undo();
            return Err(error);
        }
        let LayerCache { residency, policy } = &mut self.layers[layer];
        for load in &self.scratch.loads {
            // The slot has been loading since `reserve_misses`.
            let completed = residency.complete(load.slot);
            debug_assert!(completed.is_ok(), "{completed:?}");
        }
        policy.end(&self.scratch.batch(access));
        let n_misses = self.scratch.loads.len();
        self.stats.misses += n_misses as u64;
        self.stats.hits += (access.picks.len() - n_misses) as u64;
        Ok(())
    }

    /// Checks the batch, tells the policy, and looks up which picks are hits.
    fn begin(&mut self, access: &ExpertAccess<'_>) -> Result<()> {
        let layer = access.layer;
        let n_layer = self.layers.len();
        let LayerCache { residency, policy } = self
            .layers
            .get_mut(layer)
            .ok_or(Error::LayerOutOfRange { layer, n_layer })?;
        let Scratch {
            keys, near, loads, ..
        } = &mut self.scratch;
        for (ids, keys) in [(access.picks, &mut *keys), (access.near, near)] {
            keys.clear();
            keys.extend(ids.iter().map(|id| key(*id)));
        }
        loads.clear();
        residency
            .check_batch(keys)
            .map_err(|error| batch_error(error, layer))?;
        self.lease.layer = layer;
        self.lease
            .picks
            .extend(access.picks.iter().map(|&expert| Leased {
                expert,
                slot: usize::MAX,
                missed: !residency.is_resident(key(expert)),
            }));
        policy.begin(&self.scratch.batch(access));
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
        for pick in self.lease.picks.iter_mut().rev().filter(|pick| pick.missed) {
            let taken = residency
                .reserve(key(pick.expert), &mut **policy)
                .map_err(|source| Error::Cache { layer, source })?;
            pick.slot = place(&self.arena, layer, taken.slot);
            self.stats.evictions += u64::from(taken.evicted.is_some());
            self.scratch.loads.push(Load {
                expert: pick.expert,
                slot: taken.slot,
                place: pick.slot,
            });
        }
        Ok(())
    }

    /// Reads what `scratch.loads` names into the reserved slots.
    fn load(&mut self, layer: usize) -> Result<()> {
        if self.scratch.loads.is_empty() {
            return Ok(());
        }
        let started = self.start_loads(layer);
        let finished = started.and_then(|()| {
            let start = Instant::now();
            let Scratch { ops, done, .. } = &mut self.scratch;
            let finished = run_all(&mut *self.backend, ops, done);
            self.stats.wait += start.elapsed();
            finished
        });
        // Whatever happened, buffers go home first.
        let failed = self.finish_loads();
        if let Some((place, error)) = failed {
            // A file that was changed explains a failed read better than the system does.
            self.verify_files(layer)?;
            return Err(self.in_expert(layer, place, error));
        }
        finished?;
        // Checked after the reads, so that a change while they were under way is seen as well.
        self.verify_files(layer)?;
        self.check_contents(layer)
    }

    /// Fills `scratch.ops`, in file order.
    fn start_loads(&mut self, layer: usize) -> Result<()> {
        let Scratch { loads, ops, .. } = &mut self.scratch;
        for load in loads.iter() {
            let lost = || Error::SlotLost { slot: load.place };
            // The expert is in range: the residency table has as many keys.
            let segments = self.layout.segments(layer, load.expert).unwrap_or_default();
            let mut buf = self.arena.take(load.place).ok_or_else(lost)?;
            poison(&mut buf);
            ops.push(ReadOp {
                priority: Priority::Demand,
                id: load.place as u64,
                segments,
                buf,
            });
        }
        ops.sort_by_key(|op| op.segments.first().map(|s| (s.file, s.offset_bytes)));
        Ok(())
    }

    /// Puts all buffers back and counts; the failed read that lies first in the arena, if any.
    fn finish_loads(&mut self) -> Option<(usize, Error)> {
        let mut first: Option<(usize, Error)> = None;
        for ReadDone { op, result } in self.scratch.done.drain(..) {
            self.stats.reads += op.segments.len() as u64;
            let place = usize::try_from(op.id).unwrap_or(usize::MAX);
            match result {
                Ok(()) => self.stats.bytes_read += op.len_bytes(),
                Err(error) if first.as_ref().is_none_or(|(p, _)| place < *p) => {
                    first = Some((place, error));
                }
                Err(_) => {}
            }
            let put = self.arena.put(place, op.buf);
            debug_assert!(
                put.is_ok(),
                "the backend returned a buffer under another id"
            );
        }
        for op in self.scratch.ops.drain(..) {
            let put = self
                .arena
                .put(usize::try_from(op.id).unwrap_or(usize::MAX), op.buf);
            debug_assert!(put.is_ok(), "the buffer was taken from this slot");
        }
        first
    }

    fn verify_files(&self, layer: usize) -> Result<()> {
        self.layout
            .files_of(layer)
            .try_for_each(|file| self.files.verify(file))
    }

    fn check_contents(&self, layer: usize) -> Result<()> {
        for load in &self.scratch.loads {
            if self.arena.get(load.place).is_none() {
                // The backend returned it under another id, or not at all.
                return Err(Error::SlotLost { slot: load.place });
            }
            let Some(check) = &self.check else { continue };
            for part in 0..self.layout.n_parts(layer) {
                let bytes = self.part_in(load.place, layer, part);
                if let Err(source) = check(layer, usize::from(load.expert), part, bytes) {
                    let at = self.layout.part(layer, load.expert, part);
                    let error = Error::Rejected {
                        path: at
                            .map_or_else(Default::default, |s| self.files.path_or_empty(s.file)),
                        offset_bytes: at.map_or(0, |s| s.offset_bytes),
                        part,
                        source,
                    };
                    return Err(self.in_expert(layer, load.place, error));
                }
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
}

impl Scratch {
    /// The access in terms of keys.
    fn batch<'a>(&'a self, access: &ExpertAccess<'a>) -> Access<'a> {
        let batch = Access::new(access.clock, &self.keys).with_near(&self.near);
        match access.probs {
            Some(values) => batch.with_probs(Probs::new(key(0), values)),
            None => batch,
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
fn poison(buf: &mut [u8]) {
    if cfg!(debug_assertions) {
        buf.fill(POISON);
    }
}

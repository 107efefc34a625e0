//! `Lease`: the right to use what an acquire made resident, or is making so.
//!
//! Owns the pins of the last acquire and gives access to the parts. Does not own the bytes. The
//! list of pins is part of the store, so that a lease that is forgotten instead of dropped is
//! released by the next acquire. Invariants: 1. a key has one pin for each entry of the list; 2. an
//! expert whose bytes are still on their way has no parts.
//! Cost: a lookup is arithmetic; dropping is O(batch), and one that was not finished waits for the
//! reads that have begun.

use thalweg_cache::ExpertKey;

use super::{ExpertStore, LayerCache, key};
use crate::Result;

/// Experts that stay resident until this is dropped.
#[derive(Debug)]
pub struct Lease<'a> {
    pub(super) store: &'a mut ExpertStore,
}

impl Lease<'_> {
    /// Number of experts.
    #[must_use]
    pub fn n(&self) -> usize {
        self.picks().len()
    }

    /// The `i`-th expert, in the order of the request; `None` out of range.
    #[must_use]
    pub fn key(&self, i: usize) -> Option<ExpertKey> {
        // Layers are not bounded by u16 here; a lease of a layer beyond it has no key.
        let layer = u16::try_from(self.store.lease.layer).ok()?;
        Some(ExpertKey::new(layer, self.picks().get(i)?.expert))
    }

    /// Whether the `i`-th expert was not resident when the lease began. False out of range.
    #[must_use]
    pub fn was_miss(&self, i: usize) -> bool {
        self.picks().get(i).is_some_and(|p| p.missed)
    }

    /// Whether the `i`-th expert can be used now. False out of range.
    #[must_use]
    pub fn is_here(&self, i: usize) -> bool {
        self.picks().get(i).is_some_and(|p| p.is_here)
    }

    /// Whether all can be used now.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.picks().iter().all(|p| p.is_here)
    }

    /// Waits until at least one more expert [is here](Self::is_here), or all are.
    ///
    /// # Errors
    /// As [`ExpertStore::acquire`]; the lease is then empty.
    pub fn wait(&mut self) -> Result<()> {
        if self.is_complete() {
            return Ok(());
        }
        match self.store.await_any() {
            Ok(()) if !self.store.has_failed() => Ok(()),
            waited => self.store.finish_batch(waited),
        }
    }

    /// Waits for all experts and makes those that were read resident. What was computed with
    /// parts of this lease counts only if this succeeds: a file that was changed while it was read
    /// is found here.
    ///
    /// # Errors
    /// As [`ExpertStore::acquire`]; the lease is then empty.
    pub fn finish(&mut self) -> Result<()> {
        match self.store.lease.is_open {
            true => self.store.finish_batch(Ok(())),
            false => Ok(()),
        }
    }

    /// As [`ExpertStore::read_ahead`], behind the reads of this lease.
    pub fn read_ahead(&mut self, layer: usize, experts: &[u16]) -> usize {
        self.store.read_ahead(layer, experts)
    }

    /// As [`ExpertStore::is_resident`].
    #[must_use]
    pub fn is_resident(&self, layer: usize, expert: u16) -> bool {
        self.store.is_resident(layer, expert)
    }

    /// Parts of each expert.
    #[must_use]
    pub fn n_parts(&self) -> usize {
        self.store.layout.n_parts(self.store.lease.layer)
    }

    /// The bytes of part `part` of the `i`-th expert; empty out of range and before it is here,
    /// which no part is.
    ///
    /// Begins at a multiple of [`PART_ALIGNMENT_BYTES`](crate::PART_ALIGNMENT_BYTES) in memory,
    /// unless the layout says that parts lie back to back.
    #[must_use]
    pub fn part(&self, i: usize, part: usize) -> &[u8] {
        match self.picks().get(i) {
            Some(pick) if pick.is_here => {
                self.store.part_in(pick.slot, self.store.lease.layer, part)
            }
            _ => &[],
        }
    }

    /// The bytes of all parts of the `i`-th expert, in the order of the layout.
    pub fn parts(&self, i: usize) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.n_parts()).map(move |part| self.part(i, part))
    }

    fn picks(&self) -> &[Leased] {
        &self.store.lease.picks
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        self.store.release();
    }
}

/// What the current lease pins.
#[derive(Default)]
pub(super) struct LeaseState {
    pub(super) layer: usize,
    pub(super) picks: Vec<Leased>,
    /// Opened and not closed: reads may be under way.
    pub(super) is_open: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Leased {
    pub(super) expert: u16,
    /// Within the arena.
    pub(super) slot: usize,
    pub(super) missed: bool,
    /// A read-ahead had been started for it.
    pub(super) guessed: bool,
    /// That read-ahead was still under way.
    pub(super) late: bool,
    pub(super) is_here: bool,
}

impl ExpertStore {
    /// Unpins what the last lease pinned, after giving up its reads if it was not finished, and
    /// what a stream pinned.
    pub(super) fn release(&mut self) {
        if self.lease.is_open {
            self.abandon();
            return;
        }
        self.end_stream();
        let Some(LayerCache { residency, .. }) = self.layers.get_mut(self.lease.layer) else {
            return;
        };
        for pick in self.lease.picks.drain(..) {
            let unpinned = residency.unpin(key(pick.expert));
            debug_assert!(unpinned.is_ok(), "{unpinned:?}");
        }
    }

    /// Whether a read of the current batch has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.scratch.has_failed()
    }

    /// Closes the batch, for which somebody has waited so far, and counts a failure.
    pub(super) fn finish_batch(&mut self, waited: Result<()>) -> Result<()> {
        let closed = self.close(waited);
        self.stats.failures += u64::from(closed.is_err());
        closed
    }
}

//! `Lease`: the right to use what an acquire made resident.
//!
//! Owns the pins of the last acquire and gives access to the parts. Does not own the bytes. The
//! list of pins is part of the store, so that a lease that is forgotten instead of dropped is
//! released by the next acquire. Invariant: a key has one pin for each entry of the list.
//! Cost: a lookup is arithmetic; dropping is O(batch).

use thalweg_cache::ExpertKey;

use super::{ExpertStore, LayerCache, key};

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

    /// Whether the `i`-th expert was loaded for this lease. False out of range.
    #[must_use]
    pub fn was_miss(&self, i: usize) -> bool {
        self.picks().get(i).is_some_and(|p| p.missed)
    }

    /// Parts of each expert.
    #[must_use]
    pub fn n_parts(&self) -> usize {
        self.store.layout.n_parts(self.store.lease.layer)
    }

    /// The bytes of part `part` of the `i`-th expert; empty out of range, which no part is.
    ///
    /// Begins at a multiple of [`PART_ALIGNMENT_BYTES`](crate::PART_ALIGNMENT_BYTES) in memory.
    #[must_use]
    pub fn part(&self, i: usize, part: usize) -> &[u8] {
        let Some(pick) = self.picks().get(i) else {
            return &[];
        };
        self.store.part_in(pick.slot, self.store.lease.layer, part)
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
}

#[derive(Clone, Copy)]
pub(super) struct Leased {
    pub(super) expert: u16,
    /// Within the arena.
    pub(super) slot: usize,
    pub(super) missed: bool,
}

impl ExpertStore {
    /// Unpins what the last lease pinned.
    pub(super) fn release(&mut self) {
        let Some(LayerCache { residency, .. }) = self.layers.get_mut(self.lease.layer) else {
            return;
        };
        for pick in self.lease.picks.drain(..) {
            let unpinned = residency.unpin(key(pick.expert));
            debug_assert!(unpinned.is_ok(), "{unpinned:?}");
        }
    }
}

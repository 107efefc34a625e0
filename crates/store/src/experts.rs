//! `ExpertStore`: the experts of a model, as many of them in memory as there are slots.
//!
//! Owns the arena, one residency table and one policy a layer, and the read backend. Does not own
//! the files' meaning, nor the choice of experts. Memory: the arena, taken by `new`; written when
//! an expert is loaded. Reads: only in `acquire`, only for experts that are not resident.
//! Invariants (checked by `validate`): 1. each layer's table and policy are sound; 2. only what the
//! current lease names is pinned; 3. the buffer of every slot is in the arena when no read is under
//! way; 4. (debug builds) slots without a resident expert hold poison; 5. (`validate_contents`)
//! the parts in a resident slot equal the file's. A failed `acquire` leaves all of them true.
//! Cost: an acquire that hits is O(batch) and does not allocate; a miss adds the read, two
//! metadata calls a file, and the policy's own cost.

use std::fmt;
use std::time::{Duration, Instant};

use thalweg_cache::{
    Access, ExpertKey, Key, Policy, PolicyConfig, PolicyKind, Probs, Residency, SlotId,
};

use crate::arena::POISON;
use crate::io::run_all;
use crate::{
    Arena, CheckError, Error, ExpertLayout, FileSet, ReadBackend, ReadDone, ReadOp, Result,
};

/// Looks at a part that was just read: layer, expert, part, bytes.
///
/// See [`ExpertStore::set_check`].
pub type ContentCheck =
    Box<dyn Fn(usize, usize, usize, &[u8]) -> std::result::Result<(), CheckError> + Send>;

/// How to set up an [`ExpertStore`]. Lists have one entry a layer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExpertStoreConfig {
    /// Slots, at least the batch and at most the number of experts.
    pub slots: Vec<usize>,
    /// Experts that one token needs at the same time.
    pub batch: Vec<usize>,
    /// Which expert makes room for another.
    pub policy: PolicyKind,
    /// Seed of policies that draw lots; each layer gets its own from it.
    pub seed: u64,
}

impl ExpertStoreConfig {
    /// The same slots and batch in every layer, LRU.
    #[must_use]
    pub fn uniform(n_layer: usize, slots: usize, batch: usize) -> Self {
        Self {
            slots: vec![slots; n_layer],
            batch: vec![batch; n_layer],
            policy: PolicyKind::Lru,
            seed: 1,
        }
    }
}

/// A batch of experts of one layer, with what policies may learn from it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ExpertAccess<'a> {
    /// Time, never decreasing: the number of the token.
    pub clock: u64,
    /// The layer.
    pub layer: usize,
    /// Distinct experts in descending router weight.
    pub picks: &'a [u16],
    /// The experts ranked next, best first; may be empty.
    pub near: &'a [u16],
    /// The router's probability of every expert of the layer, if known.
    pub probs: Option<&'a [f32]>,
}

impl<'a> ExpertAccess<'a> {
    /// A batch without near picks and probabilities.
    #[must_use]
    pub const fn new(clock: u64, layer: usize, picks: &'a [u16]) -> Self {
        Self {
            clock,
            layer,
            picks,
            near: &[],
            probs: None,
        }
    }

    /// The same with the experts ranked next, best first.
    #[must_use]
    pub const fn with_near(mut self, near: &'a [u16]) -> Self {
        self.near = near;
        self
    }

    /// The same with the probability of every expert, `[n_expert]`.
    #[must_use]
    pub const fn with_probs(mut self, probs: &'a [f32]) -> Self {
        self.probs = Some(probs);
        self
    }
}

/// What a store has done since it was made, or since [`ExpertStore::take_stats`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct StoreStats {
    /// Experts asked for and found resident.
    pub hits: u64,
    /// Experts asked for and loaded.
    pub misses: u64,
    /// Experts that had to leave their slot for another.
    pub evictions: u64,
    /// Reads carried out, failed ones included; an expert may take several.
    pub reads: u64,
    /// Bytes read, those of failed reads not included.
    pub bytes_read: u64,
    /// Acquires that failed; their experts count neither as hits nor as misses.
    pub failures: u64,
    /// Time from the first read of an acquire to the end of its last.
    pub wait: Duration,
}

/// Experts behind a bounded arena; see the crate's documentation for an example.
pub struct ExpertStore {
    files: FileSet,
    backend: Box<dyn ReadBackend>,
    layout: ExpertLayout,
    layers: Vec<LayerCache>,
    arena: Arena,
    check: Option<ContentCheck>,
    stats: StoreStats,
    lease: LeaseState,
    scratch: Scratch,
}

struct LayerCache {
    residency: Residency,
    policy: Box<dyn Policy>,
}

/// What the current lease pins. Kept here, so that a lease that is forgotten instead of dropped
/// is released by the next acquire.
#[derive(Default)]
struct LeaseState {
    layer: usize,
    picks: Vec<Leased>,
}

#[derive(Clone, Copy)]
struct Leased {
    expert: u16,
    /// Within the arena.
    slot: usize,
    missed: bool,
}

/// Reused by every acquire.
#[derive(Default)]
struct Scratch {
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
    /// A store with an empty arena.
    ///
    /// # Errors
    /// [`Error::NoSuchFile`] and [`Error::BeyondFile`] when the layout does not fit the files;
    /// [`Error::SlotsBelowBatch`], [`Error::AboveExperts`], [`Error::LayerCount`];
    /// [`Error::TooLarge`] and [`Error::OutOfMemory`] for the arena; [`Error::Cache`] for a policy
    /// that needs to know the future.
    ///
    /// # Cost
    /// Allocates the arena ([`ExpertLayout::bytes_for`] bytes) and the tables; reads nothing.
    pub fn new(
        files: FileSet,
        backend: Box<dyn ReadBackend>,
        layout: ExpertLayout,
        config: ExpertStoreConfig,
    ) -> Result<Self> {
        layout.check(&files)?;
        check_config(&layout, &config)?;
        let mut layers = Vec::with_capacity(layout.n_layer());
        for (layer, (&slots, &batch)) in config.slots.iter().zip(&config.batch).enumerate() {
            let n_expert = layout.n_expert(layer);
            layers.push(LayerCache::new(layer, n_expert, slots, batch, &config)?);
        }
        let arena = Arena::new(&layout.regions(&config.slots))?;
        Ok(Self {
            files,
            backend,
            layout,
            layers,
            arena,
            check: None,
            stats: StoreStats::default(),
            lease: LeaseState::default(),
            scratch: Scratch::default(),
        })
    }

    /// Sets a check that every part passes once, after it is read and before anybody sees it.
    ///
    /// What the check refuses counts as a failed load: [`Error::Rejected`] with the check's error
    /// as its source. A check that panics leaves the store unusable.
    pub fn set_check(&mut self, check: ContentCheck) {
        self.check = Some(check);
    }

    /// Makes the experts `picks` of `layer` resident and keeps them so for the life of the lease.
    ///
    /// `picks` are distinct and in descending router weight, the order that policies learn from;
    /// at most [`max_batch`](Self::max_batch) of them. Larger sets take several acquires.
    ///
    /// # Errors
    /// Before anything happens: [`Error::LayerOutOfRange`], [`Error::ExpertOutOfRange`],
    /// [`Error::DuplicateExpert`], [`Error::BatchTooLarge`]. While loading: [`Error::Expert`] around
    /// the reason, [`Error::FileChanged`], [`Error::OperationsLost`], [`Error::SlotLost`],
    /// [`Error::Cache`]. No expert of a failed acquire's misses is then resident, nothing is
    /// pinned, and the store remains usable; what was evicted for them stays away.
    ///
    /// # Cost
    /// Hits: O(picks), no I/O. Misses: their bytes are read in file order; then each file that the
    /// layer lies in is checked for changes, two metadata calls a file.
    pub fn acquire(&mut self, clock: u64, layer: usize, picks: &[u16]) -> Result<Lease<'_>> {
        self.acquire_with(&ExpertAccess::new(clock, layer, picks))
    }

    /// As [`acquire`](Self::acquire), with near picks and probabilities for the policy.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub fn acquire_with(&mut self, access: &ExpertAccess<'_>) -> Result<Lease<'_>> {
        self.release();
        match self.serve(access) {
            Ok(()) => Ok(Lease { store: self }),
            Err(error) => {
                self.stats.failures += 1;
                Err(error)
            }
        }
    }

    /// The most experts of a layer that one acquire can take: its slots. 0 out of range.
    #[must_use]
    pub fn max_batch(&self, layer: usize) -> usize {
        self.layers
            .get(layer)
            .map_or(0, |l| l.residency.n_slots() as usize)
    }

    /// Whether an expert would be a hit now.
    #[must_use]
    pub fn is_resident(&self, layer: usize, expert: u16) -> bool {
        let key = Key::new(u32::from(expert));
        self.layers
            .get(layer)
            .is_some_and(|l| l.residency.is_resident(key))
    }

    /// The residency table of a layer, whose keys are expert ids; `None` out of range.
    #[must_use]
    pub fn residency(&self, layer: usize) -> Option<&Residency> {
        self.layers.get(layer).map(|l| &l.residency)
    }

    /// Where the experts lie.
    #[must_use]
    pub fn layout(&self) -> &ExpertLayout {
        &self.layout
    }

    /// The slots.
    #[must_use]
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Counters since the store was made or they were last taken.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        self.stats
    }

    /// The counters, which begin again at zero.
    pub fn take_stats(&mut self) -> StoreStats {
        std::mem::take(&mut self.stats)
    }

    /// Checks invariants 1 to 4; for tests.
    ///
    /// # Errors
    /// [`Error::Broken`] and [`Error::Cache`] name the first invariant found broken.
    ///
    /// # Cost
    /// O(experts + slots); in debug builds all bytes of empty slots.
    pub fn validate(&self) -> Result<()> {
        self.arena.validate()?;
        let broken = |invariant, place: usize| Error::Broken {
            owner: "expert store",
            invariant,
            place: place as u64,
        };
        for (l, cache) in self.layers.iter().enumerate() {
            let in_layer = |source| Error::Cache { layer: l, source };
            cache.residency.validate().map_err(in_layer)?;
            cache.policy.validate().map_err(in_layer)?;
            let n_leased = match l == self.lease.layer {
                true => self.lease.picks.len(),
                false => 0,
            };
            if cache.residency.n_pinned() as usize != n_leased {
                return Err(broken(2, l));
            }
            for slot in 0..cache.residency.n_slots() {
                let place = self.arena.slot(l, slot as usize);
                let buf = place.and_then(|place| self.arena.get(place));
                let Some(buf) = buf else {
                    return Err(broken(3, place.unwrap_or(usize::MAX)));
                };
                let is_empty = cache.residency.key_of(SlotId::new(slot)).is_none();
                if cfg!(debug_assertions) && is_empty && buf.iter().any(|b| *b != POISON) {
                    return Err(broken(4, place.unwrap_or(usize::MAX)));
                }
            }
        }
        Ok(())
    }

    /// Checks invariant 5 by reading every resident expert again, without the backend; for tests.
    ///
    /// # Errors
    /// [`Error::Broken`], [`Error::Read`], [`Error::UnexpectedEof`].
    ///
    /// # Cost
    /// Reads as many bytes as are resident.
    pub fn validate_contents(&self) -> Result<()> {
        let mut reader = crate::PreadBackend::new(self.files.clone());
        for (l, cache) in self.layers.iter().enumerate() {
            for (key, slot) in cache.residency.residents() {
                let expert = key.id() as u16;
                for part in 0..self.layout.n_parts(l) {
                    let (Some(place), Some(segment)) = (
                        self.arena.slot(l, slot.index()),
                        self.layout.part(l, expert, part),
                    ) else {
                        continue;
                    };
                    let mut on_disk = vec![0; segment.len_bytes];
                    reader.read_segment(&segment, &mut on_disk)?;
                    if self.part_in(place, l, part) != on_disk {
                        return Err(Error::Broken {
                            owner: "expert store",
                            invariant: 5,
                            place: place as u64,
                        });
                    }
                }
            }
        }
        Ok(())
    }

    /// Follows the batch contract documented at [`Access`].
    fn serve(&mut self, access: &ExpertAccess<'_>) -> Result<()> {
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
        self.lease.picks.retain(|pick| !pick.missed && pick.slot != usize::MAX);
        self.release();
    }

    /// Unpins what the last lease pinned.
    fn release(&mut self) {
        let Some(LayerCache { residency, .. }) = self.layers.get_mut(self.lease.layer) else {
            return;
        };
        for pick in self.lease.picks.drain(..) {
            let unpinned = residency.unpin(key(pick.expert));
            debug_assert!(unpinned.is_ok(), "{unpinned:?}");
        }
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

    /// The bytes of a part in a slot; empty out of range.
    fn part_in(&self, place: usize, layer: usize, part: usize) -> &[u8] {
        let segment = self.layout.part(layer, 0, part);
        let bytes = segment.and_then(|s| {
            let buf = self.arena.get(place)?;
            buf.get(s.dst_bytes..)?.get(..s.len_bytes)
        });
        bytes.unwrap_or(&[])
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

impl LayerCache {
    fn new(
        layer: usize,
        n_expert: usize,
        slots: usize,
        batch: usize,
        config: &ExpertStoreConfig,
    ) -> Result<Self> {
        let in_layer = |source| Error::Cache { layer, source };
        // All three were checked to be at most the number of experts, which a u16 holds.
        let [n_keys, n_slots, batch] = [n_expert, slots, batch].map(|n| n as u32);
        // A policy wants at least a batch of one, also where nothing will ever be asked for.
        let policy_config = PolicyConfig::new(n_keys, n_slots.max(1), batch.max(1))
            .with_seed(config.seed.wrapping_add(layer as u64));
        Ok(Self {
            residency: Residency::new(n_keys, n_slots).map_err(in_layer)?,
            policy: config.policy.build(&policy_config).map_err(in_layer)?,
        })
    }
}

impl fmt::Debug for ExpertStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpertStore")
            .field("files", &self.files)
            .field("n_layer", &self.layers.len())
            .field("n_slots", &self.arena.n_slots())
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

/// Experts that stay resident until this is dropped.
#[derive(Debug)]
pub struct Lease<'a> {
    store: &'a mut ExpertStore,
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

fn check_config(layout: &ExpertLayout, config: &ExpertStoreConfig) -> Result<()> {
    let n_layer = layout.n_layer();
    for (what, found) in [("slots", config.slots.len()), ("batch", config.batch.len())] {
        if found != n_layer {
            return Err(Error::LayerCount {
                what,
                expected: n_layer,
                found,
            });
        }
    }
    for (layer, (&slots, &batch)) in config.slots.iter().zip(&config.batch).enumerate() {
        if slots < batch {
            return Err(Error::SlotsBelowBatch {
                layer,
                slots,
                batch,
            });
        }
        let n_expert = layout.n_expert(layer);
        for (what, found) in [("batch", batch), ("number of slots", slots)] {
            if found > n_expert {
                return Err(Error::AboveExperts {
                    layer,
                    what,
                    found,
                    n_expert,
                });
            }
        }
    }
    Ok(())
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

/// The key of an expert in its layer's table.
fn key(expert: u16) -> Key {
    Key::new(u32::from(expert))
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

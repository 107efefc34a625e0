//! `ExpertStore`: the experts of a model, as many of them in memory as there are slots.
//!
//! Owns the arena, a residency table and a policy for each layer, the transit slots, and the reads
//! under way; not the choice of experts. Memory: the arena, taken by `new`, written as experts are
//! loaded. Invariants (`validate`), true after a failed `acquire` too: 1. each table and policy is
//! sound; 2. only what the lease or the stream names is pinned; 3. every layer slot's buffer is in
//! the arena while no lease is open; 4. in debug builds slots without an expert hold poison; 5.
//! (`validate_contents`) parts in a resident slot equal the file's; and those of `transit`. Cost: a batch of hits is O(batch) without allocation or I/O; a miss adds its reads, the
//! policy's victim, and once an acquire two metadata calls a file.

mod config;
mod flights;
mod lease;
mod serve;
mod stream;
mod transit;
mod warm;

use std::fmt;

use thalweg_cache::{Key, Policy, PolicyConfig, Residency, SlotId};

use self::flights::Flights;
use self::lease::LeaseState;
use self::serve::Scratch;
use self::stream::StreamState;
use self::transit::{TransitSlot, TransitState};
use crate::arena::{POISON, Region};
use crate::io::IoStats;
use crate::{Arena, CheckError, Error, ExpertLayout, FileSet, PreadBackend, ReadBackend, Result};

pub use config::{ExpertAccess, ExpertStoreConfig, LayerStats, StoreStats};
pub use lease::Lease;
pub use stream::Stream;
pub use warm::WarmFill;

/// Looks at a part that was just read: layer, expert, part, bytes.
///
/// See [`ExpertStore::set_check`].
pub type ContentCheck =
    Box<dyn Fn(usize, usize, usize, &[u8]) -> std::result::Result<(), CheckError> + Send>;

/// Experts behind a bounded arena; see the crate's documentation for an example.
pub struct ExpertStore {
    files: FileSet,
    flights: Flights,
    layout: ExpertLayout,
    layers: Vec<LayerCache>,
    arena: Arena,
    transit: Vec<TransitSlot>,
    check: Option<ContentCheck>,
    stats: StoreStats,
    layer_stats: Vec<LayerStats>,
    lease: LeaseState,
    stream: StreamState,
    scratch: Scratch,
}

struct LayerCache {
    residency: Residency,
    policy: Box<dyn Policy>,
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
        config.check(&layout)?;
        let mut layers = Vec::with_capacity(layout.n_layer());
        for (layer, (&slots, &batch)) in config.slots.iter().zip(&config.batch).enumerate() {
            let n_expert = layout.n_expert(layer);
            layers.push(LayerCache::new(layer, n_expert, slots, batch, &config)?);
        }
        let mut regions = layout.regions(&config.slots);
        // One transit slot takes any layer's experts.
        let n_layer = layout.n_layer();
        regions.push(Region {
            slot_bytes: layout.max_slot_bytes(),
            n_slots: config.transit,
        });
        let arena = Arena::new(&regions)?;
        let transit = (0..config.transit).filter_map(|i| {
            Some(TransitSlot {
                place: arena.slot(n_layer, i)?,
                layer: 0,
                expert: 0,
                state: TransitState::Free,
            })
        });
        Ok(Self {
            files,
            flights: Flights::new(backend),
            transit: transit.collect(),
            layer_stats: vec![LayerStats::default(); n_layer],
            layout,
            layers,
            arena,
            check: None,
            stats: StoreStats::default(),
            lease: LeaseState::default(),
            stream: StreamState::default(),
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
    /// [`Error::DuplicateExpert`], [`Error::BatchTooLarge`]. While loading: [`Error::Expert`]
    /// around the reason, [`Error::FileChanged`], [`Error::Cache`], and for a backend that breaks
    /// its contract [`Error::OperationRefused`], [`Error::OperationsLost`], [`Error::SlotLost`].
    /// None of a failed acquire's misses is then resident, nothing is pinned, and the store
    /// remains usable; what was evicted for them stays away.
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
        let mut lease = self.begin_acquire(access)?;
        match lease.finish() {
            Ok(()) => Ok(lease),
            Err(error) => Err(error),
        }
    }

    /// As [`acquire_with`](Self::acquire_with), without waiting: hits can be used at once, misses
    /// as they [arrive](Lease::is_here), while reads go on. [`Lease::finish`] ends it; a lease that
    /// is dropped before leaves the store as a failed acquire does.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), as far as it is known before the reads are done.
    pub fn begin_acquire(&mut self, access: &ExpertAccess<'_>) -> Result<Lease<'_>> {
        self.release();
        match self.open(access) {
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

    /// The files that experts are read from.
    #[must_use]
    pub fn files(&self) -> &FileSet {
        &self.files
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

    /// Makes the system give memory to every page of the arena that is not in a read.
    ///
    /// # Cost
    /// One write a page; gigabytes take seconds where pages are fresh.
    pub fn touch_arena(&mut self) {
        self.arena.touch();
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

    /// Counters of a layer, over the life of the store; `None` out of range.
    #[must_use]
    pub fn layer_stats(&self, layer: usize) -> Option<LayerStats> {
        self.layer_stats.get(layer).copied()
    }

    /// What the read backend has done, as far as it counts.
    #[must_use]
    pub fn io_stats(&self) -> IoStats {
        self.flights.io_stats()
    }

    /// Checks invariants 1 to 4 and those of the transit slots; for tests.
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
            let mut n_pinned = match l == self.lease.layer {
                true => self.lease.picks.len(),
                false => 0,
            };
            n_pinned += self.stream.n_pinned(l);
            if cache.residency.n_pinned() as usize != n_pinned {
                return Err(broken(2, l));
            }
            for slot in 0..cache.residency.n_slots() {
                let place = self.arena.slot(l, slot as usize);
                let buf = place.and_then(|place| self.arena.get(place));
                let Some(buf) = buf else {
                    if self.lease.is_open && l == self.lease.layer {
                        continue;
                    }
                    return Err(broken(3, place.unwrap_or(usize::MAX)));
                };
                let is_empty = cache.residency.key_of(SlotId::new(slot)).is_none();
                if cfg!(debug_assertions) && is_empty && buf.iter().any(|b| *b != POISON) {
                    return Err(broken(4, place.unwrap_or(usize::MAX)));
                }
            }
        }
        self.validate_transit()
    }

    /// Checks invariant 5 by reading every resident expert again, without the backend; for tests.
    ///
    /// # Errors
    /// [`Error::Broken`], [`Error::Read`], [`Error::UnexpectedEof`].
    ///
    /// # Cost
    /// Reads as many bytes as are resident.
    pub fn validate_contents(&self) -> Result<()> {
        let mut reader = PreadBackend::new(self.files.clone());
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

/// The key of an expert in its layer's table.
fn key(expert: u16) -> Key {
    Key::new(u32::from(expert))
}

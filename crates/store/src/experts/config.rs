//! What goes into an `ExpertStore` and what comes out as figures.
//!
//! Owns the configuration and its check, the description of an access, and the counters; no state.
//! Cost: the check is O(layers).

use std::time::Duration;

use thalweg_cache::PolicyKind;

use crate::{Error, ExpertLayout, Result};

/// How to set up an [`ExpertStore`](crate::ExpertStore). Lists have one entry a layer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExpertStoreConfig {
    /// Slots, at least the batch and at most the number of experts.
    pub slots: Vec<usize>,
    /// Experts that one token needs at the same time.
    pub batch: Vec<usize>,
    /// Slots outside the layers, each large enough for any layer's expert, that read-ahead and
    /// [streams](crate::ExpertStore::stream) load into. Without them there is neither.
    pub transit: usize,
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
            transit: 0,
            policy: PolicyKind::Lru,
            seed: 1,
        }
    }

    /// Compares the lists with the layers and each other.
    pub(super) fn check(&self, layout: &ExpertLayout) -> Result<()> {
        let n_layer = layout.n_layer();
        for (what, found) in [("slots", self.slots.len()), ("batch", self.batch.len())] {
            if found != n_layer {
                return Err(Error::LayerCount {
                    what,
                    expected: n_layer,
                    found,
                });
            }
        }
        for (layer, (&slots, &batch)) in self.slots.iter().zip(&self.batch).enumerate() {
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

/// What a store has done since it was made, or since its counters were
/// [taken](crate::ExpertStore::take_stats).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct StoreStats {
    /// Experts asked for and found resident; of a stream, those that it handed out.
    pub hits: u64,
    /// Experts asked for, not resident, for which a read-ahead had been started.
    pub guessed_hits: u64,
    /// Those of them whose read-ahead was still under way.
    pub late_guesses: u64,
    /// Experts asked for and read then; of a stream, those that it handed out.
    pub misses: u64,
    /// Read-aheads started.
    pub guesses: u64,
    /// Experts that had to leave their slot for another.
    pub evictions: u64,
    /// Reads carried out, failed ones included; an expert may take several.
    pub reads: u64,
    /// Bytes read, those of failed reads not included.
    pub bytes_read: u64,
    /// Bytes of read-aheads that nobody asked for, and of what a stream read and did not hand out;
    /// part of `bytes_read`.
    pub wasted_bytes: u64,
    /// Acquires and streams that failed. The experts of a failed acquire count neither as hits nor
    /// as misses.
    pub failures: u64,
    /// Time spent waiting for reads with nothing else to do.
    pub wait: Duration,
}

/// What a store has done in one layer.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct LayerStats {
    /// As [`StoreStats::hits`].
    pub hits: u64,
    /// As [`StoreStats::guessed_hits`].
    pub guessed_hits: u64,
    /// As [`StoreStats::misses`].
    pub misses: u64,
}

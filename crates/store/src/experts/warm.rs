//! Warm fill: free slots loaded before they are asked for, hottest experts first in line.
//!
//! Owns the choice of what fits and the order of reads; not where the ranking comes from. Never
//! evicts and never pins beyond the fill: what was loaded is replaced like anything else. Memory: a
//! few words an expert of the ranking. Invariant: policies see the experts coldest first, as
//! `thalweg_cache::fill` shows them, so the hottest is the most recent.
//! Cost: one read an expert, in file order, as many under way as the backend takes.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use thalweg_cache::{ExpertKey, SlotId};

use super::flights::Target;
use super::{ExpertStore, LayerCache, key};
use crate::{Error, Priority, Result};

/// What a fill has loaded.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct WarmFill {
    /// Experts that were loaded.
    pub experts: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Time from the first read to the end of the last.
    pub time: Duration,
}

#[derive(Clone, Copy)]
struct Chosen {
    layer: usize,
    expert: u16,
    slot: SlotId,
    place: usize,
    id: Option<u64>,
    is_loaded: bool,
}

impl ExpertStore {
    /// Fills free slots with the first experts of `ranking`, hottest first, that fit their layers.
    /// Experts that are resident, or that the model does not have, are passed over. `progress` is
    /// told how many of how many are loaded, and may end the fill there.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire) for the first read that failed; what had been loaded stays
    /// resident, the other slots are free.
    pub fn warm_fill(
        &mut self,
        ranking: &[ExpertKey],
        mut progress: impl FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<WarmFill> {
        self.settle()?;
        let mut chosen = self.choose_warm(ranking)?;
        let start = Instant::now();
        let filled = self.load_warm(&mut chosen, &mut progress);
        let mut fill = WarmFill {
            time: start.elapsed(),
            ..WarmFill::default()
        };
        for one in chosen {
            let LayerCache { residency, policy } = &mut self.layers[one.layer];
            // The slot has been loading since it was chosen.
            let ended = match one.is_loaded {
                true => {
                    fill.experts += 1;
                    fill.bytes += self.layout.expert_bytes(one.layer);
                    residency
                        .complete(one.slot)
                        .and_then(|_| residency.unpin(key(one.expert)))
                        .map(|_| ())
                }
                false => residency.abort(one.slot, &mut **policy).map(|_| ()),
            };
            debug_assert!(ended.is_ok(), "{ended:?}");
            if !one.is_loaded
                && let Some(buf) = self.arena.get_mut(one.place)
            {
                super::serve::poison(buf);
            }
        }
        filled.map(|()| fill)
    }

    /// Takes slots for the hottest experts that fit, coldest first.
    fn choose_warm(&mut self, ranking: &[ExpertKey]) -> Result<Vec<Chosen>> {
        let mut room: Vec<u32> = self.layers.iter().map(|l| l.residency.n_free()).collect();
        let mut hottest = Vec::new();
        for expert in ranking {
            let layer = usize::from(expert.layer);
            let Some(cache) = self.layers.get(layer) else {
                continue;
            };
            let fits = usize::from(expert.expert) < self.layout.n_expert(layer);
            if !fits || room[layer] == 0 || cache.residency.is_resident(key(expert.expert)) {
                continue;
            }
            if hottest.contains(expert) {
                continue;
            }
            room[layer] -= 1;
            hottest.push(*expert);
        }
        let mut chosen = Vec::with_capacity(hottest.len());
        for expert in hottest.into_iter().rev() {
            let layer = usize::from(expert.layer);
            let LayerCache { residency, policy } = &mut self.layers[layer];
            let taken = residency
                .reserve(key(expert.expert), &mut **policy)
                .map_err(|source| Error::Cache { layer, source })?;
            chosen.push(Chosen {
                layer,
                expert: expert.expert,
                slot: taken.slot,
                place: self
                    .arena
                    .slot(layer, taken.slot.index())
                    .unwrap_or(usize::MAX),
                id: None,
                is_loaded: false,
            });
        }
        Ok(chosen)
    }

    /// Reads what was chosen, in file order, and marks what arrived.
    fn load_warm(
        &mut self,
        chosen: &mut [Chosen],
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut order: Vec<usize> = (0..chosen.len()).collect();
        order.sort_by_cached_key(|i| {
            let segments = self.layout.segments(chosen[*i].layer, chosen[*i].expert);
            segments.and_then(|s| s.first().map(|s| (s.file, s.offset_bytes)))
        });
        let total = chosen.len();
        let mut failure = None;
        for at in order {
            let one = &mut chosen[at];
            let segments = self.layout.segments(one.layer, one.expert);
            let Some(mut buf) = self.arena.take(one.place) else {
                failure = Some(Error::SlotLost { slot: one.place });
                break;
            };
            super::serve::poison(&mut buf);
            let target = Target::Slot { place: one.place };
            let segments = segments.unwrap_or_default();
            let id = self.flights.start(target, Priority::Demand, segments, buf);
            one.id = Some(id);
        }
        let (mut n_back, mut n_loaded, mut stopped) = (0, 0, false);
        let n_out = chosen.iter().filter(|c| c.id.is_some()).count();
        while n_back < n_out {
            if let Err(error) = self.flights.wait() {
                failure.get_or_insert(error);
            }
            let mut any = false;
            while let Some(landed) = self.flights.pop() {
                any = true;
                n_back += 1;
                let result = landed.done.result;
                let bytes = landed.done.op.len_bytes();
                let n_segments = landed.done.op.segments.len() as u64;
                let Some(one) = chosen.iter_mut().find(|c| c.id == Some(landed.id)) else {
                    continue;
                };
                let put = self.arena.put(one.place, landed.done.op.buf);
                debug_assert!(put.is_ok(), "the slot has been empty since the read began");
                let checked =
                    result.and_then(|()| self.check_contents(one.layer, one.expert, one.place));
                match checked {
                    Ok(()) => {
                        one.is_loaded = true;
                        n_loaded += 1;
                        self.stats.reads += n_segments;
                        self.stats.bytes_read += bytes;
                    }
                    Err(Error::Cancelled) => {}
                    Err(source) => {
                        failure.get_or_insert(Error::Expert {
                            layer: one.layer,
                            expert: one.expert,
                            source: Box::new(source),
                        });
                    }
                }
            }
            if !stopped && failure.is_none() && progress(n_loaded, total).is_break() {
                stopped = true;
            }
            if stopped || failure.is_some() {
                for id in chosen.iter().filter_map(|c| c.id) {
                    self.flights.cancel(id);
                }
            }
            if !any && self.flights.n_out() == 0 && self.flights.is_empty() {
                break;
            }
        }
        let layers: std::collections::BTreeSet<usize> = chosen.iter().map(|c| c.layer).collect();
        for layer in layers {
            if let Err(error) = self.verify_files(layer) {
                chosen.iter_mut().for_each(|c| c.is_loaded = false);
                return Err(error);
            }
        }
        failure.map_or(Ok(()), Err)
    }
}

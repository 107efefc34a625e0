//! Warm fill: free slots loaded before they are asked for, hottest experts first in line.
//!
//! Owns the choice of what fits and the order of reads; not where the ranking comes from. Never
//! evicts and never pins beyond the fill: what was loaded is replaced like anything else. Memory: a
//! few words an expert of the ranking. Invariant: policies see the experts coldest first, as
//! `thalweg_cache::fill` shows them, so the hottest is the most recent.
//! Cost: one read an expert, in file order, and a constant amount of work besides.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use thalweg_cache::{ExpertKey, SlotId};

use super::flights::Target;
use super::{ExpertStore, LayerCache, key};
use crate::{Error, Priority, Result};

/// Reads that are handed over and not back: twice what any backend has under way, so that none of
/// them runs dry, and few enough to be given up one by one.
const WINDOW: usize = 512;

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
    is_loaded: bool,
}

impl ExpertStore {
    /// Fills free slots with the first experts of `ranking`, hottest first, that fit their layers.
    /// Experts that are resident, or that the model does not have, are passed over. `progress` is
    /// told how many of how many are loaded, and may end the fill there: reads that have begun are
    /// finished, what was loaded stays.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire) for the first read that failed; what had been loaded stays
    /// resident, the other slots are free. After [`Error::FileChanged`] nothing of the fill is
    /// resident.
    pub fn warm_fill(
        &mut self,
        ranking: &[ExpertKey],
        mut progress: impl FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<WarmFill> {
        self.settle()?;
        let mut chosen = Vec::new();
        let mut filled = self.choose_warm(ranking, &mut chosen);
        let start = Instant::now();
        if filled.is_ok() {
            filled = self.load_warm(&mut chosen, &mut progress);
        }
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
    fn choose_warm(&mut self, ranking: &[ExpertKey], chosen: &mut Vec<Chosen>) -> Result<()> {
        let mut room: Vec<u32> = self.layers.iter().map(|l| l.residency.n_free()).collect();
        let mut hottest = Vec::new();
        let mut seen = BTreeSet::new();
        for expert in ranking {
            let layer = usize::from(expert.layer);
            let Some(cache) = self.layers.get(layer) else {
                continue;
            };
            let exists = usize::from(expert.expert) < self.layout.n_expert(layer);
            let fits = exists && room[layer] > 0;
            if fits && !cache.residency.is_resident(key(expert.expert)) && seen.insert(*expert) {
                room[layer] -= 1;
                hottest.push(*expert);
            }
        }
        chosen.reserve(hottest.len());
        for expert in hottest.into_iter().rev() {
            let layer = usize::from(expert.layer);
            let LayerCache { residency, policy } = &mut self.layers[layer];
            let taken = residency
                .reserve(key(expert.expert), &mut **policy)
                .map_err(|source| Error::Cache { layer, source })?;
            let place = self.arena.slot(layer, taken.slot.index());
            chosen.push(Chosen {
                layer,
                expert: expert.expert,
                slot: taken.slot,
                place: place.unwrap_or(usize::MAX),
                is_loaded: false,
            });
        }
        Ok(())
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
        let mut waiting = order.into_iter();
        let mut under_way = BTreeMap::new();
        let (mut n_loaded, mut failure) = (0, None);
        let (mut stopped, mut gave_up) = (false, false);
        loop {
            while !stopped && failure.is_none() && under_way.len() < WINDOW {
                let Some(at) = waiting.next() else { break };
                match self.start_warm(&chosen[at]) {
                    Ok(id) => drop(under_way.insert(id, at)),
                    Err(error) => failure = Some(error),
                }
            }
            if under_way.is_empty() {
                break;
            }
            let waited = self.flights.wait();
            let n_before = n_loaded;
            while let Some(landed) = self.flights.pop() {
                let id = landed.id;
                let result = self.bring_home(landed);
                let Some(one) = under_way.remove(&id).map(|at| &mut chosen[at]) else {
                    continue;
                };
                let Chosen { layer, expert, .. } = *one;
                match result.and_then(|()| self.check_contents(layer, expert, one.place)) {
                    Ok(()) => {
                        one.is_loaded = true;
                        n_loaded += 1;
                    }
                    Err(Error::Cancelled) => {}
                    Err(source) => {
                        failure.get_or_insert(Error::Expert {
                            layer,
                            expert,
                            source: Box::new(source),
                        });
                    }
                }
            }
            if let Err(error) = waited {
                // Nothing is under way any more, whatever has not come back.
                under_way.clear();
                failure.get_or_insert(error);
            }
            if !gave_up && failure.is_none() && n_loaded > n_before {
                stopped = progress(n_loaded, chosen.len()).is_break();
            }
            if !gave_up && (stopped || failure.is_some()) {
                gave_up = true;
                for id in under_way.keys() {
                    self.flights.cancel(*id);
                }
            }
        }
        let layers: BTreeSet<usize> = chosen.iter().map(|c| c.layer).collect();
        for layer in layers {
            if let Err(error) = self.verify_files(layer) {
                chosen.iter_mut().for_each(|c| c.is_loaded = false);
                return Err(error);
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Starts the read of a chosen expert; returns its number.
    fn start_warm(&mut self, one: &Chosen) -> Result<u64> {
        // Only experts that the layout has were chosen.
        let segments = self.layout.segments(one.layer, one.expert);
        let lost = Error::SlotLost { slot: one.place };
        let mut buf = self.arena.take(one.place).ok_or(lost)?;
        super::serve::poison(&mut buf);
        let target = Target::Slot { place: one.place };
        let segments = segments.unwrap_or_default();
        Ok(self.flights.start(target, Priority::Demand, segments, buf))
    }
}

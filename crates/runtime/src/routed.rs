//! The routed experts of one layer: brought, run, while the shared expert and what is resident
//! fill the time of the reads.
//!
//! Owns the order in which a layer's experts are run; not what they compute. Three tiers have them:
//! a device's own memory, where what is there runs at once and asks nothing of the others; the arena
//! of the host; and the drive. Results do not depend on the order, because each choice of an expert has its own row of partial results and these are
//! summed in rank order.
//!
//! Experts that fit the layer's slots are leased together. A chunk that needs more streams the
//! others through transit slots first, each read once, and leaves in the arena what its last tokens
//! chose, which is what decode is likely to need.

use std::ops::Range;

use thalweg_backend::{Backend, ExpertJob, HeldExpert, Retain};
use thalweg_model::{Architecture, ExpertSpec, Workspace};
use thalweg_store::{ExpertAccess, Lease};

use crate::ahead::Ahead;
use crate::chunk::Phase;
use crate::engine::Audits;
use crate::picks::Picks;
use crate::{Engine, Result};

impl<B: Backend> Engine<B> {
    /// Runs the routed and the shared experts of a layer whose choice is made.
    pub(crate) fn run_experts(&mut self, layer: usize, phase: Phase) -> Result<()> {
        self.scratch.picks.sort(&self.ws.routing);
        self.scratch.hints.set(&self.ws.routing, self.policy);
        self.run_held(layer)?;
        let n_needed = self.scratch.picks.needed.len();
        let n_slots = self.store.max_batch(layer);
        if n_needed <= n_slots {
            self.run_leased(layer, 0..n_needed, true)?;
        } else {
            let kept = self.choose_kept(layer, phase);
            self.run_streamed(layer, phase, kept..n_needed)?;
            if kept > 0 {
                self.run_leased(layer, 0..kept, false)?;
            }
        }
        self.clock += 1;
        Ok(())
    }

    /// Runs the experts of which the device has copies and takes them off the list of those that
    /// are needed.
    fn run_held(&mut self, layer: usize) -> Result<()> {
        let Self {
            backend,
            ws,
            scratch,
            device_hits,
            ..
        } = self;
        let picks = &mut scratch.picks;
        picks.set_held(|e| backend.holds(&ws.rec, layer, e));
        if picks.held.is_empty() {
            return Ok(());
        }
        let jobs = picks.held.iter().map(|&expert| {
            let (first_row, tokens) = picks.of(expert);
            HeldExpert {
                expert,
                tokens,
                first_row,
            }
        });
        let jobs: Vec<HeldExpert<'_>> = jobs.collect();
        backend.held_experts(&mut ws.rec, layer, &jobs, &ws.input, &mut ws.partial)?;
        device_hits[layer] += jobs.len() as u64;
        Ok(())
    }

    /// How many experts a chunk that streams through a layer may leave in its slots. A prompt's last
    /// chunk leaves what its last tokens chose; others fill free slots and evict nothing, since what
    /// is resident serves the next chunk as well as what would replace it.
    fn kept_slots(&self, layer: usize, phase: Phase) -> usize {
        match phase.leaves_logits() {
            true => self.store.max_batch(layer),
            false => {
                let residency = self.store.residency(layer);
                residency.map_or(0, |r| r.n_free() as usize)
            }
        }
    }

    /// Brings the experts that shall be in the arena afterwards to the front of the needed ones,
    /// and says how many they are.
    fn choose_kept(&mut self, layer: usize, phase: Phase) -> usize {
        let n_kept = self.kept_slots(layer, phase);
        if phase.leaves_logits() {
            return n_kept;
        }
        let store = &self.store;
        let needed = &mut self.scratch.picks.needed;
        // Stable, so that the most recent stay first.
        needed.sort_by_key(|e| store.is_resident(layer, *e));
        let n_missing = needed.iter().filter(|e| !store.is_resident(layer, **e));
        n_kept.min(n_missing.count())
    }

    /// Leases needed experts and runs them, those that are here first.
    fn run_leased(&mut self, layer: usize, which: Range<usize>, with_shared: bool) -> Result<()> {
        let Self {
            backend,
            model,
            store,
            ws,
            scratch,
            ahead,
            audits,
            switches,
            ..
        } = self;
        let (picks, hints) = (&scratch.picks, &scratch.hints);
        let experts = &model.spec().experts[layer];
        if with_shared && !switches.shared_overlap {
            model.shared(backend, ws, layer)?;
        }
        let access = ExpertAccess::new(self.clock, layer, &picks.needed[which.clone()]);
        let mut lease = store.begin_acquire(&hints.add(access))?;
        if ws.n_tokens() == 1 {
            read_ahead(
                backend,
                model.as_ref(),
                ws,
                ahead,
                audits,
                &mut lease,
                layer,
            )?;
        }
        if with_shared && switches.shared_overlap {
            model.shared(backend, ws, layer)?;
        }
        if !switches.expert_split {
            lease.finish()?;
        }
        let needed = &picks.needed[which];
        let mut left: Vec<usize> = (0..needed.len()).collect();
        loop {
            let here: Vec<usize> = left.extract_if(.., |i| lease.is_here(*i)).collect();
            let jobs = here.iter().map(|i| {
                let parts = [lease.part(*i, 0), lease.part(*i, 1), lease.part(*i, 2)];
                let (layer, expert) = (layer, needed[*i]);
                let retain = Retain::Always { layer, expert };
                job(experts, picks, expert, parts, retain)
            });
            let jobs = jobs.collect::<Result<Vec<_>>>()?;
            backend.experts(&mut ws.rec, &jobs, &ws.input, &mut ws.partial)?;
            if left.is_empty() {
                break;
            }
            lease.wait()?;
        }
        lease.finish()?;
        Ok(())
    }

    /// Streams needed experts through and runs them as they come; begins with what the chunk will
    /// likely stream in the next layer as soon as there are slots for it.
    fn run_streamed(&mut self, layer: usize, phase: Phase, which: Range<usize>) -> Result<()> {
        let next = layer + 1;
        let n_kept_next = self.kept_slots(next, phase);
        let Self {
            backend,
            model,
            store,
            ws,
            scratch,
            ahead,
            ..
        } = self;
        let picks = &scratch.picks;
        let experts = &model.spec().experts[layer];
        let mut stream = store.stream(layer, &picks.needed[which])?;
        // Reads are under way from here on.
        let mut likely: &[u16] = &[];
        if let Some(experts) = model
            .spec()
            .experts
            .get(next)
            .filter(|_| ahead.in_prompts())
        {
            let (n_expert, k) = (experts.n_expert, experts.k);
            ahead.logits.resize(ws.n_tokens() * n_expert, 0.0);
            model.predict(backend, ws, next, &mut ahead.logits)?;
            let is_here = |e| stream.is_resident(next, e) || backend.holds(&ws.rec, next, e);
            likely = ahead.streamed(n_expert, k, n_kept_next, is_here);
        }
        model.shared(backend, ws, layer)?;
        while stream.next_batch()? {
            stream.read_ahead(next, likely);
            let jobs = (0..stream.n()).filter_map(|i| {
                let parts = [stream.part(i, 0), stream.part(i, 1), stream.part(i, 2)];
                let (layer, expert) = (layer, stream.expert(i)?);
                let retain = Retain::IfFree { layer, expert };
                Some(job(experts, picks, expert, parts, retain))
            });
            let jobs = jobs.collect::<Result<Vec<_>>>()?;
            backend.experts(&mut ws.rec, &jobs, &ws.input, &mut ws.partial)?;
        }
        Ok(())
    }
}

/// Starts reads of what the next layers may choose, behind the reads of the lease.
fn read_ahead<B: Backend>(
    backend: &B,
    model: &dyn Architecture<B>,
    ws: &mut Workspace<B>,
    ahead: &mut Ahead,
    audits: &mut Audits,
    lease: &mut Lease<'_>,
    layer: usize,
) -> Result<()> {
    for (i, n) in ahead.depths().into_iter().enumerate() {
        let next = layer + 1 + i;
        let Some(experts) = model.spec().experts.get(next).filter(|_| n > 0) else {
            continue;
        };
        ahead.logits.resize(experts.n_expert, 0.0);
        model.predict(backend, ws, next, &mut ahead.logits)?;
        let is_here = |e| lease.is_resident(next, e) || backend.holds(&ws.rec, next, e);
        let best = ahead.best(n, is_here);
        if audits.guesses {
            let is_resident = |e| lease.is_resident(next, e);
            let account = &mut audits.account;
            account.guess(backend, model, ws, next, best, is_resident)?;
        }
        lease.read_ahead(next, best);
    }
    Ok(())
}

/// An expert and its tokens.
fn job<'a>(
    experts: &ExpertSpec,
    picks: &'a Picks,
    expert: u16,
    parts: [&'a [u8]; 3],
    retain: Retain,
) -> Result<ExpertJob<'a>> {
    let (first_row, tokens) = picks.of(expert);
    Ok(ExpertJob {
        expert: experts.view(parts)?,
        tokens,
        first_row,
        retain,
    })
}

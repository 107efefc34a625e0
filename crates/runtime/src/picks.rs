//! A layer's choices, sorted by expert, and what policies learn from besides them.
//!
//! Owns the grouping of (token, rank) pairs by expert and the rows that their results go to; not
//! the choice. Memory: a few words a pick, reused from chunk to chunk. Invariant: every (token,
//! rank) has a row of its own, the same whatever order experts are run in.

use thalweg_backend::Routing;
use thalweg_cache::PolicyKind;
use thalweg_store::ExpertAccess;

/// A layer's choices, grouped by expert.
#[derive(Debug, Default)]
pub(crate) struct Picks {
    /// Experts that are needed, most recently first: by the last token that chose them, then by
    /// rank. For one token this is descending weight.
    pub(crate) needed: Vec<u16>,
    /// Those of which the device has copies, once [`set_held`](Self::set_held) has taken them out
    /// of the needed ones.
    pub(crate) held: Vec<u16>,
    /// Row of each (token, rank), `[n_tokens, k]`.
    pub(crate) rows: Vec<u32>,
    /// By expert: its first row, and the end of the last expert's.
    starts: Vec<u32>,
    /// Tokens of all experts, one row each.
    tokens: Vec<u32>,
    /// By expert: the next free row while sorting.
    next: Vec<u32>,
}

impl Picks {
    /// Groups a chunk's choices.
    pub(crate) fn sort(&mut self, routing: &Routing) {
        let Self {
            needed,
            held,
            rows,
            starts,
            tokens,
            next,
        } = self;
        held.clear();
        let (n_tokens, n_expert, k) = (routing.n_tokens(), routing.n_expert(), routing.k());
        next.clear();
        next.resize(n_expert, 0);
        needed.clear();
        for t in (0..n_tokens).rev() {
            for id in routing.ids(t) {
                let count = &mut next[usize::from(*id)];
                if *count == 0 {
                    needed.push(*id);
                }
                *count += 1;
            }
        }
        starts.clear();
        let mut row = 0;
        for count in next.iter_mut() {
            starts.push(row);
            (row, *count) = (row + *count, row);
        }
        starts.push(row);
        tokens.resize(row as usize, 0);
        rows.resize(n_tokens * k, 0);
        for t in 0..n_tokens {
            for (rank, id) in routing.ids(t).iter().enumerate() {
                let next = &mut next[usize::from(*id)];
                tokens[*next as usize] = t as u32;
                rows[t * k + rank] = *next;
                *next += 1;
            }
        }
    }

    /// Takes the experts that `holds` out of the needed ones; both keep their order.
    pub(crate) fn set_held(&mut self, holds: impl Fn(u16) -> bool) {
        self.held.clear();
        self.held.extend(self.needed.extract_if(.., |e| holds(*e)));
    }

    /// First row and tokens of an expert.
    pub(crate) fn of(&self, expert: u16) -> (usize, &[u32]) {
        let bounds = self.starts.get(usize::from(expert)..);
        match bounds {
            Some([start, end, ..]) => {
                let (start, end) = (*start as usize, *end as usize);
                (start, &self.tokens[start..end])
            }
            _ => (0, &[]),
        }
    }
}

/// What some policies learn from besides a token's choices.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    /// Experts ranked behind the chosen ones, as many as were chosen.
    near: Vec<u16>,
    /// Probability of every expert; empty where no policy asks.
    probs: Vec<f32>,
    ranked: Vec<u16>,
}

impl Hints {
    /// Prepares what `policy` asks for. Only single tokens give hints: a chunk's choices have no
    /// one ranking.
    pub(crate) fn set(&mut self, routing: &Routing, policy: PolicyKind) {
        self.near.clear();
        self.probs.clear();
        if routing.n_tokens() != 1 {
            return;
        }
        let logits = routing.logits(0);
        match policy {
            PolicyKind::NearPickEma => {
                let usable = |e: &u16| logits[usize::from(*e)].is_finite();
                let chosen = routing.ids(0);
                self.ranked.clear();
                self.ranked
                    .extend((0..routing.n_expert()).map(|e| e as u16));
                self.ranked.retain(|e| usable(e) && !chosen.contains(e));
                self.ranked.sort_by(|a, b| {
                    logits[usize::from(*b)]
                        .total_cmp(&logits[usize::from(*a)])
                        .then(a.cmp(b))
                });
                self.near.extend(self.ranked.iter().take(routing.k()));
            }
            PolicyKind::InverseRouterEma => {
                let finite = |z: f32| if z.is_finite() { z } else { f32::NEG_INFINITY };
                let max = logits
                    .iter()
                    .map(|z| finite(*z))
                    .fold(f32::NEG_INFINITY, f32::max);
                self.probs
                    .extend(logits.iter().map(|z| (finite(*z) - max).exp()));
                let total: f32 = self.probs.iter().sum();
                self.probs.iter_mut().for_each(|p| *p /= total);
            }
            _ => {}
        }
    }

    pub(crate) fn add<'a>(&'a self, access: ExpertAccess<'a>) -> ExpertAccess<'a> {
        let access = access.with_near(&self.near);
        match self.probs.is_empty() {
            true => access,
            false => access.with_probs(&self.probs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picks_are_grouped_by_expert_and_named_most_recent_first() {
        let mut routing = Routing::default();
        routing.reset(3, 5, 2);
        for (t, ids) in [[4, 0], [2, 4], [0, 2]].iter().enumerate() {
            routing.set_choice(t, ids, &[0.5, 0.5]);
        }
        let mut picks = Picks::default();
        picks.sort(&routing);
        assert_eq!(picks.needed, [0, 2, 4]);
        assert_eq!(picks.of(0), (0, &[0, 2][..]));
        assert_eq!(picks.of(1), (2, &[][..]));
        assert_eq!(picks.of(2), (2, &[1, 2][..]));
        assert_eq!(picks.of(4), (4, &[0, 1][..]));
        assert_eq!(picks.of(5), (0, &[][..]));
        // (token, rank) to row: token 0 chose 4 then 0.
        assert_eq!(picks.rows, [4, 0, 2, 5, 1, 3]);
    }

    #[test]
    fn one_token_keeps_the_order_of_its_ranks() {
        let mut routing = Routing::default();
        routing.reset(1, 5, 3);
        routing.set_choice(0, &[3, 1, 4], &[0.5, 0.3, 0.2]);
        let mut picks = Picks::default();
        picks.sort(&routing);
        assert_eq!(picks.needed, [3, 1, 4]);
        assert_eq!(picks.rows, [1, 0, 2]);
    }
}

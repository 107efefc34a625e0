//! The tokens that can still be drawn.
//!
//! Owns their order and their weights. Does not own the choice of thresholds. Memory: 8 bytes for
//! each token of the vocabulary, reused.
//! Invariants: 1. logits are finite, at most 0, and 0 for the best. 2. Candidates stand by
//! ascending id until a step ranks them, best first from then on; both orders are unique, so
//! neither a sort nor a selection can change a sum. 3. The best is never dropped.

use super::exp::exp_up_to_zero;
use super::greedy::largest;

/// A token that can be drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Candidate {
    /// Token id.
    pub id: u32,
    /// Its logit minus that of the best, divided by the temperature; at most 0.
    pub logit: f32,
}

impl Candidate {
    /// Probability relative to that of the best candidate: e^logit, from 0 to 1.
    pub fn weight(&self) -> f32 {
        exp_up_to_zero(self.logit)
    }

    /// Ascends from better to worse, then from lower to higher id; no two are equal.
    fn rank(&self) -> u64 {
        // Numbers of one sign are ordered like their bits, and `abs` makes the zeros one.
        u64::from(self.logit.abs().to_bits()) << 32 | u64::from(self.id)
    }
}

/// The candidates of one token, from the whole vocabulary down to those that the draw is from.
#[derive(Debug)]
pub struct Candidates {
    items: Vec<Candidate>,
}

impl Candidates {
    pub(super) fn new() -> Self {
        Self { items: Vec::new() }
    }

    /// The candidates: by ascending id, or best first once a step has ranked them.
    pub fn as_slice(&self) -> &[Candidate] {
        &self.items
    }

    /// Number of candidates.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is none; never so within a step.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Sum of the weights: at least 1, the best candidate's.
    ///
    /// # Cost
    /// One exponential for each candidate.
    pub fn total_weight(&self) -> f64 {
        let mut block = [0.0; BLOCK];
        self.items
            .chunks(BLOCK)
            .map(|candidates| sum(weights(candidates, &mut block)))
            .sum()
    }

    /// Keeps the `n` best, at least one, and ranks them. Does nothing if there are no more.
    ///
    /// # Cost
    /// O(`len`) and a sort of `n`.
    pub fn keep_best(&mut self, n: usize) {
        let n = n.max(1);
        if n >= self.items.len() {
            return;
        }
        // The front of the list is a buffer of the best so far. When it is full, its worse part is
        // given up and the worst that stays becomes the mark for what follows; most of the list
        // fails the mark and is never moved.
        let full = n.saturating_mul(2).max(512);
        let mut mark = u64::MAX;
        let mut buffered = 0;
        for i in 0..self.items.len() {
            let candidate = self.items[i];
            if candidate.rank() < mark {
                self.items[buffered] = candidate;
                buffered += 1;
                if buffered == full {
                    let (_, worst, _) =
                        self.items[..full].select_nth_unstable_by_key(n - 1, Candidate::rank);
                    mark = worst.rank();
                    buffered = n;
                }
            }
        }
        self.items.truncate(buffered);
        if buffered > n {
            self.items
                .select_nth_unstable_by_key(n - 1, Candidate::rank);
            self.items.truncate(n);
        }
        self.items.sort_unstable_by_key(Candidate::rank);
    }

    /// Keeps the fewest best candidates that have `mass` of the probability, at least one, and
    /// ranks them. What is not from 0 to 1 counts as the nearer end, NaN as 1.
    ///
    /// # Cost
    /// O(`len`) and a sort of at most 64, or five times what is kept.
    pub fn keep_mass(&mut self, mass: f32) {
        let mass = f64::from(within_unit(mass));
        let total = self.total_weight();
        // All candidates below (1 - mass) / len of the total have less than 1 - mass together, so
        // none of them is needed. Half of that leaves room for rounding.
        let floor = (0.5 * (1.0 - mass) * total / self.items.len() as f64).ln();
        self.items
            .retain(|candidate| f64::from(candidate.logit) >= floor);

        // Rank the front, a growing part at a time, until it has the mass.
        let wanted = mass * total;
        let mut sum = 0.0;
        let mut ranked = 0;
        let mut part = 64;
        while ranked < self.items.len() {
            let unranked = &mut self.items[ranked..];
            let part_len = part.min(unranked.len());
            if part_len < unranked.len() {
                unranked.select_nth_unstable_by_key(part_len - 1, Candidate::rank);
            }
            unranked[..part_len].sort_unstable_by_key(Candidate::rank);
            for candidate in &unranked[..part_len] {
                sum += f64::from(candidate.weight());
                ranked += 1;
                if sum >= wanted {
                    self.items.truncate(ranked);
                    return;
                }
            }
            part *= 4;
        }
    }

    /// Keeps candidates with at least this [weight](Candidate::weight), the best in any case. What
    /// is not from 0 to 1 counts as the nearer end, NaN as 1.
    ///
    /// # Cost
    /// O(`len`), an exponential only for candidates near or above the threshold.
    pub fn keep_weight(&mut self, min_weight: f32) {
        let min_weight = within_unit(min_weight);
        // A logarithm may differ between platforms; what it rejects, the comparison of weights
        // would have rejected by far.
        let floor = (f64::from(min_weight) * 0.999).ln();
        self.items.retain(|candidate| {
            f64::from(candidate.logit) >= floor && candidate.weight() >= min_weight
        });
    }

    /// Replaces the candidates by the usable logits of a row, `[n_vocab]`, at a temperature above
    /// zero.
    pub(super) fn collect(&mut self, logits: &[f32], temperature: f32) {
        self.items.clear();
        self.items.reserve(logits.len());
        let best = largest(logits);
        let rows = (0..=u32::MAX).zip(logits);
        if best == f32::INFINITY {
            // Differences from infinity mean nothing: only its equals are left, alike.
            let infinite = rows.filter(|&(_, &logit)| logit >= best);
            self.items
                .extend(infinite.map(|(id, _)| Candidate { id, logit: 0.0 }));
        } else {
            // The difference comes first, so that a tiny temperature cannot overflow upward.
            let usable = rows.filter(|&(_, &logit)| logit > f32::NEG_INFINITY);
            self.items.extend(usable.map(|(id, &logit)| {
                let logit = ((logit - best) / temperature).max(f32::MIN);
                Candidate { id, logit }
            }));
        }
    }

    /// The candidate where the running sum of probabilities passes `unit`, from 0 to below 1.
    ///
    /// `None` only if there is no candidate.
    pub(super) fn at_quantile(&self, unit: f64) -> Option<u32> {
        let wanted = unit * self.total_weight();
        let mut block = [0.0; BLOCK];
        let mut before = 0.0;
        for candidates in self.items.chunks(BLOCK) {
            let weights = weights(candidates, &mut block);
            // The same sums in the same order as in the total: one of them passes what is wanted.
            let after = before + sum(weights);
            if after > wanted {
                // Within the block the order differs, so the end can be a rounding short of it;
                // then the last candidate that has a weight is meant.
                let mut last = None;
                for (candidate, &weight) in candidates.iter().zip(weights) {
                    if weight > 0.0 {
                        last = Some(candidate.id);
                        before += f64::from(weight);
                        if before > wanted {
                            break;
                        }
                    }
                }
                return last;
            }
            before = after;
        }
        None
    }

    /// The `n` best ids with natural log probabilities among the candidates, best first.
    pub(super) fn log_probs(&mut self, n: usize) -> Vec<(u32, f32)> {
        if n == 0 {
            return Vec::new();
        }
        let log_total = self.total_weight().ln();
        self.keep_best(n);
        // `keep_best` leaves a list that was short enough in its own order.
        self.items.sort_unstable_by_key(Candidate::rank);
        let log_prob = |candidate: &Candidate| (f64::from(candidate.logit) - log_total) as f32;
        self.items.iter().map(|c| (c.id, log_prob(c))).collect()
    }

    /// Candidates that fit without another allocation.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.items.capacity()
    }
}

/// A number from 0 to 1: the nearer end for others, 1 for NaN.
fn within_unit(value: f32) -> f32 {
    if value.is_nan() {
        1.0
    } else {
        value.clamp(0.0, 1.0)
    }
}

/// Candidates whose weights are computed at a time.
const BLOCK: usize = 256;

/// Weights of up to [`BLOCK`] candidates.
fn weights<'a>(candidates: &[Candidate], block: &'a mut [f32; BLOCK]) -> &'a [f32] {
    let weights = &mut block[..candidates.len()];
    for (weight, candidate) in weights.iter_mut().zip(candidates) {
        *weight = candidate.logit;
    }
    // A loop of its own over a plain slice compiles to vector instructions.
    for weight in weights.iter_mut() {
        *weight = exp_up_to_zero(*weight);
    }
    weights
}

/// Sum in lanes: an order of its own, the same everywhere, and no chain of dependent additions.
fn sum(weights: &[f32]) -> f64 {
    let mut lanes = [0.0_f64; 8];
    let (chunks, rest) = weights.as_chunks::<8>();
    for chunk in chunks {
        for (lane, &weight) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(weight);
        }
    }
    lanes
        .into_iter()
        .chain(rest.iter().copied().map(f64::from))
        .sum()
}

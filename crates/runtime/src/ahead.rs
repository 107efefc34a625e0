//! Which experts to read ahead, and whether that is worth it.
//!
//! Owns the ranking of a router's guess and the account that pauses it; does not own the router
//! (`Architecture::predict`) nor the reads (`ExpertStore::read_ahead`). Memory: one row of logits.
//! Invariant: a guess decides what is read when, never what is computed.
//!
//! The next layer's router sees this layer's FFN input, which differs from its own by one layer's
//! contribution to the residual. Source of the idea: Strata (MIT).

use thalweg_store::StoreStats;

use crate::ReadAhead;

/// Guesses after which their use is judged.
const WINDOW: u64 = 256;
/// Below this share of useful guesses the others cost the drive more than these save.
const LEAST_PRECISION: f64 = 0.25;
/// Steps of the first pause; each further one is twice as long.
const FIRST_PAUSE: u64 = 64;
const LONGEST_PAUSE: u64 = 4096;

/// Guesses and their account.
#[derive(Debug)]
pub(crate) struct Ahead {
    options: ReadAhead,
    /// Logits of the router that guesses.
    pub(crate) logits: Vec<f32>,
    ranked: Vec<u16>,
    /// Counters when the current window began.
    guesses: u64,
    useful: u64,
    /// Decode steps until the pause ends; 0 while guessing.
    paused_for: u64,
    next_pause: u64,
    pub(crate) n_pauses: u64,
    pub(crate) last_precision: f64,
}

impl Ahead {
    pub(crate) fn new(options: ReadAhead) -> Self {
        Self {
            options,
            logits: Vec::new(),
            ranked: Vec::new(),
            guesses: 0,
            useful: 0,
            paused_for: 0,
            next_pause: FIRST_PAUSE,
            n_pauses: 0,
            last_precision: 0.0,
        }
    }

    /// How many experts to guess for the next layer and the one behind it; zeros in a pause.
    pub(crate) fn depths(&self) -> [usize; 2] {
        match self.paused_for {
            0 => [self.options.next, self.options.second],
            _ => [0, 0],
        }
    }

    /// The best `n` of the guessed experts that are not resident, best first.
    pub(crate) fn best(&mut self, n: usize, is_resident: impl Fn(u16) -> bool) -> &[u16] {
        rank(&self.logits, n, is_resident, &mut self.ranked);
        &self.ranked
    }

    /// Whether streams read ahead.
    pub(crate) fn in_prompts(&self) -> bool {
        self.options.prompt
    }

    /// The experts that a chunk will likely stream in the layer whose router guessed `logits`,
    /// `[n_tokens, n_expert]`, those of the most tokens first. Not those that are resident, nor
    /// those that will be leased because they are among the `n_kept` most recent.
    pub(crate) fn streamed(
        &mut self,
        n_expert: usize,
        k: usize,
        n_kept: usize,
        is_resident: impl Fn(u16) -> bool,
    ) -> &[u16] {
        let Self { logits, ranked, .. } = self;
        let mut counts = vec![0_u32; n_expert];
        // Most recent first, as the engine orders what a chunk needs.
        let mut needed: Vec<u16> = Vec::new();
        let mut order: Vec<u16> = Vec::new();
        for row in logits.chunks_exact(n_expert.max(1)).rev() {
            order.clear();
            order.extend((0..=u16::MAX).take(n_expert));
            let by_logit = |a: &u16, b: &u16| {
                row[usize::from(*b)]
                    .total_cmp(&row[usize::from(*a)])
                    .then(a.cmp(b))
            };
            if k < order.len() {
                order.select_nth_unstable_by(k, by_logit);
                order.truncate(k);
            }
            order.sort_unstable_by(by_logit);
            for expert in &order {
                let count = &mut counts[usize::from(*expert)];
                if *count == 0 {
                    needed.push(*expert);
                }
                *count += 1;
            }
        }
        ranked.clear();
        let missing = needed.iter().skip(n_kept).filter(|e| !is_resident(**e));
        ranked.extend(missing);
        ranked.sort_by_key(|e| std::cmp::Reverse(counts[usize::from(*e)]));
        ranked
    }

    /// What happened so far is not judged.
    pub(crate) fn begin_steps(&mut self, stats: &StoreStats) {
        self.begin_window(stats);
    }

    /// A decode step is over: judges the window, or brings the end of a pause nearer.
    pub(crate) fn end_step(&mut self, stats: &StoreStats) {
        if self.paused_for > 0 {
            self.paused_for -= 1;
            self.begin_window(stats);
            return;
        }
        let made = stats.guesses.saturating_sub(self.guesses);
        if made < WINDOW {
            return;
        }
        let useful = stats.guessed_hits.saturating_sub(self.useful);
        self.last_precision = useful as f64 / made as f64;
        self.begin_window(stats);
        if !self.options.may_pause {
            return;
        }
        if self.last_precision < LEAST_PRECISION {
            self.n_pauses += 1;
            self.paused_for = self.next_pause;
            self.next_pause = (2 * self.next_pause).min(LONGEST_PAUSE);
        } else {
            self.next_pause = FIRST_PAUSE;
        }
    }

    fn begin_window(&mut self, stats: &StoreStats) {
        (self.guesses, self.useful) = (stats.guesses, stats.guessed_hits);
    }
}

/// Into `ranked`: the `n` experts of the largest finite logits that are not resident, best first,
/// equal ones by rising id.
pub(crate) fn rank(
    logits: &[f32],
    n: usize,
    is_resident: impl Fn(u16) -> bool,
    ranked: &mut Vec<u16>,
) {
    let by_logit = |a: &u16, b: &u16| {
        let (a_z, b_z) = (logits[usize::from(*a)], logits[usize::from(*b)]);
        b_z.total_cmp(&a_z).then(a.cmp(b))
    };
    ranked.clear();
    ranked.extend((0..=u16::MAX).take(logits.len()));
    ranked.retain(|e| logits[usize::from(*e)].is_finite() && !is_resident(*e));
    if n < ranked.len() {
        // Linear; only the few that are asked for are sorted.
        ranked.select_nth_unstable_by(n, by_logit);
        ranked.truncate(n);
    }
    ranked.sort_unstable_by(by_logit);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guesser(next: usize) -> Ahead {
        Ahead::new(ReadAhead {
            next,
            ..ReadAhead::default()
        })
    }

    fn counted(guesses: u64, guessed_hits: u64) -> StoreStats {
        let mut stats = StoreStats::default();
        (stats.guesses, stats.guessed_hits) = (guesses, guessed_hits);
        stats
    }

    #[test]
    fn the_best_that_are_not_resident_come_best_first() {
        let mut ahead = guesser(2);
        ahead.logits = vec![1.0, 5.0, f32::NAN, 5.0, 4.0, f32::INFINITY, -1.0];
        assert_eq!(ahead.best(2, |e| e == 1), [3, 4]);
        assert_eq!(ahead.best(2, |_| false), [1, 3]);
        assert_eq!(ahead.best(9, |_| false), [1, 3, 4, 0, 6]);
        assert!(ahead.best(3, |_| true).is_empty());
        assert!(ahead.best(0, |_| false).is_empty());
    }

    #[test]
    fn bad_guesses_pause_for_longer_each_time_and_good_ones_start_over() {
        let mut ahead = guesser(3);
        let (mut made, mut useful) = (0, 0);
        let mut paused = |ahead: &mut Ahead, n_useful: u64| {
            made += WINDOW;
            useful += n_useful;
            ahead.end_step(&counted(made, useful));
            let mut n = 0;
            while ahead.depths() == [0, 0] {
                ahead.end_step(&counted(made, useful));
                n += 1;
            }
            n
        };
        assert_eq!(paused(&mut ahead, 10), 64);
        assert_eq!(paused(&mut ahead, 63), 128);
        assert_eq!(paused(&mut ahead, 64), 0);
        assert_eq!(paused(&mut ahead, 0), 64);
        assert_eq!(ahead.n_pauses, 3);
    }

    #[test]
    fn a_chunk_streams_what_many_tokens_choose_and_nobody_keeps() {
        let mut ahead = guesser(0);
        // Three tokens over five experts, two of them chosen: 4 and 0, then 2 and 4, then 0 and 2.
        ahead.logits = vec![
            4.0, 0.0, 1.0, 2.0, 5.0, //
            1.0, 0.0, 5.0, 2.0, 4.0, //
            5.0, 0.0, 4.0, 1.0, 2.0,
        ];
        assert_eq!(ahead.streamed(5, 2, 0, |_| false), [0, 2, 4]);
        assert_eq!(ahead.streamed(5, 2, 1, |_| false), [2, 4]);
        assert_eq!(ahead.streamed(5, 2, 1, |e| e == 2), [4]);
        assert_eq!(ahead.streamed(5, 1, 0, |_| false), [0, 2, 4]);
        assert!(ahead.streamed(5, 2, 3, |_| false).is_empty());
        assert!(ahead.streamed(0, 2, 3, |_| false).is_empty());
    }

    #[test]
    fn who_may_not_pause_does_not() {
        let mut ahead = Ahead::new(ReadAhead {
            next: 1,
            may_pause: false,
            ..ReadAhead::default()
        });
        ahead.end_step(&counted(WINDOW, 0));
        assert_eq!(ahead.depths(), [1, 0]);
        assert!(ahead.last_precision.abs() < f64::EPSILON);
    }
}

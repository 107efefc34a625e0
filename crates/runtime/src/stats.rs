//! What a run did, counted where it happened.

use std::time::Duration;

/// Counters of an engine since it was opened; subtract two snapshots to get an interval's.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Tokens taken in by prefill.
    pub prefill_tokens: u64,
    /// Time in prefill.
    pub prefill_time: Duration,
    /// Tokens taken in by decode.
    pub decode_tokens: u64,
    /// Time in decode.
    pub decode_time: Duration,
    /// Experts that a layer needed and of which the device had copies.
    pub device_hits: u64,
    /// Experts that a layer needed and found in the arena.
    pub hits: u64,
    /// Experts that a layer needed, were not resident, and had been guessed.
    pub guessed_hits: u64,
    /// Those of them that were still on their way.
    pub late_guesses: u64,
    /// Experts that a layer needed and had to read.
    pub misses: u64,
    /// Reads ahead that were started.
    pub guesses: u64,
    /// Bytes read for experts.
    pub expert_bytes: u64,
    /// Those of them that nobody asked for.
    pub wasted_bytes: u64,
    /// Bytes that the reader of experts asked of the system: whole aligned windows.
    pub io_bytes: u64,
    /// Time during which at least one of its reads was under way.
    pub io_busy: Duration,
    /// Times that reading ahead paused itself.
    pub read_ahead_pauses: u64,
    /// Bytes read for table rows.
    pub row_bytes: u64,
    /// Time spent waiting for reads.
    pub wait: Duration,
    /// Router rows in which some logits were not numbers.
    pub bad_router_rows: u64,
    /// Router decisions made under a bias.
    pub biased_choices: u64,
    /// Experts chosen in them.
    pub biased_picks: u64,
    /// Experts that the model would have chosen and the bias replaced.
    pub swapped_picks: u64,
    /// Sum over biased decisions of ln(P(own choice) / P(biased choice)).
    pub routing_kl_nats: f64,
    /// Experts guessed by a copy of a router, where such guesses are audited.
    pub audited_guesses: u64,
    /// Those of them that the stored router would have guessed as well.
    pub kept_guesses: u64,
    /// Experts chosen by rounded routers, where such choices are audited.
    pub audited_picks: u64,
    /// Those of them that the stored router would have chosen as well.
    pub kept_picks: u64,
}

impl Stats {
    /// Counters since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            prefill_tokens: self.prefill_tokens - earlier.prefill_tokens,
            prefill_time: self.prefill_time - earlier.prefill_time,
            decode_tokens: self.decode_tokens - earlier.decode_tokens,
            decode_time: self.decode_time - earlier.decode_time,
            device_hits: self.device_hits - earlier.device_hits,
            hits: self.hits - earlier.hits,
            guessed_hits: self.guessed_hits - earlier.guessed_hits,
            late_guesses: self.late_guesses - earlier.late_guesses,
            misses: self.misses - earlier.misses,
            guesses: self.guesses - earlier.guesses,
            expert_bytes: self.expert_bytes - earlier.expert_bytes,
            wasted_bytes: self.wasted_bytes - earlier.wasted_bytes,
            io_bytes: self.io_bytes - earlier.io_bytes,
            io_busy: self.io_busy.saturating_sub(earlier.io_busy),
            read_ahead_pauses: self.read_ahead_pauses - earlier.read_ahead_pauses,
            row_bytes: self.row_bytes - earlier.row_bytes,
            wait: self.wait - earlier.wait,
            bad_router_rows: self.bad_router_rows - earlier.bad_router_rows,
            biased_choices: self.biased_choices - earlier.biased_choices,
            biased_picks: self.biased_picks - earlier.biased_picks,
            swapped_picks: self.swapped_picks - earlier.swapped_picks,
            routing_kl_nats: self.routing_kl_nats - earlier.routing_kl_nats,
            audited_guesses: self.audited_guesses - earlier.audited_guesses,
            kept_guesses: self.kept_guesses - earlier.kept_guesses,
            audited_picks: self.audited_picks - earlier.audited_picks,
            kept_picks: self.kept_picks - earlier.kept_picks,
        }
    }

    /// Experts that layers needed, however they came.
    pub fn needed(&self) -> u64 {
        self.device_hits + self.hits + self.guessed_hits + self.misses
    }

    /// Share of needed experts that were resident; `None` before any was needed.
    pub fn hit_rate(&self) -> Option<f64> {
        share(self.device_hits + self.hits, self.needed())
    }

    /// Share of needed experts that were resident or guessed; `None` before any was needed.
    pub fn combined_hit_rate(&self) -> Option<f64> {
        let resident = self.device_hits + self.hits;
        share(resident + self.guessed_hits, self.needed())
    }

    /// Share of guesses that were asked for; `None` without guesses.
    pub fn precision(&self) -> Option<f64> {
        share(self.guessed_hits, self.guesses)
    }

    /// Share of the experts which were not resident that had been guessed; `None` without guesses.
    pub fn recall(&self) -> Option<f64> {
        let absent = self.guessed_hits + self.misses;
        share(self.guessed_hits, absent).filter(|_| self.guesses > 0)
    }

    /// Rate of the reader of experts while it was reading, in 1e9 bytes a second; `None` before
    /// the first read and from readers that do not count.
    pub fn io_gb_per_s(&self) -> Option<f64> {
        let seconds = self.io_busy.as_secs_f64();
        (self.io_bytes > 0 && seconds > 0.0).then(|| self.io_bytes as f64 / seconds / 1e9)
    }

    /// Share of the model's own choices that a routing bias kept; `None` without biased decisions.
    pub fn agreement(&self) -> Option<f64> {
        let kept = self.biased_picks.saturating_sub(self.swapped_picks);
        (self.biased_picks > 0).then(|| kept as f64 / self.biased_picks as f64)
    }

    /// Mean routing KL of a biased decision, in nats; `None` without biased decisions.
    pub fn mean_routing_kl(&self) -> Option<f64> {
        (self.biased_choices > 0).then(|| self.routing_kl_nats / self.biased_choices as f64)
    }

    /// Share of the stored routers' guesses that their copies made as well; `None` unless audited.
    pub fn guess_recall(&self) -> Option<f64> {
        share(self.kept_guesses, self.audited_guesses)
    }

    /// Share of the stored routers' choices that rounded ones made as well; `None` unless audited.
    pub fn router_agreement(&self) -> Option<f64> {
        share(self.kept_picks, self.audited_picks)
    }

    /// Prompt tokens per second; `None` before the first.
    pub fn prefill_tokens_per_s(&self) -> Option<f64> {
        rate(self.prefill_tokens, self.prefill_time)
    }

    /// Decoded tokens per second; `None` before the first.
    pub fn decode_tokens_per_s(&self) -> Option<f64> {
        rate(self.decode_tokens, self.decode_time)
    }

    /// Bytes read per token taken in; `None` before the first.
    pub fn bytes_per_token(&self) -> Option<f64> {
        let tokens = self.prefill_tokens + self.decode_tokens;
        (tokens > 0).then(|| (self.expert_bytes + self.row_bytes) as f64 / tokens as f64)
    }
}

fn rate(n: u64, time: Duration) -> Option<f64> {
    (n > 0 && !time.is_zero()).then(|| n as f64 / time.as_secs_f64())
}

fn share(n: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| n as f64 / of as f64)
}

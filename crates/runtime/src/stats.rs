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
    /// Experts that a layer needed and found in the arena.
    pub hits: u64,
    /// Experts that a layer needed and had to read.
    pub misses: u64,
    /// Bytes read for experts.
    pub expert_bytes: u64,
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
}

impl Stats {
    /// Counters since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            prefill_tokens: self.prefill_tokens - earlier.prefill_tokens,
            prefill_time: self.prefill_time - earlier.prefill_time,
            decode_tokens: self.decode_tokens - earlier.decode_tokens,
            decode_time: self.decode_time - earlier.decode_time,
            hits: self.hits - earlier.hits,
            misses: self.misses - earlier.misses,
            expert_bytes: self.expert_bytes - earlier.expert_bytes,
            row_bytes: self.row_bytes - earlier.row_bytes,
            wait: self.wait - earlier.wait,
            bad_router_rows: self.bad_router_rows - earlier.bad_router_rows,
            biased_choices: self.biased_choices - earlier.biased_choices,
            biased_picks: self.biased_picks - earlier.biased_picks,
            swapped_picks: self.swapped_picks - earlier.swapped_picks,
            routing_kl_nats: self.routing_kl_nats - earlier.routing_kl_nats,
        }
    }

    /// Share of needed experts that were resident; `None` before any was needed.
    pub fn hit_rate(&self) -> Option<f64> {
        let needed = self.hits + self.misses;
        (needed > 0).then(|| self.hits as f64 / needed as f64)
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

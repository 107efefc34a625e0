//! `choose`: which configuration to run on a machine, predicted from its constants.
//!
//! Owns the request and the answer (both JSON), the prediction of each candidate, and the order.
//! Does not simulate caches and does not measure machines. Invariants: 1. the answer depends on
//! values alone, not on the order of the candidates; 2. every candidate appears once; 3. those that
//! meet the bar come first, faster before slower, and of equally fast ones the less costly in
//! quality. Cost: O(n log n) for n candidates.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use crate::latency::{DecodeLoad, DecodeModel, DecodeParts, DecodeTime, PrefillModel, PrefillTime};
use crate::{Error, HostConstants, Result};

/// Predictions within the same tenth of a token a second count as equally fast.
pub const TIE_TOKENS_PER_S: f64 = 0.1;
/// Turns within the same hundredth of a second count as equally fast.
pub const TIE_SECONDS: f64 = 0.01;

/// What to choose from, and for what.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// What is known of the engine beyond the host's constants.
    #[serde(default)]
    pub engine: EngineFacts,
    /// What would be fast enough, if anything in particular.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bar: Option<Bar>,
    /// The configurations.
    pub candidates: Vec<Candidate>,
}

/// How the engine reads and computes. The defaults are the cautious ones: one read at a time,
/// nothing overlapped.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineFacts {
    /// Bytes of one read, to choose the points of the host's drive curve by; 0 (the default) for
    /// the bytes of a candidate's miss.
    pub read_bytes: u64,
    /// Reads under way together while a layer waits for its misses.
    pub decode_queue_depth: f64,
    /// Reads under way together while a prompt is read.
    pub prefill_queue_depth: f64,
    /// Time of the host a token, besides the host's `decode_floor_ms`.
    pub host_ms: f64,
    /// Compute a token that can run while reads are awaited.
    pub overlap_ms: f64,
    /// What a read costs besides its bytes.
    pub read_latency_ms: f64,
    /// Share of the shorter of compute and reads that a prompt hides.
    pub prefill_overlap: f64,
    /// Operations a prompt token costs at the speed of the host's `gemm`, what the engine wastes
    /// included. Used only if the host has no `prefill_ceiling_tokens_per_s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_flops_per_token: Option<f64>,
}

impl Default for EngineFacts {
    fn default() -> Self {
        Self {
            read_bytes: 0,
            decode_queue_depth: 1.0,
            prefill_queue_depth: 1.0,
            host_ms: 0.0,
            overlap_ms: 0.0,
            read_latency_ms: 0.0,
            prefill_overlap: 0.0,
            prefill_flops_per_token: None,
        }
    }
}

/// What is fast enough.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Bar {
    /// Decode at so many tokens a second or more.
    TokensPerS {
        /// The least.
        at_least: f64,
    },
    /// A turn in so many seconds or less. The prompt gives the first token of the reply, so a
    /// reply of `r` tokens takes `r - 1` decode steps.
    SecondsPerTurn {
        /// The most.
        at_most: f64,
        /// Tokens of the prompt, at least 1.
        prompt_tokens: u64,
        /// Tokens of the reply.
        reply_tokens: u64,
    },
}

/// A configuration with what was simulated or measured of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    /// Its name in the answer; each its own.
    pub name: String,
    /// The cache policy, as `lru`.
    pub policy: String,
    /// Expert slots over all layers.
    pub slots: u64,
    /// The routing bias, as `off` or `rel:0.09`.
    pub bias: String,
    /// Reads that a token waits for.
    pub misses_per_token: f64,
    /// Bytes that a token reads.
    pub bytes_per_token: f64,
    /// Bytes of experts that the bar's prompt reads; needed for a bar on turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_read_bytes: Option<f64>,
    /// What it costs in quality.
    #[serde(default)]
    pub cost: QualityCost,
}

/// Loss of quality against the unpruned, unbiased model. The default is none.
///
/// Candidates compare by the first of these in which they differ: KL divergence of the output (if
/// all have one), routing KL divergence, agreement.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QualityCost {
    /// Mean KL divergence of the next-token distribution, in nats, where it was measured. All
    /// candidates must have it, or none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_kl_nats: Option<f64>,
    /// Mean KL divergence of the routing, in nats.
    pub routing_kl_nats: f64,
    /// Share of the model's own picks that were kept, 0 to 1.
    pub agreement: f64,
}

impl Default for QualityCost {
    fn default() -> Self {
        Self {
            output_kl_nats: None,
            routing_kl_nats: 0.0,
            agreement: 1.0,
        }
    }
}

/// The answer.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct Choice {
    /// Whether any candidate meets the bar; `None` without a bar.
    pub bar_is_met: Option<bool>,
    /// Name of the fastest candidate, the first of `ranked`; `None` without candidates.
    pub fastest: Option<String>,
    /// Name of the least costly candidate among those that meet the bar (all, if there is none):
    /// the fastest of equals. `None` if no candidate meets the bar.
    pub least_costly: Option<String>,
    /// All candidates: those that meet the bar first, then by predicted speed, then by cost, then
    /// by name.
    pub ranked: Vec<Ranked>,
}

/// A candidate with its prediction.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct Ranked {
    /// The candidate.
    pub candidate: Candidate,
    /// Predicted decode rate.
    pub tokens_per_s: f64,
    /// Where the time of a token goes.
    pub decode: DecodeTime,
    /// Where the time of the bar's prompt goes, for a bar on turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill: Option<PrefillTime>,
    /// Predicted time of the bar's turn, for a bar on turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_per_turn: Option<f64>,
    /// Whether the bar is met; `None` without a bar.
    pub meets_bar: Option<bool>,
}

/// Predicts every candidate on a host and ranks them.
///
/// ```
/// use thalweg_eval::choose::{Bar, Candidate, Request, choose};
/// use thalweg_eval::{DrivePoint, HostConstants};
/// let mut host = HostConstants::default();
/// host.drive.push(DrivePoint::new(1, 1, 1_382_400, 3.9));
/// host.decode_floor_ms = Some(12.0);
/// let candidate = |name: &str, misses_per_token: f64| Candidate {
///     name: name.into(),
///     policy: "lru".into(),
///     slots: 5424,
///     bias: "rel:0.09".into(),
///     misses_per_token,
///     bytes_per_token: misses_per_token * 1_382_400.0,
///     prompt_read_bytes: None,
///     cost: Default::default(),
/// };
/// let request = Request {
///     bar: Some(Bar::TokensPerS { at_least: 32.0 }),
///     candidates: vec![candidate("K320", 56.29), candidate("K256", 44.65)],
///     ..Request::default()
/// };
/// let choice = choose(&host, &request)?;
/// let met: Vec<_> = choice.ranked.iter().map(|r| (&*r.candidate.name, r.meets_bar)).collect();
/// assert_eq!(met, [("K256", Some(true)), ("K320", Some(false))]);
/// # Ok::<(), thalweg_eval::Error>(())
/// ```
///
/// # Errors
/// [`Error::MissingConstant`] if the host lacks a decode floor, a drive point or, for a bar on
/// turns, the speed of prompts; [`Error::MissingFigure`] if a candidate lacks what the bar or the
/// comparison needs; [`Error::DuplicateCandidate`], [`Error::BadCandidate`] and
/// [`Error::OutOfRange`] for figures that cannot be.
pub fn choose(host: &HostConstants, request: &Request) -> Result<Choice> {
    request.check()?;
    let predictor = Predictor::new(host, request)?;
    let mut ranked = request
        .candidates
        .iter()
        .map(|candidate| predictor.predict(candidate))
        .collect::<Result<Vec<_>>>()?;
    ranked.sort_by(|a, b| {
        let met = |r: &Ranked| r.meets_bar == Some(true);
        met(b)
            .cmp(&met(a))
            .then_with(|| slowness(a).total_cmp(&slowness(b)))
            .then_with(|| by_cost(a, b))
            .then_with(|| a.candidate.name.cmp(&b.candidate.name))
    });
    let eligible = |r: &&Ranked| r.meets_bar != Some(false);
    // `min_by` keeps the first of equals, hence the fastest.
    let least_costly = ranked.iter().filter(eligible).min_by(|a, b| by_cost(a, b));
    Ok(Choice {
        bar_is_met: request
            .bar
            .map(|_| ranked.iter().any(|r| r.meets_bar == Some(true))),
        fastest: ranked.first().map(|r| r.candidate.name.clone()),
        least_costly: least_costly.map(|r| r.candidate.name.clone()),
        ranked,
    })
}

impl Request {
    /// Reads JSON text.
    ///
    /// # Errors
    /// [`Error::Json`] with line and column, also for a field that is not known; what
    /// [`check`](Self::check) finds.
    pub fn from_json(text: &str) -> Result<Self> {
        let request: Self = serde_json::from_str(text).map_err(|source| Error::Json {
            what: "the request to choose",
            source,
        })?;
        request.check()?;
        Ok(request)
    }

    /// Checks what concerns the request alone.
    ///
    /// # Errors
    /// [`Error::DuplicateCandidate`], [`Error::BadCandidate`], [`Error::MissingFigure`] and, for
    /// the bar, [`Error::OutOfRange`].
    pub fn check(&self) -> Result<()> {
        match self.bar {
            Some(Bar::TokensPerS { at_least }) => {
                crate::error::positive("bar.at_least", None, at_least)?;
            }
            Some(Bar::SecondsPerTurn {
                at_most,
                prompt_tokens,
                ..
            }) => {
                crate::error::positive("bar.at_most", None, at_most)?;
                crate::error::positive("bar.prompt_tokens", None, prompt_tokens as f64)?;
            }
            None => {}
        }
        let mut names: Vec<_> = self.candidates.iter().map(|c| &c.name).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::DuplicateCandidate {
                name: pair[0].clone(),
            });
        }
        let has_output_kl = |c: &&Candidate| c.cost.output_kl_nats.is_some();
        if self.candidates.iter().any(|c| has_output_kl(&c))
            && let Some(lacking) = self.candidates.iter().find(|c| !has_output_kl(c))
        {
            return Err(Error::MissingFigure {
                name: lacking.name.clone(),
                field: "output_kl_nats",
                needed_for: "the comparison with the candidates that have one",
            });
        }
        self.candidates.iter().try_for_each(Candidate::check)
    }
}

impl Choice {
    /// Writes JSON text, indented, with a newline at its end.
    ///
    /// # Errors
    /// None in practice: all its figures are finite.
    pub fn to_json(&self) -> Result<String> {
        let mut text = serde_json::to_string_pretty(self).map_err(|source| Error::Json {
            what: "the choice",
            source,
        })?;
        text.push('\n');
        Ok(text)
    }
}

impl Candidate {
    fn check(&self) -> Result<()> {
        let not_negative = [
            ("misses_per_token", Some(self.misses_per_token)),
            ("bytes_per_token", Some(self.bytes_per_token)),
            ("prompt_read_bytes", self.prompt_read_bytes),
            ("cost.output_kl_nats", self.cost.output_kl_nats),
            ("cost.routing_kl_nats", Some(self.cost.routing_kl_nats)),
        ];
        for (field, value) in not_negative {
            if let Some(found) = value.filter(|v| !(v.is_finite() && *v >= 0.0)) {
                return Err(self.bad(field, found, "a finite number of at least 0"));
            }
        }
        if !(0.0..=1.0).contains(&self.cost.agreement) {
            return Err(self.bad(
                "cost.agreement",
                self.cost.agreement,
                "a number from 0 to 1",
            ));
        }
        Ok(())
    }

    fn bad(&self, field: &'static str, found: f64, expected: &'static str) -> Error {
        Error::BadCandidate {
            name: self.name.clone(),
            field,
            found,
            expected,
        }
    }

    /// Bytes of one read, as far as its figures tell.
    fn read_bytes(&self) -> u64 {
        let mean = self.bytes_per_token / self.misses_per_token;
        if mean.is_finite() { mean as u64 } else { 0 }
    }
}

/// The host's and the engine's part of every prediction.
struct Predictor<'a> {
    host: &'a HostConstants,
    engine: &'a EngineFacts,
    bar: Option<Bar>,
    floor_ms: f64,
}

impl<'a> Predictor<'a> {
    fn new(host: &'a HostConstants, request: &'a Request) -> Result<Self> {
        host.check()?;
        Ok(Self {
            host,
            engine: &request.engine,
            bar: request.bar,
            floor_ms: host.decode_floor_ms.ok_or(Error::MissingConstant {
                what: "decode_floor_ms",
                needed_for: "the time of a token",
            })?,
        })
    }

    fn predict(&self, candidate: &Candidate) -> Result<Ranked> {
        let engine = self.engine;
        let read_bytes = match engine.read_bytes {
            0 => candidate.read_bytes(),
            bytes => bytes,
        };
        let parts = DecodeParts {
            gpu_ms: self.floor_ms,
            host_ms: engine.host_ms,
            overlap_ms: engine.overlap_ms,
            read_latency_ms: engine.read_latency_ms,
        };
        let curve = self.host.drive_curve(read_bytes)?;
        let prefill_gb_per_s = curve.gb_per_s(engine.prefill_queue_depth)?;
        let decode = DecodeModel::new(parts, curve)?.predict(&DecodeLoad {
            misses_per_token: candidate.misses_per_token,
            bytes_per_token: candidate.bytes_per_token,
            queue_depth: engine.decode_queue_depth,
        })?;
        let tokens_per_s = decode
            .tokens_per_s()
            .filter(|rate| *rate > 0.0)
            .ok_or_else(|| {
                candidate.bad(
                    "predicted ms per token",
                    decode.total_ms,
                    "a finite number above 0",
                )
            })?;
        let mut ranked = Ranked {
            candidate: candidate.clone(),
            tokens_per_s,
            decode,
            prefill: None,
            seconds_per_turn: None,
            meets_bar: None,
        };
        match self.bar {
            None => {}
            Some(Bar::TokensPerS { at_least }) => {
                ranked.meets_bar = Some(tokens_per_s >= at_least);
            }
            Some(Bar::SecondsPerTurn {
                at_most,
                prompt_tokens,
                reply_tokens,
            }) => {
                let prefill = self.prefill(candidate, prompt_tokens, prefill_gb_per_s)?;
                let n_steps = reply_tokens.saturating_sub(1) as f64;
                let seconds = prefill.total_s + n_steps * decode.total_ms / 1e3;
                if !seconds.is_finite() {
                    let expected = "a finite number";
                    return Err(candidate.bad("predicted seconds per turn", seconds, expected));
                }
                ranked.meets_bar = Some(seconds <= at_most);
                ranked.prefill = Some(prefill);
                ranked.seconds_per_turn = Some(seconds);
            }
        }
        Ok(ranked)
    }

    fn prefill(
        &self,
        candidate: &Candidate,
        prompt_tokens: u64,
        gb_per_s: f64,
    ) -> Result<PrefillTime> {
        let needed_for = "a bar on seconds per turn";
        let read_bytes = candidate
            .prompt_read_bytes
            .ok_or_else(|| Error::MissingFigure {
                name: candidate.name.clone(),
                field: "prompt_read_bytes",
                needed_for,
            })?;
        let from_gemm = || {
            let flops_per_token = self.engine.prefill_flops_per_token?;
            Some(self.host.gemm?.flops_per_s / flops_per_token)
        };
        let ceiling = self
            .host
            .prefill_ceiling_tokens_per_s
            .or_else(from_gemm)
            .ok_or(Error::MissingConstant {
                what: "prefill_ceiling_tokens_per_s (nor gemm with prefill_flops_per_token)",
                needed_for,
            })?;
        PrefillModel::new(ceiling, gb_per_s, self.engine.prefill_overlap)?
            .predict(prompt_tokens, read_bytes)
    }
}

/// What candidates are sorted by, ascending, rounded so that ties are those of a printed table.
fn slowness(ranked: &Ranked) -> f64 {
    ranked.seconds_per_turn.map_or_else(
        || -(ranked.tokens_per_s / TIE_TOKENS_PER_S).round(),
        |seconds| (seconds / TIE_SECONDS).round(),
    )
}

fn by_cost(a: &Ranked, b: &Ranked) -> Ordering {
    let (a, b) = (&a.candidate.cost, &b.candidate.cost);
    // Both have it or neither does, by `Request::check`.
    let output = |cost: &QualityCost| cost.output_kl_nats.unwrap_or(0.0);
    output(a)
        .total_cmp(&output(b))
        .then(a.routing_kl_nats.total_cmp(&b.routing_kl_nats))
        .then(b.agreement.total_cmp(&a.agreement))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::latency::reference::{
        DECODE_TABLE, EXPERT_BYTES, HIGH_GB_PER_S, LOW_GB_PER_S, MISSES_TABLE,
    };
    use crate::{DrivePoint, Gemm};

    fn host() -> HostConstants {
        HostConstants {
            drive: vec![
                DrivePoint::new(1, 1, EXPERT_BYTES, LOW_GB_PER_S),
                DrivePoint::new(4, 1, EXPERT_BYTES, HIGH_GB_PER_S),
            ],
            decode_floor_ms: Some(12.0),
            prefill_ceiling_tokens_per_s: Some(356.0),
            ..HostConstants::default()
        }
    }

    fn candidate(name: &str, misses_per_token: f64, routing_kl_nats: f64) -> Candidate {
        Candidate {
            name: name.into(),
            policy: "lru".into(),
            slots: 113 * 48,
            bias: "rel:0.09".into(),
            misses_per_token,
            bytes_per_token: misses_per_token * EXPERT_BYTES as f64,
            prompt_read_bytes: None,
            cost: QualityCost {
                routing_kl_nats,
                agreement: 1.0 - routing_kl_nats,
                ..QualityCost::default()
            },
        }
    }

    fn names(choice: &Choice) -> Vec<&str> {
        choice.ranked.iter().map(|r| &*r.candidate.name).collect()
    }

    /// The finalists of the published plan, with its misses; costs are its macro KL divergences.
    fn finalists() -> Request {
        let finalist = |row: usize, output_kl: f64| {
            let (name, misses, _) = MISSES_TABLE[row];
            let mut candidate = candidate(name, misses, 0.0);
            candidate.cost.output_kl_nats = Some(output_kl);
            candidate
        };
        Request {
            candidates: vec![
                finalist(1, 0.3941),
                finalist(2, 0.4178),
                finalist(3, 0.5642),
            ],
            ..Request::default()
        }
    }

    #[test]
    fn the_published_finalists_come_out_one_for_speed_and_one_for_quality() {
        let mut request = finalists();
        for (depth, rate) in [
            (
                1.0,
                [DECODE_TABLE[2], DECODE_TABLE[0], DECODE_TABLE[1]].map(|r| r.low_tokens_per_s),
            ),
            (
                4.0,
                [DECODE_TABLE[2], DECODE_TABLE[0], DECODE_TABLE[1]].map(|r| r.high_tokens_per_s),
            ),
        ] {
            request.engine.decode_queue_depth = depth;
            let choice = choose(&host(), &request).expect("complete");
            let found: Vec<_> = choice
                .ranked
                .iter()
                .map(|r| format!("{:.1}", r.tokens_per_s))
                .collect();
            assert_eq!(found, rate.map(|r| format!("{r:.1}")));
            assert_eq!(
                choice.fastest.as_deref(),
                Some("K256_reap_l2_sum lru rel:0.09")
            );
            assert_eq!(
                choice.least_costly.as_deref(),
                Some("K320_reap_hybrid lru rel:0.09")
            );
            assert_eq!(choice.bar_is_met, None);
        }
    }

    #[test]
    fn candidates_that_meet_the_bar_come_first_and_the_least_costly_is_one_of_them() {
        let mut request = finalists();
        request.bar = Some(Bar::TokensPerS { at_least: 35.0 });
        let choice = choose(&host(), &request).expect("complete");
        let met: Vec<_> = choice.ranked.iter().map(|r| r.meets_bar).collect();
        assert_eq!(met, [Some(true), Some(false), Some(false)]);
        assert_eq!(choice.least_costly, choice.fastest);
        assert_eq!(choice.bar_is_met, Some(true));
        request.bar = Some(Bar::TokensPerS { at_least: 60.0 });
        let choice = choose(&host(), &request).expect("complete");
        assert_eq!(
            (choice.bar_is_met, choice.least_costly),
            (Some(false), None)
        );
        assert_eq!(choice.ranked.len(), 3);
    }

    #[test]
    fn equally_fast_candidates_rank_by_cost_then_by_name() {
        let request = Request {
            candidates: vec![
                candidate("costly", 50.0, 0.02),
                // 0.004 tok/s apart: the same printed rate.
                candidate("cheap", 50.01, 0.01),
                candidate("b", 60.0, 0.0),
                candidate("a", 60.0, 0.0),
            ],
            ..Request::default()
        };
        let choice = choose(&host(), &request).expect("complete");
        assert_eq!(names(&choice), ["cheap", "costly", "a", "b"]);
    }

    #[test]
    fn a_turn_is_its_prompt_and_one_step_less_than_its_reply() {
        let mut with_prompt = candidate("K256", 44.65, 0.0);
        with_prompt.prompt_read_bytes = Some(9.49e9);
        let bar = |at_most, reply_tokens| {
            Some(Bar::SecondsPerTurn {
                at_most,
                prompt_tokens: 256,
                reply_tokens,
            })
        };
        let mut request = Request {
            bar: bar(2.2, 1),
            candidates: vec![with_prompt],
            ..Request::default()
        };
        request.engine.decode_queue_depth = 4.0;
        request.engine.prefill_queue_depth = 4.0;
        let first =
            |request: &Request| choose(&host(), request).expect("complete").ranked.remove(0);
        let one = first(&request);
        assert_eq!(
            format!("{:.4}", one.seconds_per_turn.expect("a turn")),
            "2.1147"
        );
        assert_eq!(one.meets_bar, Some(true));
        request.bar = bar(2.2, 64);
        let many = first(&request);
        let steps = (many.seconds_per_turn.expect("a turn") - 2.1147) * many.tokens_per_s;
        assert!((steps - 63.0).abs() < 0.01);
        assert_eq!(many.meets_bar, Some(false));
        request.bar = bar(2.2, 0);
        assert_eq!(first(&request).seconds_per_turn, one.seconds_per_turn);
    }

    #[test]
    fn the_speed_of_prompts_may_come_from_matrix_products() {
        let mut request = finalists();
        for candidate in &mut request.candidates {
            candidate.prompt_read_bytes = Some(0.0);
        }
        request.bar = Some(Bar::SecondsPerTurn {
            at_most: 10.0,
            prompt_tokens: 356,
            reply_tokens: 1,
        });
        let mut host = host();
        host.prefill_ceiling_tokens_per_s = None;
        let missing = |host: &HostConstants, request: &Request| {
            matches!(choose(host, request), Err(Error::MissingConstant { .. }))
        };
        assert!(missing(&host, &request));
        host.gemm = Some(Gemm {
            flops_per_s: 14.07e12,
            sag: 0.0086,
        });
        assert!(missing(&host, &request));
        request.engine.prefill_flops_per_token = Some(14.07e12 / 356.0);
        let choice = choose(&host, &request).expect("complete");
        let seconds = choice.ranked[0].seconds_per_turn.expect("a turn");
        assert!((seconds - 1.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let text = |result: Result<Choice>| result.expect_err("unusable").to_string();
        let mut bare = host();
        bare.decode_floor_ms = None;
        assert!(text(choose(&bare, &finalists())).contains("decode_floor_ms"));
        bare = host();
        bare.drive.clear();
        assert!(text(choose(&bare, &finalists())).contains("drive point"));

        let mut request = finalists();
        request.bar = Some(Bar::SecondsPerTurn {
            at_most: 1.0,
            prompt_tokens: 1,
            reply_tokens: 1,
        });
        let message = text(choose(&host(), &request));
        assert!(message.contains("K320_reap_hybrid") && message.contains("prompt_read_bytes"));

        let mut request = finalists();
        request.candidates[1].cost.output_kl_nats = None;
        assert!(text(choose(&host(), &request)).contains("K320_reap_l2_sum"));

        let mut request = finalists();
        request.candidates[1].name = request.candidates[0].name.clone();
        assert!(text(choose(&host(), &request)).contains("two candidates"));

        for bad in [f64::NAN, f64::INFINITY, -1.0] {
            let mut request = finalists();
            request.candidates[2].misses_per_token = bad;
            assert!(text(choose(&host(), &request)).contains("misses_per_token of candidate"));
            request = finalists();
            request.bar = Some(Bar::TokensPerS { at_least: bad });
            assert!(text(choose(&host(), &request)).contains("bar.at_least"));
            request = finalists();
            request.engine.overlap_ms = bad;
            assert!(text(choose(&host(), &request)).contains("overlap_ms"));
        }
        // Finite figures whose prediction is not.
        let mut request = finalists();
        request.candidates[0].bytes_per_token = f64::MAX;
        request.engine.read_latency_ms = f64::MAX;
        assert!(choose(&host(), &request).is_err());
    }

    #[test]
    fn no_candidates_give_an_empty_answer() {
        let choice = choose(&host(), &Request::default()).expect("complete");
        assert_eq!((choice.fastest, choice.ranked.len()), (None, 0));
    }

    #[test]
    fn a_request_in_json_needs_the_candidates_alone_and_names_what_it_does_not_know() {
        let text = r#"{
            "bar": {"kind": "tokens_per_s", "at_least": 20},
            "candidates": [{
                "name": "a", "policy": "sieve", "slots": 480, "bias": "off",
                "misses_per_token": 40, "bytes_per_token": 55296000
            }]
        }"#;
        let request = Request::from_json(text).expect("usable");
        assert_eq!(request.engine, EngineFacts::default());
        assert_eq!(request.candidates[0].cost, QualityCost::default());
        let again = serde_json::to_string(&request).expect("finite");
        assert_eq!(Request::from_json(&again).expect("own text"), request);

        let choice = choose(&host(), &request).expect("complete");
        let json: serde_json::Value =
            serde_json::from_str(&choice.to_json().expect("finite")).expect("JSON");
        assert_eq!(json["ranked"][0]["candidate"]["policy"], "sieve");
        assert_eq!(json["ranked"][0]["meets_bar"], true);
        assert!(json["ranked"][0]["tokens_per_s"].as_f64().is_some());

        for (from, to) in [
            ("slots", "slot"),
            ("at_least", "least"),
            ("\"bar\"", "\"limit\""),
        ] {
            let error = Request::from_json(&text.replace(from, to)).expect_err("misspelled");
            assert!(matches!(error, Error::Json { .. }), "{to}");
        }
    }

    proptest! {
        #[test]
        fn the_answer_does_not_depend_on_the_order_of_the_candidates(
            figures in proptest::collection::vec((0u8..6, 0u8..4), 1..12),
            turn in 0usize..12,
            bar in proptest::option::of(20.0f64..60.0),
        ) {
            let mut candidates: Vec<_> = figures
                .iter()
                .enumerate()
                .map(|(i, &(misses, cost))| {
                    candidate(
                        &format!("c{i:02}"),
                        40.0 + 3.0 * f64::from(misses),
                        f64::from(cost) / 100.0,
                    )
                })
                .collect();
            let request = |candidates: &[Candidate]| Request {
                bar: bar.map(|at_least| Bar::TokensPerS { at_least }),
                candidates: candidates.to_vec(),
                ..Request::default()
            };
            let before = choose(&host(), &request(&candidates)).expect("complete");
            let n = candidates.len();
            candidates.rotate_left(turn % n);
            candidates.reverse();
            let after = choose(&host(), &request(&candidates)).expect("complete");
            prop_assert_eq!(&before, &after);
            prop_assert_eq!(before.ranked.len(), n);
            for pair in before.ranked.windows(2) {
                prop_assert!(pair[0].meets_bar >= pair[1].meets_bar);
                prop_assert!(pair[0].tokens_per_s >= pair[1].tokens_per_s);
            }
        }
    }
}

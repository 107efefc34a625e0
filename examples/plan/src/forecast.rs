//! Tokens a second, from a plan and the constants of a host. Owns: which figure goes where. Does not
//! own: the models of time (`thalweg-eval`).

use anyhow::{Context, Result};
use serde_json::{Value, json};
use thalweg_eval::HostConstants;
use thalweg_eval::latency::union::{LayerUse, expected_bytes};
use thalweg_eval::latency::{DecodeLoad, DecodeModel, DecodeParts, PrefillChunk, PrefillModel};
use thalweg_runtime::{MemoryPlan, ModelSpec, Profile};

/// What can be said; the rest is `None`, because a constant is missing.
#[derive(Debug, Default)]
pub(crate) struct Forecast {
    /// Bandwidth of reads of one expert each.
    pub(crate) gb_per_s: f64,
    /// Time to fill all slots.
    pub(crate) fill_s: f64,
    /// Tokens a second while nothing is resident.
    pub(crate) cold_tokens_per_s: Option<f64>,
    /// The assumed share of hits, and tokens a second with it.
    pub(crate) warm: Option<(f64, Option<f64>)>,
    /// Tokens of the prompt a second.
    pub(crate) prefill_tokens_per_s: Option<f64>,
}

/// Bytes of one expert of each layer.
pub(crate) fn expert_bytes(spec: &ModelSpec) -> Vec<u64> {
    let layers = spec.experts.iter();
    layers
        .map(|e| e.parts.iter().map(|p| p.len_bytes).sum())
        .collect()
}

/// Predicts for reads of which `n_reads` are under way together.
pub(crate) fn forecast(
    host: &HostConstants,
    spec: &ModelSpec,
    plan: &MemoryPlan,
    n_reads: usize,
    hit_rate: Option<f64>,
    prompt: u64,
) -> Result<Forecast> {
    let bytes = expert_bytes(spec);
    let picks: usize = spec.experts.iter().map(|e| e.k).sum();
    let token_bytes: u64 = spec
        .experts
        .iter()
        .zip(&bytes)
        .map(|(e, b)| e.k as u64 * b)
        .sum();
    let largest = bytes.iter().copied().max().unwrap_or(1);
    let curve = host.drive_curve(largest)?;
    let gb_per_s = curve.gb_per_s(n_reads as f64)?;
    let slot_bytes: u64 = plan
        .slots
        .iter()
        .zip(&bytes)
        .map(|(n, b)| *n as u64 * b)
        .sum();
    let mut told = Forecast {
        gb_per_s,
        fill_s: slot_bytes as f64 / gb_per_s / 1e9,
        ..Forecast::default()
    };

    let decode = |hit_rate: f64| -> Result<Option<f64>> {
        let Some(floor) = host.decode_floor_ms else {
            return Ok(None);
        };
        let parts = DecodeParts {
            gpu_ms: floor,
            ..DecodeParts::default()
        };
        let load = DecodeLoad {
            misses_per_token: picks as f64 * (1.0 - hit_rate),
            bytes_per_token: token_bytes as f64 * (1.0 - hit_rate),
            queue_depth: n_reads as f64,
        };
        let time = DecodeModel::new(parts, curve.clone())?.predict(&load)?;
        Ok(time.tokens_per_s())
    };
    told.cold_tokens_per_s = decode(0.0)?;
    told.warm = match hit_rate {
        Some(share) => Some((share, decode(share)?)),
        None => None,
    };

    if let Some(ceiling) = host.prefill_ceiling_tokens_per_s {
        // Every expert as likely as any other: the most that a prompt can be expected to read.
        let probs: Vec<Vec<f64>> = spec
            .experts
            .iter()
            .map(|e| vec![e.k as f64 / e.n_expert.max(1) as f64; e.n_expert])
            .collect();
        let resident: Vec<Vec<u16>> = plan
            .slots
            .iter()
            .map(|n| (0..u16::MAX).take(*n).collect())
            .collect();
        let layers: Vec<_> = (0..spec.experts.len())
            .filter(|l| spec.experts[*l].n_expert > 0)
            .map(|l| LayerUse {
                pick_probs: &probs[l],
                resident: &resident[l],
                expert_bytes: bytes[l],
            })
            .collect();
        let model = PrefillModel::new(ceiling, gb_per_s, 0.0)?;
        let chunk = plan.chunk_tokens as u64;
        let mut chunks = Vec::new();
        let mut left = prompt;
        while left > 0 {
            let n_tokens = left.min(chunk);
            let read_bytes = expected_bytes(&layers, n_tokens, n_tokens)?;
            chunks.push(PrefillChunk {
                n_tokens,
                read_bytes,
            });
            left -= n_tokens;
        }
        told.prefill_tokens_per_s = model.predict_chunks(&chunks)?.tokens_per_s();
    }
    Ok(told)
}

/// Share of a token's picks that the hottest experts of a profile cover when they fill the slots.
pub(crate) fn covered(profile: &Profile, spec: &ModelSpec, plan: &MemoryPlan) -> Result<f64> {
    let widest = spec.experts.iter().map(|e| e.n_expert).max().unwrap_or(0);
    profile.expect_shape(u32::try_from(spec.n_layer)?, u32::try_from(widest)?)?;
    let hits = profile
        .hits_per_token()
        .context("the profile has no hits per token (it is of version 1)")?;
    let mut left = plan.slots.clone();
    let mut sum = 0.0;
    for (pair, hits) in profile.ranking().iter().zip(hits) {
        if let Some(left) = left.get_mut(usize::from(pair.layer))
            && *left > 0
        {
            *left -= 1;
            sum += f64::from(*hits);
        }
    }
    let picks: usize = spec.experts.iter().map(|e| e.k).sum();
    Ok((sum / picks.max(1) as f64).clamp(0.0, 1.0))
}

impl Forecast {
    pub(crate) fn json(&self) -> Value {
        json!({
            "gb_per_s": self.gb_per_s,
            "fill_s": self.fill_s,
            "cold_tokens_per_s": self.cold_tokens_per_s,
            "hit_rate": self.warm.map(|(share, _)| share),
            "tokens_per_s": self.warm.and_then(|(_, rate)| rate),
            "prefill_tokens_per_s": self.prefill_tokens_per_s,
        })
    }
}

//! Statistics of a run as text and as JSON.
//!
//! Owns names and units of figures; not the counting (`Stats`). Memory: a few words a token where
//! figures of each token are asked for.

use std::io::Write;

use anyhow::Result;
use clap::ValueEnum;
use serde_json::{Value, json};
use thalweg::{Backend, DevicePlan, Engine, MemoryPlan, SamplerOptions, Stats};

use crate::ModelArgs;

/// What was asked for, so that statistics say what they are of.
#[derive(Debug, Clone)]
pub struct Settings(Value);

impl Settings {
    /// Settings of an engine.
    pub fn of<B: Backend>(args: &ModelArgs, engine: &Engine<B>) -> Self {
        let backend = engine.backend().name();
        let path = engine
            .file()
            .path(0)
            .map(|p| p.to_string_lossy().into_owned());
        Self(json!({
            "model": path,
            "backend": backend,
            // Of the processor.
            "threads": (backend == "cpu").then(|| args.n_threads()),
            "activations": args.activations.name(),
            "policy": args.policy.name(),
            "moce": args.moce.to_string(),
            "protect": args.protect,
            "chunk": engine.plan().chunk_tokens,
            "reader": args.reader.name(),
            "readahead": args.readahead,
            "readahead2": args.readahead2,
            "guess": format!("{:?}", args.guess).to_lowercase(),
            "router": format!("{:?}", args.router).to_lowercase(),
            "prewarm_ms": engine.prewarm_time().map(|t| t.as_secs_f64() * 1e3),
            "split": args.split.is_on(),
            "overlap": args.overlap.is_on(),
            "sidecar": args.sidecar.as_ref().map(|p| p.to_string_lossy()),
            "profile": args.profile.as_ref().map(|p| p.to_string_lossy()),
        }))
    }

    /// The same with a sampler's options.
    #[must_use]
    pub fn with_sampler(mut self, options: &SamplerOptions) -> Self {
        self.0["sampler"] = json!({
            "temp": options.temperature,
            "top_k": options.top_k,
            "top_p": options.top_p,
            "min_p": options.min_p,
            "repeat_penalty": options.repetition_penalty,
            // Null is all tokens.
            "repeat_window": Some(options.repetition_window).filter(|n| *n < usize::MAX),
            "seed": options.seed,
        });
        self
    }

    /// As JSON.
    pub fn json(&self) -> &Value {
        &self.0
    }

    fn text(&self) -> String {
        let mut parts = Vec::new();
        for (name, value) in self.0.as_object().into_iter().flatten() {
            match value.as_object() {
                None if value.is_null() => {}
                Some(inner) => parts.extend(inner.iter().map(|(n, v)| match v {
                    Value::Null => format!("{n} all"),
                    _ => format!("{n} {v}"),
                })),
                None => parts.push(format!("{name} {value}")),
            }
        }
        parts.join(", ")
    }
}

/// How statistics are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum StatsFormat {
    /// Lines for a person, on standard error.
    Text,
    /// One JSON object on a line of its own, on standard error.
    Json,
}

/// Statistics of an interval, in the chosen form; those of each token in JSON alone.
///
/// # Errors
/// When standard error cannot be written to.
pub fn print_stats(
    format: StatsFormat,
    settings: &Settings,
    stats: &Stats,
    plan: &MemoryPlan,
    per_token: Option<&PerToken>,
) -> Result<()> {
    let mut err = std::io::stderr().lock();
    match format {
        StatsFormat::Json => {
            let mut value = stats_json(stats, plan);
            value["settings"] = settings.json().clone();
            if let Some(per_token) = per_token {
                value["per_token"] = per_token.json();
            }
            writeln!(err, "{value}")?;
        }
        StatsFormat::Text => {
            let rate = |r: Option<f64>| or_na(r, |r| format!("{r:.1} tok/s"));
            let percent = |share: Option<f64>| or_na(share, |s| format!("{:.2} %", 100.0 * s));
            let bytes = or_na(stats.bytes_per_token(), |b| {
                format!("{:.1} KiB", b / 1024.0)
            });
            let reached = or_na(stats.io_gb_per_s(), |r| {
                format!("{r:.2} GB/s while reading")
            });
            let slots = slots_text(&plan.slots);
            writeln!(err, "settings {}", settings.text())?;
            writeln!(
                err,
                "prefill  {} tokens, {}\n\
                 decode   {} steps, {}\n\
                 experts  {}{} hits, {} read ahead, {} misses, hit rate {} ({} with read-ahead), {slots}\n\
                 reads    {bytes} a token, {reached}, waited {:.1} ms in all\n\
                 memory   {} of {} planned: dense {}, experts {}, sequence {}, intermediates {}, rows {}, \
                 threads {}, reads {}",
                stats.prefill_tokens,
                rate(stats.prefill_tokens_per_s()),
                stats.decode_tokens,
                rate(stats.decode_tokens_per_s()),
                match plan.device {
                    Some(_) => format!("{} held by the device, ", stats.device_hits),
                    None => String::new(),
                },
                stats.hits,
                stats.guessed_hits,
                stats.misses,
                percent(stats.hit_rate()),
                percent(stats.combined_hit_rate()),
                stats.wait.as_secs_f64() * 1e3,
                mib(plan.total_bytes()),
                mib(plan.budget_bytes),
                mib(plan.dense_bytes),
                mib(plan.arena_bytes),
                mib(plan.state_bytes),
                mib(plan.workspace_bytes),
                mib(plan.row_cache_bytes),
                mib(plan.overhead_bytes),
                mib(plan.reader_bytes),
            )?;
            if let Some(device) = &plan.device {
                writeln!(
                    err,
                    "device   {} planned of {}: dense {}, experts {} ({}), sequence {}, \
                     intermediates {}, uploads {}",
                    mib(device.total_bytes()),
                    or_na(device.budget_bytes, mib),
                    mib(device.dense_bytes),
                    mib(device.expert_bytes),
                    slots_text(&device.slots),
                    mib(device.state_bytes),
                    mib(device.workspace_bytes),
                    mib(device.overhead_bytes),
                )?;
            }
            if stats.guesses > 0 {
                writeln!(
                    err,
                    "ahead    {} guesses, precision {}, recall {}, {} late, {} wasted, paused {} times",
                    stats.guesses,
                    percent(stats.precision()),
                    percent(stats.recall()),
                    stats.late_guesses,
                    mib(stats.wasted_bytes),
                    stats.read_ahead_pauses,
                )?;
            }
            if let (Some(agreement), Some(kl)) = (stats.agreement(), stats.mean_routing_kl()) {
                let (kept, n) = (100.0 * agreement, stats.biased_picks);
                writeln!(
                    err,
                    "routing  {kept:.2} % of {n} picks kept by the bias, KL {kl:.5} nats"
                )?;
            }
            if let Some(recall) = stats.guess_recall() {
                let n = stats.audited_guesses;
                writeln!(
                    err,
                    "audit    {:.2} % of {n} guesses are those of the stored routers",
                    100.0 * recall
                )?;
            }
            if let Some(agreement) = stats.router_agreement() {
                let n = stats.audited_picks;
                writeln!(
                    err,
                    "audit    {:.2} % of {n} choices are those of the stored routers",
                    100.0 * agreement
                )?;
            }
            if stats.bad_router_rows > 0 {
                let n = stats.bad_router_rows;
                writeln!(
                    err,
                    "warning: {n} router rows held values that are not numbers"
                )?;
            }
        }
    }
    Ok(())
}

/// Statistics of an interval as JSON; figures that are undefined are null.
pub fn stats_json(stats: &Stats, plan: &MemoryPlan) -> Value {
    json!({
        "prefill_tokens": stats.prefill_tokens,
        "prefill_tokens_per_s": stats.prefill_tokens_per_s(),
        "decode_tokens": stats.decode_tokens,
        "decode_tokens_per_s": stats.decode_tokens_per_s(),
        "expert_device_hits": stats.device_hits,
        "expert_hits": stats.hits,
        "expert_guessed_hits": stats.guessed_hits,
        "expert_late_guesses": stats.late_guesses,
        "expert_misses": stats.misses,
        "hit_rate": stats.hit_rate(),
        "combined_hit_rate": stats.combined_hit_rate(),
        "guesses": stats.guesses,
        "guess_precision": stats.precision(),
        "guess_recall": stats.recall(),
        "wasted_bytes": stats.wasted_bytes,
        "read_ahead_pauses": stats.read_ahead_pauses,
        "expert_bytes": stats.expert_bytes,
        "io_bytes": stats.io_bytes,
        "io_busy_ms": stats.io_busy.as_secs_f64() * 1e3,
        "io_gb_per_s": stats.io_gb_per_s(),
        "row_bytes": stats.row_bytes,
        "bytes_per_token": stats.bytes_per_token(),
        "wait_ms": stats.wait.as_secs_f64() * 1e3,
        "bad_router_rows": stats.bad_router_rows,
        "routing_agreement": stats.agreement(),
        "routing_kl_nats": stats.mean_routing_kl(),
        "guess_recall_of_stored_routers": stats.guess_recall(),
        "router_agreement": stats.router_agreement(),
        "plan": plan_json(plan),
    })
}

/// The split of the host's memory, and of a device's.
fn plan_json(plan: &MemoryPlan) -> Value {
    json!({
        "budget_bytes": plan.budget_bytes,
        "total_bytes": plan.total_bytes(),
        "dense_bytes": plan.dense_bytes,
        "arena_bytes": plan.arena_bytes,
        "reader_bytes": plan.reader_bytes,
        "transit_slots": plan.transit_slots,
        "state_bytes": plan.state_bytes,
        "workspace_bytes": plan.workspace_bytes,
        "row_cache_bytes": plan.row_cache_bytes,
        "overhead_bytes": plan.overhead_bytes,
        "chunk_tokens": plan.chunk_tokens,
        "n_ctx": plan.n_ctx,
        "slots": plan.slots,
        "device": plan.device.as_ref().map(device_json),
    })
}

/// The split of a device's own memory.
fn device_json(plan: &DevicePlan) -> Value {
    json!({
        "budget_bytes": plan.budget_bytes,
        "total_bytes": plan.total_bytes(),
        "dense_bytes": plan.dense_bytes,
        "state_bytes": plan.state_bytes,
        "workspace_bytes": plan.workspace_bytes,
        "overhead_bytes": plan.overhead_bytes,
        "expert_bytes": plan.expert_bytes,
        "slots": plan.slots,
    })
}

/// Figures of each token, for a machine.
#[derive(Debug, Clone, Default)]
pub struct PerToken {
    last: Option<Stats>,
    steps: Vec<Stats>,
}

impl PerToken {
    /// Counters after one more token; the first call is where counting begins.
    pub fn push(&mut self, stats: &Stats) {
        if let Some(last) = &self.last {
            self.steps.push(stats.since(last));
        }
        self.last = Some(*stats);
    }

    /// One list a figure, one entry a token.
    pub fn json(&self) -> Value {
        let list = |of: fn(&Stats) -> Value| self.steps.iter().map(of).collect::<Value>();
        json!({
            "device_hits": list(|s| s.device_hits.into()),
            "hits": list(|s| s.hits.into()),
            "guessed_hits": list(|s| s.guessed_hits.into()),
            "misses": list(|s| s.misses.into()),
            "expert_bytes": list(|s| s.expert_bytes.into()),
            "wait_ms": list(|s| (s.wait.as_secs_f64() * 1e3).into()),
            "ms": list(|s| (s.decode_time.as_secs_f64() * 1e3).into()),
        })
    }
}

/// A figure as text; one that is undefined says so.
pub fn or_na<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "n/a".to_owned(), text)
}

/// Slots of all layers in a few words.
fn slots_text(slots: &[usize]) -> String {
    let (min, max) = (slots.iter().min(), slots.iter().max());
    match (min, max) {
        (Some(min), Some(max)) if min == max => format!("{min} slots a layer"),
        (Some(min), Some(max)) => format!("{min} to {max} slots a layer"),
        _ => "no slots".to_owned(),
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

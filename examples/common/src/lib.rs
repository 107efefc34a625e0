//! What the binaries share: the flags that open a model, progress on a terminal, and statistics as
//! text and JSON. No algorithm lives here.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};
use thalweg::{
    Bias, CpuBackend, CpuOptions, Engine, EngineOptions, Gguf, MemoryPlan, Moce, PolicyKind,
    SamplerOptions, Stats,
};

/// Runs a binary: an error is one line on standard error and exit code 1, and a reader that had
/// enough (`| head`) is no error.
pub fn report(result: Result<bool>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) if is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            // Where standard error is closed or full, nobody can be told.
            let _ = writeln!(std::io::stderr(), "error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// Writes a line to standard output.
///
/// # Errors
/// When it cannot be written; [`report`] knows a reader that had enough.
pub fn print_line(line: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{line}")?;
    Ok(())
}

/// A line for a person on standard error; lost where that is closed or full.
pub fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn is_broken_pipe(e: &anyhow::Error) -> bool {
    let io = e.downcast_ref::<std::io::Error>();
    io.is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Flags that say which model to open and what it may use.
#[derive(Debug, Clone, Args)]
pub struct ModelArgs {
    /// Model file (any shard of a split one) [default: models/demo.gguf of this repository, looked
    /// for from the working folder upwards]
    #[arg(long, value_name = "FILE")]
    pub model: Option<PathBuf>,

    /// Memory for everything together: weights, expert slots, context, intermediates
    /// (24MiB, 3.4GB, 8GiB, or bytes) [default: 3/4 of the available memory]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub budget: Option<u64>,

    /// Prompt tokens taken in at once; does not change the output [default: chosen by the budget]
    #[arg(long, value_name = "TOKENS")]
    pub chunk: Option<usize>,

    /// Compute threads; does not change the output [default: all cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,

    /// Expert slots in each layer, at least the experts that a token uses; does not change the
    /// output [default: as many as the budget holds]
    #[arg(long, value_name = "N")]
    pub slots: Option<usize>,

    /// Which resident expert makes room for another; does not change the output
    #[arg(long, value_name = "NAME", default_value = "lru", value_parser = policy)]
    pub policy: PolicyKind,

    /// Prefer resident experts while generating: off, rel:0.09 (times the mean logit range) or
    /// abs:0.85 (nats). Lossy: the output then depends on what is resident
    #[arg(long, value_name = "BIAS", default_value = "off", value_parser = bias)]
    pub moce: Bias,

    /// So many of a token's best experts are chosen whatever is resident
    #[arg(long, value_name = "J", default_value_t = 3)]
    pub protect: u8,
}

impl ModelArgs {
    /// Opens the model file's header.
    ///
    /// # Errors
    /// When there is no such file, or it is not a usable GGUF file.
    pub fn file(&self) -> Result<Gguf> {
        let path = match &self.model {
            Some(path) => path.clone(),
            None => own_model()?,
        };
        Gguf::open(&path).with_context(|| format!("cannot open the model {}", path.display()))
    }

    /// Opens an engine for sequences of up to `n_ctx` tokens.
    ///
    /// # Errors
    /// When the model is unusable or does not fit the budget.
    pub fn engine(&self, file: Gguf, n_ctx: usize) -> Result<Engine> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let n_threads = self.threads.unwrap_or(cores);
        let backend = CpuBackend::new(CpuOptions { n_threads })?;
        let options = EngineOptions {
            budget_bytes: self.budget,
            n_ctx,
            chunk_tokens: self.chunk,
            slots_per_layer: self.slots,
            policy: self.policy,
            moce: Moce::new(self.moce).with_protected(self.protect),
            ..EngineOptions::default()
        };
        Ok(Engine::from_file(file, backend, options)?)
    }
}

/// What was asked for, so that statistics say what they are of.
#[derive(Debug, Clone)]
pub struct Settings(Value);

impl Settings {
    /// Settings of an engine.
    pub fn of(args: &ModelArgs, engine: &Engine) -> Self {
        let path = engine
            .file()
            .path(0)
            .map(|p| p.to_string_lossy().into_owned());
        Self(json!({
            "model": path,
            "threads": engine.backend().n_threads(),
            "policy": args.policy.name(),
            "moce": args.moce.to_string(),
            "protect": args.protect,
            "chunk": engine.plan().chunk_tokens,
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
            "repeat_window": options.repetition_window,
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
                Some(inner) => parts.extend(inner.iter().map(|(n, v)| format!("{n} {v}"))),
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

/// The model that comes with the repository: found from the working folder upwards, or where it was at build time.
fn own_model() -> Result<PathBuf> {
    const RELATIVE: &str = "models/demo.gguf";
    let here = std::env::current_dir().unwrap_or_default();
    let built = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut folders = here.ancestors().chain([built.as_path()]);
    let found = folders.find_map(|f| Some(f.join(RELATIVE)).filter(|p| p.is_file()));
    found.with_context(|| format!("no {RELATIVE} here or above; name a model with --model FILE"))
}

fn size(text: &str) -> Result<u64, String> {
    thalweg::parse_bytes(text).map_err(|e| e.to_string())
}

fn bias(text: &str) -> Result<Bias, String> {
    text.parse::<Bias>().map_err(|e| e.to_string())
}

fn policy(text: &str) -> Result<PolicyKind, String> {
    text.parse::<PolicyKind>().map_err(|e| e.to_string())
}

/// A progress bar over prompt tokens, drawn on standard error where that is a terminal.
#[derive(Debug)]
pub struct PrefillBar(ProgressBar);

impl PrefillBar {
    /// A bar that is not drawn before its first update.
    pub fn new(what: &'static str) -> Self {
        // Shown when there is something to show.
        let bar = ProgressBar::hidden();
        let style = "{msg} {wide_bar} {pos}/{len} tokens, {eta} left";
        // The template is a constant; an unusable one would show as the default style.
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        bar.set_message(what);
        Self(bar)
    }

    /// `done` of `total` tokens; the bar goes when all are.
    pub fn update(&self, done: usize, total: usize) {
        if done >= total {
            self.0.finish_and_clear();
        } else {
            self.0.set_length(total as u64);
            if self.0.is_hidden() {
                self.0
                    .set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
            }
            self.0.set_position(done as u64);
        }
    }
}

/// Statistics of an interval, in the chosen form.
///
/// # Errors
/// When standard error cannot be written to.
pub fn print_stats(
    format: StatsFormat,
    settings: &Settings,
    stats: &Stats,
    plan: &MemoryPlan,
) -> Result<()> {
    let mut err = std::io::stderr().lock();
    match format {
        StatsFormat::Json => {
            let mut value = stats_json(stats, plan);
            value["settings"] = settings.json().clone();
            writeln!(err, "{value}")?;
        }
        StatsFormat::Text => {
            let rate = |r: Option<f64>| or_na(r, |r| format!("{r:.1} tok/s"));
            let percent = or_na(stats.hit_rate(), |r| format!("{:.2} %", 100.0 * r));
            let bytes = or_na(stats.bytes_per_token(), |b| {
                format!("{:.1} KiB", b / 1024.0)
            });
            let slots = slots_text(&plan.slots);
            writeln!(err, "settings {}", settings.text())?;
            writeln!(
                err,
                "prefill  {} tokens, {}\n\
                 decode   {} steps, {}\n\
                 experts  {} hits, {} misses, hit rate {percent}, {slots}\n\
                 reads    {bytes} a token, waited {:.1} ms\n\
                 memory   {} of {} planned: dense {}, experts {}, sequence {}, intermediates {}, rows {}, threads {}",
                stats.prefill_tokens,
                rate(stats.prefill_tokens_per_s()),
                stats.decode_tokens,
                rate(stats.decode_tokens_per_s()),
                stats.hits,
                stats.misses,
                stats.wait.as_secs_f64() * 1e3,
                mib(plan.total_bytes()),
                mib(plan.budget_bytes),
                mib(plan.dense_bytes),
                mib(plan.arena_bytes),
                mib(plan.state_bytes),
                mib(plan.workspace_bytes),
                mib(plan.row_cache_bytes),
                mib(plan.overhead_bytes),
            )?;
            if let (Some(agreement), Some(kl)) = (stats.agreement(), stats.mean_routing_kl()) {
                let (kept, n) = (100.0 * agreement, stats.biased_picks);
                writeln!(
                    err,
                    "routing  {kept:.2} % of {n} picks kept by the bias, KL {kl:.5} nats"
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
        "expert_hits": stats.hits,
        "expert_misses": stats.misses,
        "hit_rate": stats.hit_rate(),
        "expert_bytes": stats.expert_bytes,
        "row_bytes": stats.row_bytes,
        "bytes_per_token": stats.bytes_per_token(),
        "wait_ms": stats.wait.as_secs_f64() * 1e3,
        "bad_router_rows": stats.bad_router_rows,
        "routing_agreement": stats.agreement(),
        "routing_kl_nats": stats.mean_routing_kl(),
        "plan": {
            "budget_bytes": plan.budget_bytes,
            "total_bytes": plan.total_bytes(),
            "dense_bytes": plan.dense_bytes,
            "arena_bytes": plan.arena_bytes,
            "state_bytes": plan.state_bytes,
            "workspace_bytes": plan.workspace_bytes,
            "row_cache_bytes": plan.row_cache_bytes,
            "overhead_bytes": plan.overhead_bytes,
            "chunk_tokens": plan.chunk_tokens,
            "n_ctx": plan.n_ctx,
            "slots": plan.slots,
        },
    })
}

/// A figure as text; one that is undefined says so.
pub fn or_na(value: Option<f64>, text: impl FnOnce(f64) -> String) -> String {
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

//! Prefill and decode speed of a model, or speed of a GPU's kernels.

mod kernels;

use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use clap::Parser;
use serde_json::json;
use thalweg::{Backend, Engine, Observer, Session};
use thalweg_examples_common::{
    CountBar, Device, DeviceArgs, ModelArgs, PerToken, Settings, or_na, parse, print_line, report,
    stats_json,
};

use kernels::KernelArgs;

/// Measure prefill and decode, or a GPU's kernels.
///
/// Each repetition starts a fresh sequence: PROMPT tokens are taken in at once, then TOKENS single
/// steps follow. Times cover the steps alone: not opening the model, not choosing tokens. The
/// arena stays filled from one repetition to the next, so the first is the cold one.
///
/// With --kernels no model is opened: products with weights of each format are timed on the GPU.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    device: DeviceArgs,

    /// Tokens of the prompt
    #[arg(
        short = 'p',
        long = "prompt",
        value_name = "TOKENS",
        default_value_t = 512
    )]
    prompt_tokens: usize,

    /// Decode steps
    #[arg(
        short = 'n',
        long = "tokens",
        value_name = "TOKENS",
        default_value_t = 64
    )]
    decode_steps: usize,

    /// Repetitions
    #[arg(
        short = 'r',
        long = "repetitions",
        value_name = "N",
        default_value_t = 5
    )]
    repetitions: usize,

    #[command(flatten)]
    kernels: KernelArgs,

    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    report(run(&parse()).map(|()| true))
}

fn run(args: &Args) -> Result<()> {
    ensure!(args.prompt_tokens > 0, "-p must be at least 1");
    ensure!(args.repetitions > 0, "-r must be at least 1");
    match args.device.open(&args.model)? {
        Device::Gpu(backend) if args.kernels.kernels => {
            kernels::run(&args.kernels, &backend, args.repetitions, args.json)
        }
        Device::Cpu(_) if args.kernels.kernels => {
            bail!("--kernels measures a GPU: add --backend wgpu (`hwbench` measures CPUs)")
        }
        Device::Cpu(backend) => run_on(args, backend, None),
        Device::Gpu(backend) => {
            let adapter = backend.adapter().name.clone();
            run_on(args, backend, Some(adapter))
        }
    }
}

fn run_on<B: Backend>(args: &Args, backend: B, adapter: Option<String>) -> Result<()> {
    let start = Instant::now();
    let file = args.model.file()?;
    let n_ctx = args.prompt_tokens.saturating_add(args.decode_steps);
    let mut engine = args.model.engine_on(backend, file, n_ctx)?;
    let mut session = engine.session()?;
    let open_ms = start.elapsed().as_secs_f64() * 1e3;

    let mut rounds = Vec::new();
    let mut per_token = PerToken::default();
    for round in 0..args.repetitions {
        rounds.push(repeat(
            &mut engine,
            &mut session,
            args,
            round,
            &mut per_token,
        )?);
    }
    let prefill = column(&rounds, |r| r.0);
    let decode = column(&rounds, |r| r.1);
    let stats = engine.stats();
    if args.json {
        let value = json!({
            "backend": engine.backend().name(),
            "adapter": adapter,
            "settings": Settings::of(&args.model, &engine).json(),
            "prompt_tokens": args.prompt_tokens,
            "decode_steps": args.decode_steps,
            "open_ms": open_ms,
            "prefill_tokens_per_s": summary_json(&prefill),
            "decode_tokens_per_s": summary_json(&decode),
            "all_repetitions": stats_json(&stats, engine.plan()),
            "last_repetition_per_token": per_token.json(),
        });
        return print_line(&value.to_string());
    }
    let path = engine.file().path(0).unwrap_or_else(|| Path::new(""));
    let path = path.display();
    let on = match &adapter {
        Some(adapter) => adapter.clone(),
        None => format!("{} threads", args.model.n_threads()),
    };
    print_line(&format!("{path}, {on}, opened in {open_ms:.0} ms"))?;
    let columns = ["median", "min", "max"]
        .map(|c| format!("{c:>10}"))
        .join(" ");
    print_line(&format!("{:<12} {columns}   tokens/s", ""))?;
    row(&format!("prefill {}", args.prompt_tokens), &prefill)?;
    row(&format!("decode {}", args.decode_steps), &decode)?;
    if let Some(rate) = stats.hit_rate() {
        print_line(&format!(
            "hit rate {:.2} % over all repetitions",
            100.0 * rate
        ))?;
    }
    Ok(())
}

/// One repetition: prefill and decode rates in tokens/s (`None` without steps).
fn repeat<B: Backend>(
    engine: &mut Engine<B>,
    session: &mut Session<B>,
    args: &Args,
    round: usize,
    per_token: &mut PerToken,
) -> Result<(Option<f64>, Option<f64>)> {
    engine.reset(session)?;
    let before = engine.stats();
    // Ids spread over the vocabulary, so that routes spread over experts.
    let n_vocab = engine.spec().n_vocab as u64;
    let id = |i: usize| ((i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) % n_vocab;
    let token = |i: usize| u32::try_from(id(i)).unwrap_or(0);
    let prompt: Vec<u32> = (0..args.prompt_tokens).map(token).collect();
    let mut bar = Bar(CountBar::tokens("measuring"), round);
    engine.prefill(session, &prompt, &mut bar)?;
    // Figures of each token are those of the last repetition.
    *per_token = PerToken::default();
    per_token.push(&engine.stats());
    for i in 0..args.decode_steps {
        engine.decode(session, token(args.prompt_tokens + i))?;
        per_token.push(&engine.stats());
    }
    let stats = engine.stats().since(&before);
    Ok((stats.prefill_tokens_per_s(), stats.decode_tokens_per_s()))
}

/// Progress of a prefill; the first repetition's only, since drawing takes time.
struct Bar(CountBar, usize);

impl Observer for Bar {
    fn on_progress(&mut self, done: usize, total: usize) -> ControlFlow<()> {
        if self.1 == 0 {
            self.0.update(done, total);
        }
        ControlFlow::Continue(())
    }
}

/// A column of the rounds, sorted.
fn column<T>(rounds: &[T], of: impl Fn(&T) -> Option<f64>) -> Vec<f64> {
    let mut values: Vec<f64> = rounds.iter().filter_map(of).collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> Option<f64> {
    let mid = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[mid]),
        _ => Some(f64::midpoint(sorted[mid - 1], sorted[mid])),
    }
}

fn summary_json(sorted: &[f64]) -> serde_json::Value {
    json!({ "median": median(sorted), "min": sorted.first(), "max": sorted.last(), "rounds": sorted })
}

fn row(name: &str, sorted: &[f64]) -> Result<()> {
    let cell = |v: Option<f64>| or_na(v, |v| format!("{v:.1}"));
    let (min, max) = (sorted.first().copied(), sorted.last().copied());
    let cells = [median(sorted), min, max].map(|v| format!("{:>10}", cell(v)));
    print_line(&format!("{name:<12} {}", cells.join(" ")))
}

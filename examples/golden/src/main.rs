//! Holds a model's output against goldens made by an independent implementation.

mod fast;
mod folder;
mod judge;
mod rows;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use thalweg::{Activations, Backend};
use thalweg_examples_common::{Device, DeviceArgs, ModelArgs, parse, print_if_read, report};

use crate::fast::{Distance, distance};
use crate::folder::Folder;
use crate::judge::{Verdict, judge};
use crate::rows::{Rows, RowsVerdict};

/// Check a model against a folder of goldens.
///
/// DIR holds manifest.json (prompts with token ids, per-token negative log-likelihoods, a greedy
/// continuation, routes) and little-endian f32 logits. One JSON line is printed per prompt. The
/// exit code is 1 when logits differ by more than --tol or, on average, --mean-tol, likelihoods by
/// more than --nll-tol, or a greedy token or a route differs where the golden's own gap says that
/// it must not.
///
/// With --class fast, for arithmetic that rounds its operands (--activations q8), distributions are
/// compared instead, at every position of the prompts, with those of the same model in f32 on the
/// CPU, which is opened beside it: the mean divergence must be at most --max-kld and the likeliest token the
/// same in at least --min-top1 of the positions. The last line has all prompts together.
///
/// A DIR with tokens.txt instead holds every logit (logits.npy) and every residual (hidden.npy) of
/// one sequence; the exit code is 1 when they differ by more than --tol and --residual-tol.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    device: DeviceArgs,

    /// Largest difference of a logit
    #[arg(long, value_name = "D", default_value_t = 2e-3, value_parser = tolerance)]
    tol: f64,

    /// Largest mean difference of a prompt's logits
    #[arg(long, value_name = "D", default_value_t = 1e-4, value_parser = tolerance)]
    mean_tol: f64,

    /// Largest difference of a token's negative log-likelihood
    #[arg(long, value_name = "D", default_value_t = 1e-3, value_parser = tolerance)]
    nll_tol: f64,

    /// Largest difference of a residual
    #[arg(long, value_name = "D", default_value_t = 1e-4, value_parser = tolerance)]
    residual_tol: f64,

    /// What is asked of the output
    #[arg(long, value_name = "CLASS", default_value = "exact")]
    class: Class,

    /// Largest mean divergence of all prompts together, in nats (--class fast)
    #[arg(long, value_name = "NATS", default_value_t = 2e-3, value_parser = tolerance)]
    max_kld: f64,

    /// Smallest share of positions with the likeliest token of the model in f32 (--class fast)
    #[arg(long, value_name = "SHARE", default_value_t = 0.98, value_parser = tolerance)]
    min_top1: f64,

    /// Folder of goldens
    dir: PathBuf,
}

/// How near the golden an output must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Class {
    /// Every logit within a tolerance: another order of the same sums.
    Exact,
    /// Distributions within a tolerance: rounded operands.
    Fast,
}

fn main() -> ExitCode {
    report(run(&parse()))
}

fn run(args: &Args) -> Result<bool> {
    match args.device.open(&args.model)? {
        Device::Cpu(backend) => run_on(args, backend),
        Device::Gpu(backend) => run_on(args, backend),
    }
}

fn run_on<B: Backend>(args: &Args, backend: B) -> Result<bool> {
    if args.dir.join(rows::TOKENS).exists() {
        return run_rows(args, backend);
    }
    let folder = Folder::open(&args.dir)?;
    let n_ctx = folder
        .prompts
        .iter()
        .map(|p| p.tokens.len() + p.greedy.len())
        .max();
    let n_ctx = n_ctx.context("the manifest has no prompts")?;
    if args.class == Class::Fast {
        let prompts = folder.prompts.iter();
        let prompts = prompts.map(|p| (p.name.as_str(), p.tokens.as_slice()));
        return run_fast(args, backend, &prompts.collect::<Vec<_>>());
    }
    let file = args.model.file()?;
    let mut engine = args.model.engine_on(backend, file, n_ctx)?;
    let mut session = engine.session()?;
    let mut passed = true;
    for prompt in &folder.prompts {
        engine.reset(&mut session)?;
        let verdict = judge(&mut engine, &mut session, &folder, prompt)
            .with_context(|| format!("prompt {:?}", prompt.name))?;
        let is_within = within(args, &verdict);
        passed &= is_within;
        print_if_read(&verdict.json(&prompt.name, is_within).to_string())?;
    }
    Ok(passed)
}

/// The model as asked for beside itself in f32 on the CPU.
fn run_fast<B: Backend>(args: &Args, backend: B, prompts: &[(&str, &[u32])]) -> Result<bool> {
    let longest = prompts.iter().map(|(_, tokens)| tokens.len()).max();
    let n_ctx = longest.context("there are no prompts")?;
    let exact = ModelArgs {
        activations: Activations::F32,
        ..args.model.clone()
    };
    let mut reference = exact.engine(exact.file()?, n_ctx)?;
    let file = args.model.file()?;
    let mut engine = args.model.engine_on(backend, file, n_ctx)?;
    let (mut reference_session, mut session) = (reference.session()?, engine.session()?);
    // Not a number passes neither test.
    let passes = |d: &Distance| d.mean_kld() <= args.max_kld && d.top1_agreement() >= args.min_top1;
    let mut all = Distance::default();
    for &(name, tokens) in prompts {
        reference.reset(&mut reference_session)?;
        engine.reset(&mut session)?;
        let reference = (&mut reference, &mut reference_session);
        let found = distance(reference, (&mut engine, &mut session), tokens)
            .with_context(|| format!("prompt {name:?}"))?;
        all.add(&found);
        print_if_read(&found.json(name, None).to_string())?;
    }
    print_if_read(&all.json("(all)", Some(passes(&all))).to_string())?;
    Ok(passes(&all))
}

/// A folder that holds everything of one sequence.
fn run_rows<B: Backend>(args: &Args, backend: B) -> Result<bool> {
    let rows = Rows::open(&args.dir)?;
    if args.class == Class::Fast {
        return run_fast(args, backend, &[("tokens", &rows.tokens)]);
    }
    let file = args.model.file()?;
    let mut engine = args.model.engine_on(backend, file, rows.tokens.len())?;
    let mut session = engine.session()?;
    let verdict: RowsVerdict = rows.judge(&mut engine, &mut session)?;
    let passed = verdict.max_abs <= args.tol
        && verdict.mean_abs <= args.mean_tol
        && verdict.max_residual <= args.residual_tol;
    print_if_read(&verdict.json(passed).to_string())?;
    Ok(passed)
}

fn within(args: &Args, v: &Verdict) -> bool {
    v.max_abs <= args.tol
        && v.mean_abs <= args.mean_tol
        && v.max_nll_diff <= args.nll_tol
        && v.greedy_mismatches == 0
        && v.route_mismatches == 0
}

fn tolerance(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    let usable = value.is_finite() && value >= 0.0;
    usable
        .then_some(value)
        .ok_or_else(|| "must be finite and at least 0".to_owned())
}

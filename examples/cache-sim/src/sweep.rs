//! `sweep`: many simulations, one line each.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rayon::prelude::*;
use serde_json::{Map, Value, json};
use thalweg_cache::sim::{self, KeepMap, RoutedReport, Score, Usage};
use thalweg_cache::{AccessLog, Bias, Moce, PolicyKind, RangeAvg};
use thalweg_examples_common::{check_outputs, print_line, whole, write_whole};

use crate::input::Input;
use crate::replay::{ScopeArg, TraceArgs, policy};
use crate::report;

/// Simulate every combination of keep-map, policy and routing bias.
///
/// By default 240 configurations: 10 maps (all experts, and 5/8, 1/2 and 7/16 of them kept by 3
/// scores) x 6 policies x 4 lambdas. The scores come from choices and weights alone: how often an
/// expert was chosen (frequency), the sum of its weights (gate_mass), their mean (mean_gate). They
/// do not know what an expert's output does; saliency scores would.
///
/// Routing is closed loop with the hidden states of the recorded run. belady_min cannot know what a
/// biased router will ask for: its rows are the fewest misses for what lru's run asked for.
///
/// One JSON object a line, always in the same order, each with every setting. Files are written when
/// all is simulated, whole or not at all; a killed run leaves at most `.NAME.partial`, which the next
/// one takes over.
#[derive(Debug, Args)]
pub(crate) struct SweepArgs {
    #[command(flatten)]
    trace: TraceArgs,

    /// File to write, one JSON object a line
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// The same as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// Slots a layer, several separated by commas [default: 113/512 of the experts]
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    slots: Vec<u32>,

    /// Whether layers share their slots
    #[arg(long, value_enum, default_value = "layer")]
    scope: ScopeArg,

    /// Experts kept in each layer by each score [default: 5/8, 1/2 and 7/16 of them]
    #[arg(long, value_name = "K,..", value_delimiter = ',')]
    keep: Vec<u16>,

    /// Only the map of all experts
    #[arg(long, conflicts_with = "keep")]
    no_pruning: bool,

    /// Take the scores from another trace of the same model, so that maps meet tokens that they
    /// were not made from
    #[arg(long, value_name = "FILE")]
    scores_from: Option<PathBuf>,

    /// Policies
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_parser = policy,
        default_value = "lru,lfu,ema,near_pick_ema,inverse_router_ema,belady_min")]
    policies: Vec<PolicyKind>,

    /// Biases as shares of a layer's mean logit range
    #[arg(
        long,
        value_name = "L,..",
        value_delimiter = ',',
        default_value = "0,0.05,0.09,0.2"
    )]
    lambdas: Vec<f32>,

    /// Best experts of a choice that no bias displaces
    #[arg(long, value_name = "J", default_value_t = 3)]
    protect: u8,

    /// Serve so many tokens before counting
    #[arg(long, value_name = "TOKENS", default_value_t = 0, value_parser = whole)]
    skip: u64,

    /// Use only the first tokens of the trace
    #[arg(long, value_name = "TOKENS", value_parser = whole)]
    max_tokens: Option<u64>,
}

/// A keep-map and what it costs before any cache.
struct NamedMap {
    keep: KeepMap,
    facts: Map<String, Value>,
}

#[derive(Clone, Copy)]
struct Job<'a> {
    map: &'a NamedMap,
    policy: PolicyKind,
    lambda: f32,
    slots: u32,
}

/// Runs the simulations and writes their lines.
pub(crate) fn run(args: &SweepArgs) -> Result<()> {
    check_paths(args)?;
    let input = args.trace.open()?;
    let slots = match args.slots.is_empty() {
        true => vec![default_slots(&input)],
        false => args.slots.clone(),
    };
    slots.iter().try_for_each(|&n| input.check_slots(n))?;
    for &lambda in &args.lambdas {
        let moce = moce(args, lambda);
        moce.check()?;
        input.check_bias(&moce, !args.no_pruning)?;
    }
    let n_tokens = args.max_tokens.unwrap_or(u64::MAX).min(input.n_tokens());
    ensure!(
        args.skip < n_tokens,
        "nothing is left of {n_tokens} tokens after --skip"
    );
    let maps = maps(args, &input, n_tokens)?;
    let mut jobs = Vec::new();
    for map in &maps {
        for &policy in &args.policies {
            for &lambda in &args.lambdas {
                jobs.extend(slots.iter().map(|&slots| Job {
                    map,
                    policy,
                    lambda,
                    slots,
                }));
            }
        }
    }
    let bar = progress(jobs.len());
    let rows: Vec<Map<String, Value>> = jobs
        .par_iter()
        .map(|job| simulate(args, &input, n_tokens, job))
        .inspect(|_| bar.inc(1))
        .collect::<Result<_>>()?;
    bar.finish_and_clear();

    let mut text = String::new();
    for row in &rows {
        text.push_str(&serde_json::to_string(row)?);
        text.push('\n');
    }
    write_whole(&args.out, &text)?;
    if let Some(path) = &args.csv {
        write_whole(path, &csv(&rows))?;
    }
    print_line(&format!(
        "{}: {} configurations",
        args.out.display(),
        rows.len()
    ))?;
    Ok(())
}

/// What is written must not be what is read, or one file twice.
fn check_paths(args: &SweepArgs) -> Result<()> {
    let csv = args.csv.as_deref().map(|path| ("--csv", path));
    let outputs: Vec<(&str, &Path)> = [("--out", args.out.as_path())]
        .into_iter()
        .chain(csv)
        .collect();
    let scores = args.scores_from.as_deref();
    let inputs: Vec<(&str, &Path)> = [("--trace", args.trace.trace.as_path())]
        .into_iter()
        .chain(scores.map(|path| ("--scores-from", path)))
        .collect();
    check_outputs(&outputs, &inputs)
}

/// 113 of 512 slots, in proportion; never below a choice.
pub(crate) fn default_slots(input: &Input) -> u32 {
    let n_expert = u32::from(input.space.n_expert());
    (n_expert * 113).div_ceil(512).max(input.k.into())
}

fn simulate(
    args: &SweepArgs,
    input: &Input,
    n_tokens: u64,
    job: &Job<'_>,
) -> Result<Map<String, Value>> {
    let moce = moce(args, job.lambda);
    let mut config = input.config(job.policy, args.scope.scope(), job.slots);
    config.skip_tokens = args.skip;
    let row = input.row(&job.map.keep);
    let mut out = job.map.facts.clone();
    out.extend(report::object(json!({
        "policy": job.policy.name(),
        "lambda": rounded(job.lambda),
        "protect_top_j": args.protect,
        "scope": args.scope.name(),
        "slots": job.slots,
        "skip_tokens": args.skip,
    })));
    let unbiased = job.lambda <= 0.0 && job.map.keep.n_kept() == input.space.n_expert();
    let picks_of = if unbiased {
        // What the model chose, not what logits of half precision would choose.
        let report = sim::replay(&input.log(job.policy, n_tokens), &config)?;
        out.extend(report::whole(input, &report, None));
        "model"
    } else if job.policy.is_offline() {
        let mut online = config;
        online.policy = PolicyKind::Lru;
        let mut log = AccessLog::new();
        let routed = sim::route_observed(n_tokens, &online, &moce, row, |access, _| {
            log.push(access);
        })?;
        let report = sim::replay(&log, &config)?;
        out.extend(report::whole(input, &report, Some(&routed)));
        online.policy.name()
    } else {
        let routed: RoutedReport = sim::route(n_tokens, &config, &moce, row)?;
        out.extend(report::whole(input, &routed.cache, Some(&routed)));
        job.policy.name()
    };
    out.insert("picks_of".to_owned(), json!(picks_of));
    out.insert("model_fingerprint".to_owned(), json!(input.fingerprint()));
    Ok(out)
}

fn maps(args: &SweepArgs, input: &Input, n_tokens: u64) -> Result<Vec<NamedMap>> {
    let (space, n_expert) = (input.space, input.space.n_expert());
    let sizes = match args.keep.is_empty() {
        true => [n_expert * 5 / 8, n_expert / 2, n_expert * 7 / 16].to_vec(),
        false => args.keep.clone(),
    };
    let usage = scores(args, input, n_tokens)?;
    let mut wanted = vec![("all", KeepMap::all(space))];
    if !args.no_pruning {
        for &score in Score::ALL {
            for &n_kept in &sizes {
                ensure!(
                    n_kept >= input.k,
                    "cannot keep {n_kept} experts: a token uses {}",
                    input.k
                );
                wanted.push((score.name(), usage.keep(score, n_kept)?));
            }
        }
    }
    let all = KeepMap::all(space);
    let maps = wanted.into_par_iter().map(|(method, keep)| {
        let cost = sim::restrict(n_tokens, space, input.k, &keep, input.row(&all))?;
        let name = match method {
            "all" => method.to_owned(),
            _ => format!("K{}_{method}", keep.n_kept()),
        };
        let facts = report::object(json!({
            "map": name,
            "method": method,
            "n_kept": keep.n_kept(),
            "n_expert": n_expert,
            "scores_from": args.scores_from.as_ref().map_or("trace", |_| "another trace"),
            "picks_kept": usage.picks_kept(&keep),
            "gate_mass_kept": usage.gate_mass_kept(&keep),
            "map_agreement": cost.agreement,
            "map_routing_kl": cost.routing_kl,
        }));
        Ok(NamedMap { keep, facts })
    });
    maps.collect()
}

fn scores(args: &SweepArgs, input: &Input, n_tokens: u64) -> Result<Usage> {
    let Some(path) = &args.scores_from else {
        return Ok(input.usage(n_tokens));
    };
    let other = Input::open(path, None)?;
    if other.fingerprint() != input.fingerprint() || other.space != input.space {
        bail!(
            "{} was recorded from another model than {}",
            path.display(),
            args.trace.trace.display()
        );
    }
    Ok(other.usage(other.n_tokens()))
}

fn moce(args: &SweepArgs, lambda: f32) -> Moce {
    let avg = RangeAvg::Cumulative;
    Moce::new(Bias::Relative { lambda, avg }).with_protected(args.protect)
}

/// A setting as it was written, not as its nearest f32.
fn rounded(value: f32) -> f64 {
    value
        .to_string()
        .parse()
        .unwrap_or_else(|_| f64::from(value))
}

/// A progress bar on standard error, where that is a terminal.
pub(crate) fn progress(n: usize) -> ProgressBar {
    let target = ProgressDrawTarget::stderr_with_hz(5);
    let bar = ProgressBar::with_draw_target(Some(n as u64), target);
    let style = "simulating {wide_bar} {pos}/{len}, {eta} left";
    // The template is a constant; an unusable one would show as the default style.
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar
}

/// The main figures of each line.
fn csv(rows: &[Map<String, Value>]) -> String {
    const COLUMNS: [&str; 17] = [
        "map",
        "n_kept",
        "policy",
        "lambda",
        "protect_top_j",
        "scope",
        "slots",
        "n_tokens",
        "misses_per_token",
        "hit_rate",
        "bytes_per_token",
        "compulsory_misses_per_token",
        "agreement",
        "exact_set_rate",
        "routing_kl",
        "map_agreement",
        "map_routing_kl",
    ];
    let mut text = COLUMNS.join(",");
    text.push('\n');
    for row in rows {
        let cells = COLUMNS.map(|column| match &row[column] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            Value::Number(number) => match number.as_f64() {
                Some(value) if number.is_f64() => short(value),
                _ => number.to_string(),
            },
            other => other.to_string(),
        });
        text.push_str(&cells.join(","));
        text.push('\n');
    }
    text
}

/// Six decimals without trailing zeros.
fn short(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

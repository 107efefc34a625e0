//! `choose`: configurations of a trace, ranked for a machine.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use rayon::prelude::*;
use thalweg_cache::sim::{self, KeepMap, Scope};
use thalweg_cache::{Bias, Moce, PolicyKind, RangeAvg};
use thalweg_eval::HostConstants;
use thalweg_eval::choose::{Bar, Candidate, Choice, EngineFacts, QualityCost, Request, choose};
use thalweg_eval::latency::union::count_unions;

use thalweg_examples_common::{count, note, print_line, whole};

use crate::input::Input;
use crate::replay::{TraceArgs, policy};
use crate::sweep::progress;

/// Stands for no computing at all where a floor above zero is wanted.
const NO_COMPUTE_MS: f64 = 1e-3;

/// Rank policies, slots and biases for a machine.
///
/// Every combination is simulated on the trace, its speed predicted from the machine's constants;
/// those that meet the bar come first. What a bias costs is shown as routing KL.
#[derive(Debug, Args)]
pub(crate) struct ChooseArgs {
    #[command(flatten)]
    trace: TraceArgs,

    /// Constants of the machine, as hwbench measures them
    #[arg(long, value_name = "FILE")]
    host: PathBuf,

    /// Time of a decode token that misses no expert: 1000 / tokens a second of `bench` with all
    /// experts in memory [default: decode_floor_ms of the host file; without one, computing is left
    /// out and speeds are what the drive alone allows]
    #[arg(long, value_name = "MS")]
    floor_ms: Option<f64>,

    /// Least tokens a second
    #[arg(long, value_name = "TOK/S", conflicts_with = "turn_seconds")]
    bar: Option<f64>,

    /// Most seconds a turn; needs --prompt and --reply
    #[arg(long, value_name = "S", requires = "prompt", requires = "reply")]
    turn_seconds: Option<f64>,

    /// Tokens of the turn's prompt
    #[arg(long, value_name = "TOKENS", requires = "turn_seconds", value_parser = whole)]
    prompt: Option<u64>,

    /// Tokens of the turn's reply
    #[arg(long, value_name = "TOKENS", requires = "turn_seconds", value_parser = whole)]
    reply: Option<u64>,

    /// Prompt tokens taken in at once: each chunk reads the experts that its tokens need
    #[arg(long, value_name = "TOKENS", default_value_t = 512, value_parser = whole)]
    chunk: u64,

    /// Slots a layer [default: quarters of the experts, and what a token needs]
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    slots: Vec<u32>,

    /// Policies
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_parser = policy,
        default_value = "lru,sieve,s3fifo,arc,ema")]
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

    /// Reads under way together while a layer waits
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    queue_depth: f64,

    /// Show so many of the ranked configurations
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = count)]
    top: usize,

    /// Print one JSON object with all of them
    #[arg(long)]
    json: bool,
}

/// Simulates, predicts, ranks and prints.
pub(crate) fn run(args: &ChooseArgs) -> Result<()> {
    let input = args.trace.open()?;
    let mut host = HostConstants::open(&args.host)?;
    host.decode_floor_ms = args.floor_ms.or(host.decode_floor_ms);
    if host.decode_floor_ms.is_none() {
        note(
            "the time of computing is not known: speeds are what the drive alone allows (--floor-ms)",
        );
        host.decode_floor_ms = Some(NO_COMPUTE_MS);
    }
    host.check()?;
    let mean_bytes = input
        .mean_expert_bytes()
        .context("the trace does not tell expert sizes: name --expert-bytes")?;
    let engine = EngineFacts {
        decode_queue_depth: args.queue_depth,
        prefill_queue_depth: args.queue_depth,
        read_bytes: mean_bytes,
        ..EngineFacts::default()
    };
    let bar = match (args.bar, args.turn_seconds, args.prompt, args.reply) {
        (Some(at_least), ..) => Some(Bar::TokensPerS { at_least }),
        (_, Some(at_most), Some(prompt_tokens), Some(reply_tokens)) => Some(Bar::SecondsPerTurn {
            at_most,
            prompt_tokens,
            reply_tokens,
        }),
        _ => None,
    };
    let request = Request {
        engine,
        bar,
        candidates: candidates(args, &input, mean_bytes)?,
    };
    let choice = choose(&host, &request)?;
    match args.json {
        true => print_line(&serde_json::to_string(&choice)?)?,
        false => print(args, &choice)?,
    }
    Ok(())
}

fn candidates(args: &ChooseArgs, input: &Input, mean_bytes: u64) -> Result<Vec<Candidate>> {
    let (k, n) = (u32::from(input.k), u32::from(input.space.n_expert()));
    let mut slots = args.slots.clone();
    if slots.is_empty() {
        slots = [k, n / 4, n / 2, n * 3 / 4].map(|s| s.max(k)).to_vec();
        slots.dedup();
    }
    slots.iter().try_for_each(|&s| input.check_slots(s))?;
    // The prompt of a turn: the first tokens of the trace, nothing resident.
    let prompt_read_bytes = match args.prompt {
        Some(prompt) => {
            let tokens = 0..prompt.min(input.n_tokens());
            let scale = prompt as f64 / tokens.end.max(1) as f64;
            let reads = count_unions(&input.trace(), tokens, args.chunk, &[])?;
            Some(reads.n_reads as f64 * mean_bytes as f64 * scale)
        }
        None => None,
    };
    let mut jobs = Vec::new();
    for &policy in &args.policies {
        for &slots in &slots {
            jobs.extend(args.lambdas.iter().map(|&lambda| (policy, slots, lambda)));
        }
    }
    let keep = KeepMap::all(input.space);
    let progress = progress(jobs.len());
    let candidates = jobs.par_iter().map(|&(policy, slots, lambda)| {
        let config = input.config(policy, Scope::PerLayer, slots);
        let (bias, total, cost) = if lambda > 0.0 {
            let avg = RangeAvg::Cumulative;
            let moce = Moce::new(Bias::Relative { lambda, avg }).with_protected(args.protect);
            input.check_bias(&moce, false)?;
            let routed = sim::route(input.n_tokens(), &config, &moce, input.row(&keep))?;
            let cost = QualityCost {
                routing_kl_nats: routed.routing_kl().unwrap_or(0.0),
                agreement: routed.agreement().unwrap_or(1.0),
                ..QualityCost::default()
            };
            (moce.bias, routed.cache.total, cost)
        } else {
            let report = sim::replay(&input.log(policy, input.n_tokens()), &config)?;
            (Bias::Off, report.total, QualityCost::default())
        };
        progress.inc(1);
        Ok(Candidate {
            name: format!("{policy}, {slots} slots, {bias}"),
            policy: policy.name().to_owned(),
            slots: u64::from(slots) * u64::from(input.space.n_layer()),
            bias: bias.to_string(),
            misses_per_token: total.misses_per_token().unwrap_or(0.0),
            bytes_per_token: total.bytes_per_token().unwrap_or(0.0),
            prompt_read_bytes,
            cost,
        })
    });
    let candidates = candidates.collect::<Result<_>>();
    progress.finish_and_clear();
    candidates
}

fn print(args: &ChooseArgs, choice: &Choice) -> Result<()> {
    print_line(&format!(
        "{:36} {:>9} {:>9} {:>12} {:>10} {:>11} {:>9}",
        "configuration", "tok/s", "s/turn", "misses/token", "MiB/token", "routing KL", "bar"
    ))?;
    for ranked in choice.ranked.iter().take(args.top) {
        let candidate = &ranked.candidate;
        let turn = ranked.seconds_per_turn;
        print_line(&format!(
            "{:36} {:>9.2} {:>9} {:>12.3} {:>10.3} {:>11.5} {:>9}",
            candidate.name,
            ranked.tokens_per_s,
            turn.map_or_else(|| "-".to_owned(), |s| format!("{s:.2}")),
            candidate.misses_per_token,
            candidate.bytes_per_token / f64::from(1 << 20),
            candidate.cost.routing_kl_nats,
            match ranked.meets_bar {
                Some(true) => "met",
                Some(false) => "missed",
                None => "-",
            },
        ))?;
    }
    let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "none".to_owned());
    print_line(&format!("fastest: {}", name(&choice.fastest)))?;
    print_line(&format!(
        "least costly that will do: {}",
        name(&choice.least_costly)
    ))?;
    Ok(())
}

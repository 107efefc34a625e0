//! `replay`: one simulation.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use thalweg_cache::sim::{self, KeepMap, Scope};
use thalweg_cache::{Bias, ExpertKey, Key, Moce, PolicyKind};
use thalweg_examples_common::{print_line, whole};
use thalweg_store::Profile;

use crate::input::Input;
use crate::report;

/// Replay a trace against one cache.
///
/// Without --moce the recorded choices are replayed as they are. With it they are made anew from
/// the recorded logits: experts that are resident at that moment are preferred (closed loop with
/// the hidden states of the recorded run).
#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    trace: TraceArgs,

    /// Which resident expert makes room for another
    #[arg(long, value_name = "NAME", default_value = "lru", value_parser = policy)]
    policy: PolicyKind,

    /// Expert slots a layer; with --scope global, one arena has as many times the layers
    #[arg(long, value_name = "N")]
    slots: u32,

    /// Whether layers share their slots
    #[arg(long, value_enum, default_value = "layer")]
    scope: ScopeArg,

    /// Prefer resident experts: off, rel:LAMBDA (times the mean logit range) or abs:NATS
    #[arg(long, value_name = "BIAS", value_parser = bias)]
    moce: Option<Bias>,

    /// Best experts of a choice that no bias displaces
    #[arg(long, value_name = "J", default_value_t = 3)]
    protect: u8,

    /// Never choose an expert in place of one more than so many times as probable
    #[arg(long, value_name = "FACTOR")]
    max_regret: Option<f32>,

    /// Fill the caches from a warm profile (STRP) first; its coverage of the trace is reported
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,

    /// Serve so many tokens before counting
    #[arg(long, value_name = "TOKENS", default_value_t = 0, value_parser = whole)]
    skip: u64,

    /// Start every document with empty caches
    #[arg(long)]
    clear: bool,

    /// Keep an expert only on its second miss within so many
    #[arg(long, value_name = "MISSES", value_parser = whole)]
    second_miss: Option<u64>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Flags that name a trace.
#[derive(Debug, Clone, Args)]
pub(crate) struct TraceArgs {
    /// Routing trace
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: PathBuf,

    /// Bytes of one expert [default: as noted in the trace]
    #[arg(long, value_name = "BYTES", value_parser = whole)]
    pub(crate) expert_bytes: Option<u64>,
}

impl TraceArgs {
    pub(crate) fn open(&self) -> Result<Input> {
        Input::open(&self.trace, self.expert_bytes)
    }
}

/// How slots are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScopeArg {
    /// A cache for each layer.
    Layer,
    /// One cache for all.
    Global,
}

impl ScopeArg {
    pub(crate) const fn scope(self) -> Scope {
        match self {
            Self::Layer => Scope::PerLayer,
            Self::Global => Scope::Global,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Layer => "layer",
            Self::Global => "global",
        }
    }
}

/// Runs the simulation and prints its report.
pub(crate) fn run(args: &ReplayArgs) -> Result<()> {
    let input = args.trace.open()?;
    input.check_slots(args.slots)?;
    ensure!(
        args.skip < input.n_tokens(),
        "the trace has only {} tokens",
        input.n_tokens()
    );
    let mut config = input.config(args.policy, args.scope.scope(), args.slots);
    config.skip_tokens = args.skip;
    config.clear_at_documents = args.clear;
    config.second_miss_window = args.second_miss;
    let (warm, coverage) = warm(args, &input, config.capacity)?;
    config.warm = &warm;

    let mut out = report::object(json!({
        "trace": args.trace.trace.display().to_string(),
        "model_fingerprint": input.fingerprint(),
        "n_layer": input.space.n_layer(),
        "n_expert": input.space.n_expert(),
        "k": input.k,
        "policy": args.policy.name(),
        "scope": args.scope.name(),
        "slots": args.slots,
        "bias": args.moce.unwrap_or_default().to_string(),
        "protect_top_j": args.protect,
        "max_regret": args.max_regret,
        "rank_conflicts": input.trace().rank_conflicts(),
        "profile_coverage": coverage,
    }));
    match args.moce {
        None | Some(Bias::Off) => {
            let report = sim::replay(&input.log(args.policy, input.n_tokens()), &config)?;
            out.extend(report::whole(&input, &report, None));
        }
        Some(bias) => {
            let mut moce = Moce::new(bias).with_protected(args.protect);
            moce.max_regret = args.max_regret;
            input.check_bias(&moce, false)?;
            let keep = KeepMap::all(input.space);
            let routed = sim::route(input.n_tokens(), &config, &moce, input.row(&keep))?;
            out.extend(report::whole(&input, &routed.cache, Some(&routed)));
        }
    }
    match args.json {
        true => print_line(&Value::Object(out).to_string())?,
        false => report::print(&out)?,
    }
    Ok(())
}

/// The keys of the profile, hottest first, and the share of the trace's picks that those in the
/// caches cover.
fn warm(args: &ReplayArgs, input: &Input, capacity: u32) -> Result<(Vec<Key>, Option<f64>)> {
    let Some(path) = &args.profile else {
        return Ok((Vec::new(), None));
    };
    let space = input.space;
    let profile = Profile::open(path)?;
    profile.expect_shape(space.n_layer().into(), space.n_expert().into())?;
    let usage = input.usage(input.n_tokens());
    let key = |pair: &ExpertKey| space.key(*pair);
    let keys: Vec<Key> = profile.ranking().iter().filter_map(key).collect();
    // What the simulator will take: as many as fit, of each layer if layers have their own slots.
    let n_caches = match args.scope {
        ScopeArg::Layer => usize::from(space.n_layer()),
        ScopeArg::Global => 1,
    };
    let mut room = vec![capacity; n_caches];
    let (mut covered, mut all) = (0, 0);
    for &key in &keys {
        let layer = space.expert(key).map_or(0, |e| usize::from(e.layer));
        let room = &mut room[layer.min(n_caches - 1)];
        if *room > 0 {
            *room -= 1;
            covered += usage.n_picks(key);
        }
    }
    for id in 0..space.n_keys() {
        all += usage.n_picks(Key::new(id));
    }
    let coverage = (all > 0).then(|| covered as f64 / all as f64);
    Ok((keys, coverage))
}

pub(crate) fn policy(text: &str) -> Result<PolicyKind, String> {
    text.parse::<PolicyKind>().map_err(|e| e.to_string())
}

fn bias(text: &str) -> Result<Bias, String> {
    text.parse::<Bias>().map_err(|e| e.to_string())
}

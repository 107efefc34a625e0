//! `plot`: pictures of a sweep, and of hit rates over slots.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use rayon::prelude::*;
use thalweg_cache::sim::{self, KeepMap, Scope};
use thalweg_cache::{Bias, Moce, PolicyKind, RangeAvg};
use thalweg_eval::HostConstants;
use thalweg_eval::latency::{DecodeLoad, DecodeModel, DecodeParts};
use thalweg_eval::plot::{Figure, Panel, Series};
use thalweg_examples_common::{check_outputs, note, print_line, read_text, whole, write_whole};

use crate::input::Input;
use crate::sweep::progress;

/// The floor that the original notes assume.
const DEFAULT_FLOOR_MS: f64 = 12.0;

/// What may be drawn.
const PICTURES: [&str; 4] = [
    "misses.svg",
    "misses_by_map.svg",
    "tokens_per_s.svg",
    "hit_rate.svg",
];

/// Draw a sweep as SVG.
///
/// misses.svg: misses against lambda with routing KL, by policy; misses_by_map.svg: the same for
/// lru, by keep-map; tokens_per_s.svg: predicted decode rate against lambda, by keep-map;
/// hit_rate.svg (with --trace): hit rate against slots, by policy, with Belady's bound. Each is
/// written whole or not at all; a killed run leaves at most `.NAME.partial`, which the next one takes
/// over.
#[derive(Debug, Args)]
pub(crate) struct PlotArgs {
    /// Lines written by sweep
    #[arg(long = "in", value_name = "FILE")]
    input: PathBuf,

    /// The trace that was swept, for hit_rate.svg
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Folder for the pictures
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Constants of a machine, as hwbench measures them
    #[arg(long, value_name = "FILE", conflicts_with = "gb_per_s")]
    host: Option<PathBuf>,

    /// Time of a token without misses [default: decode_floor_ms of the host file, else 12]
    #[arg(long, value_name = "MS")]
    floor_ms: Option<f64>,

    /// Bandwidth of reads
    #[arg(long, value_name = "GB/S", default_value_t = 6.8)]
    gb_per_s: f64,

    /// Reads under way together, to look up in the machine's constants
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    queue_depth: f64,

    /// Bytes of one expert in the prediction [default: as in the sweep]
    #[arg(long, value_name = "BYTES", value_parser = whole)]
    expert_bytes: Option<u64>,
}

/// One line of a sweep.
#[derive(Debug, serde::Deserialize)]
struct Line {
    map: String,
    policy: PolicyName,
    lambda: f64,
    slots: u32,
    misses_per_token: f64,
    bytes_per_token: Option<f64>,
    routing_kl: f64,
    protect_top_j: u8,
    scope: String,
}

/// The name of a policy that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
struct PolicyName(PolicyKind);

impl TryFrom<String> for PolicyName {
    type Error = thalweg_cache::Error;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        name.parse().map(Self)
    }
}

/// Draws everything that the input allows.
pub(crate) fn run(args: &PlotArgs) -> Result<()> {
    let lines = read(args)?;
    // Lambda is the axis, so one number of slots at a time: the first.
    let slots = lines[0].slots;
    let of_slots: Vec<&Line> = lines.iter().filter(|l| l.slots == slots).collect();
    let arena = match lines[0].scope.as_str() {
        "global" => "in one arena",
        _ => "of its own",
    };
    let settings = format!(
        "{slots} slots a layer {arena}, top {} protected",
        lines[0].protect_top_j
    );
    fs::create_dir_all(&args.out)
        .with_context(|| format!("cannot create {}", args.out.display()))?;
    check_paths(args)?;

    let by_policy = group(&of_slots, |l| {
        (l.map == "all").then(|| (l.policy.0.name().to_owned(), l.policy.0.is_offline()))
    });
    let mut figure = Figure::new("Misses and routing KL against lambda, by policy");
    figure.subtitle = format!("all experts, {settings}; belady_min: fewest misses for lru's picks");
    figure.panels = misses(&by_policy);
    save(args, "misses.svg", &figure)?;

    let by_map = group(&of_slots, |l| {
        (l.policy.0 == PolicyKind::Lru).then(|| (l.map.clone(), false))
    });
    let mut figure = Figure::new("Misses and routing KL against lambda, by keep-map");
    figure.subtitle = format!("lru, {settings}; routing KL is that of the bias alone");
    figure.panels = misses(&by_map);
    save(args, "misses_by_map.svg", &figure)?;

    save(args, "tokens_per_s.svg", &rates(args, &by_map, &settings)?)?;
    match &args.trace {
        Some(path) => {
            let input = Input::open(path, args.expert_bytes)?;
            save(
                args,
                "hit_rate.svg",
                &hit_rates(&input, lines[0].protect_top_j)?,
            )
        }
        None => {
            note("note: no hit_rate.svg without --trace");
            Ok(())
        }
    }
}

/// No picture may replace what it is drawn from.
fn check_paths(args: &PlotArgs) -> Result<()> {
    let pictures = PICTURES.map(|name| args.out.join(name));
    let outputs = pictures.each_ref().map(|path| ("--out", path.as_path()));
    // The last is drawn with a trace alone.
    let outputs = &outputs[..PICTURES.len() - usize::from(args.trace.is_none())];
    let inputs: Vec<(&str, &Path)> = [("--in", args.input.as_path())]
        .into_iter()
        .chain(args.trace.as_deref().map(|path| ("--trace", path)))
        .chain(args.host.as_deref().map(|path| ("--host", path)))
        .collect();
    check_outputs(outputs, &inputs)
}

fn read(args: &PlotArgs) -> Result<Vec<Line>> {
    let path = args.input.display();
    let text = read_text(&args.input)?;
    let lines: Vec<Line> = (1..)
        .zip(text.lines())
        .map(|(number, line)| {
            serde_json::from_str(line).with_context(|| format!("{path}, line {number}"))
        })
        .collect::<Result<_>>()?;
    ensure!(!lines.is_empty(), "the sweep {path} is empty");
    Ok(lines)
}

/// Lines of one name, whether they are a bound, in the order of their first line.
struct Group<'a> {
    name: String,
    is_bound: bool,
    lines: Vec<&'a Line>,
}

fn group<'a>(lines: &[&'a Line], name: impl Fn(&Line) -> Option<(String, bool)>) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for &line in lines {
        let Some((name, is_bound)) = name(line) else {
            continue;
        };
        match groups.iter_mut().find(|g| g.name == name) {
            Some(group) => group.lines.push(line),
            None => groups.push(Group {
                name,
                is_bound,
                lines: vec![line],
            }),
        }
    }
    groups
}

/// Two panels over lambda.
fn misses(groups: &[Group<'_>]) -> Vec<Panel> {
    let series = |value: fn(&Line) -> f64| {
        groups.iter().map(move |g| {
            let points = g.lines.iter().map(|l| (l.lambda, value(l))).collect();
            match g.is_bound {
                true => Series::bound(g.name.clone(), points),
                false => Series::new(g.name.clone(), points),
            }
        })
    };
    let x = "lambda (bias as a share of the mean logit range)";
    let mut top = Panel::new(x, "misses a token");
    top.series.extend(series(|l| l.misses_per_token));
    let mut bottom = Panel::new(x, "routing KL (nats a decision)");
    bottom.from_zero = true;
    // The bound has no routing of its own.
    bottom
        .series
        .extend(series(|l| l.routing_kl).filter(|s| !s.is_bound));
    vec![top, bottom]
}

/// Predicted decode rates.
fn rates(args: &PlotArgs, groups: &[Group<'_>], settings: &str) -> Result<Figure> {
    let (model, constants) = model(args)?;
    let mut panel = Panel::new(
        "lambda (bias as a share of the mean logit range)",
        "predicted decode rate (tokens a second)",
    );
    for group in groups {
        let rate = |line: &&&Line| -> Result<(f64, f64)> {
            let bytes = match args.expert_bytes {
                Some(bytes) => Some(line.misses_per_token * bytes as f64),
                None => line.bytes_per_token,
            };
            let mut load = DecodeLoad::uniform(line.misses_per_token, 1, args.queue_depth);
            load.bytes_per_token =
                bytes.context("the sweep does not tell expert sizes: name --expert-bytes")?;
            let rate = model.predict(&load)?.tokens_per_s();
            Ok((line.lambda, rate.unwrap_or(f64::NAN)))
        };
        let points = group.lines.iter().map(|line| rate(&line));
        let points = points.collect::<Result<Vec<_>>>()?;
        panel.series.push(Series::new(group.name.clone(), points));
    }
    let mut figure = Figure::new("Predicted decode rate against lambda, by keep-map");
    figure.subtitle = format!("lru, {settings}; {constants}");
    figure.panels.push(panel);
    Ok(figure)
}

/// The latency model, and its constants in words.
fn model(args: &PlotArgs) -> Result<(DecodeModel, String)> {
    let mut parts = DecodeParts::default();
    let size = args
        .expert_bytes
        .map_or_else(String::new, |bytes| format!(", {bytes} bytes an expert"));
    let Some(path) = &args.host else {
        let bandwidth = thalweg_eval::latency::BandwidthCurve::constant(args.gb_per_s)?;
        parts.gpu_ms = args.floor_ms.unwrap_or(DEFAULT_FLOOR_MS);
        let words = format!(
            "{} ms + reads at {} GB/s{size}",
            parts.gpu_ms, args.gb_per_s
        );
        return Ok((DecodeModel::new(parts, bandwidth)?, words));
    };
    let host = HostConstants::open(path)?;
    parts.gpu_ms = args
        .floor_ms
        .or(host.decode_floor_ms)
        .context("the host file has no decode_floor_ms: measure it with bench, name --floor-ms")?;
    let block = args.expert_bytes.unwrap_or(1 << 20);
    let name = path.file_name().unwrap_or(path.as_os_str()).display();
    let words = format!("{} ms + reads as in {name}{size}", parts.gpu_ms);
    Ok((DecodeModel::new(parts, host.drive_curve(block)?)?, words))
}

/// Hit rates over a grid of slots: every policy without bias, the bound, and lru with bias.
fn hit_rates(input: &Input, protect: u8) -> Result<Figure> {
    const LAMBDA: f32 = 0.09;
    let (k, n) = (u32::from(input.k), u32::from(input.space.n_expert()));
    let step = (n / 8).max(1);
    let mut grid: Vec<u32> = (1..8)
        .map(|i| i * step)
        .filter(|s| (k..=n).contains(s))
        .collect();
    if grid.first().is_none_or(|&least| least > k) {
        grid.insert(0, k);
    }
    let jobs: Vec<(Option<PolicyKind>, u32)> = PolicyKind::ALL
        .iter()
        // Its stamps tell layers apart, which a cache of one layer does not need.
        .filter(|&&p| p != PolicyKind::LeastStale)
        .map(|&p| Some(p))
        .chain([None].into_iter().filter(|_| input.has_logits()))
        .flat_map(|policy| grid.iter().map(move |&slots| (policy, slots)))
        .collect();
    let bar = progress(jobs.len());
    let rates = jobs.par_iter().map(|&(policy, slots)| {
        let config = |p| input.config(p, Scope::PerLayer, slots);
        let total = match policy {
            Some(policy) => {
                sim::replay(&input.log(policy, input.n_tokens()), &config(policy))?.total
            }
            None => {
                let avg = RangeAvg::Cumulative;
                let bias = Bias::Relative {
                    lambda: LAMBDA,
                    avg,
                };
                let moce = Moce::new(bias).with_protected(protect);
                input.check_bias(&moce, false)?;
                let keep = KeepMap::all(input.space);
                let row = input.row(&keep);
                let lru = config(PolicyKind::Lru);
                sim::route(input.n_tokens(), &lru, &moce, row)?.cache.total
            }
        };
        bar.inc(1);
        Ok(100.0 * total.hit_rate().unwrap_or(0.0))
    });
    let rates: Vec<f64> = rates.collect::<Result<_>>()?;
    bar.finish_and_clear();

    let mut lines: BTreeMap<usize, Series> = BTreeMap::new();
    for ((policy, slots), rate) in jobs.iter().zip(rates) {
        let order = PolicyKind::ALL.iter().position(|p| Some(*p) == *policy);
        let series = lines
            .entry(order.unwrap_or(usize::MAX))
            .or_insert_with(|| match policy {
                Some(p) if p.is_offline() => Series::bound(p.name(), Vec::new()),
                Some(p) => Series::new(p.name(), Vec::new()),
                None => Series::new(format!("lru, rel:{LAMBDA}"), Vec::new()),
            });
        series.points.push((f64::from(*slots), rate));
    }
    let x = format!("slots a layer (of {n} experts, {k} a token)");
    let mut top = Panel::new(x.clone(), "hit rate (% of picks)");
    top.series.extend(lines.into_values());
    // Most policies lie close together, so show what they gain.
    let mut bottom = Panel::new(x, "gain over lru (percentage points)");
    let lru = top
        .series
        .iter()
        .find(|s| s.name == PolicyKind::Lru.name())
        .cloned();
    let lru = lru.unwrap_or_default().points;
    let online = |s: &&Series| !s.is_bound && PolicyKind::from_name(&s.name).is_some();
    bottom
        .series
        .extend(top.series.iter().filter(online).map(|s| {
            let gain = |(p, base): (&(f64, f64), &(f64, f64))| (p.0, p.1 - base.1);
            Series::new(
                s.name.clone(),
                s.points.iter().zip(&lru).map(gain).collect(),
            )
        }));
    let mut figure = Figure::new("Hit rate against slots, by policy");
    figure.subtitle = format!(
        "{} tokens, caches kept across documents; belady_min: no policy can do better without bias",
        input.n_tokens()
    );
    figure.panels = vec![top, bottom];
    Ok(figure)
}

fn save(args: &PlotArgs, name: &str, figure: &Figure) -> Result<()> {
    let path = args.out.join(name);
    write_whole(&path, &figure.to_svg()?)?;
    print_line(&path.display().to_string())?;
    Ok(())
}

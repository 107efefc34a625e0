//! Brings a quantized model nearer to the one it was made of. Owns: flags, reading of texts, the bars,
//! the table. Does not own: recording, fitting and copying (`thalweg-compress`).

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde_json::{Value, json};
use thalweg::{SpecialTokens, Text};
use thalweg_compress::heal::ridge::Step;
use thalweg_compress::heal::{Capture, Healed, HealedLayer, Healing, heal};
use thalweg_compress::{hex, verify};
use thalweg_examples_common::{
    ByteBar, CountBar, Interrupt, ModelArgs, check_outputs, check_space, count, parse, print_line,
    read_text, report,
};
use thalweg_gguf::Gguf;

/// Bring a quantized model nearer to the one it was made of.
///
/// The original runs over texts and its experts' inputs, choices and outputs are recorded, in a
/// temporary file beside OUT. The quantized experts then run on the same inputs. One factor a layer
/// brings their output nearest to what it was; it goes into the scales of their down projections. A small
/// change of the shared expert's down projection takes on some of the rest. No layer's error on these
/// texts rises; judge the result by `eval` on others.
///
/// All other tensors are copied. OUT is replaced when the new file is complete, and never before.
#[derive(Debug, Parser)]
#[command(
    version,
    mut_arg("model", |arg| arg.required(true).help("The model before quantization")),
    after_help = "\
Examples:
  heal small.gguf healed.gguf --model big.gguf --text *.calibration.txt
  heal small.gguf healed.gguf --model big.gguf --text a.txt --eta 0.15 --ridge 6
                                        one step for all layers instead of the best of several
  heal small.gguf healed.gguf --model big.gguf --text a.txt --no-ridge
                                        factors alone"
)]
struct Args {
    /// The quantized model
    #[arg(value_name = "IN")]
    file: PathBuf,

    /// The new file, never split
    out: PathBuf,

    #[command(flatten)]
    model: ModelArgs,

    /// Texts to record
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    text: Vec<PathBuf>,

    /// Tokens of a window: each is a sequence of its own, and what is left out to compare steps
    #[arg(long, value_name = "TOKENS", default_value_t = 256, value_parser = count)]
    window: usize,

    /// Most tokens of each text [default: all]
    #[arg(long, value_name = "TOKENS", value_parser = count)]
    max_tokens: Option<usize>,

    /// How far factors are drawn back to 1, from 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    gamma: f64,

    /// Leave the experts as they are
    #[arg(long, conflicts_with = "gamma")]
    no_alpha: bool,

    /// Shares of the change of the shared expert, from 0 to 1; of all pairs with --ridge each layer
    /// takes the best
    #[arg(long, value_name = "SHARE", num_args = 1.., default_values_t = [0.15, 0.3, 0.6])]
    eta: Vec<f64>,

    /// Ridges that hold the change back, above 0
    #[arg(long, value_name = "RIDGE", num_args = 1.., default_values_t = [0.5, 2.0, 6.0])]
    ridge: Vec<f64>,

    /// Leave the shared experts as they are
    #[arg(long, conflicts_with_all = ["eta", "ridge"])]
    no_ridge: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    report(run(&parse()).map(|()| true))
}

fn run(args: &Args) -> Result<()> {
    let is_share = |v: &f64| (0.0..=1.0).contains(v);
    ensure!(is_share(&args.gamma), "--gamma must be from 0 to 1");
    ensure!(args.eta.iter().all(is_share), "--eta must be from 0 to 1");
    let is_ridge = |v: &f64| *v > 0.0 && v.is_finite();
    ensure!(args.ridge.iter().all(is_ridge), "--ridge must be above 0");
    ensure!(
        args.window > 0,
        "--window is 0; a window has at least 1 token"
    );
    ensure!(
        !args.no_alpha || !args.no_ridge,
        "--no-alpha and --no-ridge leave nothing to do"
    );
    let original = args.model.file()?;
    let file = Gguf::open(&args.file).context("cannot open the quantized model")?;
    let mut inputs = Vec::new();
    for file in [&original, &file] {
        let shards = (0..file.n_shards()).filter_map(|shard| file.path(shard));
        inputs.extend(shards.map(|path| ("a model", path)));
    }
    inputs.extend(args.text.iter().map(|path| ("--text", path.as_path())));
    check_outputs(&[("OUT", &args.out)], &inputs)?;
    check_space(&args.out, file.tensors().iter().map(|t| t.size_bytes).sum())?;

    let interrupt = Interrupt::listen()?;
    let start = Instant::now();
    let mut capture = record(args, original, &interrupt)?;
    let recorded = start.elapsed().as_secs_f64();
    let pairs = args
        .ridge
        .iter()
        .flat_map(|ridge| args.eta.iter().map(move |eta| (*eta, *ridge)));
    let healing = Healing {
        gamma: (!args.no_alpha).then_some(args.gamma),
        steps: match args.no_ridge {
            true => Vec::new(),
            false => pairs
                .map(|(eta, ridge_rel)| Step { eta, ridge_rel })
                .collect(),
        },
    };
    let backend = args.model.backend()?;
    let layers = CountBar::new("fitting", "layers");
    let bar = ByteBar::new("writing");
    let made = heal(
        &file,
        &mut capture,
        &healing,
        &backend,
        &args.out,
        &mut |done, total| {
            layers.update(done, total);
            interrupt.flow()
        },
        &mut |done, total| {
            bar.update(done, total);
            interrupt.flow()
        },
    );
    bar.finish();
    let made = made?;
    verify(&args.out, &made.written, &mut |_, _| interrupt.flow())?;
    tell(
        args,
        &capture,
        &made,
        [recorded, start.elapsed().as_secs_f64()],
    )
}

/// Runs the texts through the original.
fn record(args: &Args, original: Gguf, interrupt: &Interrupt) -> Result<Capture> {
    let text = Text::from_file(&original).context("the model has no usable vocabulary")?;
    let mut texts = Vec::new();
    for path in &args.text {
        let mut tokens = text
            .tokenizer()
            .encode(&read_text(path)?, SpecialTokens::Parse);
        tokens.truncate(args.max_tokens.unwrap_or(usize::MAX));
        texts.push(tokens);
    }
    let total: usize = texts.iter().map(Vec::len).sum();
    ensure!(total > 0, "the texts have no tokens");
    let mut engine = args.model.engine(original, args.window)?;
    let folder = args
        .out
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| Path::new("."));
    let mut capture = Capture::new(folder, engine.spec(), total)?;
    let mut session = engine.session()?;
    let bar = CountBar::tokens("recording");
    for window in texts.iter().flat_map(|tokens| tokens.chunks(args.window)) {
        ensure!(
            interrupt.flow() == ControlFlow::Continue(()),
            "stopped; nothing was left behind"
        );
        engine.reset(&mut session)?;
        capture.begin_window(window.len())?;
        engine.prefill(&mut session, window, &mut capture)?;
        bar.update(capture.n_tokens(), total);
    }
    bar.finish();
    Ok(capture)
}

fn tell(args: &Args, capture: &Capture, made: &Healed, seconds: [f64; 2]) -> Result<()> {
    let sum = |of: fn(&HealedLayer) -> f64| made.layers.iter().map(of).sum::<f64>();
    let [energy, error] = [sum(|l| l.energy), sum(|l| l.error)];
    let [alpha, ridge] = [sum(|l| l.error_alpha), sum(|l| l.error_ridge)];
    let changed = made.written.tensors.iter().filter(|t| t.is_changed).count();
    let copied = made.written.tensors.len() - changed;
    if args.json {
        let layers = made.layers.iter().map(layer_json);
        let tensors =
            made.written.tensors.iter().map(
                |t| json!({"name": t.name, "changed": t.is_changed, "sha256": hex(&t.sha256)}),
            );
        let value = json!({
            "model": args.file.to_string_lossy(),
            "file": args.out.to_string_lossy(),
            "tokens": capture.n_tokens(),
            "windows": capture.windows().len(),
            "energy": energy,
            "error": error,
            "error_alpha": alpha,
            "error_ridge": ridge,
            "changed": changed,
            "copied": copied,
            "recording_seconds": seconds[0],
            "seconds": seconds[1],
            "layers": layers.collect::<Vec<_>>(),
            "tensors": tensors.collect::<Vec<_>>(),
        });
        return print_line(&value.to_string());
    }
    print_line("errors of routed outputs, in % of their energy, on the texts that were recorded")?;
    print_line("layer   before    alpha  with it    step (eta, ridge)  with it  left out  rank")?;
    for (i, l) in made.layers.iter().enumerate() {
        let percent = |error: f64| 100.0 * error / l.energy.max(f64::MIN_POSITIVE);
        let step = l.step.map_or_else(
            || "none".to_owned(),
            |s| format!("{}, {}", s.eta, s.ridge_rel),
        );
        let left = l
            .left_out
            .map_or_else(|| "n/a".to_owned(), |s| format!("{:.2} %", 100.0 * s));
        print_line(&format!(
            "{i:5} {:8.3} {:8.4} {:8.3} {step:>20} {:8.3} {left:>9} {:5}",
            percent(l.error),
            l.alpha,
            percent(l.error_alpha),
            percent(l.error_ridge),
            l.rank
        ))?;
    }
    let drop = |a: f64, b: f64| 100.0 * (b / a.max(f64::MIN_POSITIVE) - 1.0);
    print_line(&format!(
        "all layers: {:+.2} % by factors, {:+.2} % by steps, {:+.2} % together, over {} tokens",
        drop(error, alpha),
        drop(alpha, ridge),
        drop(error, ridge),
        capture.n_tokens()
    ))?;
    print_line(&format!(
        "{changed} tensors changed, {copied} are as they were, all read again: {} in {:.1} s",
        args.out.display(),
        seconds[1]
    ))
}

fn layer_json(layer: &HealedLayer) -> Value {
    json!({
        "energy": layer.energy,
        "error": layer.error,
        "alpha": layer.alpha,
        "error_alpha": layer.error_alpha,
        "rank": layer.rank,
        "eta": layer.step.map(|s| s.eta),
        "ridge_rel": layer.step.map(|s| s.ridge_rel),
        "left_out": layer.left_out,
        "error_ridge": layer.error_ridge,
    })
}

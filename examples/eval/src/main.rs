//! Judges a model by another one on texts. Owns: flags and the order of work. Does not own: figures
//! (`thalweg-eval`), the budget's division (`models`), what is read (`texts`) and written (`output`).

mod models;
mod output;
mod texts;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use clap::Parser;
use thalweg::{Activations, Bias, Gguf, Text};
use thalweg_eval::base_logits::BaseReader;
use thalweg_eval::overlap::OverlapReport;
use thalweg_eval::report::{ModelFacts, Report, TextFacts};
use thalweg_eval::side_by_side::{SideBySide, against_base};
use thalweg_eval::statistics::Bootstrap;
use thalweg_eval::{Cut, WindowSet};
use thalweg_examples_common::{
    CountBar, ModelArgs, check_outputs, count, note, parse, print_line, read_text, report, whole,
};

use crate::models::Pair;
use crate::output::LogitsFile;
use crate::texts::{Markers, Source};

/// Compare a model's predictions with those of the model it was made of.
///
/// Both run side by side over the same windows of text, in one pass and within one --budget; no
/// logits are stored. Reported are the mean divergence KL(reference || test) over the whole
/// vocabulary (KLD, nats a token), perplexity of both, and how often both have the same likeliest
/// token: by domain, pooled over tokens, and macro (the mean of domains), with 95 % intervals over
/// windows. A model compared with itself gives exactly 0.
///
/// Flags that change results (--activations, --moce, --protect) and files that belong to one model
/// (--sidecar, --profile) are the test model's; the reference is exact unless --ref-activations says
/// otherwise. With --moce the test takes scored tokens in one by one, as it would generate them.
#[derive(Debug, Parser)]
#[command(
    version,
    mut_arg("model", |arg| arg.long("test").required(true).help("The model to judge")),
    after_help = "Examples:
  eval --ref big.gguf --test small.gguf --text en.txt ja.txt
  eval --ref big.gguf --test small.gguf --text *.heldout.txt --calibration *.calibration.txt
  eval --ref m.gguf --test m.gguf --moce abs:0.85 --text en.txt     what routing bias costs
  eval --ref m.gguf --test m.gguf --activations q8 --text en.txt    what eight bits cost
  eval --ref big.gguf --test b.gguf --text en.txt --report b --against a/report.json
  eval --ref-logits base.kld --test small.gguf                      a reference run by llama.cpp"
)]
struct Args {
    /// The model whose predictions count as right
    #[arg(
        long = "ref",
        value_name = "FILE",
        required_unless_present = "ref_logits"
    )]
    reference: Option<PathBuf>,

    /// Instead of a reference model: its log-probabilities and texts in a file of llama.cpp's
    /// perplexity (--kl-divergence-base), or of --write-logits. Rounded to 16 bits: good for
    /// divergences of 1e-2 and more
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["reference", "text", "spans", "markers", "window", "context", "max_windows",
            "ref_activations", "write_logits"]
    )]
    ref_logits: Option<PathBuf>,

    /// Write the reference's log-probabilities of all whole windows as such a file, one row a scored
    /// token: two bytes a token of the vocabulary
    #[arg(long, value_name = "FILE", conflicts_with = "context")]
    write_logits: Option<PathBuf>,

    #[command(flatten)]
    test: ModelArgs,

    /// Precision of the reference's matrix products: f32 or q8
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = activations)]
    ref_activations: Activations,

    /// Texts; the domain is a file's name up to the first dot [default: two short texts of this
    /// program, enough to see that it works]
    #[arg(long, value_name = "FILE", num_args = 1..)]
    text: Vec<PathBuf>,

    /// Windows with spans of their own, one JSON object a line: context and continuation as texts, or
    /// tokens and scored; the continuation is scored
    #[arg(
        long,
        value_name = "FILE",
        num_args = 1..,
        conflicts_with_all = ["text", "window", "context", "max_windows", "write_logits"]
    )]
    spans: Vec<PathBuf>,

    /// Whether markers in texts, such as <|im_start|>, are parsed or taken as text
    #[arg(long, value_name = "HOW", default_value = "parse")]
    markers: Markers,

    /// Tokens of a window: each is a sequence of its own
    #[arg(long, value_name = "TOKENS", default_value_t = 512, value_parser = count)]
    window: usize,

    /// Tokens at the beginning of a window that are not scored, at least 1 [default: half of the
    /// window and one, as llama.cpp's perplexity]
    #[arg(long, value_name = "TOKENS", value_parser = count)]
    context: Option<usize>,

    /// Most windows of each text [default: all]
    #[arg(long, value_name = "N", value_parser = count)]
    max_windows: Option<usize>,

    /// Texts that the test model was adjusted to: refuse evaluation texts that share n-grams
    #[arg(long, value_name = "FILE", num_args = 1..)]
    calibration: Vec<PathBuf>,

    /// Tokens of such an n-gram
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = count)]
    ngram: usize,

    /// Evaluate on overlapping texts all the same
    #[arg(long)]
    force: bool,

    /// How often windows are drawn again for the intervals
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    resamples: u32,

    /// Seed of the draws
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole)]
    seed: u64,

    /// Earlier reports (JSON) of other test models on the same windows to compare with: change,
    /// interval and z test, window by window
    #[arg(long, value_name = "FILE", num_args = 1..)]
    against: Vec<PathBuf>,

    /// Write report.json, report.md, figures.csv, windows.csv, windows.svg and quality.svg here
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,

    /// Print the report as one JSON object
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    report(run(&parse()).map(|()| true))
}

fn run(args: &Args) -> Result<()> {
    let bootstrap = Bootstrap {
        n_resamples: args.resamples,
        seed: args.seed,
        ..Bootstrap::default()
    };
    let earlier = earlier_reports(&args.against)?;
    let (mut found, notes) = match &args.ref_logits {
        Some(path) => with_logits(args, path, &bootstrap)?,
        None => with_model(args, &bootstrap)?,
    };
    found.notes.extend(notes);
    if args.test.moce != Bias::Off {
        found.notes.push(
            "the test model routes toward resident experts: its figures depend on its slots and on \
             the order of windows"
                .to_owned(),
        );
    }
    if let Some(overlap) = found.overlap.as_ref().filter(|o| o.n_scored() > 0) {
        found.notes.push(format!(
            "{} {}-grams that end in a scored token are also in the calibration texts",
            overlap.n_scored(),
            overlap.n
        ));
    }
    for earlier in &earlier {
        found.changes.push(found.change_from(earlier, &bootstrap)?);
    }
    if let Some(folder) = &args.report {
        output::write(folder, &found, &earlier)?;
    }
    match args.json {
        true => print_line(&found.to_json()?),
        false => print_line(found.to_markdown().trim_end()),
    }
}

/// Two models side by side. Everything that can be refused is, before either runs.
fn with_model(args: &Args, bootstrap: &Bootstrap) -> Result<(Report, Vec<String>)> {
    let cut = Cut {
        n_window: args.window,
        n_context: args.context.unwrap_or(args.window / 2 + 1),
        max_windows: args.max_windows,
    };
    let reference = args.reference.as_ref().context("--ref names no model")?;
    let files = models::open([reference, test_path(args)?])?;
    check_paths(args, &[("--ref", &files[0]), ("--test", &files[1])])?;
    let text = Text::from_file(&files[0])?;
    let source = Source::new(&text, args.markers);
    let mut set = WindowSet::new();
    let text_facts = match args.spans.is_empty() {
        true => source.windows(&args.text, cut, &mut set)?,
        false => source.spans(&args.spans, &mut set)?,
    };
    let overlap = overlap(args, &source, &set)?;
    let notes = source.notes().into_iter().collect();
    // The budget is the models'.
    drop(text);

    let pair = Pair::new(args, reference, &files, set.n_ctx())?;
    note(&pair.division());
    let facts = models::facts(&files, &pair)?;
    let [reference, test] = files;
    let mut reference = pair.reference.engine(reference, set.n_ctx())?;
    let mut test = pair.test.engine(test, set.n_ctx())?;
    let mut logits = match &args.write_logits {
        Some(path) => Some(LogitsFile::create(
            path,
            &set,
            cut,
            reference.spec().n_vocab,
        )?),
        None => None,
    };
    let start = Instant::now();
    let bar = CountBar::tokens("comparing");
    let mut side_by_side = SideBySide::new(&mut reference, &mut test, pair.logits_bytes)?;
    let sums = side_by_side.run_with(
        &set,
        &mut |now| {
            bar.update(now.n_done, now.n_total);
            ControlFlow::Continue(())
        },
        &mut |row| logits.as_mut().map_or(Ok(()), |file| file.push(row)),
    );
    bar.finish();
    let cut = args.spans.is_empty().then_some(cut);
    let mut found = Report::new(facts, &set, cut, sums?, bootstrap)?;
    found.seconds = start.elapsed().as_secs_f64();
    if let Some(file) = logits {
        file.finish()?;
    }
    found.texts = text_facts;
    found.overlap = overlap;
    Ok((found, notes))
}

/// A model against a file of log-probabilities, which has the texts as well.
fn with_logits(args: &Args, path: &Path, bootstrap: &Bootstrap) -> Result<(Report, Vec<String>)> {
    let mut base = BaseReader::open(path)?;
    let file = Gguf::open(test_path(args)?).context("cannot open the test model")?;
    check_paths(args, &[("--test", &file)])?;
    let domain = texts::domain(path);
    let set = base.header().windows(&domain)?;
    let cut = Cut {
        n_window: base.header().n_ctx(),
        n_context: base.header().rows().start + 1,
        max_windows: None,
    };
    let n_tokens = base.header().tokens().len();
    let overlap = match args.calibration.is_empty() {
        true => None,
        false => {
            let text = Text::from_file(&file)?;
            overlap(args, &Source::new(&text, args.markers), &set)?
        }
    };
    let facts = models::facts_of(&file, &args.test)?;
    let mut test = args.test.engine(file, set.n_ctx())?;
    let start = Instant::now();
    let bar = CountBar::tokens("comparing");
    let sums = against_base(&mut base, &mut test, &set, &mut |now| {
        bar.update(now.n_done, now.n_total);
        ControlFlow::Continue(())
    });
    bar.finish();
    let reference = ModelFacts {
        file: path.to_string_lossy().into_owned(),
        sha256: models::hash(path)?,
        ..ModelFacts::default()
    };
    let mut found = Report::new([reference, facts], &set, Some(cut), sums?, bootstrap)?;
    found.seconds = start.elapsed().as_secs_f64();
    found.texts.push(TextFacts {
        file: path.to_string_lossy().into_owned(),
        domain,
        n_tokens,
    });
    found.overlap = overlap;
    let rounded =
        "the reference is rounded to 16 bits and cut off 16 nats below its likeliest token";
    Ok((found, vec![rounded.to_owned()]))
}

/// What the windows share with calibration texts, if any are named.
fn overlap(args: &Args, source: &Source<'_>, set: &WindowSet) -> Result<Option<OverlapReport>> {
    if args.calibration.is_empty() {
        return Ok(None);
    }
    let overlap = source.overlap(&args.calibration, set, args.ngram)?;
    if !args.force {
        overlap
            .require_disjoint()
            .map_err(|e| anyhow!("{e}; evaluate on other texts, or with --force"))?;
    }
    Ok(Some(overlap))
}

/// The path of the test model, which the command line requires.
fn test_path(args: &Args) -> Result<&PathBuf> {
    args.test.model.as_ref().context("--test names no model")
}

fn earlier_reports(paths: &[PathBuf]) -> Result<Vec<Report>> {
    let read = |path: &PathBuf| {
        let text = read_text(path)?;
        Report::from_json(&text).with_context(|| format!("cannot use {}", path.display()))
    };
    paths.iter().map(read).collect()
}

/// What is written must not replace what it is made from.
fn check_paths(args: &Args, models: &[(&'static str, &Gguf)]) -> Result<()> {
    let mut outputs: Vec<(&str, PathBuf)> = Vec::new();
    if let Some(folder) = &args.report {
        if !folder.exists() {
            std::fs::create_dir(folder)
                .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        }
        outputs.extend(Report::FILES.map(|name| ("--report", folder.join(name))));
    }
    if let Some(path) = &args.write_logits {
        outputs.push(("--write-logits", path.clone()));
    }
    let mut inputs: Vec<(&str, &Path)> = Vec::new();
    for (flag, file) in models {
        inputs.extend((0..file.n_shards()).filter_map(|shard| Some((*flag, file.path(shard)?))));
    }
    for (flag, paths) in [
        ("--text", &args.text),
        ("--spans", &args.spans),
        ("--calibration", &args.calibration),
        ("--against", &args.against),
    ] {
        inputs.extend(paths.iter().map(|path| (flag, path.as_path())));
    }
    for (flag, path) in [
        ("--ref-logits", &args.ref_logits),
        ("--sidecar", &args.test.sidecar),
        ("--profile", &args.test.profile),
    ] {
        inputs.extend(path.as_deref().map(|path| (flag, path)));
    }
    let outputs: Vec<_> = outputs.iter().map(|(f, p)| (*f, p.as_path())).collect();
    check_outputs(&outputs, &inputs)
}

fn activations(text: &str) -> Result<Activations, String> {
    text.parse::<Activations>().map_err(|e| e.to_string())
}

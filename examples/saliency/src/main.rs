//! Measures which experts of a model matter, and chooses those that stay. Owns: flags, reading of
//! texts, tables. Does not own: sums, scores and choices (`thalweg-compress`).

mod collect;
mod keep;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use thalweg_compress::Score;
use thalweg_examples_common::{ModelArgs, count, parse, report};

/// Measure which experts of a model matter, and choose those that stay.
///
/// `collect` runs texts through a model and adds up, for each expert, how often it is chosen, with
/// which gate, and how large its outputs are. `keep` ranks experts by such sums and writes a keep-map
/// for `prune`. `diff` says how alike two measurements are.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "\
Examples:
  saliency collect --model m.gguf --text *.calibration.txt --out cal.json --moments moments.json
  saliency collect --model m.gguf --text *.heldout.txt --out held.json
  saliency keep cal.json --k 48 --heldout held.json           compare all scores, write nothing
  saliency keep cal.json --k 48 --score reap_l2_sum --out keep.json
  saliency diff cal.json held.json --k 48                     do both choose the same experts?"
)]
struct Command {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Run texts through a model and add up what its experts do
    Collect(Box<Collect>),
    /// Choose the experts that stay
    Keep(Keep),
    /// Compare two measurements of one model's shape
    Diff(Diff),
}

#[derive(Debug, Args)]
struct Collect {
    #[command(flatten)]
    model: ModelArgs,

    /// Texts; the domain is a file's name up to the first dot
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    text: Vec<PathBuf>,

    /// Tokens of a window: each is a sequence of its own
    #[arg(long, value_name = "TOKENS", default_value_t = 512, value_parser = count)]
    window: usize,

    /// Most tokens of each text [default: all]
    #[arg(long, value_name = "TOKENS", value_parser = count)]
    max_tokens: Option<usize>,

    /// The sums (JSON)
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// Second moments of the experts' input (JSON), for `quantize --importance`
    #[arg(long, value_name = "FILE")]
    moments: Option<PathBuf>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Keep {
    /// Sums that `collect` wrote
    saliency: PathBuf,

    /// Experts of each layer that stay
    #[arg(long, value_name = "N", value_parser = count)]
    k: usize,

    /// By what experts are ranked: reap, reap_l2_sum, reap_shrink, reap_hybrid, frequency, ean_sum,
    /// ean_mean or gate_mass [default: without --out all are compared]
    #[arg(long, value_name = "NAME", value_parser = score)]
    score: Option<Score>,

    /// Tokens of value 0 that reap_shrink and reap_hybrid add to each expert
    #[arg(long, value_name = "TOKENS", default_value_t = 16.0)]
    kappa: f64,

    /// Standard errors that they stay below the mean
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    z: f64,

    /// Power of the sum's share in reap_hybrid, 0 to 1
    #[arg(long, value_name = "POWER", default_value_t = 0.5)]
    alpha: f64,

    /// Sums of other texts, to see what a choice retains there
    #[arg(long, value_name = "FILE")]
    heldout: Option<PathBuf>,

    /// The keep-map (JSON)
    #[arg(long, value_name = "FILE", requires = "score")]
    out: Option<PathBuf>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Diff {
    /// Sums that `collect` wrote
    a: PathBuf,

    /// Others
    b: PathBuf,

    /// Experts of each layer whose choices are compared [default: half of them]
    #[arg(long, value_name = "N", value_parser = count)]
    k: Option<usize>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let command: Command = parse();
    report(run(&command.part).map(|()| true))
}

fn run(part: &Part) -> Result<()> {
    match part {
        Part::Collect(args) => collect::run(args),
        Part::Keep(args) => keep::run(args),
        Part::Diff(args) => keep::diff(args),
    }
}

fn score(text: &str) -> Result<Score, String> {
    Score::from_name(text).ok_or_else(|| {
        let names = Score::ALL.map(Score::name);
        format!("no score has this name; there are {}", names.join(", "))
    })
}

/// A file's name up to its first dot.
fn domain(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').next().unwrap_or_default().to_owned()
}

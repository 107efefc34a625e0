//! The command line.

use std::path::PathBuf;

use clap::Parser;
use thalweg_examples_common::{count, whole};
use thalweg_runtime::{ReaderKind, parse_bytes};

/// Show how a budget would be divided, and what to expect of it, before anything is loaded.
///
/// From the model's header alone: the split of the budget, the smallest budget that works, what one
/// token uses, the slots of each layer. With the constants of a host (from hwbench) also the time to
/// fill the slots and tokens a second. With --measure this drive reads experts as a token would.
///
/// Exit code 1 if the model cannot run within the budget; the figures are printed all the same.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "\
Examples:
  plan model.gguf --budget 8GiB
  plan model.gguf --budget 8GiB --host host.json --hit-rate 0.7
  plan model.gguf --budget 8GiB --host host.json --profile model.strp
  plan model.gguf --sidecar model.experts --measure
  plan model.gguf --budget 8GiB --json | jq .floor_bytes"
)]
pub(crate) struct Args {
    /// The model file, or any file of a split model; complete, though only headers are used
    pub(crate) file: PathBuf,

    /// Memory for everything together (24MiB, 3.4GB, 8GiB, or bytes)
    /// [default: 3/4 of the available memory]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) budget: Option<u64>,

    /// Tokens of the longest sequence
    #[arg(long, value_name = "TOKENS", default_value_t = 4096, value_parser = count)]
    pub(crate) ctx: usize,

    /// Prompt tokens taken in at once [default: chosen by the budget]
    #[arg(long, value_name = "TOKENS", value_parser = count)]
    pub(crate) chunk: Option<usize>,

    /// Compute threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) threads: Option<usize>,

    /// How experts are read: pread, pool or uring
    #[arg(long, value_name = "NAME", default_value = "pool", value_parser = reader)]
    pub(crate) reader: ReaderKind,

    /// Experts are read from this sidecar of the model
    #[arg(long, value_name = "FILE")]
    pub(crate) sidecar: Option<PathBuf>,

    /// Constants of a host, for the forecast: the JSON of hwbench, with `decode_floor_ms` and
    /// `prefill_ceiling_tokens_per_s` as far as they are known
    #[arg(long, value_name = "FILE")]
    pub(crate) host: Option<PathBuf>,

    /// Share of a token's experts that are resident, for the forecast; needs --host
    #[arg(long, value_name = "SHARE", value_parser = share, requires = "host")]
    pub(crate) hit_rate: Option<f64>,

    /// A profile, from which the forecast takes the share that its hottest experts cover; needs
    /// --host
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "hit_rate",
        requires = "host"
    )]
    pub(crate) profile: Option<PathBuf>,

    /// Tokens of the prompt in the forecast; needs --host
    #[arg(long, value_name = "TOKENS", default_value_t = 1024, requires = "host", value_parser = whole)]
    pub(crate) prompt: u64,

    /// Read experts for a few seconds: from the model file and from the sidecar if there is one,
    /// with every reader that works here
    #[arg(long)]
    pub(crate) measure: bool,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

fn size(text: &str) -> Result<u64, String> {
    parse_bytes(text).map_err(|e| e.to_string())
}

fn reader(text: &str) -> Result<ReaderKind, String> {
    text.parse::<ReaderKind>().map_err(|e| e.to_string())
}

fn share(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    match (0.0..=1.0).contains(&value) {
        true => Ok(value),
        false => Err("a share is within 0 to 1".to_owned()),
    }
}

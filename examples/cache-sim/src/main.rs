//! Records what a model asks of its experts, and finds out what a cache would make of it.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use thalweg_examples_common::{parse, report};

mod choose;
mod input;
mod plot;
mod record;
mod replay;
mod report;
mod sweep;
mod synth;

/// Record routing traces, replay them against cache policies, and choose a configuration.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  cache-sim record --text en.txt ja.txt --out t.motr
  cache-sim replay --trace t.motr --policy lru --slots 24 --moce rel:0.09 --json
  cache-sim sweep --trace t.motr --out s.jsonl
  cache-sim plot --in s.jsonl --trace t.motr --out plots
  cache-sim choose --trace t.motr --host h.json --bar 20")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Record(record::RecordArgs),
    Replay(replay::ReplayArgs),
    Sweep(sweep::SweepArgs),
    Plot(plot::PlotArgs),
    Choose(choose::ChooseArgs),
    Synth(synth::SynthArgs),
}

fn main() -> ExitCode {
    let result = match parse::<Args>().command {
        Command::Record(args) => record::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Sweep(args) => sweep::run(&args),
        Command::Plot(args) => plot::run(&args),
        Command::Choose(args) => choose::run(&args),
        Command::Synth(args) => synth::run(&args),
    };
    report(result.map(|()| true))
}

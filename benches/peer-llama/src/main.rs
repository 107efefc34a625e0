//! Thalweg and llama.cpp on the same model file: under one memory limit, with everything in memory.

mod child;
mod counters;
mod divergence;
mod golden;
mod group;
mod llama;
mod model_file;
mod ours;
mod progress;
mod quality;
mod report;
mod speed;
mod speed_report;
mod stream;
mod work;

use std::process::ExitCode;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use child::Place;
use work::Work;

/// Compare Thalweg with llama.cpp.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run both engines on a model that is larger than their memory
    ///
    /// Each run is a process of its own in a control group with the limit. The page cache is
    /// emptied before it. It opens the model, decodes a few tokens to warm up, takes in a prompt,
    /// and then decodes tokens that were chosen beforehand, the same for both engines.
    ///
    /// Needs Linux and the right to make control groups (root, mostly).
    #[command(after_help = "Examples:\n  \
        thalweg-peer-llama stream --model six.gguf --limit 2GiB\n  \
        thalweg-peer-llama stream --model six.gguf --limit 2GiB --min-decode-ratio 3 \\\n      \
        --max-bytes-ratio 0.5 --json")]
    Stream(stream::Stream),

    /// Run both engines with everything in memory
    ///
    /// Both have the model open in this process and take turns: a prompt at once, then tokens that
    /// were chosen beforehand, the same for both. A ratio is Thalweg's rate over llama.cpp's.
    #[command(after_help = "Examples:\n  \
        thalweg-peer-llama speed --model demo.gguf\n  \
        thalweg-peer-llama speed --model two-bit.gguf --peer-model four-bit.gguf --threads 4 \\\n      \
        -p 512 -n 64 --rounds 7 --json")]
    Speed(speed::Speed),

    /// Compare both engines' output with a reference's
    ///
    /// Runs the prompts of a folder of reference logits through llama.cpp, Thalweg with f32 and
    /// Thalweg with q8 activations. Prints how far each one's distributions are from the
    /// reference's: mean KL divergence in nats, share of positions with the same likeliest token,
    /// largest difference of a logit.
    #[command(after_help = "Examples:\n  \
        thalweg-peer-llama quality --model models/demo.gguf --golden crates/testkit/goldens/demo\n  \
        thalweg-peer-llama quality --model tiny-f32.gguf --golden tiny --json")]
    Quality(quality::Quality),

    /// One run of llama.cpp, as `stream` starts it
    #[command(hide = true)]
    RunLlama {
        #[command(flatten)]
        work: Work,
        #[command(flatten)]
        options: llama::Options,
        #[command(flatten)]
        place: Place,
    },

    /// One run of Thalweg, as `stream` starts it
    #[command(hide = true)]
    RunThalweg {
        #[command(flatten)]
        work: Work,
        #[command(flatten)]
        options: ours::Options,
        /// Bytes for everything together
        #[arg(long, value_name = "BYTES")]
        budget: u64,
        #[command(flatten)]
        place: Place,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("error: the ratios are not as demanded");
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<bool> {
    let outcome = match command {
        Command::Stream(stream) => {
            ctrlc::set_handler(|| child::INTERRUPTED.store(true, Ordering::Relaxed))
                .context("cannot handle Ctrl-C")?;
            return stream.run();
        }
        Command::Quality(quality) => return quality.run().map(|()| true),
        Command::Speed(speed) => return speed.run().map(|()| true),
        Command::RunLlama {
            work,
            options,
            place,
        } => {
            place.enter()?;
            let open = |w: &Work| {
                let setup = llama::Setup {
                    model: &w.model,
                    n_ctx: w.n_ctx,
                    n_batch: w.n_ctx,
                    n_threads: w.n_threads,
                };
                llama::Llama::open(setup, options)
            };
            work::run(&work, open, &place.logits)?
        }
        Command::RunThalweg {
            work,
            options,
            budget,
            place,
        } => {
            place.enter()?;
            let open = |w: &Work| ours::Ours::open(w, &options, budget);
            work::run(&work, open, &place.logits)?
        }
    };
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(true)
}

//! Both engines in this process with all weights in memory: who is faster, and by how much.
//!
//! Owns the order of rounds and the measuring; `speed_report` has what they come to. Both models
//! are open the whole time, and engines take turns. Opening is not timed, and neither is the first
//! round, in which everything that is read on first use is read. Memory: both models.
//!
//! Invariants
//! 1. Both engines take in the same tokens, whatever their logits say.
//! 2. While one engine runs, the other's threads sleep.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use thalweg_runtime::Activations;

use crate::model_file::ModelFile;
use crate::ours::{Ours, Resident};
use crate::speed_report::{Report, Run};
use crate::work::{Peer, likeliest, token_lists};
use crate::{counters, llama, progress};

/// Tokens that either engine takes in at once.
pub(crate) const BATCH_TOKENS: usize = 512;

/// Time for an engine's threads to stop spinning and sleep before the other one runs.
const SETTLE: Duration = Duration::from_millis(50);

/// What the engines are asked to do, how often.
#[derive(Debug, Clone, Args)]
pub(crate) struct Speed {
    /// Model file (the first shard of a split one)
    #[arg(long, value_name = "FILE")]
    pub model: PathBuf,

    /// llama.cpp runs this file instead: the same model with weights of other types
    #[arg(long, value_name = "FILE")]
    pub peer_model: Option<PathBuf>,

    /// Compute threads of both engines
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub threads: usize,

    /// Tokens of the prompt, at most 512 at once
    #[arg(
        short = 'p',
        long = "prompt",
        value_name = "TOKENS",
        default_value_t = 512
    )]
    pub prompt_tokens: usize,

    /// Decode steps after the prompt
    #[arg(
        short = 'n',
        long = "tokens",
        value_name = "TOKENS",
        default_value_t = 64
    )]
    pub decode_tokens: usize,

    /// Timed rounds, in each of which both engines run once; figures are medians
    #[arg(short = 'r', long, value_name = "N", default_value_t = 7)]
    pub rounds: usize,

    /// Seed of the token list
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Thalweg: precision of tokens' vectors in matrix products (f32, q8); llama.cpp's is eight
    /// bits for quantized weights, always
    #[arg(long, value_name = "TYPE", default_value = "q8", value_parser = activations)]
    pub activations: Activations,

    #[command(flatten)]
    pub llama: llama::Options,

    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

fn activations(text: &str) -> Result<Activations, String> {
    text.parse::<Activations>().map_err(|e| e.to_string())
}

/// The engines, by their place in arrays, and their names for machines.
const LLAMA: usize = 0;
const OURS: usize = 1;
const NAMES: [&str; 2] = ["llama", "thalweg"];

impl Speed {
    /// Measures and prints.
    pub(crate) fn run(&self) -> Result<()> {
        ensure!(self.prompt_tokens > 0, "--prompt must be at least 1");
        ensure!(self.decode_tokens > 0, "--tokens must be at least 1");
        ensure!(self.threads > 0, "--threads must be at least 1");
        ensure!(self.rounds > 0, "--rounds must be at least 1");
        let n_ctx = self.prompt_tokens.checked_add(self.decode_tokens);
        let n_ctx = n_ctx.context("so many tokens cannot be counted")?;
        let file = ModelFile::open(&self.model)?;
        let peer_file = self.peer_model.as_deref().map(ModelFile::open);
        let peer_file = peer_file.transpose()?;
        if let Some(peer) = &peer_file {
            file.expect_same_shape(peer)?;
        }

        let setup = llama::Setup {
            model: self.peer_model.as_ref().unwrap_or(&self.model),
            n_ctx,
            n_batch: BATCH_TOKENS,
            n_threads: self.threads,
        };
        let mut llama = llama::Llama::open(setup, self.llama)?;
        let mut ours = Ours::resident(Resident {
            model: &self.model,
            n_ctx,
            chunk_tokens: BATCH_TOKENS,
            n_threads: self.threads,
            activations: self.activations,
        })?;
        let (n_vocab, theirs) = (ours.n_vocab(), llama.n_vocab());
        ensure!(
            n_vocab == theirs,
            "vocabularies differ: llama.cpp finds {theirs}, Thalweg {n_vocab}"
        );
        let counts = [self.prompt_tokens, self.decode_tokens];
        let tokens = token_lists(self.seed, n_vocab as u64, counts);

        let bar = progress::bar(2 * (1 + self.rounds as u64));
        bar.set_message("warm-up");
        bar.tick();
        run_once(&mut llama, &tokens)?;
        bar.inc(1);
        run_once(&mut ours, &tokens)?;
        bar.inc(1);
        let read_before = ours.bytes_read();
        let mut runs: [Vec<Run>; 2] = [Vec::new(), Vec::new()];
        let mut first_in_round = Vec::with_capacity(self.rounds);
        for round in 0..self.rounds {
            let order = match round % 2 {
                0 => [LLAMA, OURS],
                _ => [OURS, LLAMA],
            };
            bar.set_message(format!("round {}", round + 1));
            first_in_round.push(NAMES[order[0]]);
            for engine in order {
                let run = match engine {
                    LLAMA => run_once(&mut llama, &tokens),
                    _ => run_once(&mut ours, &tokens),
                };
                runs[engine].push(run?);
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        let read_bytes = ours.bytes_read().iter().sum::<u64>() - read_before.iter().sum::<u64>();

        let system_info = llama::Llama::system_info();
        let report = Report {
            asked: self,
            file,
            peer_file,
            instruction_sets: [llama::instruction_set(&system_info), ours.instruction_set()],
            system_info,
            about_ours: ours.about(),
            read_bytes,
            logits: [llama.logits()?.to_vec(), ours.logits()?.to_vec()],
            first_in_round,
            runs,
        };
        if self.json {
            println!("{}", report.json()?);
        } else {
            report.print()?;
        }
        Ok(())
    }
}

/// One engine's part of a round: the prompt at once, then token by token.
fn run_once<P: Peer>(peer: &mut P, [prompt, forced]: &[Vec<u32>; 2]) -> Result<Run> {
    peer.reset()?;
    thread::sleep(SETTLE);
    let (busy_before, cpu_before) = (counters::busy_time(), counters::cpu_time());
    let start_of_all = Instant::now();
    peer.prefill(prompt)?;
    let prefill = start_of_all.elapsed();
    let mut decode = Duration::ZERO;
    let mut top1 = Vec::with_capacity(forced.len());
    for token in forced {
        let start = Instant::now();
        peer.decode(*token)?;
        decode += start.elapsed();
        // Not part of the step: a caller would sample here.
        top1.push(likeliest(peer.logits()?)?);
    }
    let own = (counters::cpu_time() - cpu_before).as_secs_f64();
    let busy = counters::busy_time().zip(busy_before);
    let others = busy.map(|(after, before)| (after - before).as_secs_f64() - own);
    Ok(Run {
        prefill_tokens_per_s: prompt.len() as f64 / prefill.as_secs_f64(),
        decode_tokens_per_s: forced.len() as f64 / decode.as_secs_f64(),
        // The counters tick at different rates, so that nothing may come out below nothing.
        others_cpus: others.map(|s| s.max(0.0) / start_of_all.elapsed().as_secs_f64()),
        top1,
    })
}

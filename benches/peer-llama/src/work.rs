//! The work that both engines are given, and what each says about it.
//!
//! Owns the list of tokens and the form of a child's answer; not the engines, not the comparison.
//! The list depends on the seed and the vocabulary's size alone. Nothing is sampled: the token that
//! follows is given, so that both engines do the same work whatever their logits say.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::counters;

/// Work for one run of one engine.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Work {
    /// Model file (the first shard of a split one)
    #[arg(long, value_name = "FILE")]
    pub model: PathBuf,

    /// Tokens of the prompt, taken in at once
    #[arg(
        short = 'p',
        long = "prompt",
        value_name = "TOKENS",
        default_value_t = 32
    )]
    pub prompt_tokens: usize,

    /// Decode steps
    #[arg(
        short = 'n',
        long = "tokens",
        value_name = "TOKENS",
        default_value_t = 64
    )]
    pub decode_tokens: usize,

    /// Decode steps before the prompt, in a sequence of their own, that are not timed
    #[arg(
        short = 'w',
        long = "warmup",
        value_name = "TOKENS",
        default_value_t = 8
    )]
    pub warmup_tokens: usize,

    /// Context of both engines, in tokens
    #[arg(long = "ctx", value_name = "TOKENS", default_value_t = 512)]
    pub n_ctx: usize,

    /// Compute threads of both engines
    #[arg(long = "threads", value_name = "N", default_value_t = 2)]
    pub n_threads: usize,

    /// Seed of the token list
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

impl Work {
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(self.prompt_tokens > 0, "--prompt must be at least 1");
        ensure!(self.decode_tokens > 0, "--tokens must be at least 1");
        ensure!(self.n_threads > 0, "--threads must be at least 1");
        let longest = self
            .prompt_tokens
            .saturating_add(self.decode_tokens)
            .max(self.warmup_tokens);
        let n_ctx = self.n_ctx;
        ensure!(
            longest <= n_ctx,
            "{longest} tokens do not fit --ctx {n_ctx}"
        );
        Ok(())
    }

    /// Flags that make a child do this work.
    pub(crate) fn flags(&self) -> Vec<std::ffi::OsString> {
        let mut flags = vec!["--model".into(), self.model.clone().into_os_string()];
        for (name, value) in [
            ("--prompt", self.prompt_tokens as u64),
            ("--tokens", self.decode_tokens as u64),
            ("--warmup", self.warmup_tokens as u64),
            ("--ctx", self.n_ctx as u64),
            ("--threads", self.n_threads as u64),
            ("--seed", self.seed),
        ] {
            flags.extend([name.into(), value.to_string().into()]);
        }
        flags
    }

    /// The tokens: those of the warm-up, of the prompt, of the decode steps.
    fn tokens(&self, n_vocab: u64) -> [Vec<u32>; 3] {
        let counts = [self.warmup_tokens, self.prompt_tokens, self.decode_tokens];
        token_lists(self.seed, n_vocab, counts)
    }
}

/// Lists of so many tokens, one after the other from the same seed.
pub(crate) fn token_lists<const N: usize>(
    seed: u64,
    n_vocab: u64,
    counts: [usize; N],
) -> [Vec<u32>; N] {
    let mut ids = Ids(seed);
    counts.map(|n| (0..n).map(|_| ids.next_below(n_vocab)).collect())
}

/// Evenly distributed token ids (SplitMix64).
struct Ids(u64);

impl Ids {
    fn next_below(&mut self, n: u64) -> u32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^= x >> 31;
        // The product's upper half is below n.
        let id = (u128::from(x) * u128::from(n)) >> 64;
        u32::try_from(id).unwrap_or(u32::MAX)
    }
}

/// An engine with a model open and one sequence.
pub(crate) trait Peer {
    fn n_vocab(&self) -> usize;
    /// Empties the sequence.
    fn reset(&mut self) -> Result<()>;
    /// Takes in tokens at once; the last one's logits are there afterwards.
    fn prefill(&mut self, tokens: &[u32]) -> Result<()>;
    /// Takes in one token; its logits are there afterwards.
    fn decode(&mut self, token: u32) -> Result<()>;
    /// Logits of the last token, one for each of the vocabulary.
    fn logits(&self) -> Result<&[f32]>;
    /// What the engine has to say about itself, as text.
    fn about(&self) -> serde_json::Value;
}

/// What one run of one engine came to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub n_vocab: usize,
    pub load_s: f64,
    pub warmup_s: f64,
    pub prefill_s: f64,
    pub decode_s: f64,
    /// Processor time of all threads while decoding.
    pub decode_cpu_s: f64,
    /// Processors that other processes kept busy meanwhile, on average.
    pub decode_others_cpus: Option<f64>,
    pub load_read_bytes: u64,
    pub warmup_read_bytes: u64,
    pub prefill_read_bytes: u64,
    pub decode_read_bytes: u64,
    pub peak_rss_bytes: Option<u64>,
    /// The likeliest token after each decode step.
    pub top1: Vec<u32>,
    pub about: serde_json::Value,
}

/// Opens a model and does the work, with the last logits to the file `logits`.
pub(crate) fn run<P: Peer>(
    work: &Work,
    open: impl FnOnce(&Work) -> Result<P>,
    logits: &Path,
) -> Result<Outcome> {
    work.check()?;
    let (opened, load_s, load_read_bytes) = measured(|| open(work))?;
    let mut peer = opened;
    let n_vocab = peer.n_vocab();
    let [warmup, prompt, forced] = work.tokens(n_vocab as u64);

    let ((), warmup_s, warmup_read_bytes) =
        measured(|| warmup.iter().try_for_each(|token| peer.decode(*token)))?;
    peer.reset()?;
    let ((), prefill_s, prefill_read_bytes) = measured(|| peer.prefill(&prompt))?;

    let mut time = Duration::ZERO;
    let mut top1 = Vec::with_capacity(forced.len());
    let (before, cpu_before) = (counters::read_bytes()?, counters::cpu_time());
    let (busy_before, start_of_all) = (counters::busy_time(), Instant::now());
    for token in &forced {
        let start = Instant::now();
        peer.decode(*token)?;
        time += start.elapsed();
        // Not part of the step: a caller would sample here.
        top1.push(likeliest(peer.logits()?)?);
    }
    let decode_cpu_s = (counters::cpu_time() - cpu_before).as_secs_f64();
    let decode_read_bytes = counters::read_bytes()? - before;
    let busy = counters::busy_time().zip(busy_before);
    let others = busy.map(|(after, before)| (after - before).as_secs_f64() - decode_cpu_s);
    // The counters tick at different rates, so that nothing may come out below nothing.
    let decode_others_cpus = others.map(|s| s.max(0.0) / start_of_all.elapsed().as_secs_f64());

    let last: Vec<u8> = peer
        .logits()?
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    fs::write(logits, last).with_context(|| format!("cannot write {}", logits.display()))?;
    Ok(Outcome {
        n_vocab,
        load_s,
        warmup_s,
        prefill_s,
        decode_s: time.as_secs_f64(),
        decode_cpu_s,
        decode_others_cpus,
        load_read_bytes,
        warmup_read_bytes,
        prefill_read_bytes,
        decode_read_bytes,
        peak_rss_bytes: counters::peak_rss_bytes(),
        top1,
        about: peer.about(),
    })
}

/// A result, the seconds it took and the bytes that were read from storage meanwhile.
fn measured<T>(f: impl FnOnce() -> Result<T>) -> Result<(T, f64, u64)> {
    let before = counters::read_bytes()?;
    let start = Instant::now();
    let result = f()?;
    let seconds = start.elapsed().as_secs_f64();
    Ok((result, seconds, counters::read_bytes()? - before))
}

/// The index of the largest logit.
pub(crate) fn likeliest(logits: &[f32]) -> Result<u32> {
    let bad = logits.iter().position(|x| !x.is_finite());
    ensure!(bad.is_none(), "logit {bad:?} is not finite");
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    let (index, _) = best.context("no logits")?;
    Ok(u32::try_from(index)?)
}

/// Logits that [`run`] wrote.
pub(crate) fn read_logits(path: &Path) -> Result<Vec<f32>> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let (values, rest) = bytes.as_chunks::<4>();
    ensure!(rest.is_empty(), "{} is cut short", path.display());
    Ok(values.iter().map(|b| f32::from_le_bytes(*b)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(prompt_tokens: usize, decode_tokens: usize) -> Work {
        Work {
            model: PathBuf::new(),
            prompt_tokens,
            decode_tokens,
            warmup_tokens: 8,
            n_ctx: 512,
            n_threads: 2,
            seed: 1,
        }
    }

    #[test]
    fn the_token_list_is_varied_and_depends_on_the_seed_alone() {
        let [warmup, prompt, forced] = work(32, 64).tokens(1000);
        assert_eq!((warmup.len(), prompt.len(), forced.len()), (8, 32, 64));
        assert!(forced.iter().all(|id| *id < 1000));
        let mut distinct = forced.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert!(distinct.len() > 55, "{}", distinct.len());
        assert_eq!(work(32, 64).tokens(1000), [warmup, prompt, forced.clone()]);
        let other = Work {
            seed: 2,
            ..work(32, 64)
        };
        assert_ne!(other.tokens(1000)[2], forced);
    }

    #[test]
    fn work_that_does_not_fit_the_context_is_refused() {
        assert!(work(32, 480).check().is_ok());
        assert!(work(32, 481).check().is_err());
        assert!(work(0, 64).check().is_err());
        assert!(work(1, usize::MAX).check().is_err());
    }

    #[test]
    fn the_likeliest_token_is_found_and_numbers_that_are_none_refused() {
        assert_eq!(likeliest(&[0.5, 2.0, -1.0]).expect("finite"), 1);
        assert!(likeliest(&[0.5, f32::NAN]).is_err());
        assert!(likeliest(&[]).is_err());
    }
}

//! What the rounds of `speed` came to, for people and for machines.
//!
//! Owns medians, ratios and the sentences that say what a ratio does not show; no measuring. A
//! ratio is Thalweg's rate over llama.cpp's in one round, so that a machine that gets slower
//! between rounds does not move it; the figure is the median of the rounds' ratios.

use anyhow::Result;
use serde::Serialize;
use serde_json::{Value, json};

use crate::model_file::ModelFile;
use crate::report::{agreement, median, ratio};
use crate::speed::{BATCH_TOKENS, Speed};

/// One engine's part of a round.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Run {
    pub prefill_tokens_per_s: f64,
    pub decode_tokens_per_s: f64,
    /// Processors that other processes kept busy meanwhile, on average.
    pub others_cpus: Option<f64>,
    /// The likeliest token after each decode step.
    #[serde(skip)]
    pub top1: Vec<u32>,
}

/// The rounds and what was asked; of pairs the first is llama.cpp's, the second Thalweg's.
pub(crate) struct Report<'a> {
    pub asked: &'a Speed,
    pub file: ModelFile,
    /// llama.cpp's file, where it is another one.
    pub peer_file: Option<ModelFile>,
    pub instruction_sets: [&'static str; 2],
    pub system_info: String,
    pub about_ours: Value,
    /// What Thalweg read from files during the timed rounds.
    pub read_bytes: u64,
    /// The last logits.
    pub logits: [Vec<f32>; 2],
    /// Who ran first in each round.
    pub first_in_round: Vec<&'static str>,
    pub runs: [Vec<Run>; 2],
}

/// A rate of a run.
type Rate = fn(&Run) -> f64;
const PREFILL: Rate = |run| run.prefill_tokens_per_s;
const DECODE: Rate = |run| run.decode_tokens_per_s;

impl Report<'_> {
    pub(crate) fn json(&self) -> Result<Value> {
        let asked = self.asked;
        let engine = |i: usize| {
            json!({
                "prefill_tokens_per_s": self.rate(i, PREFILL),
                "decode_tokens_per_s": self.rate(i, DECODE),
                "instruction_set": self.instruction_sets[i],
                "runs": self.runs[i],
            })
        };
        let (mut llama, mut thalweg) = (engine(0), engine(1));
        llama["system_info"] = self.system_info.clone().into();
        llama["options"] = asked.llama.json();
        thalweg["activations"] = asked.activations.name().into();
        thalweg["read_bytes_while_timed"] = self.read_bytes.into();
        thalweg["about"] = self.about_ours.clone();
        Ok(json!({
            "model": self.file.json(),
            "peer_model": self.peer_file.as_ref().map(ModelFile::json),
            "threads": asked.threads,
            "prompt_tokens": asked.prompt_tokens,
            "decode_tokens": asked.decode_tokens,
            "batch_tokens": BATCH_TOKENS,
            "rounds": asked.rounds,
            "seed": asked.seed,
            "first_in_round": self.first_in_round,
            "llama": llama,
            "thalweg": thalweg,
            "decode_ratio": median(self.ratios(DECODE)),
            "prefill_ratio": median(self.ratios(PREFILL)),
            "decode_ratios": self.ratios(DECODE),
            "prefill_ratios": self.ratios(PREFILL),
            "check": self.check()?,
            "notes": self.notes(),
        }))
    }

    pub(crate) fn print(&self) -> Result<()> {
        let asked = self.asked;
        println!("{}", self.file.describe());
        if let Some(peer) = &self.peer_file {
            println!("llama.cpp runs {}", peer.describe());
        }
        println!(
            "{} prompt tokens, {} decode steps, {} threads, {} rounds; Thalweg with {} activations",
            asked.prompt_tokens,
            asked.decode_tokens,
            asked.threads,
            asked.rounds,
            asked.activations.name()
        );
        println!("llama.cpp: {}", self.system_info);
        println!("Thalweg: {}", self.instruction_sets[1]);
        let line = |name: &str, rate: Rate| {
            let [a, b] = [0, 1].map(|i| text(self.rate(i, rate)));
            let ratios = self.ratios(rate);
            let least = ratios.iter().copied().min_by(f64::total_cmp);
            let most = ratios.iter().copied().max_by(f64::total_cmp);
            let [mid, least, most] = [median(ratios), least, most].map(text);
            println!("{name:<20} {a:>12} {b:>12} {mid:>8}   {least} to {most}");
        };
        println!(
            "{:<20} {:>12} {:>12} {:>8}   of the rounds",
            "medians", "llama.cpp", "Thalweg", "ratio"
        );
        line("prefill, tokens/s", PREFILL);
        line("decode, tokens/s", DECODE);
        let check = self.check()?;
        if !check.is_null() {
            println!(
                "check: likeliest token the same in {} of {} steps; last logits differ by at most \
                 {}, their standard deviation is {}",
                check["top1_same"],
                check["steps"],
                text(check["max_abs_diff"].as_f64()),
                text(check["logits_std"].as_f64())
            );
        }
        for note in self.notes() {
            println!("note: {note}");
        }
        Ok(())
    }

    fn rate(&self, engine: usize, rate: Rate) -> Option<f64> {
        median(self.runs[engine].iter().map(rate).collect())
    }

    fn ratios(&self, rate: Rate) -> Vec<f64> {
        let [theirs, ours] = &self.runs;
        ratios(theirs, ours, rate)
    }

    /// Whether the engines computed the same function; null where they ran other weights.
    fn check(&self) -> Result<Value> {
        let [theirs, ours] = &self.runs;
        let (Some(theirs), Some(ours), None) = (theirs.last(), ours.last(), &self.peer_file) else {
            return Ok(Value::Null);
        };
        let [a, b] = &self.logits;
        agreement([&theirs.top1, &ours.top1], [a, b])
    }

    /// What a reader of the ratio must know.
    fn notes(&self) -> Vec<String> {
        let run_by_llama = self.peer_file.as_ref().unwrap_or(&self.file);
        let mut notes: Vec<String> = run_by_llama.slow_for_llama().into_iter().collect();
        let [theirs, ours] = self.instruction_sets;
        if theirs != ours {
            notes.push(format!(
                "llama.cpp was built for {theirs} and Thalweg runs {ours}; build with RUSTFLAGS=\
                 \"-C target-cpu=native\" so that llama.cpp has all of this processor too"
            ));
        }
        if self.read_bytes > 0 {
            notes.push(format!(
                "Thalweg read {} bytes from the model file during the timed rounds",
                self.read_bytes
            ));
        }
        let others = |i: usize| median(self.runs[i].iter().filter_map(|r| r.others_cpus).collect());
        let others = [others(0), others(1)];
        if others.iter().flatten().any(|n| *n > 0.1) {
            let [a, b] = others.map(text);
            notes.push(format!(
                "other programs kept {a} processors busy while llama.cpp ran, {b} while Thalweg \
                 did; llama.cpp's threads wait for each other at every operation and suffer most, \
                 so that the ratio is not what an idle machine shows"
            ));
        }
        notes
    }
}

/// Thalweg's rate over llama.cpp's, round by round.
fn ratios(theirs: &[Run], ours: &[Run], rate: Rate) -> Vec<f64> {
    let rounds = ours.iter().zip(theirs);
    rounds
        .filter_map(|(ours, theirs)| ratio(Some(rate(ours)), Some(rate(theirs))))
        .collect()
}

fn text(value: Option<f64>) -> String {
    value.map_or_else(|| "n/a".to_owned(), |v| format!("{v:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(prefill_tokens_per_s: f64, decode_tokens_per_s: f64) -> Run {
        Run {
            prefill_tokens_per_s,
            decode_tokens_per_s,
            others_cpus: None,
            top1: Vec::new(),
        }
    }

    #[test]
    fn a_ratio_is_of_one_round_and_ours_is_on_top() {
        // The machine is half as fast in the second round, for both.
        let theirs = [run(100.0, 10.0), run(50.0, 5.0)];
        let ours = [run(200.0, 15.0), run(100.0, 7.5)];
        assert_eq!(ratios(&theirs, &ours, PREFILL), [2.0, 2.0]);
        assert_eq!(ratios(&theirs, &ours, DECODE), [1.5, 1.5]);
    }
}

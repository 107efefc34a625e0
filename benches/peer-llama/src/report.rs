//! What the runs came to: medians, ratios, the cross-check, for people and for machines.
//!
//! Owns no measuring. Figures are medians over an engine's runs; one that is undefined is `None`,
//! and null for machines.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::child::Run;
use crate::work::{Work, read_logits};

/// A run with what was cached of the model before it.
pub(crate) struct Entry {
    pub run: Run,
    pub cached_before: Option<f64>,
}

/// One engine's runs.
#[derive(Default)]
pub(crate) struct Column(pub Vec<Entry>);

/// Both engines' runs and what was asked of them.
pub(crate) struct Comparison<'a> {
    pub work: &'a Work,
    pub model_bytes: u64,
    pub limit_bytes: u64,
    pub margin_bytes: u64,
    pub limited_by: &'static str,
    /// Options of llama.cpp and of Thalweg.
    pub options: [Value; 2],
    pub llama: Column,
    pub thalweg: Column,
    pub check: Value,
}

impl Comparison<'_> {
    pub(crate) fn decode_ratio(&self) -> Option<f64> {
        self.ratio(|c| c.decode_rate(self.work))
    }

    fn prefill_ratio(&self) -> Option<f64> {
        self.ratio(|c| c.prefill_rate(self.work))
    }

    pub(crate) fn bytes_ratio(&self) -> Option<f64> {
        self.ratio(|c| c.bytes_a_token(self.work))
    }

    fn ratio(&self, of: impl Fn(&Column) -> Option<f64>) -> Option<f64> {
        ratio(of(&self.thalweg), of(&self.llama))
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "model": self.work.model.to_string_lossy(),
            "model_bytes": self.model_bytes,
            "limit_bytes": self.limit_bytes,
            "margin_bytes": self.margin_bytes,
            "limited_by": self.limited_by,
            "threads": self.work.n_threads,
            "prompt_tokens": self.work.prompt_tokens,
            "decode_tokens": self.work.decode_tokens,
            "warmup_tokens": self.work.warmup_tokens,
            "n_ctx": self.work.n_ctx,
            "seed": self.work.seed,
            "rounds": self.llama.0.len(),
            "bytes_counted_by": "read_bytes of /proc/self/io",
            "llama": self.llama.json(self.work, self.limit_bytes, &self.options[0]),
            "thalweg": self.thalweg.json(self.work, self.limit_bytes, &self.options[1]),
            "decode_ratio": self.decode_ratio(),
            "prefill_ratio": self.prefill_ratio(),
            "bytes_ratio": self.bytes_ratio(),
            "check": self.check,
        })
    }

    pub(crate) fn print(&self) {
        println!(
            "{}, {} of model under {} ({}), {} threads, {} rounds",
            self.work.model.display(),
            mb(Some(self.model_bytes as f64)),
            mb(Some(self.limit_bytes as f64)),
            self.limited_by,
            self.work.n_threads,
            self.llama.0.len()
        );
        println!(
            "{:<28} {:>12} {:>12} {:>8}",
            "medians", "llama.cpp", "Thalweg", "ratio"
        );
        let line = |name: &str, [a, b]: [String; 2], r: Option<f64>| {
            let r = r.map_or_else(String::new, |r| format!("{r:.3}"));
            println!("{name:<28} {a:>12} {b:>12} {r:>8}");
        };
        let both = |f: &dyn Fn(&Column) -> Option<f64>| [f(&self.llama), f(&self.thalweg)];
        let rate = |r: Option<f64>| r.map_or_else(|| "n/a".to_owned(), |r| format!("{r:.3}"));
        let load = both(&|c| c.median(|e| Some(e.run.outcome.load_s)));
        line("load, s", load.map(rate), None);
        let prefill = both(&|c| c.prefill_rate(self.work));
        line("prefill, tokens/s", prefill.map(rate), self.prefill_ratio());
        let decode = both(&|c| c.decode_rate(self.work));
        line("decode, tokens/s", decode.map(rate), self.decode_ratio());
        let bytes = both(&|c| c.bytes_a_token(self.work));
        line(
            "read for a decoded token",
            bytes.map(mb),
            self.bytes_ratio(),
        );
        let cpu = both(&|c| c.cpu_a_token(self.work));
        line("processor s a token", cpu.map(rate), None);
        let peak = both(&Column::peak);
        line("peak of memory", peak.map(mb), None);
        let number = |name: &str| self.check[name].as_f64();
        println!(
            "check: likeliest token the same in {} of {} steps; last logits differ by at most {}, \
             their standard deviation is {}",
            self.check["top1_same"],
            self.check["steps"],
            rate(number("max_abs_diff")),
            rate(number("logits_std"))
        );
        let cached = both(&|c| c.median(|e| e.cached_before));
        if cached.iter().flatten().any(|share| *share > 0.01) {
            let [a, b] = cached.map(|share| rate(share.map(|s| 100.0 * s)));
            println!(
                "warning: of the model {a} % were cached before llama.cpp ran, {b} % before Thalweg"
            );
        }
        let rss = both(&|c| c.foreign_bytes(self.limit_bytes));
        if rss.iter().flatten().any(|bytes| *bytes > 0.0) {
            println!(
                "warning: another process reads the model too; pages charged to it were used, at \
                 least {} by llama.cpp and {} by Thalweg",
                mb(rss[0]),
                mb(rss[1])
            );
        }
        let others = both(&|c| c.median(|e| e.run.outcome.decode_others_cpus));
        if others.iter().flatten().any(|n| *n > 0.1) {
            let [a, b] = others.map(rate);
            println!(
                "warning: other programs kept {a} processors busy while llama.cpp decoded, {b} \
                 while Thalweg did; llama.cpp's threads wait for each other at every operation and \
                 suffer most"
            );
        }
    }
}

impl Column {
    fn median(&self, of: impl Fn(&Entry) -> Option<f64>) -> Option<f64> {
        median(self.0.iter().filter_map(of).collect())
    }

    fn decode_rate(&self, work: &Work) -> Option<f64> {
        self.median(|e| Some(work.decode_tokens as f64 / e.run.outcome.decode_s))
    }

    fn prefill_rate(&self, work: &Work) -> Option<f64> {
        self.median(|e| Some(work.prompt_tokens as f64 / e.run.outcome.prefill_s))
    }

    fn bytes_a_token(&self, work: &Work) -> Option<f64> {
        self.median(|e| Some(e.run.outcome.decode_read_bytes as f64 / work.decode_tokens as f64))
    }

    fn cpu_a_token(&self, work: &Work) -> Option<f64> {
        self.median(|e| Some(e.run.outcome.decode_cpu_s / work.decode_tokens as f64))
    }

    fn peak(&self) -> Option<f64> {
        self.median(|e| Some(e.run.group_peak_bytes? as f64))
    }

    /// What a run had mapped in beyond the limit at least, hence pages charged to somebody else; the
    /// largest of the runs.
    fn foreign_bytes(&self, limit_bytes: u64) -> Option<f64> {
        // The kernel keeps the peak of mapped pages in batches for each thread.
        const SLACK_BYTES: u64 = 16 << 20;
        let over = |e: &Entry| {
            let over = e.run.outcome.peak_rss_bytes?.saturating_sub(limit_bytes);
            Some(if over > SLACK_BYTES { over } else { 0 })
        };
        self.0.iter().filter_map(over).max().map(|b| b as f64)
    }

    fn json(&self, work: &Work, limit_bytes: u64, options: &Value) -> Value {
        let runs: Vec<Value> = self.0.iter().map(|e| e.json(work)).collect();
        json!({
            "decode_tokens_per_s": self.decode_rate(work),
            "prefill_tokens_per_s": self.prefill_rate(work),
            "read_bytes_per_token": self.bytes_a_token(work),
            "decode_cpu_s_per_token": self.cpu_a_token(work),
            "peak_bytes": self.peak(),
            "foreign_bytes": self.foreign_bytes(limit_bytes),
            "load_s": self.median(|e| Some(e.run.outcome.load_s)),
            "options": options,
            "runs": runs,
        })
    }
}

impl Entry {
    fn json(&self, work: &Work) -> Value {
        let o = &self.run.outcome;
        json!({
            "decode_tokens_per_s": work.decode_tokens as f64 / o.decode_s,
            "prefill_tokens_per_s": work.prompt_tokens as f64 / o.prefill_s,
            "decode_cpu_s": o.decode_cpu_s,
            "decode_others_cpus": o.decode_others_cpus,
            "load_s": o.load_s,
            "warmup_s": o.warmup_s,
            "load_read_bytes": o.load_read_bytes,
            "warmup_read_bytes": o.warmup_read_bytes,
            "prefill_read_bytes": o.prefill_read_bytes,
            "decode_read_bytes": o.decode_read_bytes,
            "peak_bytes": self.run.group_peak_bytes,
            "peak_rss_bytes": o.peak_rss_bytes,
            "model_cached_before": self.cached_before,
            "about": o.about,
        })
    }
}

/// Whether the engines computed the same function, as far as two ways of rounding can tell.
pub(crate) fn check(llama: &Column, thalweg: &Column, logits: &[PathBuf; 2]) -> Result<Value> {
    let outcomes = |c: &Column| -> Vec<_> { c.0.iter().map(|e| e.run.outcome.clone()).collect() };
    let (theirs, ours) = (outcomes(llama), outcomes(thalweg));
    let (first_theirs, first_ours) = (&theirs[0], &ours[0]);
    ensure!(
        first_theirs.n_vocab == first_ours.n_vocab,
        "vocabularies differ: llama.cpp finds {}, Thalweg {}",
        first_theirs.n_vocab,
        first_ours.n_vocab
    );
    let logits = [read_logits(&logits[0])?, read_logits(&logits[1])?];
    let mut check = agreement(
        [&first_theirs.top1, &first_ours.top1],
        [&logits[0], &logits[1]],
    )?;
    check["llama_rounds_agree"] = theirs.iter().all(|o| o.top1 == first_theirs.top1).into();
    check["thalweg_rounds_agree"] = ours.iter().all(|o| o.top1 == first_ours.top1).into();
    Ok(check)
}

/// How often the likeliest tokens are the same, and how far the last logits are apart; first
/// llama.cpp's, then Thalweg's.
pub(crate) fn agreement(top1: [&[u32]; 2], logits: [&[f32]; 2]) -> Result<Value> {
    let same = top1[0].iter().zip(top1[1]).filter(|(a, b)| a == b).count();
    let [a, b] = logits;
    ensure!(a.len() == b.len(), "{} and {} logits", a.len(), b.len());
    let diff = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    let n = a.len() as f64;
    let mean = a.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
    let square = |x: &f32| (f64::from(*x) - mean).powi(2);
    let variance = a.iter().map(square).sum::<f64>() / n;
    Ok(json!({
        "steps": top1[0].len(),
        "top1_same": same,
        "max_abs_diff": diff.fold(0.0_f32, f32::max),
        "logits_std": variance.sqrt(),
    }))
}

pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let mid = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[mid]),
        _ => Some(f64::midpoint(values[mid - 1], values[mid])),
    }
}

/// Ours over theirs, where that means something.
pub(crate) fn ratio(ours: Option<f64>, theirs: Option<f64>) -> Option<f64> {
    let theirs = theirs.filter(|t| *t > 0.0)?;
    Some(ours? / theirs)
}

fn mb(bytes: Option<f64>) -> String {
    bytes.map_or_else(|| "n/a".to_owned(), |b| format!("{:.1} MB", b / 1e6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0]), Some(2.5));
        assert_eq!(median(Vec::new()), None);
    }

    #[test]
    fn a_ratio_to_nothing_is_undefined() {
        assert_eq!(ratio(Some(3.0), Some(2.0)), Some(1.5));
        assert_eq!(ratio(Some(3.0), Some(0.0)), None);
        assert_eq!(ratio(Some(0.0), Some(0.0)), None);
        assert_eq!(ratio(None, Some(1.0)), None);
    }
}

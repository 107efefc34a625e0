//! Both engines on prompts whose logits a reference has computed: who rounds how much.
//!
//! Owns the runs and the table; `divergence` has the arithmetic, `golden` the folder. Memory: the
//! model three times (llama.cpp's, Thalweg's in f32 and in q8) and the logits of one prompt from
//! each of them.
//!
//! References store logits at a few positions, where one expert that is chosen otherwise outweighs
//! all others. So every position is compared as well, with Thalweg's f32 for a reference: its own
//! distance from the stored logits says how good a stand-in it is.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::{Value, json};
use thalweg_runtime::Activations;

use crate::divergence::Distance;
use crate::golden::{self, Prompt};
use crate::llama::{self, Llama};
use crate::model_file::ModelFile;
use crate::ours::{Ours, Resident};
use crate::progress;
use crate::speed::BATCH_TOKENS;
use crate::work::Peer;

/// Which model is compared with which reference.
#[derive(Debug, Clone, Args)]
pub(crate) struct Quality {
    /// Model file (the first shard of a split one)
    #[arg(long, value_name = "FILE")]
    model: PathBuf,

    /// Folder with reference logits: manifest.json and its files, or tokens.txt and logits.npy
    #[arg(long, value_name = "DIR")]
    golden: PathBuf,

    /// Compute threads of each engine
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: usize,

    #[command(flatten)]
    llama: llama::Options,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// One engine's distances.
struct Column {
    /// For machines.
    key: &'static str,
    /// For people.
    name: &'static str,
    /// From the stored logits, by prompt.
    prompts: Vec<Distance>,
    /// From Thalweg's f32 at every position.
    beside_f32: Distance,
}

impl Quality {
    /// Runs all prompts and prints.
    pub(crate) fn run(&self) -> Result<()> {
        ensure!(self.threads > 0, "--threads must be at least 1");
        let file = ModelFile::open(&self.model)?;
        let prompts = golden::open(&self.golden)?;
        let n_ctx = prompts.iter().map(|p| p.tokens.len()).max().unwrap_or(0);
        let setup = llama::Setup {
            model: &self.model,
            n_ctx,
            n_batch: BATCH_TOKENS,
            n_threads: self.threads,
        };
        let mut llama = Llama::open(setup, self.llama)?;
        let ours = |activations| {
            Ours::resident(Resident {
                model: &self.model,
                n_ctx,
                chunk_tokens: BATCH_TOKENS,
                n_threads: self.threads,
                activations,
            })
        };
        let (mut f32, mut q8) = (ours(Activations::F32)?, ours(Activations::Q8)?);

        let mut columns = [
            Column::new("llama", "llama.cpp"),
            Column::new("thalweg_f32", "Thalweg f32"),
            Column::new("thalweg_q8", "Thalweg q8"),
        ];
        let bar = progress::bar(prompts.len() as u64);
        for prompt in &prompts {
            bar.set_message(prompt.name.clone());
            bar.tick();
            let (expected, found) = (prompt.n_vocab, f32.n_vocab());
            ensure!(
                expected == found && found == llama.n_vocab(),
                "vocabularies differ: the golden has {expected} tokens, Thalweg finds {found} in \
                 the model, llama.cpp {}",
                llama.n_vocab()
            );
            llama.reset()?;
            f32.reset()?;
            q8.reset()?;
            let rows = [
                llama.logits_of_all(&prompt.tokens)?,
                f32.logits_of_all(&prompt.tokens)?,
                q8.logits_of_all(&prompt.tokens)?,
            ];
            for (column, engine_rows) in columns.iter_mut().zip(&rows) {
                let compared = column.compare(prompt, engine_rows, &rows[1]);
                compared.with_context(|| format!("{}, prompt {:?}", column.name, prompt.name))?;
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        if self.json {
            println!("{}", self.json(&file, &prompts, &columns, &f32));
        } else {
            self.print(&file, &prompts, &columns);
        }
        Ok(())
    }

    fn json(
        &self,
        file: &ModelFile,
        prompts: &[Prompt],
        columns: &[Column; 3],
        ours: &Ours,
    ) -> Value {
        let mut found = json!({
            "model": file.json(),
            "golden": self.golden.to_string_lossy(),
            "threads": self.threads,
            "tokens": n_tokens(prompts),
            "system_info": Llama::system_info(),
            "thalweg_instruction_set": ours.instruction_set(),
            "llama_options": self.llama.json(),
        });
        for column in columns {
            found[column.key] = column.json(prompts);
        }
        found
    }

    fn print(&self, file: &ModelFile, prompts: &[Prompt], columns: &[Column; 3]) {
        println!("{}", file.describe());
        println!(
            "{} prompts of {}, {} tokens, {} threads",
            prompts.len(),
            self.golden.display(),
            n_tokens(prompts),
            self.threads
        );
        println!("llama.cpp: {}", Llama::system_info());
        let table = |title: String, distances: [Distance; 3]| {
            println!(
                "{title:<34} {:>12} {:>10} {:>12}",
                "mean KLD", "top-1", "max |diff|"
            );
            for (column, distance) in columns.iter().zip(distances) {
                println!(
                    "  {:<32} {:>12} {:>10} {:>12.6}",
                    column.name,
                    distance
                        .mean_kld()
                        .map_or_else(String::new, |v| format!("{v:.3e}")),
                    distance
                        .top1_agreement()
                        .map_or_else(String::new, |v| format!("{v:.4}")),
                    distance.max_abs_diff()
                );
            }
        };
        let all = columns.each_ref().map(Column::all);
        let n = all[0].n_positions();
        table(format!("from the reference, {n} positions"), all);
        let beside = columns.each_ref().map(|c| c.beside_f32);
        let n = beside[0].n_positions();
        table(format!("from Thalweg f32, {n} positions"), beside);
    }
}

impl Column {
    fn new(key: &'static str, name: &'static str) -> Self {
        Self {
            key,
            name,
            prompts: Vec::new(),
            beside_f32: Distance::default(),
        }
    }

    /// Takes in a prompt's logits, `[n_tokens, n_vocab]`, and those of Thalweg's f32.
    fn compare(&mut self, prompt: &Prompt, rows: &[f32], f32_rows: &[f32]) -> Result<()> {
        let n = prompt.n_vocab;
        let mut distance = Distance::default();
        for (position, reference) in prompt.rows() {
            let row = rows.chunks_exact(n).nth(position);
            let row = row.with_context(|| format!("no logits at position {position}"))?;
            distance.add(reference, row)?;
        }
        self.prompts.push(distance);
        for (reference, row) in f32_rows.chunks_exact(n).zip(rows.chunks_exact(n)) {
            self.beside_f32.add(reference, row)?;
        }
        Ok(())
    }

    /// The distance over all prompts.
    fn all(&self) -> Distance {
        let mut all = Distance::default();
        self.prompts.iter().for_each(|d| all.merge(d));
        all
    }

    fn json(&self, prompts: &[Prompt]) -> Value {
        let mut found = self.all().json();
        found["beside_f32"] = self.beside_f32.json();
        let by_prompt = prompts.iter().zip(&self.prompts).map(|(prompt, distance)| {
            let mut line = json!({ "prompt": prompt.name });
            if let (Value::Object(line), Value::Object(rest)) = (&mut line, distance.json()) {
                line.extend(rest);
            }
            line
        });
        found["prompts"] = by_prompt.collect();
        found
    }
}

fn n_tokens(prompts: &[Prompt]) -> usize {
    prompts.iter().map(|p| p.tokens.len()).sum()
}

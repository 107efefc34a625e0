//! The comparison: rounds of both engines under one limit, and what they come to.
//!
//! Owns the order of runs; `report` has what they come to. Runs take turns, and who goes first changes from
//! round to round, so that a machine that gets slower or faster does so for both.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use thalweg_gguf::Gguf;

use crate::group::Parent;
use crate::report::{Column, Comparison, Entry, check};
use crate::work::Work;
use crate::{child, counters, llama, ours, progress};

/// What a run of each engine is asked to do, under which limit, how often.
#[derive(Debug, Clone, Args)]
pub(crate) struct Stream {
    #[command(flatten)]
    work: Work,

    /// Memory of each run: everything that the kernel charges to the process, page cache included
    /// (512MiB, 2GiB, or bytes)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    limit: u64,

    /// What of the limit Thalweg's budget leaves free, for memory that it doesn't count: the
    /// program, page tables, the allocator's leftovers
    #[arg(long, value_name = "SIZE", default_value = "96MiB", value_parser = size)]
    margin: u64,

    /// Runs of each engine, in turns; figures are medians
    #[arg(short = 'r', long, value_name = "N", default_value_t = 3)]
    rounds: usize,

    /// Seconds after which a run is killed
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    time_limit: u64,

    /// Control group below which groups for the runs are made [default: the top of the hierarchy]
    #[arg(long, value_name = "DIR")]
    cgroup: Option<PathBuf>,

    #[command(flatten)]
    llama: llama::Options,

    #[command(flatten)]
    ours: ours::Options,

    /// Fail unless Thalweg decodes at so many times llama.cpp's rate
    #[arg(long, value_name = "RATIO")]
    min_decode_ratio: Option<f64>,

    /// Fail if Thalweg reads more than so many times llama.cpp's bytes a token
    #[arg(long, value_name = "RATIO")]
    max_bytes_ratio: Option<f64>,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

fn size(text: &str) -> Result<u64, String> {
    thalweg_runtime::parse_bytes(text).map_err(|e| e.to_string())
}

#[derive(Debug, Clone, Copy)]
enum Engine {
    Llama,
    Thalweg,
}

impl Stream {
    /// Measures and prints; whether the ratios are as demanded.
    pub(crate) fn run(&self) -> Result<bool> {
        self.work.check()?;
        ensure!(self.rounds > 0, "--rounds must be at least 1");
        ensure!(
            self.margin < self.limit,
            "--margin must be less than --limit"
        );
        let file = Gguf::open(&self.work.model)
            .with_context(|| format!("cannot open {}", self.work.model.display()))?;
        let mut files: Vec<PathBuf> = (0..file.n_shards())
            .filter_map(|s| file.path(s).map(ToOwned::to_owned))
            .collect();
        let mut model_bytes = 0;
        for path in &files {
            model_bytes += path.metadata()?.len();
        }
        drop(file);
        files.extend(self.ours.sidecar.clone());
        let parent = Parent::find(self.cgroup.as_deref())?;

        let (mut llama, mut thalweg) = (Column::default(), Column::default());
        let scratch = tempfile::tempdir().context("no temporary folder")?;
        let logits = [Engine::Llama, Engine::Thalweg].map(|e| scratch.path().join(e.name()));
        let bar = progress::bar(2 * self.rounds as u64);
        bar.enable_steady_tick(Duration::from_millis(500));
        for round in 0..self.rounds {
            let order = match round % 2 {
                0 => [Engine::Llama, Engine::Thalweg],
                _ => [Engine::Thalweg, Engine::Llama],
            };
            for engine in order {
                bar.set_message(format!("round {}, {}", round + 1, engine.name()));
                let cached_before = empty_cache(&files)?;
                let (flags, logits) = match engine {
                    Engine::Llama => (self.llama.flags(), &logits[0]),
                    Engine::Thalweg => {
                        let budget = (self.limit - self.margin).to_string();
                        let mut flags = self.ours.flags();
                        flags.extend(["--budget".into(), budget.into()]);
                        (flags, &logits[1])
                    }
                };
                let flags = self.work.flags().into_iter().chain(flags).collect();
                let run = child::run(
                    &parent,
                    self.limit,
                    Duration::from_secs(self.time_limit),
                    engine.command(),
                    flags,
                    logits,
                )?;
                let column = match engine {
                    Engine::Llama => &mut llama,
                    Engine::Thalweg => &mut thalweg,
                };
                column.0.push(Entry { run, cached_before });
                bar.inc(1);
            }
        }
        bar.finish_and_clear();

        let check = check(&llama, &thalweg, &logits)?;
        let comparison = Comparison {
            work: &self.work,
            model_bytes,
            limit_bytes: self.limit,
            margin_bytes: self.margin,
            limited_by: parent.version.name(),
            options: [self.llama.json(), self.ours.json()],
            llama,
            thalweg,
            check,
        };
        if self.json {
            println!("{}", comparison.json());
        } else {
            comparison.print();
        }
        let (decode_ratio, bytes_ratio) = (comparison.decode_ratio(), comparison.bytes_ratio());
        // A ratio that is undefined meets no demand.
        let demands = [
            self.min_decode_ratio
                .map(|min| decode_ratio.is_some_and(|r| r >= min)),
            self.max_bytes_ratio
                .map(|max| bytes_ratio.is_some_and(|r| r <= max)),
        ];
        Ok(demands.iter().flatten().all(|met| *met))
    }
}

impl Engine {
    fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama.cpp",
            Self::Thalweg => "Thalweg",
        }
    }

    fn command(self) -> &'static str {
        match self {
            Self::Llama => "run-llama",
            Self::Thalweg => "run-thalweg",
        }
    }
}

/// Empties the page cache of the files; the largest share that stayed nonetheless.
fn empty_cache(files: &[PathBuf]) -> Result<Option<f64>> {
    for path in files {
        counters::drop_cache(path)?;
    }
    let mut largest = None;
    for path in files {
        let share = counters::cached_share(path)?;
        largest = largest.into_iter().chain(share).max_by(f64::total_cmp);
    }
    Ok(largest)
}

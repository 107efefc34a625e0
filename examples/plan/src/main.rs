//! Shows a plan. Owns: flags and the page. Does not own: planning (`thalweg-runtime`), the forecast's
//! models (`thalweg-eval`), reads (`thalweg-store`).

mod args;
mod forecast;
mod measure;
mod page;

use std::num::NonZeroUsize;
use std::process::ExitCode;

use anyhow::{Context, Result};
use thalweg_eval::HostConstants;
use thalweg_examples_common::{note_budget, parse, print_if_read, report};
use thalweg_gguf::Gguf;
use thalweg_runtime::{
    Backend, CpuBackend, CpuOptions, EngineOptions, Error, MemoryPlan, ModelSpec, Profile,
    ReaderKind, model_experts, open_sidecar, plan_model,
};
use thalweg_store::io::PoolBackend;

use args::Args;
use measure::Row;
use page::Page;

fn main() -> ExitCode {
    report(run(&parse()))
}

fn run(args: &Args) -> Result<bool> {
    note_budget(args.budget);
    let file = Gguf::open(&args.file).context("cannot open the model")?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let n_threads = args.threads.unwrap_or(cores);
    let overhead = CpuBackend::new(CpuOptions { n_threads })?.overhead_bytes();
    let options = EngineOptions {
        budget_bytes: args.budget,
        n_ctx: args.ctx,
        chunk_tokens: args.chunk,
        reader: args.reader,
        sidecar: args.sidecar.clone(),
        ..EngineOptions::default()
    };
    let planned = match plan_model(&file, overhead, &options) {
        Ok(planned) => Ok(planned),
        Err(error @ Error::Budget { .. }) => Err(error),
        Err(other) => return Err(other.into()),
    };
    let (floor_bytes, spec) = floor(&file, overhead, &options)?;
    let mut page = Page {
        planned: planned.map(|(plan, _)| plan),
        floor_bytes,
        spec,
        forecast: None,
        rows: Vec::new(),
    };
    if let (Ok(plan), Some(path)) = (&page.planned, &args.host) {
        let host = HostConstants::open(path)?;
        let n_reads = reads_under_way(args.reader, plan);
        let share = hit_rate(args, &page.spec, plan)?;
        let told = forecast::forecast(&host, &page.spec, plan, n_reads.get(), share, args.prompt)?;
        page.forecast = Some(told);
    }
    if args.measure {
        page.rows = measured(args, &file, &page)?;
    }
    let text = match args.json {
        true => page.json(args).to_string(),
        false => page.text(args),
    };
    print_if_read(&text)?;
    Ok(page.planned.is_ok())
}

/// The smallest budget that works, by asking until nothing more is missing.
fn floor(file: &Gguf, overhead: u64, options: &EngineOptions) -> Result<(u64, ModelSpec)> {
    let mut budget = 0;
    loop {
        let options = EngineOptions {
            budget_bytes: Some(budget),
            ..options.clone()
        };
        match plan_model(file, overhead, &options) {
            Ok((_, spec)) => return Ok((budget, spec)),
            // A larger budget may have more readers, which need more again; never less.
            Err(Error::Budget { needed_bytes, .. }) if needed_bytes > budget => {
                budget = needed_bytes;
            }
            Err(other) => return Err(other.into()),
        }
    }
}

fn hit_rate(args: &Args, spec: &ModelSpec, plan: &MemoryPlan) -> Result<Option<f64>> {
    match &args.profile {
        None => Ok(args.hit_rate),
        Some(path) => Ok(Some(forecast::covered(&Profile::open(path)?, spec, plan)?)),
    }
}

/// Reads under way together that a plan has buffers for.
fn reads_under_way(reader: ReaderKind, plan: &MemoryPlan) -> NonZeroUsize {
    let each = PoolBackend::memory_bytes(NonZeroUsize::MIN) as u64;
    let n = match reader {
        ReaderKind::Pread => 1,
        _ => plan.reader_bytes / each.max(1),
    };
    let n = usize::try_from(n).unwrap_or(1);
    NonZeroUsize::new(n).unwrap_or(NonZeroUsize::MIN)
}

/// Every reader on the model file and on the sidecar.
fn measured(args: &Args, file: &Gguf, page: &Page) -> Result<Vec<Row>> {
    let spec = &page.spec;
    let mut sources = vec![("model file", model_experts(file, spec)?)];
    if let Some(path) = &args.sidecar {
        sources.push(("sidecar", open_sidecar(path, file, spec)?));
    }
    let n_reads = match &page.planned {
        Ok(plan) if args.reader != ReaderKind::Pread => reads_under_way(args.reader, plan),
        _ => PoolBackend::DEFAULT_THREADS,
    };
    let mut rows = Vec::new();
    for reader in ReaderKind::ALL {
        for (source, (files, layout)) in &sources {
            rows.extend(measure::measure(
                source, files, layout, spec, reader, n_reads,
            )?);
        }
    }
    Ok(rows)
}

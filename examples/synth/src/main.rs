//! Writes a synthetic model of any size. Owns: flags, the bar, the look at free space. Does not
//! own: what is in the file (`thalweg-testkit`).

mod args;

use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use thalweg_examples_common::{check_outputs, parse, print_line, report};
use thalweg_testkit::SyntheticModel;

use args::Args;

/// A bar comes when the writing takes longer than this.
const PATIENCE: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    report(run(&parse()).map(|()| true))
}

fn run(args: &Args) -> Result<()> {
    let model = args.model();
    let problems = model.check();
    if !problems.is_empty() {
        let lines: Vec<String> = problems.iter().map(|p| format!("\n  {p}")).collect();
        bail!("no such model can be written:{}", lines.concat());
    }
    let bytes = model.file_bytes()?;
    if args.dry_run {
        return tell(args, &model, bytes, None);
    }
    let Some(out) = &args.out else {
        bail!("name the file to write, or ask for --dry-run");
    };
    check_space(out, bytes)?;
    check_outputs(&[("OUT", out)], &[])?;

    let stopped = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stopped);
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed))
        .context("cannot listen for interrupts")?;
    let bar = bar();
    let start = Instant::now();
    let result = model.write(out, |done, total| {
        if bar.is_hidden() && start.elapsed() > PATIENCE {
            bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(4));
        }
        bar.set_length(total);
        bar.set_position(done);
        if done >= total {
            // What the system holds back goes to the drive now.
            bar.set_message("waiting for the drive");
        }
        if stopped.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    bar.finish_and_clear();
    result?;
    tell(args, &model, bytes, Some(start.elapsed()))
}

/// Refuses a file that the drive has no room for. An old file at the target still counts: it goes
/// only when the new one is complete.
fn check_space(out: &Path, bytes: u64) -> Result<()> {
    let folder = match out.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let facts = rustix::fs::statvfs(folder)
        .with_context(|| format!("cannot write to the folder {}", folder.display()))?;
    let free = facts.f_bavail.saturating_mul(facts.f_frsize);
    if free < bytes {
        let (need, free) = (gb(bytes), gb(free));
        bail!(
            "the file has {need}, the drive of {} has {free} left",
            folder.display()
        );
    }
    Ok(())
}

fn tell(args: &Args, model: &SyntheticModel, bytes: u64, took: Option<Duration>) -> Result<()> {
    let seconds = took.map(|took| took.as_secs_f64());
    let rate = seconds.map(|s| bytes as f64 / 1e6 / s.max(1e-9));
    if args.json {
        let out = args.out.as_ref().map(|out| out.to_string_lossy());
        let value = json!({
            "file": out,
            "bytes": bytes,
            "written": took.is_some(),
            "seconds": seconds,
            "mb_per_s": rate,
            "layers": model.n_layer,
            "hidden": model.n_embd,
            "experts": model.n_expert,
            "top_k": model.n_expert_used,
            "expert_width": model.n_ff,
            "expert_type": model.expert_type.name(),
            "dense_type": model.dense_type.name(),
            "skew": model.skew,
            "correlation": model.correlation,
            "seed": model.seed,
            "pick_shares": model.pick_shares(),
        });
        return print_line(&value.to_string());
    }
    let shape = format!(
        "{} layers, {} wide, {} experts of {} (top {}), experts {}, dense {}",
        model.n_layer,
        model.n_embd,
        model.n_expert,
        model.n_ff,
        model.n_expert_used,
        model.expert_type,
        model.dense_type
    );
    print_line(&shape)?;
    match (seconds, rate) {
        (Some(s), Some(rate)) => print_line(&format!("{} in {s:.1} s, {rate:.0} MB/s", gb(bytes))),
        _ => print_line(&format!("{}, not written", gb(bytes))),
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::hidden();
    let style = "{msg} {wide_bar} {bytes}/{total_bytes}, {decimal_bytes_per_sec}, {eta} left";
    // The template is a constant; an unusable one would show as the default style.
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar.set_message("writing");
    bar
}

fn gb(bytes: u64) -> String {
    format!("{:.2} GB", bytes as f64 / 1e9)
}

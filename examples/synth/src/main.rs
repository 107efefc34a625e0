//! Writes a synthetic model of any size. Owns: flags and the report. Does not
//! own: what is in the file (`thalweg-testkit`).

mod args;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::json;
use thalweg_examples_common::{
    ByteBar, Interrupt, check_outputs, check_space, parse, print_line, report,
};
use thalweg_testkit::SyntheticModel;

use args::Args;

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

    let interrupt = Interrupt::listen()?;
    let bar = ByteBar::new("writing");
    let result = model.write(out, |done, total| {
        bar.update(done, total);
        interrupt.flow()
    });
    let took = bar.finish();
    result?;
    tell(args, &model, bytes, Some(took))
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

fn gb(bytes: u64) -> String {
    format!("{:.2} GB", bytes as f64 / 1e9)
}

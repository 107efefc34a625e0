//! Measures what the latency model needs to know of a machine: its drive and its processor.

mod args;
mod drive;
mod facts;
mod gemm;
mod report;

use std::process::ExitCode;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use thalweg_eval::HostConstants;
use thalweg_examples_common::{note, parse, print_line, report};

use args::{Args, Part};

fn main() -> ExitCode {
    report(run(&parse()).map(|()| true))
}

fn run(args: &Args) -> Result<()> {
    let mut host = HostConstants {
        facts: facts::collect(),
        ..HostConstants::default()
    };
    let mut set = |name: &str, value: String| host.facts.insert(name.to_owned(), value);
    set("command", args.command());

    let mut curve = None;
    if args.measures(Part::Drive) {
        let dir = args.dir.as_deref();
        let dir = dir.context("name a folder on the drive with --dir, or measure only gemm")?;
        let measured = drive::measure(dir, args, &mut set)?;
        host.drive = measured.rows.iter().map(report::point).collect();
        curve = Some(measured);
    }

    let mut products = None;
    if args.measures(Part::Gemm) {
        let run = gemm::measure(args.seconds, &mut set);
        host.gemm = run.constants();
        if host.gemm.is_none() {
            note("note: a run of less than two seconds has no sag; gemm is left out");
        }
        products = Some(run);
    }

    if args.json {
        print_line(host.to_json()?.trim_end())?;
    } else {
        report::print(&host, curve.as_ref(), products.as_ref())?;
    }
    Ok(())
}

/// A bar on standard error, where that is a terminal.
fn bar(what: &'static str, style: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(4));
    // Templates are constants; an unusable one would show as the default style.
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}

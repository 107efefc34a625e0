//! Measures what the latency model needs to know of a machine: its drive and its processor.

mod drive;
mod facts;
mod gemm;
mod report;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use thalweg_eval::HostConstants;
use thalweg_store::probe::MAX_THREADS;

/// Measure the drive and the processor of this machine.
///
/// The drive: a file of random bytes is made in DIR, and each row reads a slice of it that nothing
/// has read before, with direct I/O. The bytes that the system says came from the device must agree
/// with those asked for within 1 %, else the row is marked cached. The processor: f32 matrix
/// products on all cores; the sag compares the last five seconds with the first five.
///
/// For figures that count, let the file have 12 GiB or 1.5 times the memory, and --seconds 60.
#[derive(Debug, Parser)]
struct Args {
    /// What to measure [default: both]
    #[arg(value_enum)]
    parts: Vec<Part>,

    /// Folder on the drive to measure; its file needs SIZE bytes there
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Size of the file
    #[arg(long, value_name = "SIZE", default_value = "12GiB", value_parser = size)]
    size: u64,

    /// Bytes that a row reads [default: the file is divided among the rows]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    slice: Option<u64>,

    /// Bytes of one read, several with commas: multiples of 4096
    #[arg(
        long,
        value_name = "SIZES",
        default_value = "1392640,1MiB",
        value_delimiter = ',',
        value_parser = size
    )]
    block: Vec<u64>,

    /// Threads that read at the same time, several with commas
    #[arg(
        long,
        value_name = "LIST",
        default_value = "1,2,4,8",
        value_delimiter = ',',
        value_parser = threads
    )]
    threads: Vec<NonZeroUsize>,

    /// How often each row is measured, on other bytes
    #[arg(long, value_name = "N", default_value = "1")]
    rounds: NonZeroUsize,

    /// Seconds of matrix products, and the most that a row of the drive may take
    #[arg(long, value_name = "S", default_value = "60", value_parser = seconds)]
    seconds: Duration,

    /// Leave the file for the next run, which is faster and marks its rows as read before
    #[arg(long)]
    keep: bool,

    /// Print the JSON of a host's constants instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Part {
    /// Bandwidth of the drive
    Drive,
    /// Speed of matrix products
    Gemm,
}

impl Args {
    fn measures(&self, part: Part) -> bool {
        self.parts.is_empty() || self.parts.contains(&part)
    }

    /// What would measure the same elsewhere.
    fn command(&self) -> String {
        let mut words = vec!["hwbench".to_owned()];
        for part in [Part::Drive, Part::Gemm] {
            if !self.parts.is_empty() && self.measures(part) {
                words.push(format!("{part:?}").to_lowercase());
            }
        }
        if self.measures(Part::Drive) {
            let list = |values: Vec<String>| values.join(",");
            words.push(format!(
                "--dir DIR --size {} --block {} --threads {} --rounds {}",
                self.size,
                list(self.block.iter().map(u64::to_string).collect()),
                list(self.threads.iter().map(|n| n.to_string()).collect()),
                self.rounds
            ));
            words.extend(self.slice.map(|slice| format!("--slice {slice}")));
        }
        words.push(format!("--seconds {}", self.seconds.as_secs_f64()));
        words.join(" ")
    }
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
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
            eprintln!("note: a run of less than two seconds has no sag; gemm is left out");
        }
        products = Some(run);
    }

    if args.json {
        print!("{}", host.to_json()?);
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

fn size(text: &str) -> Result<u64, String> {
    thalweg_runtime::parse_bytes(text).map_err(|e| e.to_string())
}

fn threads(text: &str) -> Result<NonZeroUsize> {
    let n: NonZeroUsize = text.parse()?;
    ensure!(n.get() <= MAX_THREADS, "at most {MAX_THREADS} are of use");
    Ok(n)
}

fn seconds(text: &str) -> Result<Duration> {
    let seconds: f64 = text.parse()?;
    ensure!(seconds > 0.0, "must be above zero");
    Ok(Duration::try_from_secs_f64(seconds)?)
}

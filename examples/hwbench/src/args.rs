//! The command line: what is asked for, and what would ask for the same elsewhere.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};
use thalweg_store::io::ReaderKind;
use thalweg_store::probe::MAX_THREADS;

/// Measure the drive and the processor of this machine.
///
/// The drive: a file of random bytes is made in DIR, and each row reads a slice of it that nothing
/// has read before, with direct I/O. The bytes that the system says came from the device must agree
/// with those asked for within 1 %, else the row is marked cached. The processor: f32 matrix
/// products on all cores; the sag compares the last five seconds with the first five.
///
/// With --reader the same blocks go through the backends that a model's experts are read with, so
/// that what a run reaches can be compared with what its backend can do on this drive.
///
/// The file is removed at the end, also after an error. A run that is killed leaves it: while writing
/// as DIR/thalweg-probe.part, which the next run takes over, later as DIR/thalweg-probe-SIZE.bin,
/// which the next run of that size reads, says so, and removes.
///
/// For figures that count, let the file have 12 GiB or 1.5 times the memory, and --seconds 60.
///
/// Examples:
///   hwbench --dir /mnt/models
///   hwbench drive --dir /mnt/models --size 24GiB --reader pool,uring --threads 4,8,16
///   hwbench gemm --seconds 60 --json
#[derive(Debug, Parser)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// What to measure [default: both]
    #[arg(value_enum)]
    pub(crate) parts: Vec<Part>,

    /// Folder on the drive to measure; its file needs SIZE bytes there
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,

    /// Size of the file
    #[arg(long, value_name = "SIZE", default_value = "12GiB", value_parser = size)]
    pub(crate) size: u64,

    /// Bytes that a row reads [default: the file is divided among the rows]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) slice: Option<u64>,

    /// Bytes of one read, several with commas: multiples of 4096
    #[arg(
        long,
        value_name = "SIZES",
        default_value = "1392640,1MiB",
        value_delimiter = ',',
        value_parser = size
    )]
    pub(crate) block: Vec<u64>,

    /// Threads that read at the same time, or depth of a ring, several with commas
    #[arg(
        long,
        value_name = "LIST",
        default_value = "1,2,4,8",
        value_delimiter = ',',
        value_parser = threads
    )]
    pub(crate) threads: Vec<NonZeroUsize>,

    /// Read through backends of the store, several with commas: pread (one at a time, through the
    /// page cache), pool, uring [default: threads without a backend]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) reader: Vec<ReaderKind>,

    /// How often each row is measured, on other bytes
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) rounds: NonZeroUsize,

    /// Seconds of matrix products, and the most that a row of the drive may take
    #[arg(long, value_name = "S", default_value = "60", value_parser = seconds)]
    pub(crate) seconds: Duration,

    /// Leave the file for the next run, which is faster and marks its rows as read before
    #[arg(long)]
    pub(crate) keep: bool,

    /// Print the JSON of a host's constants instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Part {
    /// Bandwidth of the drive
    Drive,
    /// Speed of matrix products
    Gemm,
}

impl Args {
    pub(crate) fn measures(&self, part: Part) -> bool {
        self.parts.is_empty() || self.parts.contains(&part)
    }

    /// What would measure the same elsewhere.
    pub(crate) fn command(&self) -> String {
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
            if !self.reader.is_empty() {
                let names = self.reader.iter().map(ToString::to_string).collect();
                words.push(format!("--reader {}", list(names)));
            }
            words.extend(self.slice.map(|slice| format!("--slice {slice}")));
        }
        words.push(format!("--seconds {}", self.seconds.as_secs_f64()));
        words.join(" ")
    }
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

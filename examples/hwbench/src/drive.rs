//! The rows of the drive: which are measured, on which bytes, and what there is to say of them.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use thalweg_examples_common::note;
use thalweg_store::io::{self, ReaderKind};
use thalweg_store::probe::{
    DeviceCounter, RandomFile, Row, Slice, SlicePlanner, counters_for, measure as measure_row,
    measure_reader,
};
use thalweg_store::{ALIGNMENT_BYTES, DirectFile, Error, FileSet, ReadMode};

use crate::args::Args;

/// Below this a drive's own memory may hold a good part of the file.
const LARGE_BYTES: u64 = 12 << 30;

/// What was measured.
#[derive(Debug)]
pub(crate) struct Curve {
    pub(crate) rows: Vec<Row>,
    pub(crate) mode: ReadMode,
    pub(crate) size_bytes: u64,
}

/// Makes or finds the file, measures, and removes the file. Facts go to `set`.
pub(crate) fn measure(
    dir: &Path,
    args: &Args,
    set: &mut impl FnMut(&str, String) -> Option<String>,
) -> Result<Curve> {
    let size_bytes = args.size - args.size % ALIGNMENT_BYTES as u64;
    ensure!(
        size_bytes > 0,
        "--size {} is less than a block of {ALIGNMENT_BYTES} bytes",
        args.size
    );
    let setup = Setup::new(args, size_bytes)?;
    if size_bytes < LARGE_BYTES {
        note("note: a drive's own memory may serve much of a file below 12 GiB");
    }

    let bar = crate::bar(
        "random bytes",
        "{msg} {wide_bar} {bytes}/{total_bytes}, {eta} left",
    );
    let file = RandomFile::prepare(dir, size_bytes, &mut |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    if file.removed_leftover() {
        note("note: the unfinished file of an interrupted run was removed");
    }
    if file.is_reused() {
        note("note: the file was there already, so its bytes were read in an earlier run");
    }
    set("drive_file", describe(&file));

    let result = rows(&file, &setup, args, set);
    if !args.keep {
        let removed = file.remove();
        // What went wrong first is what to report.
        return result.and_then(|curve| Ok(removed.map(|()| curve)?));
    }
    result
}

fn rows(
    random: &RandomFile,
    setup: &Setup,
    args: &Args,
    set: &mut impl FnMut(&str, String) -> Option<String>,
) -> Result<Curve> {
    let file = DirectFile::open(random.path())?;
    if file.mode() == ReadMode::Buffered {
        note("warning: direct reads do not work in this folder; rows may come from memory");
    }
    set("drive_reads", file.mode().to_string());
    let device = DeviceCounter::new(file.path()).and_then(|d| d.device_name());
    set("drive", device.unwrap_or_else(|| "hidden".to_owned()));

    let mut counters = counters_for(file.path());
    if counters.is_empty() {
        note("warning: the system counts no reads here; every row is marked cached");
    }
    let mut plan = Plan {
        slices: SlicePlanner::new(file.len_bytes()),
        file: &file,
    };
    let bar = crate::bar("drive", "{msg} {wide_bar} {pos}/{len} rows");
    bar.set_length(setup.n_rows as u64);
    let mut rows = Vec::new();
    for _ in 0..args.rounds.get() {
        for way in &setup.ways {
            let slice = plan.take(way.block, setup.slice_bytes)?;
            let (n, limit) = (way.n, args.seconds);
            let row = match way.reader {
                None => measure_row(&file, slice, n, limit, &mut counters),
                Some(kind) => measure_reader(kind, &file, slice, n, limit, &mut counters),
            };
            rows.push(row?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();

    let n_cached = rows.iter().filter(|row| row.is_cached()).count();
    if n_cached > 0 && !counters.is_empty() {
        let n_rows = rows.len();
        note(&format!(
            "warning: {n_cached} of {n_rows} rows disagree with the system's count of reads"
        ));
    }
    let again: Vec<_> = (0..rows.len())
        .filter(|i| !rows[*i].fresh)
        .map(|i| i.to_string())
        .collect();
    if !again.is_empty() {
        set("drive_read_again", format!("entries {}", again.join(", ")));
    }
    let sources = rows.iter().filter_map(|row| row.physical);
    let sources: BTreeSet<_> = sources.map(|p| p.source.to_string()).collect();
    if !sources.is_empty() {
        let sources: Vec<_> = sources.into_iter().collect();
        set("drive_counted_by", sources.join(", "));
    }
    if args.reader.len() > 1 {
        note("note: the latency model joins rows of all readers; give it a file of one");
    }
    Ok(Curve {
        rows,
        mode: file.mode(),
        size_bytes: random.len_bytes(),
    })
}

/// What is the same for all rows, checked before anything is written.
struct Setup {
    ways: Vec<Way>,
    slice_bytes: u64,
    n_rows: usize,
}

/// What one row measures.
struct Way {
    reader: Option<ReaderKind>,
    block: NonZeroUsize,
    /// Threads, or the depth of a ring.
    n: NonZeroUsize,
}

impl Setup {
    fn new(args: &Args, size_bytes: u64) -> Result<Self> {
        let blocks: Result<Vec<_>> = args.block.iter().map(|bytes| block_size(*bytes)).collect();
        let blocks = blocks?;
        let ways = ways(args, &blocks)?;
        let n_rows = ways.len().saturating_mul(args.rounds.get());
        let slice_bytes = args.slice;
        let slice_bytes = slice_bytes.unwrap_or_else(|| size_bytes / n_rows.max(1) as u64);
        for block in &blocks {
            let first = SlicePlanner::new(size_bytes).take(*block, slice_bytes);
            first.context("a row reads more than the file holds; see --size")?;
        }
        Ok(Self {
            ways,
            slice_bytes,
            n_rows,
        })
    }
}

/// Every reader with every block and depth.
fn ways(args: &Args, blocks: &[NonZeroUsize]) -> Result<Vec<Way>> {
    let mut readers: Vec<_> = args.reader.iter().map(|kind| Some(*kind)).collect();
    if readers.is_empty() {
        readers.push(None);
    }
    let one = [NonZeroUsize::MIN];
    let mut ways = Vec::new();
    for reader in readers {
        if let Some(kind) = reader {
            // Of no files, before a large one is written for a reader that does not work.
            let nothing = FileSet::open::<&Path>(&[])?;
            io::open(kind, nothing, NonZeroUsize::MIN).context(format!("--reader {kind}"))?;
        }
        let depths = match reader {
            Some(ReaderKind::Pread) => &one,
            _ => args.threads.as_slice(),
        };
        for &block in blocks {
            ways.extend(depths.iter().map(|&n| Way { reader, block, n }));
        }
    }
    if args.reader.contains(&ReaderKind::Pread) && args.threads[..] != one {
        note("note: pread has one read under way, so it has one row a block");
    }
    Ok(ways)
}

/// Slices of the file, from the start again when it is used up.
struct Plan<'a> {
    slices: SlicePlanner,
    file: &'a DirectFile,
}

impl Plan<'_> {
    fn take(&mut self, block_bytes: NonZeroUsize, len_bytes: u64) -> Result<Slice> {
        match self.slices.take(block_bytes, len_bytes) {
            Err(e @ Error::UsedUp { .. }) => {
                self.slices.start_over();
                let slice = self.slices.take(block_bytes, len_bytes)?;
                note(&format!(
                    "note: {e}; bytes are read again from here on, and marked so"
                ));
                // Where pages cannot be dropped, the counters tell what came from memory.
                let _ = self.file.evict();
                Ok(slice)
            }
            other => Ok(other?),
        }
    }
}

fn block_size(bytes: u64) -> Result<NonZeroUsize> {
    let block = usize::try_from(bytes).ok().and_then(NonZeroUsize::new);
    block
        .filter(|block| block.get().is_multiple_of(ALIGNMENT_BYTES))
        .with_context(|| format!("--block {bytes} is not a positive multiple of {ALIGNMENT_BYTES}"))
}

fn describe(file: &RandomFile) -> String {
    let made = if file.is_reused() {
        "read by an earlier run"
    } else {
        "made for this run"
    };
    format!("{} random bytes, {made}", file.len_bytes())
}

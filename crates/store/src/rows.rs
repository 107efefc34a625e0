//! `RowTable`: rows of a table that stays on disk.
//!
//! Owns a bounded cache of file blocks and a few staging buffers. Does not own which rows are
//! wanted: they come as numbers. Memory: the cache, [`RowTable::STAGING_BYTES`], and scratch in
//! proportion to the longest request. Reads only blocks that a requested row touches and the cache
//! does not hold; neighbors among them are one read. Invariants (`validate`), true after a failed
//! fetch too: 1. the cache is sound, within its bound, and holds nothing of a failed read; 2. all
//! staging buffers are here while nothing is fetched. Cost: a sort of the request, a copy of each
//! row, one read for each run of missing blocks.

use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::block_cache::{BLOCK_BYTES, BlockCache};
use crate::error::Extent;
use crate::io::run_all;
use crate::{
    AlignedBuf, Error, FileSet, PreadBackend, Priority, ReadBackend, ReadDone, ReadOp, Result,
    Segment, SlotBuf,
};

/// Blocks that one read may take.
const RUN_BLOCKS: usize = 4;
/// Reads that may be under way together.
const N_RUNS: usize = 16;

/// What a table has done since it was made, or since [`RowTable::take_stats`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct RowStats {
    /// Rows delivered, repeated ones included.
    pub rows: u64,
    /// Blocks needed and found in the cache. A fetch needs a block once, whatever its rows.
    pub block_hits: u64,
    /// Blocks needed and read.
    pub block_misses: u64,
    /// Reads carried out, failed ones included.
    pub reads: u64,
    /// Bytes read, those of failed reads not included.
    pub bytes_read: u64,
    /// Fetches that failed.
    pub failures: u64,
    /// Time from the first read to the end of the last.
    pub wait: Duration,
}

/// Rows of equal length that lie one after another in a file.
///
/// ```
/// # use std::io::Write;
/// use thalweg_store::{FileSet, RowTable};
/// # let mut file = tempfile::NamedTempFile::new()?;
/// # file.write_all(b"head-aabbccdd")?;
/// # file.flush()?;
/// # let path = file.path();
/// let files = FileSet::open(&[path])?;
/// let cache_bytes = 1 << 20;
/// let mut table = RowTable::new(files, 0, 5, 2, 4, cache_bytes)?; // "head-aabbccdd"
/// let mut out = [0; 6];
/// table.fetch(&[3_u32, 0, 3], &mut out)?;
/// assert_eq!(&out, b"ddaadd");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RowTable {
    files: FileSet,
    backend: Box<dyn ReadBackend>,
    file: usize,
    offset_bytes: u64,
    row_bytes: usize,
    n_rows: u64,
    cache: BlockCache,
    staging: Vec<Option<SlotBuf>>,
    stats: RowStats,
    scratch: Scratch,
}

#[derive(Default)]
struct Scratch {
    /// Row and position in the request, sorted.
    order: Vec<(u64, usize)>,
    pieces: Vec<Piece>,
    missing: Vec<Missing>,
    runs: Vec<Run>,
    ops: Vec<ReadOp>,
    done: Vec<ReadDone>,
}

/// The part of a row that lies in one block.
#[derive(Clone, Copy)]
struct Piece {
    block: u64,
    /// Within the block.
    start: usize,
    len: usize,
    /// Within the output.
    out: usize,
}

/// A block to be read and the pieces that lie in it.
#[derive(Clone)]
struct Missing {
    block: u64,
    pieces: Range<usize>,
}

/// Blocks that are read together, as a range of the missing ones.
#[derive(Clone)]
struct Run {
    missing: Range<usize>,
}

impl RowTable {
    /// Memory that a table takes besides its cache, in bytes.
    pub const STAGING_BYTES: usize = AlignedBuf::allocated_bytes(N_RUNS * RUN_BLOCKS * BLOCK_BYTES);

    /// A table of `n_rows` rows of `row_bytes` bytes at `offset_bytes` of file number `file`, with
    /// a cache of at most `cache_bytes` (0 is none).
    ///
    /// # Errors
    /// [`Error::NoSuchFile`], [`Error::EmptyRow`]; [`Error::BeyondFile`] and [`Error::TooLarge`]
    /// for a table that is not all in the file; [`Error::OutOfMemory`].
    pub fn new(
        files: FileSet,
        file: usize,
        offset_bytes: u64,
        row_bytes: usize,
        n_rows: u64,
        cache_bytes: u64,
    ) -> Result<Self> {
        files.check_index(file)?;
        if row_bytes == 0 {
            return Err(Error::EmptyRow);
        }
        let end_bytes = n_rows
            .checked_mul(row_bytes as u64)
            .and_then(|len| offset_bytes.checked_add(len))
            .ok_or(Error::TooLarge {
                what: "the row table",
            })?;
        let len_bytes = files.len_bytes(file).unwrap_or(0);
        if end_bytes > len_bytes {
            return Err(Error::BeyondFile {
                what: Extent::Rows,
                path: files.path_or_empty(file),
                end_bytes,
                len_bytes,
            });
        }
        // More cache than file would stay empty.
        let useful_bytes = len_bytes.saturating_add(2 * BLOCK_BYTES as u64);
        let cache_bytes =
            usize::try_from(cache_bytes.min(useful_bytes)).map_err(|_| Error::TooLarge {
                what: "the block cache",
            })?;
        let run_bytes = RUN_BLOCKS * BLOCK_BYTES;
        let staging = AlignedBuf::zeroed(N_RUNS * run_bytes)?.carve([run_bytes; N_RUNS])?;
        Ok(Self {
            backend: Box::new(PreadBackend::new(files.clone())),
            files,
            file,
            offset_bytes,
            row_bytes,
            n_rows,
            cache: BlockCache::new(cache_bytes)?,
            staging: staging.into_iter().map(Some).collect(),
            stats: RowStats::default(),
            scratch: Scratch::default(),
        })
    }

    /// The same table with another way of reading.
    #[must_use]
    pub fn with_backend(mut self, backend: Box<dyn ReadBackend>) -> Self {
        self.backend = backend;
        self
    }

    /// Copies rows to `out`, `[rows.len(), row_bytes]`, in the order of the request; rows may
    /// repeat.
    ///
    /// # Errors
    /// Before anything happens: [`Error::RowOutOfRange`], [`Error::OutputLength`]. Then those of
    /// reading, [`Error::FileChanged`], and [`Error::OperationRefused`], [`Error::OperationsLost`],
    /// [`Error::SlotLost`] for a backend that breaks its contract: `out` is not defined then, and
    /// the table remains usable.
    ///
    /// # Cost
    /// Reads each missing block once, neighbors together, in file order; two metadata calls for
    /// every 16 reads.
    pub fn fetch<R: Copy + Into<u64>>(&mut self, rows: &[R], out: &mut [u8]) -> Result<()> {
        if rows.len().checked_mul(self.row_bytes) != Some(out.len()) {
            return Err(Error::OutputLength {
                n_rows: rows.len(),
                row_bytes: self.row_bytes,
                found_bytes: out.len(),
            });
        }
        self.sort(rows)?;
        self.cut();
        let result = self.copy_pieces(out);
        if result.is_err() {
            self.stats.failures += 1;
            return result;
        }
        self.copy_repeats(out);
        self.stats.rows += rows.len() as u64;
        Ok(())
    }

    /// Rows of the table.
    #[must_use]
    pub fn n_rows(&self) -> u64 {
        self.n_rows
    }

    /// Bytes of a row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Blocks that the cache can hold, of 4096 bytes each.
    #[must_use]
    pub fn cache_blocks(&self) -> usize {
        self.cache.capacity()
    }

    /// Counters since the table was made or they were last taken.
    #[must_use]
    pub fn stats(&self) -> RowStats {
        self.stats
    }

    /// The counters, which begin again at zero.
    pub fn take_stats(&mut self) -> RowStats {
        std::mem::take(&mut self.stats)
    }

    /// Checks the invariants; for tests.
    ///
    /// # Errors
    /// [`Error::Broken`] names the first invariant found broken.
    pub fn validate(&self) -> Result<()> {
        self.cache.validate()?;
        match self.staging.iter().position(Option::is_none) {
            None => Ok(()),
            Some(place) => Err(Error::Broken {
                owner: "row table",
                invariant: 2,
                place: place as u64,
            }),
        }
    }

    /// Fills `scratch.order`.
    fn sort<R: Copy + Into<u64>>(&mut self, rows: &[R]) -> Result<()> {
        let order = &mut self.scratch.order;
        order.clear();
        for (position, row) in rows.iter().enumerate() {
            let row: u64 = (*row).into();
            if row >= self.n_rows {
                return Err(Error::RowOutOfRange {
                    position,
                    row,
                    n_rows: self.n_rows,
                });
            }
            order.push((row, position));
        }
        order.sort_unstable();
        Ok(())
    }

    /// Fills `scratch.pieces` with the distinct rows, cut at block ends, blocks ascending.
    fn cut(&mut self) {
        let Scratch { order, pieces, .. } = &mut self.scratch;
        pieces.clear();
        let block_bytes = BLOCK_BYTES as u64;
        let mut last = None;
        for &(row, position) in order.iter() {
            if last.replace(row) == Some(row) {
                continue;
            }
            // Within the file, as `new` has seen, so nothing overflows.
            let begin = self.offset_bytes + row * self.row_bytes as u64;
            let mut done = 0;
            while done < self.row_bytes {
                let at = begin + done as u64;
                let start = (at % block_bytes) as usize;
                let len = (BLOCK_BYTES - start).min(self.row_bytes - done);
                pieces.push(Piece {
                    block: at / block_bytes,
                    start,
                    len,
                    out: position * self.row_bytes + done,
                });
                done += len;
            }
        }
    }

    /// Copies all pieces, from the cache where it has them and from the file otherwise.
    fn copy_pieces(&mut self, out: &mut [u8]) -> Result<()> {
        let mut first = 0;
        while let Some(&Piece { block, .. }) = self.scratch.pieces.get(first) {
            let same = self.scratch.pieces[first..]
                .iter()
                .take_while(|p| p.block == block);
            let pieces = first..first + same.count();
            first = pieces.end;
            if let Some(bytes) = self.cache.get(block) {
                self.stats.block_hits += 1;
                copy_from(bytes, &self.scratch.pieces[pieces], out);
            } else {
                if !self.join_run(block) && self.scratch.runs.len() == N_RUNS {
                    self.read_missing(out)?;
                }
                self.add_missing(block, pieces);
            }
        }
        self.read_missing(out)
    }

    /// Whether a block continues the last run.
    fn join_run(&self, block: u64) -> bool {
        let Scratch { runs, missing, .. } = &self.scratch;
        let (Some(run), Some(last)) = (runs.last(), missing.last()) else {
            return false;
        };
        last.block + 1 == block && run.missing.len() < RUN_BLOCKS
    }

    fn add_missing(&mut self, block: u64, pieces: Range<usize>) {
        let joins = self.join_run(block);
        let Scratch { runs, missing, .. } = &mut self.scratch;
        let at = missing.len();
        missing.push(Missing { block, pieces });
        match runs.last_mut() {
            Some(run) if joins => run.missing.end = at + 1,
            _ => runs.push(Run {
                missing: at..at + 1,
            }),
        }
    }

    /// Reads the runs gathered so far, copies their pieces and caches their blocks.
    fn read_missing(&mut self, out: &mut [u8]) -> Result<()> {
        if self.scratch.runs.is_empty() {
            return Ok(());
        }
        let result = self.read_runs(out);
        self.scratch.runs.clear();
        self.scratch.missing.clear();
        result
    }

    fn read_runs(&mut self, out: &mut [u8]) -> Result<()> {
        let len_bytes = self.files.len_bytes(self.file).unwrap_or(0);
        let Scratch {
            missing,
            runs,
            ops,
            done,
            ..
        } = &mut self.scratch;
        let mut lost = None;
        for (id, run) in runs.iter().enumerate() {
            let Some(buf) = self.staging.get_mut(id).and_then(Option::take) else {
                lost = Some(Error::SlotLost { slot: id });
                break;
            };
            let begin = missing[run.missing.start].block * BLOCK_BYTES as u64;
            let whole = (run.missing.len() * BLOCK_BYTES) as u64;
            // The file's last block may be short. At most a run, so it fits in usize.
            let len = whole.min(len_bytes - begin) as usize;
            ops.push(ReadOp {
                priority: Priority::Demand,
                id: id as u64,
                segments: vec![Segment {
                    file: self.file,
                    offset_bytes: begin,
                    len_bytes: len,
                    dst_bytes: 0,
                }],
                buf,
            });
        }
        let finished = match lost {
            Some(error) => Err(error),
            None => {
                let start = Instant::now();
                let finished = run_all(&mut *self.backend, ops, done);
                self.stats.wait += start.elapsed();
                finished
            }
        };
        let failed = self.collect_runs();
        // Checked after the reads and before their blocks are cached; a file that was changed
        // explains a failed read better than the system does.
        if failed.is_some() || finished.is_ok() {
            self.files.verify(self.file)?;
        }
        if let Some(error) = failed {
            return Err(error);
        }
        finished?;
        self.publish_runs(out)
    }

    /// Puts all buffers back and counts; the first failure, if any.
    fn collect_runs(&mut self) -> Option<Error> {
        let mut first: Option<(u64, Error)> = None;
        for ReadDone { op, result } in self.scratch.done.drain(..) {
            self.stats.reads += op.segments.len() as u64;
            match result {
                Ok(()) => self.stats.bytes_read += op.len_bytes(),
                Err(error) if first.as_ref().is_none_or(|(id, _)| op.id < *id) => {
                    first = Some((op.id, error));
                }
                Err(_) => {}
            }
            put_back(&mut self.staging, op);
        }
        for op in self.scratch.ops.drain(..) {
            put_back(&mut self.staging, op);
        }
        first.map(|(_, error)| error)
    }

    fn publish_runs(&mut self, out: &mut [u8]) -> Result<()> {
        let Scratch {
            pieces,
            missing,
            runs,
            ..
        } = &self.scratch;
        for (id, run) in runs.iter().enumerate() {
            let Some(Some(buf)) = self.staging.get(id) else {
                return Err(Error::SlotLost { slot: id });
            };
            for (bytes, block) in buf.chunks(BLOCK_BYTES).zip(&missing[run.missing.clone()]) {
                self.stats.block_misses += 1;
                copy_from(bytes, &pieces[block.pieces.clone()], out);
                self.cache.insert(block.block, bytes);
            }
        }
        Ok(())
    }

    /// Copies repeated rows from where they came first.
    fn copy_repeats(&self, out: &mut [u8]) {
        let mut first: Option<(u64, usize)> = None;
        for &(row, position) in &self.scratch.order {
            match first {
                Some((known, from)) if known == row => {
                    let from = from * self.row_bytes;
                    out.copy_within(from..from + self.row_bytes, position * self.row_bytes);
                }
                _ => first = Some((row, position)),
            }
        }
    }
}

impl fmt::Debug for RowTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowTable")
            .field("file", &self.files.path(self.file))
            .field("offset_bytes", &self.offset_bytes)
            .field("row_bytes", &self.row_bytes)
            .field("n_rows", &self.n_rows)
            .field("cache_blocks", &self.cache.capacity())
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

fn copy_from(block: &[u8], pieces: &[Piece], out: &mut [u8]) {
    for piece in pieces {
        out[piece.out..][..piece.len].copy_from_slice(&block[piece.start..][..piece.len]);
    }
}

/// A buffer under a wrong id has no home; its staging place is then found empty.
fn put_back(staging: &mut [Option<SlotBuf>], op: ReadOp) {
    let home = usize::try_from(op.id)
        .ok()
        .and_then(|id| staging.get_mut(id));
    debug_assert!(
        home.is_some(),
        "the backend returned an operation under another id"
    );
    if let Some(home) = home {
        *home = Some(op.buf);
    }
}

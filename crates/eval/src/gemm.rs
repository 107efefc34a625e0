//! Matrix products for a while: how fast the processor is, and how much slower it becomes.
//!
//! Owns a blocked f32 product (`MatrixProduct`), the rates second by second (`Sustained`) and the
//! formula of the sag. Does not own what is done with the figures (`host`). Memory: three square
//! matrices. Invariants: 1. a product is 2 n^3 operations, whatever the threads; 2. buckets hold
//! whole steps, each over the time that it really took. Cost: the run. The arithmetic is what the
//! compiler makes of portable code (SSE2 on x86-64): a floor for this processor, not its peak.

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::host::Gemm;

/// Rows and columns of the matrices.
pub const GEMM_SIZE: usize = 1024;
/// Time of a bucket, up to the length of a step.
pub const BUCKET: Duration = Duration::from_secs(1);
/// Buckets at each end of a run that the sag compares.
pub const SAG_BUCKETS: usize = 5;

/// Rows of the tile of the product that is kept in registers.
const TILE_ROWS: usize = 4;
/// Columns of that tile.
const TILE_COLS: usize = 8;
/// Terms of a dot product that are added before the next columns: a panel of `b` stays in the
/// first-level cache.
const BLOCK_K: usize = 256;
/// Rows that a thread takes at once at most: a block of `a` stays in the second-level cache.
const BLOCK_ROWS: usize = 128;

/// 1 - last / first: the share of the speed that was lost.
///
/// ```
/// let sag = thalweg_eval::sag(14.00, 13.88);
/// assert_eq!(format!("{:.3} %", 100.0 * sag), "0.857 %");
/// ```
#[must_use]
pub fn sag(first_mean: f64, last_mean: f64) -> f64 {
    1.0 - last_mean / first_mean
}

/// What a run gave.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Sustained {
    /// Operations a second in each bucket of one second, in order.
    pub bucket_flops_per_s: Vec<f64>,
    /// Operations a second over all buckets.
    pub flops_per_s: f64,
}

impl Sustained {
    /// Repeats `step`, which returns the operations that it did, until `total` has passed. `clock`
    /// tells the time since any moment.
    ///
    /// A bucket ends with the first step at or after a whole second of the run; a last one of less
    /// than half a second is dropped, unless it is the only one. At least one step is done.
    pub fn run(
        total: Duration,
        mut step: impl FnMut() -> f64,
        mut clock: impl FnMut() -> Duration,
    ) -> Self {
        let start = clock();
        let mut buckets: Vec<(f64, Duration)> = Vec::new();
        let (mut flops, mut bucket_start) = (0.0, start);
        let mut bucket_end = BUCKET;
        loop {
            flops += step();
            let now = clock();
            let passed = now.saturating_sub(start);
            let is_last = passed >= total;
            let elapsed = now.saturating_sub(bucket_start);
            let counts = elapsed >= BUCKET / 2 || buckets.is_empty();
            if passed >= bucket_end || (is_last && counts) {
                // A clock may not have moved between two looks.
                buckets.push((flops, elapsed.max(Duration::from_nanos(1))));
                (flops, bucket_start) = (0.0, now);
                // The end of a second of the run, so that buckets do not drift.
                while bucket_end <= passed {
                    bucket_end += BUCKET;
                }
            }
            if is_last {
                break;
            }
        }
        let seconds: f64 = buckets.iter().map(|(_, time)| time.as_secs_f64()).sum();
        Self {
            flops_per_s: buckets.iter().map(|(flops, _)| flops).sum::<f64>() / seconds,
            bucket_flops_per_s: buckets
                .iter()
                .map(|(flops, time)| flops / time.as_secs_f64())
                .collect(),
        }
    }

    /// Buckets at each end that [`sag`](Self::sag) compares: [`SAG_BUCKETS`], or half of a shorter
    /// run.
    #[must_use]
    pub fn sag_buckets(&self) -> usize {
        SAG_BUCKETS.min(self.bucket_flops_per_s.len() / 2)
    }

    /// 1 - mean of the last buckets / mean of the first; `None` for a run of one bucket. Negative
    /// when the machine became faster.
    #[must_use]
    pub fn sag(&self) -> Option<f64> {
        let n = self.sag_buckets();
        if n == 0 {
            return None;
        }
        let buckets = &self.bucket_flops_per_s;
        let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
        Some(sag(
            mean(&buckets[..n]),
            mean(&buckets[buckets.len() - n..]),
        ))
    }

    /// The figures for a host's constants; `None` for a run too short to have a sag.
    #[must_use]
    pub fn constants(&self) -> Option<Gemm> {
        Some(Gemm {
            flops_per_s: self.flops_per_s,
            sag: self.sag()?,
        })
    }
}

/// A product of two square f32 matrices that can be repeated.
#[derive(Clone, Debug)]
pub struct MatrixProduct {
    size: usize,
    n_threads: NonZeroUsize,
    /// By blocks of `BLOCK_K` columns, then `TILE_ROWS` rows, then columns: as a tile reads it.
    a: Vec<f32>,
    /// By blocks of `BLOCK_K` rows, then `TILE_COLS` columns, then rows.
    b: Vec<f32>,
    /// `[size, size]`.
    c: Vec<f32>,
}

impl MatrixProduct {
    /// Two matrices of [`GEMM_SIZE`] rows and columns with entries in -1..1.
    ///
    /// # Cost
    /// 12 MiB.
    #[must_use]
    pub fn new(n_threads: NonZeroUsize) -> Self {
        Self::with_size(GEMM_SIZE, n_threads)
    }

    /// Computes the product once and returns the operations: 2 n^3. Threads take the next rows that
    /// nobody has taken; where a thread cannot be started, the others do its share.
    ///
    /// # Cost
    /// Starts the threads; against some 10 milliseconds of arithmetic that is little.
    pub fn multiply(&mut self) -> f64 {
        let (size, a, b) = (self.size, self.a.as_slice(), self.b.as_slice());
        let share = (size / TILE_ROWS).div_ceil(self.n_threads.get()) * TILE_ROWS;
        let rows = share.min(BLOCK_ROWS);
        let parts = Mutex::new(self.c.chunks_mut(rows * size).enumerate());
        let work = || {
            loop {
                // Taking a part cannot fail halfway, so a poisoned lock would still be in order.
                let part = parts.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((i, c)) = part else { break };
                multiply_rows(size, a, b, i * rows, c);
            }
        };
        thread::scope(|scope| {
            for _ in 1..self.n_threads.get() {
                if thread::Builder::new().spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            work();
        });
        black_box(&self.c);
        2.0 * (self.size as f64).powi(3)
    }

    /// `size` is a multiple of the tile's sides, and of [`BLOCK_K`] if it is larger than that.
    fn with_size(size: usize, n_threads: NonZeroUsize) -> Self {
        let mut product = Self {
            size,
            n_threads,
            a: vec![0.0; size * size],
            b: vec![0.0; size * size],
            c: vec![0.0; size * size],
        };
        for row in 0..size {
            for col in 0..size {
                product.a[packed(size, TILE_ROWS, row, col)] = entry(row, col);
                product.b[packed(size, TILE_COLS, col, row)] = entry(row + size, col);
            }
        }
        product
    }
}

/// Some rows of the product, from `first_row` on: `c += a b` block by block of the dot products.
fn multiply_rows(size: usize, a: &[f32], b: &[f32], first_row: usize, c: &mut [f32]) {
    let block_k = BLOCK_K.min(size);
    let n_rows = c.len() / size;
    let blocks = a.chunks_exact(block_k * size);
    for (block, (a, b)) in blocks.zip(b.chunks_exact(block_k * size)).enumerate() {
        let a = &a[first_row * block_k..(first_row + n_rows) * block_k];
        for (j, b) in b.chunks_exact(TILE_COLS * block_k).enumerate() {
            let a_tiles = a.chunks_exact(TILE_ROWS * block_k);
            for (a, c) in a_tiles.zip(c.chunks_exact_mut(TILE_ROWS * size)) {
                for (sums, c) in tile(a, b).iter().zip(c.chunks_exact_mut(size)) {
                    let c = &mut c[j * TILE_COLS..(j + 1) * TILE_COLS];
                    for (c, sum) in c.iter_mut().zip(sums) {
                        *c = if block == 0 { *sum } else { *c + sum };
                    }
                }
            }
        }
    }
}

/// The dot products of `TILE_ROWS` rows with `TILE_COLS` columns. The sums stay in registers.
#[inline]
fn tile(a: &[f32], b: &[f32]) -> [[f32; TILE_COLS]; TILE_ROWS] {
    let mut sums = [[0.0_f32; TILE_COLS]; TILE_ROWS];
    let (a, _) = a.as_chunks::<TILE_ROWS>();
    let (b, _) = b.as_chunks::<TILE_COLS>();
    for (a, b) in a.iter().zip(b) {
        for i in 0..TILE_ROWS {
            for j in 0..TILE_COLS {
                sums[i][j] += a[i] * b[j];
            }
        }
    }
    sums
}

/// Where an entry lies: `line` is a row of `a` or a column of `b`, `k` the place in that line.
fn packed(size: usize, lines: usize, line: usize, k: usize) -> usize {
    let block_k = BLOCK_K.min(size);
    let (block, k) = (k / block_k, k % block_k);
    block * block_k * size + (line / lines) * lines * block_k + k * lines + line % lines
}

/// Any fixed values of both signs that float arithmetic neither overflows nor flushes.
fn entry(row: usize, col: usize) -> f32 {
    let mixed = (row * 31 + col * 17 + row * col) % 251;
    mixed as f32 / 125.0 - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(n: usize) -> NonZeroUsize {
        NonZeroUsize::new(n).expect("not zero")
    }

    #[test]
    fn the_product_is_the_sum_of_products() {
        // 512 has two blocks of dot products; 5 threads get unequal shares.
        for (size, n_threads) in [(8, 1), (64, 2), (64, 100), (512, 1), (512, 5)] {
            let mut product = MatrixProduct::with_size(size, threads(n_threads));
            let flops = product.multiply();
            assert!((flops - 2.0 * (size as f64).powi(3)).abs() < 0.5);
            let rows = [0, 1, size / 2 + 3, size - 1];
            for (row, col) in rows.into_iter().flat_map(|r| rows.map(|c| (r, c))) {
                let expected: f64 = (0..size)
                    .map(|k| f64::from(entry(row, k)) * f64::from(entry(k + size, col)))
                    .sum();
                let found = f64::from(product.c[row * size + col]);
                assert!(
                    (found - expected).abs() < 1e-3,
                    "[{row}, {col}] of {size} is {found}, expected {expected}"
                );
            }
            // Repeating replaces, it does not add.
            let first = product.c.clone();
            product.multiply();
            assert!(first == product.c);
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let product = |n| {
            let mut product = MatrixProduct::with_size(256, threads(n));
            product.multiply();
            product.c
        };
        assert!(product(1) == product(3));
    }

    /// A run of steps that take these milliseconds, each of 1000 operations.
    fn run_ms(total_ms: u64, step_ms: &[u64]) -> Sustained {
        let clock = std::cell::Cell::new(Duration::from_secs(77));
        let mut steps = step_ms.iter();
        let step = || {
            let ms = steps.next().expect("no step after the end");
            clock.set(clock.get() + Duration::from_millis(*ms));
            1000.0
        };
        Sustained::run(Duration::from_millis(total_ms), step, || clock.get())
    }

    fn run(total_s: u64, step_ms: &[u64]) -> Sustained {
        run_ms(1000 * total_s, step_ms)
    }

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9, "{found}, not {expected}");
    }

    #[test]
    fn buckets_are_whole_steps_over_their_own_time() {
        // The first bucket ends 200 ms after its second, the next one just at its.
        let run = run(2, &[400, 400, 400, 600, 200]);
        assert_eq!(run.bucket_flops_per_s.len(), 2);
        close(run.bucket_flops_per_s[0], 3000.0 / 1.2);
        close(run.bucket_flops_per_s[1], 2000.0 / 0.8);
        close(run.flops_per_s, 5000.0 / 2.0);
    }

    #[test]
    fn a_run_of_n_seconds_has_n_buckets_although_steps_do_not_fit_a_second() {
        assert_eq!(run(10, &[300; 34]).bucket_flops_per_s.len(), 10);
        // Steps of more than a second are buckets of their own.
        assert_eq!(run(10, &[2500; 4]).bucket_flops_per_s.len(), 4);
    }

    #[test]
    fn a_short_last_bucket_is_dropped_unless_it_is_the_only_one() {
        // The run ends 500 ms, then 400 ms after its second.
        let kept = run_ms(1500, &[1000, 500]);
        assert_eq!(kept.bucket_flops_per_s.len(), 2);
        let dropped = run_ms(1400, &[1000, 400]);
        assert_eq!(dropped.bucket_flops_per_s.len(), 1);
        close(dropped.flops_per_s, 1000.0);
        let only = run(0, &[100]);
        close(only.flops_per_s, 10_000.0);
        assert_eq!((only.sag(), only.constants()), (None, None));
    }

    #[test]
    fn sag_compares_the_first_and_the_last_five_seconds() {
        let mut rates = vec![14.0; 5];
        rates.extend([99.0; 50]);
        rates.extend([13.86, 13.87, 13.88, 13.89, 13.90]);
        let run = Sustained {
            bucket_flops_per_s: rates,
            flops_per_s: 14.0,
        };
        let sag = run.sag().expect("long enough");
        assert_eq!(format!("{:.3}", 100.0 * sag), "0.857");
        let constants = run.constants().expect("long enough");
        close(constants.sag, sag);
        close(constants.flops_per_s, 14.0);
    }

    #[test]
    fn a_shorter_run_compares_its_halves() {
        let run = |rates: &[f64]| Sustained {
            bucket_flops_per_s: rates.to_vec(),
            flops_per_s: 1.0,
        };
        let three = run(&[4.0, 77.0, 5.0]);
        assert_eq!(three.sag_buckets(), 1);
        close(three.sag().expect("two ends"), -0.25);
        assert_eq!(run(&[1.0; 9]).sag_buckets(), 4);
        assert_eq!(run(&[1.0; 600]).sag_buckets(), 5);
    }
}

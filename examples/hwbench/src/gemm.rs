//! Matrix products on all cores for a while.

use std::num::NonZeroUsize;
use std::thread;
use std::time::{Duration, Instant};

use thalweg_eval::{GEMM_SIZE, MatrixProduct, Sustained};

/// Multiplies for `total`. Facts go to `set`.
pub(crate) fn measure(
    total: Duration,
    set: &mut impl FnMut(&str, String) -> Option<String>,
) -> Sustained {
    let n_threads = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let size = GEMM_SIZE;
    set(
        "gemm",
        format!("f32, {size} x {size} x {size}, {n_threads} threads, portable code"),
    );

    let bar = crate::bar("matrix products", "{msg} {wide_bar} {pos}/{len} s");
    bar.set_length(total.as_secs());
    let mut product = MatrixProduct::new(n_threads);
    // The first product pays for pages and for waking the cores.
    product.multiply();
    let start = Instant::now();
    let clock = || {
        let now = start.elapsed();
        bar.set_position(now.as_secs());
        now
    };
    let run = Sustained::run(total, || product.multiply(), clock);
    bar.finish_and_clear();

    let (ends, all) = (run.sag_buckets(), run.bucket_flops_per_s.len());
    set("gemm_sag", format!("{ends} seconds at each end of {all}"));
    run
}

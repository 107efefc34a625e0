//! Speed of the fitted quantizers on one thread.
//!
//! `encode/<NAME>` fits a matrix of 64 x 2560 values that look Gaussian, `encode_weighted/<NAME>`
//! does so with importance weights over two decades. Throughput is in bytes of f32 input.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use thalweg_quant::{QuantType, encode as fits};

/// Values in a row: a multiple of every block length.
const ROW_LEN: usize = 2560;
const N_ROWS: usize = 64;

/// Sums of four uniform numbers, the same on every run: no value repeats often.
fn values() -> Vec<f32> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut unit = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..N_ROWS * ROW_LEN)
        .map(|_| unit() + unit() + unit() + unit())
        .collect()
}

fn importance() -> Vec<f32> {
    (0..ROW_LEN)
        .map(|i| 10_f32.powf((i * 7919 % 2003) as f32 / 1001.0))
        .collect()
}

fn encode(c: &mut Criterion) {
    let values = values();
    let importance = importance();
    for (name, importance) in [("encode", None), ("encode_weighted", Some(&importance[..]))] {
        let mut group = c.benchmark_group(name);
        group.sample_size(10);
        group.throughput(Throughput::Bytes(size_of_val(&values[..]) as u64));
        for format in QuantType::ALL
            .iter()
            .copied()
            .filter(|f| fits::is_fitted(*f))
        {
            let row_bytes = format
                .row_bytes(ROW_LEN)
                .expect("every block length divides the row");
            let mut out = vec![0; row_bytes];
            group.bench_function(format.name(), |b| {
                b.iter(|| {
                    for row in black_box(&values).chunks_exact(ROW_LEN) {
                        fits::encode_row(format, row, importance, black_box(&mut out))
                            .expect("finite values in whole blocks");
                    }
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, encode);
criterion_main!(benches);

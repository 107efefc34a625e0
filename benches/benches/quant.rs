//! Speed of the block formats: decode of every format, quantize of those that have a quantizer.
//!
//! Groups `quant_decode/<NAME>` and `quant_quantize/<NAME>` work on one row of 2560 weights, which
//! fits the first-level cache on the output side; throughput is in weights. `quant_dot/<NAME>` is
//! the reference dot product of the same row.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use thalweg_quant::QuantType;

/// Weights in the row: a multiple of every block length.
const ROW_LEN: usize = 2560;

/// Pseudo-random bytes of one row whose scales are finite: the same on every run.
fn row(format: QuantType) -> Vec<u8> {
    let n_bytes = format
        .row_bytes(ROW_LEN)
        .expect("every block length divides the row");
    let mut state = 0x2545_f491_u32;
    let bytes = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Bit 6 clear in every byte: no f16, bf16 or f32 exponent is all ones.
        (state >> 24) as u8 & 0xbf
    });
    bytes.take(n_bytes).collect()
}

/// Values of mixed sign and magnitude.
fn values() -> Vec<f32> {
    (0..ROW_LEN)
        .map(|i| ((i * 7919 % 2003) as f32 - 1001.0) / 977.0)
        .collect()
}

fn decode(c: &mut Criterion) {
    let mut group = c.benchmark_group("quant_decode");
    group.throughput(Throughput::Elements(ROW_LEN as u64));
    let mut out = vec![0.0; ROW_LEN];
    for &format in QuantType::ALL {
        let row = row(format);
        assert_eq!(format.first_non_finite(&row), Ok(None));
        group.bench_function(format.name(), |b| {
            b.iter(|| format.decode_row(black_box(&row), black_box(&mut out)));
        });
    }
    group.finish();
}

fn dot(c: &mut Criterion) {
    let mut group = c.benchmark_group("quant_dot");
    group.throughput(Throughput::Elements(ROW_LEN as u64));
    let x = values();
    for &format in QuantType::ALL {
        let row = row(format);
        group.bench_function(format.name(), |b| {
            b.iter(|| format.dot_row(black_box(&row), black_box(&x)));
        });
    }
    group.finish();
}

fn quantize(c: &mut Criterion) {
    let mut group = c.benchmark_group("quant_quantize");
    group.throughput(Throughput::Elements(ROW_LEN as u64));
    let values = values();
    for format in QuantType::ALL
        .iter()
        .copied()
        .filter(|format| format.can_quantize())
    {
        let mut bytes = row(format);
        group.bench_function(format.name(), |b| {
            b.iter(|| format.quantize_row(black_box(&values), black_box(&mut bytes)));
        });
    }
    group.finish();
}

criterion_group!(benches, decode, dot, quantize);
criterion_main!(benches);

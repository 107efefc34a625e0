//! Speed of the block formats: decode of every format, quantize of those that have a quantizer.
//!
//! Groups `quant_decode/<NAME>` and `quant_quantize/<NAME>` work on one row of 2560 weights, which
//! fits the first-level cache on the output side; throughput is in weights. `quant_dot/<NAME>` is
//! the dot product of the same row.
//!
//! `quant_matvec/<SET>/<NAME>` multiplies a matrix of 4096 x 4096 with one f32 vector,
//! `quant_matmul` with 64 of them, on one thread, by each instruction set of the machine;
//! `quant_matvec_q8` and `quant_matmul_q8` do so with vectors of eight bits, whose quantization is
//! in the time. Throughput is in weights (times vectors) and in bytes of the matrix.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use thalweg_quant::{Kernels, Q8Vectors, QuantType};

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

/// Rows and columns of the matrices.
const SIDE: usize = 4096;

/// Formats with kernels of their own; of the K formats the f32 products have none.
const WITH_KERNELS: [QuantType; 18] = [
    QuantType::Q2_0,
    QuantType::Q4_0,
    QuantType::Q4_1,
    QuantType::Q5_0,
    QuantType::Q5_1,
    QuantType::Q8_0,
    QuantType::IQ4_NL,
    QuantType::IQ3_S,
    QuantType::IQ4_XS,
    QuantType::MXFP4,
    QuantType::Q2_K,
    QuantType::Q3_K,
    QuantType::Q4_K,
    QuantType::Q5_K,
    QuantType::Q6_K,
    QuantType::F16,
    QuantType::BF16,
    QuantType::F32,
];

/// `SIDE` rows of pseudo-random weights.
fn matrix(format: QuantType) -> Vec<u8> {
    let row_bytes = format
        .row_bytes(SIDE)
        .expect("every block length divides the row");
    row(format)
        .into_iter()
        .cycle()
        .take(SIDE * row_bytes)
        .collect()
}

fn vectors(n_tokens: usize) -> Vec<f32> {
    values().into_iter().cycle().take(SIDE * n_tokens).collect()
}

fn matmul(c: &mut Criterion) {
    for (name, n_tokens) in [("quant_matvec", 1), ("quant_matmul", 64)] {
        let x = vectors(n_tokens);
        let mut out = vec![0.0; SIDE * n_tokens];
        for kernels in Kernels::available() {
            let mut group = c.benchmark_group(format!("{name}/{}", kernels.name()));
            group.sample_size(10);
            for format in WITH_KERNELS {
                let rows = matrix(format);
                group.throughput(Throughput::ElementsAndBytes {
                    elements: (SIDE * SIDE * n_tokens) as u64,
                    bytes: rows.len() as u64,
                });
                group.bench_function(format.name(), |b| {
                    b.iter(|| {
                        kernels.matmul(format, black_box(&rows), black_box(&x), n_tokens, &mut out)
                    });
                });
            }
            group.finish();
        }
    }
}

fn matmul_q8(c: &mut Criterion) {
    for (name, n_tokens) in [("quant_matvec_q8", 1), ("quant_matmul_q8", 64)] {
        let x = vectors(n_tokens);
        let mut out = vec![0.0; SIDE * n_tokens];
        for kernels in Kernels::available() {
            let mut group = c.benchmark_group(format!("{name}/{}", kernels.name()));
            group.sample_size(10);
            for format in WITH_KERNELS.into_iter().filter(|f| Q8Vectors::supports(*f)) {
                let rows = matrix(format);
                group.throughput(Throughput::ElementsAndBytes {
                    elements: (SIDE * SIDE * n_tokens) as u64,
                    bytes: rows.len() as u64,
                });
                group.bench_function(format.name(), |b| {
                    b.iter(|| {
                        let x = Q8Vectors::new(kernels, format, black_box(&x), n_tokens)?;
                        kernels.matmul_q8(format, black_box(&rows), &x, 0..n_tokens, &mut out)
                    });
                });
            }
            group.finish();
        }
    }
}

criterion_group!(benches, decode, dot, quantize, matmul, matmul_q8);
criterion_main!(benches);

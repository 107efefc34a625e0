//! Fits against the blocks of ggml's own searches; `tools/make_encode_vectors.py` made them.

use thalweg_quant::QuantType;

use super::{encoded, error_of};

/// Checks each block of a vector file: our error, plain and weighted, against ggml's.
fn is_no_worse_than_ggml(format: QuantType, data: &[u8], each: f64, all: f64) {
    let (len, size) = (format.block_len(), format.block_bytes());
    let n = data.len() / (4 * len + 2 * size);
    assert!(n >= 8 && n * (4 * len + 2 * size) == data.len());
    let (values, blocks) = data.split_at(n * 4 * len);
    let values: Vec<f32> = values
        .as_chunks::<4>()
        .0
        .iter()
        .map(|&bytes| f32::from_le_bytes(bytes))
        .collect();
    let weights: Vec<f32> = (0..len)
        .map(|i| 1.0 + (i * 7919 % 257) as f32 / 16.0)
        .collect();
    let (plain, weighted) = blocks.split_at(n * size);
    for (weights, theirs) in [(None, plain), (Some(&weights[..]), weighted)] {
        let mut log_ratio = 0.0;
        for (i, (values, theirs)) in values.chunks(len).zip(theirs.chunks(size)).enumerate() {
            let ours = error_of(format, &encoded(format, values, weights), values, weights);
            let theirs = error_of(format, theirs, values, weights);
            let weighted = weights.is_some();
            assert!(
                ours <= theirs * each,
                "{format}, block {i}, weighted {weighted}: {ours} against {theirs}"
            );
            log_ratio += (ours / theirs).ln();
        }
        let mean = (log_ratio / n as f64).exp();
        println!(
            "{format}, weighted {}: error {mean:.4} of ggml's",
            weights.is_some()
        );
        assert!(mean <= all, "{format}: {mean}");
    }
}

#[test]
fn iq4_nl() {
    let data = include_bytes!("../data/encode/IQ4_NL.bin");
    is_no_worse_than_ggml(QuantType::IQ4_NL, data, 1.0 + 1e-12, 0.99);
}

#[test]
fn q4_k() {
    let data = include_bytes!("../data/encode/Q4_K.bin");
    is_no_worse_than_ggml(QuantType::Q4_K, data, 1.0, 0.99);
}

#[test]
fn q6_k() {
    let data = include_bytes!("../data/encode/Q6_K.bin");
    is_no_worse_than_ggml(QuantType::Q6_K, data, 1.0, 0.99);
}

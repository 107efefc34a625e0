//! The fitted quantizers: against searches over everything, worked numbers, and other quantizers.

#[path = "encode/against_ggml.rs"]
mod against_ggml;
#[path = "encode/importance.rs"]
mod importance;
#[path = "encode/k_quants.rs"]
mod k_quants;
#[path = "encode/q2_0.rs"]
mod q2_0;
#[path = "encode/rows.rs"]
mod rows;
#[path = "encode/sixteen.rs"]
mod sixteen;

use thalweg_quant::{QuantType, encode};

/// SplitMix64 with the constants of its publication.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `[0, 1)`.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Standard normal, by Box and Muller.
    fn gauss(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    fn gaussians(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.gauss() as f32).collect()
    }

    /// Weights over two decades.
    fn weights(&mut self, n: usize) -> Vec<f32> {
        (0..n)
            .map(|_| 10_f64.powf(2.0 * self.unit() - 1.0) as f32)
            .collect()
    }
}

/// The blocks that [`encode::encode_row`] writes.
fn encoded(format: QuantType, values: &[f32], importance: Option<&[f32]>) -> Vec<u8> {
    let mut bytes = vec![0xaa; format.row_bytes(values.len()).expect("whole blocks")];
    encode::encode_row(format, values, importance, &mut bytes).expect("finite values are encoded");
    bytes
}

fn error_of(format: QuantType, bytes: &[u8], values: &[f32], importance: Option<&[f32]>) -> f64 {
    encode::weighted_error(format, bytes, values, importance).expect("lengths agree")
}

#[track_caller]
fn assert_close(found: f64, expected: f64, tolerance: f64) {
    assert!(
        (found - expected).abs() <= tolerance,
        "found {found}, expected {expected}"
    );
}

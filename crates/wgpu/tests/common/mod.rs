//! The device that the tests run on, and what they multiply.

// Each file of tests is a program of its own, and not every one needs all of this.
#![allow(dead_code)]

use thalweg_backend::MatData;
use thalweg_quant::QuantType;
use thalweg_wgpu::{Error, WgpuBackend, WgpuOptions};

/// The device, or `None` aloud.
pub(crate) fn device(options: &WgpuOptions) -> Option<WgpuBackend> {
    match WgpuBackend::new(options) {
        Ok(backend) => Some(backend),
        Err(Error::NoAdapter { .. }) if std::env::var_os("THALWEG_GPU_REQUIRED").is_none() => {
            eprintln!("SKIPPED: no GPU adapter, hardware or software, on this machine");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

/// `n` values in `-1.0..1.0`, the same for the same seed.
pub(crate) fn values(n: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    let value = |_| (random.next() >> 40) as f32 / (1 << 23) as f32 - 1.0;
    (0..n).map(value).collect()
}

/// A matrix of random blocks whose weights are finite and of moderate size.
pub(crate) fn matrix(ty: QuantType, n_in: usize, n_out: usize, seed: u64) -> MatData {
    let mut random = Random(seed);
    let mut weights = vec![0.0; ty.block_len()];
    let (n_blocks, mut bytes) = (n_in / ty.block_len() * n_out, vec![]);
    while bytes.len() < n_blocks * ty.block_bytes() {
        // Any bytes are a block; scales may be huge or no number, and those are drawn again.
        let block: Vec<u8> = (0..ty.block_bytes()).map(|_| random.next() as u8).collect();
        ty.decode_row(&block, &mut weights).unwrap();
        let largest = weights.iter().fold(0.0, |max: f32, w| max.max(w.abs()));
        if weights.iter().all(|w| w.is_finite()) && (1e-3..=1e2).contains(&largest) {
            bytes.extend(block);
        }
    }
    MatData::new(ty, n_in, n_out, bytes).unwrap()
}

/// Fails unless all elements have the same bits.
pub(crate) fn assert_same_bits(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        let same = f.to_bits() == e.to_bits();
        assert!(same, "{what}: element {i} is {f:?}, expected {e:?}");
    }
}

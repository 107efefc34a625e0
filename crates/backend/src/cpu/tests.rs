//! The conformance suite for several thread counts, and what the CPU alone promises: bits.

use thalweg_quant::{QuantType, dot_f32};

use super::*;
use crate::conformance;

fn cpu(n_threads: usize) -> CpuBackend {
    CpuBackend::new(CpuOptions { n_threads }).unwrap()
}

crate::conformance! { one_thread, cpu(1) }
crate::conformance! { three_threads, cpu(3) }

#[test]
fn two_and_three_threads_give_the_bits_of_one() {
    for n_threads in [2, 3] {
        conformance::assert_same_results(&cpu(n_threads), &cpu(1));
    }
}

#[test]
fn no_threads_are_an_error() {
    let e = CpuBackend::new(CpuOptions { n_threads: 0 }).unwrap_err();
    assert_eq!(e.to_string(), "cannot start 0 compute threads");
    assert!(std::error::Error::source(&e).is_some());
}

#[test]
fn an_allocation_beyond_memory_is_an_error() {
    for len in [usize::MAX, usize::MAX / 4, usize::MAX / 8] {
        let e = cpu(1).alloc(len).unwrap_err();
        assert!(
            matches!(e, Error::OutOfMemory { bytes } if bytes >= len),
            "{e}"
        );
    }
}

#[test]
fn every_product_is_the_reference_dot_of_the_decoded_row() {
    let cpu = cpu(2);
    for &ty in QuantType::ALL {
        let (n_in, n_out, n_tokens) = (2 * ty.block_len().max(48), 37, 35);
        let (data, _) = conformance::random_matrix(ty, n_in, n_out, 1);
        let w = cpu.load(data).unwrap();
        let x: Vec<f32> = (0..n_tokens * n_in)
            .map(|i| ((i * 37 % 101) as f32).sin())
            .collect();
        let mut x_in = cpu.alloc(x.len()).unwrap();
        let mut y = cpu.alloc(n_tokens * n_out).unwrap();
        let mut table = cpu.alloc(n_out * n_in).unwrap();
        cpu.write(&mut (), &mut x_in, 0, &x).unwrap();
        cpu.matmul(&mut (), &w, &x_in, n_tokens, &mut y).unwrap();
        let ids: Vec<u32> = (0..n_out as u32).collect();
        cpu.embed(&mut (), &w, &ids, 1, &mut table).unwrap();
        let mut decoded = vec![0.0; n_in];
        for o in 0..n_out {
            ty.decode_row(w.view().rows(o, 1), &mut decoded).unwrap();
            let row = &table.0[o * n_in..(o + 1) * n_in];
            assert!(
                row.iter()
                    .zip(&decoded)
                    .all(|(a, b)| a.to_bits() == b.to_bits()),
                "{ty}"
            );
            for t in 0..n_tokens {
                let expected = dot_f32(&decoded, &x[t * n_in..(t + 1) * n_in]);
                assert_eq!(
                    y.0[t * n_out + o].to_bits(),
                    expected.to_bits(),
                    "{ty} {o} {t}"
                );
            }
        }
    }
}

//! The conformance suite for several thread counts, and what the CPU alone promises: bits.

use thalweg_quant::{QuantType, dot_f32};

use super::*;
use crate::{ExpertView, Retain, conformance};

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

fn cpu_q8(n_threads: usize) -> CpuBackend {
    cpu(n_threads).with_activations(Activations::Q8)
}

#[test]
fn with_vectors_of_eight_bits_two_and_three_threads_give_the_bits_of_one() {
    for n_threads in [2, 3] {
        conformance::assert_same_results(&cpu_q8(n_threads), &cpu_q8(1));
    }
}

#[test]
fn with_vectors_of_eight_bits_a_token_has_the_same_bits_in_every_chunk() {
    for n_threads in [1, 2, 3] {
        let cpu = cpu_q8(n_threads);
        for &ty in QuantType::ALL {
            // Enough rows and tokens for threads, tiles and groups of tokens to end within.
            let (n_in, n_out, n_tokens) = (2 * ty.block_len().max(64), 1100, 70);
            let (data, _) = conformance::random_matrix(ty, n_in, n_out, 1);
            let w = cpu.load(data).unwrap();
            let x: Vec<f32> = (0..n_tokens * n_in)
                .map(|i| ((i * 37 % 101) as f32).sin())
                .collect();
            let run = |x: &[f32]| {
                let n_tokens = x.len() / n_in;
                let mut x_in = cpu.alloc(x.len()).unwrap();
                let mut y = cpu.alloc(n_tokens * n_out).unwrap();
                cpu.write(&mut (), &mut x_in, 0, x).unwrap();
                cpu.matmul(&mut (), &w, &x_in, n_tokens, &mut y).unwrap();
                y.0
            };
            let whole = run(&x);
            for chunk in [1, 3, 64] {
                let parts: Vec<f32> = x.chunks(chunk * n_in).flat_map(run).collect();
                let same = parts
                    .iter()
                    .zip(&whole)
                    .all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(
                    same && parts.len() == whole.len(),
                    "{ty}, chunks of {chunk}"
                );
            }
        }
    }
}

#[test]
fn experts_give_a_token_the_same_bits_alone_and_among_others_in_both_precisions() {
    use QuantType::{F32, IQ3_S, IQ4_NL, Q2_0, Q8_0};
    let (n_embd, n_ff, n_tokens) = (256, 192, 5);
    let x: Vec<f32> = (0..n_tokens * n_embd)
        .map(|i| ((i * 29 % 97) as f32).sin())
        .collect();
    // Gate and up may read their vectors in different ways.
    for [gate, up, down] in [
        [Q2_0; 3],
        [IQ3_S, IQ3_S, IQ4_NL],
        [Q8_0, F32, Q2_0],
        [F32, Q2_0, F32],
    ] {
        for activations in [Activations::F32, Activations::Q8] {
            let matrix = |ty, n_in, n_out| conformance::random_matrix(ty, n_in, n_out, 2).0;
            let (gate, up) = (matrix(gate, n_embd, n_ff), matrix(up, n_embd, n_ff));
            let down = matrix(down, n_ff, n_embd);
            let expert = ExpertView {
                gate: gate.view(),
                up: up.view(),
                down: down.view(),
            };
            let run = |n_threads: usize, groups: &[&[u32]]| {
                let cpu = cpu(n_threads).with_activations(activations);
                let mut x_in = cpu.alloc(x.len()).unwrap();
                let mut partial = cpu.alloc(x.len()).unwrap();
                cpu.write(&mut (), &mut x_in, 0, &x).unwrap();
                let jobs: Vec<ExpertJob<'_>> = groups
                    .iter()
                    .map(|tokens| ExpertJob {
                        expert,
                        tokens,
                        first_row: tokens[0] as usize,
                        retain: Retain::No,
                    })
                    .collect();
                cpu.experts(&mut (), &jobs, &x_in, &mut partial).unwrap();
                partial.0
            };
            let together = run(1, &[&[0, 1, 2, 3, 4]]);
            for n_threads in [1, 3] {
                for groups in [
                    &[&[0][..], &[1], &[2], &[3], &[4]][..],
                    &[&[0, 1, 2], &[3, 4]],
                ] {
                    let found = run(n_threads, groups);
                    let same = found
                        .iter()
                        .zip(&together)
                        .all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{groups:?}, {n_threads} threads, {activations:?}");
                }
            }
        }
    }
}

#[test]
fn vectors_of_eight_bits_change_products_a_little_and_only_where_there_are_kernels() {
    for &ty in QuantType::ALL {
        let n_in = 4 * ty.block_len().max(64);
        let x: Vec<f32> = (0..n_in).map(|i| ((i * 37 % 101) as f32).sin()).collect();
        let [exact, rounded] = [cpu(1), cpu_q8(1)].map(|cpu| {
            let (data, _) = conformance::random_matrix(ty, n_in, 40, 3);
            let w = cpu.load(data).unwrap();
            let mut x_in = cpu.alloc(n_in).unwrap();
            let mut y = cpu.alloc(40).unwrap();
            cpu.write(&mut (), &mut x_in, 0, &x).unwrap();
            cpu.matmul(&mut (), &w, &x_in, 1, &mut y).unwrap();
            y.0
        });
        let norm = |y: &[f32]| y.iter().map(|y| y * y).sum::<f32>().sqrt();
        let difference: Vec<f32> = exact.iter().zip(&rounded).map(|(a, b)| a - b).collect();
        let relative = norm(&difference) / norm(&exact);
        if thalweg_quant::Q8Vectors::supports(ty) {
            assert!(relative > 0.0 && relative < 0.02, "{ty}: {relative}");
        } else {
            assert!(relative <= 0.0, "{ty}: {relative}");
        }
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

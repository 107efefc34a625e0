//! Products of every format by every kernel: near the reference, and with the same bits whichever
//! kernel runs and whatever shares the call.

mod common;

use thalweg_backend::{
    Backend, CpuBackend, CpuOptions, ExpertJob, ExpertView, MatData, Retain, conformance,
};
use thalweg_quant::QuantType;
use thalweg_wgpu::{Error, FORMATS, Tuning, WgpuBackend, WgpuOptions};

use common::{assert_same_bits, device, matrix, values};

/// `n` vectors times the matrix, `at_once` in a call.
fn product<B: Backend>(b: &B, w: &MatData, x: &[f32], at_once: usize) -> Vec<f32> {
    let mut rec = b.recorder();
    let (n_in, n_out) = (w.view().n_in(), w.view().n_out());
    let w = b.load(w.clone()).unwrap();
    let mut all = vec![];
    for x in x.chunks(at_once * n_in) {
        let n = x.len() / n_in;
        let mut input = b.alloc(x.len()).unwrap();
        b.write(&mut rec, &mut input, 0, x).unwrap();
        let mut out = b.alloc(n * n_out).unwrap();
        b.matmul(&mut rec, &w, &input, n, &mut out).unwrap();
        let mut y = vec![0.0; n * n_out];
        b.read(&mut rec, &out, 0, &mut y).unwrap();
        all.extend(y);
    }
    all
}

/// Inputs that end within a block's neighbors, a step of a tile, and a vector in workgroup memory;
/// formats of single numbers also end within a run.
fn widths(ty: QuantType) -> Vec<usize> {
    match ty.block_len() {
        1 => vec![1, 6, 300, 2052],
        block => vec![3 * block, 2048 + block],
    }
}

#[test]
fn every_kernel_is_near_the_reference_with_one_result() {
    let Some(gpu) = device(&WgpuOptions::default()) else {
        return;
    };
    let cpu = CpuBackend::new(CpuOptions { n_threads: 1 }).unwrap();
    for &ty in FORMATS {
        for n_in in widths(ty) {
            // Vectors: more than a tile and no multiple of its block; rows likewise.
            let (n_out, n) = (37, 21);
            let w = matrix(ty, n_in, n_out, 1);
            let x = values(n * n_in, 2);
            let expected = product(&cpu, &w, &x, n);
            // What a sum of these terms may be off by.
            let sizes = sizes(&w, &x);
            let alone = product(&gpu, &w, &x, 1);
            for (i, ((y, e), size)) in alone.iter().zip(&expected).zip(&sizes).enumerate() {
                let close = (y - e).abs() <= 2e-5 * size;
                assert!(close, "{ty} {n_in}: element {i} is {y}, expected {e}");
            }
            for at_once in [3, n] {
                let what = format!("{ty} {n_in} wide, {at_once} at once");
                assert_same_bits(&what, &product(&gpu, &w, &x, at_once), &alone);
            }
        }
    }
}

/// For each element of a product the sum of its terms' magnitudes.
fn sizes(w: &MatData, x: &[f32]) -> Vec<f32> {
    let view = w.view();
    let mut row = vec![0.0; view.n_in()];
    let mut rows = vec![];
    for bytes in view.bytes().chunks(view.row_bytes()) {
        view.ty().decode_row(bytes, &mut row).unwrap();
        rows.push(row.clone());
    }
    let size = |row: &[f32], x: &[f32]| row.iter().zip(x).map(|(w, x)| (w * x).abs()).sum();
    let of_vector = |x| rows.iter().map(move |row| size(row, x));
    x.chunks(view.n_in()).flat_map(of_vector).collect()
}

#[test]
fn sizes_of_kernels_leave_every_bit() {
    let usual = Tuning::default();
    let other = |change: fn(&mut Tuning)| {
        let mut tuning = usual;
        change(&mut tuning);
        tuning
    };
    let all = [
        other(|t| t.vector_rows = 1),
        other(|t| (t.busy_groups, t.vector_groups) = (1, 2)),
        other(|t| (t.vector_rows, t.busy_groups) = (2, 1)),
        other(|t| t.staged = 256),
        other(|t| t.tiled_from = 1),
        other(|t| t.tiled_from = u32::MAX),
        other(|t| (t.tile_groups, t.tile_block) = ((4, 2), (2, 3))),
    ];
    let Some(gpu) = device(&WgpuOptions::default()) else {
        return;
    };
    for tuning in all {
        let mut options = WgpuOptions::default();
        options.tuning = tuning;
        let Some(tuned) = device(&options) else {
            return;
        };
        for ty in [QuantType::F32, QuantType::Q2_0, QuantType::Q4_K] {
            let (w, x) = (matrix(ty, 768, 45, 3), values(19 * 768, 4));
            for at_once in [1, 19] {
                let expected = product(&gpu, &w, &x, at_once);
                let what = format!("{ty}, {tuning:?}");
                assert_same_bits(&what, &product(&tuned, &w, &x, at_once), &expected);
            }
        }
    }
}

#[test]
fn another_number_of_parts_is_another_order_and_as_near() {
    let mut options = WgpuOptions::default();
    options.tuning.parts = 8;
    options.tuning.tile_depth = 128;
    if let Some(gpu) = device(&options) {
        conformance::matmul_is_a_dot_product_per_row(&gpu);
        conformance::every_quant_type_multiplies_and_embeds(&gpu);
        conformance::per_token_results_are_the_same_whatever_the_chunks(&gpu);
    }
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    type Spoil = fn(&mut Tuning);
    let faults: [(Spoil, &str); 4] = [
        (|t| t.parts = 12, "parts is no power of two"),
        (|t| t.vector_rows = 3, "vector_rows is not 1, 2 or 4"),
        (|t| t.staged = 100, "staged is no multiple of 16 parts"),
        (|t| t.tile_groups = (0, 4), "a tile is empty"),
    ];
    for (spoil, what) in faults {
        let mut options = WgpuOptions::default();
        spoil(&mut options.tuning);
        match WgpuBackend::new(&options) {
            Err(Error::NoAdapter { .. }) => {}
            Err(Error::Tuning { fault }) => assert_eq!(fault, what),
            other => panic!("{what}: {other:?}"),
        }
    }
}

/// Rows of `partial` of experts over all tokens, `at_once` tokens in a call.
fn run_experts<B: Backend>(
    b: &B,
    experts: &[[MatData; 3]],
    x: &[f32],
    n_embd: usize,
    at_once: usize,
) -> Vec<f32> {
    let mut rec = b.recorder();
    let n = x.len() / n_embd;
    let mut rows = vec![vec![]; experts.len()];
    for x in x.chunks(at_once * n_embd) {
        let n = x.len() / n_embd;
        let tokens: Vec<u32> = (0..n as u32).collect();
        let mut jobs = vec![];
        for (e, [gate, up, down]) in experts.iter().enumerate() {
            let (gate, up, down) = (gate.view(), up.view(), down.view());
            jobs.push(ExpertJob {
                expert: ExpertView { gate, up, down },
                tokens: &tokens,
                first_row: e * n,
                retain: Retain::No,
            });
        }
        let mut input = b.alloc(x.len()).unwrap();
        b.write(&mut rec, &mut input, 0, x).unwrap();
        let mut partial = b.alloc(experts.len() * x.len()).unwrap();
        b.experts(&mut rec, &jobs, &input, &mut partial).unwrap();
        let mut found = vec![0.0; experts.len() * x.len()];
        b.read(&mut rec, &partial, 0, &mut found).unwrap();
        for (row, found) in rows.iter_mut().zip(found.chunks(x.len())) {
            row.extend_from_slice(found);
        }
    }
    assert!(rows.iter().all(|row| row.len() == n * n_embd));
    rows.concat()
}

#[test]
fn experts_of_every_format_have_one_result() {
    let Some(gpu) = device(&WgpuOptions::default()) else {
        return;
    };
    let cpu = CpuBackend::new(CpuOptions { n_threads: 1 }).unwrap();
    let (n_embd, n_ff, n) = (512, 256, 19);
    let x: Vec<f32> = values(n * n_embd, 5).iter().map(|x| x * 0.01).collect();
    for &ty in FORMATS {
        let experts: Vec<[MatData; 3]> = (0..3)
            .map(|e| {
                [
                    matrix(ty, n_embd, n_ff, 10 + e),
                    matrix(ty, n_embd, n_ff, 20 + e),
                    matrix(ty, n_ff, n_embd, 30 + e),
                ]
            })
            .collect();
        let expected = run_experts(&cpu, &experts, &x, n_embd, n);
        let alone = run_experts(&gpu, &experts, &x, n_embd, 1);
        let largest = expected.iter().fold(0.0, |max: f32, e| max.max(e.abs()));
        for (i, (y, e)) in alone.iter().zip(&expected).enumerate() {
            let close = (y - e).abs() <= 1e-4 * largest;
            assert!(close, "{ty}: element {i} is {y}, expected {e}");
        }
        for at_once in [4, n] {
            let found = run_experts(&gpu, &experts, &x, n_embd, at_once);
            assert_same_bits(&format!("{ty}, {at_once} at once"), &found, &alone);
        }
    }
}

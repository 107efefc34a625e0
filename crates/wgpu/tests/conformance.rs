//! The contract's suite on the first adapter of this machine.
//!
//! Without an adapter the suite has nothing to run on: then the tests say so and pass, unless
//! `THALWEG_GPU_REQUIRED` is set, as it is where a software driver was installed for them.

mod common;

use thalweg_backend::{Backend, MatData, conformance};
use thalweg_quant::QuantType;
use thalweg_wgpu::{Error, FORMATS, WgpuBackend, WgpuOptions};

use common::device;

macro_rules! cases {
    ($($case:ident),+ $(,)?) => {
        $(
            #[test]
            fn $case() {
                if let Some(backend) = device(&WgpuOptions::default()) {
                    conformance::$case(&backend);
                }
            }
        )+
    };
}

cases! {
    a_block_that_scores_least_is_not_seen_even_by_its_own_query,
    absurd_sizes_are_errors_or_nothing,
    attention_is_gated_softmax,
    attention_is_the_same_whatever_the_chunks,
    buffers_start_zeroed_and_keep_what_is_written,
    combine_follows_ranks_in_any_row_order,
    convolution_is_the_same_whatever_the_chunks,
    convolution_reaches_back_by_dilation,
    copies_of_experts_are_experts_bit_for_bit,
    delta_rule_follows_the_recurrence,
    delta_rule_is_the_same_whatever_the_chunks,
    delta_rule_survives_extreme_decay,
    embed_copies_rows_by_id,
    equal_scores_select_the_lower_block,
    every_quant_type_multiplies_and_embeds,
    experts_in_passes_are_experts_at_once_bit_for_bit,
    experts_run_on_their_tokens_alone,
    experts_that_do_not_fit_are_errors,
    heads_are_normed_and_rotated,
    ids_out_of_range_are_id_errors,
    impossible_sizes_are_argument_errors,
    matmul_is_a_dot_product_per_row,
    ngram_gate_is_a_signed_root,
    norms_are_per_group,
    per_token_results_are_the_same_whatever_the_chunks,
    pooled_keys_are_mean_then_norm_then_rotation,
    router_passes_over_what_is_not_finite,
    router_takes_the_largest_and_the_lower_id,
    selecting_every_block_is_dense_bit_for_bit,
    short_operands_are_shape_errors,
    sparse_attention_switches_at_the_budget,
    streams_are_gated_and_injected,
    sums_and_activations_are_per_element,
}

#[test]
fn matrices_in_several_bindings_multiply_as_in_one() {
    let mut small = WgpuOptions::default();
    // Three rows of the largest matrix that the case has, and the buffers of its operands.
    small.max_binding_bytes = 1 << 20;
    if let (Some(a), Some(b)) = (device(&small), device(&WgpuOptions::default())) {
        let (n_in, n_out) = (1024, 1000);
        let values: Vec<f32> = (0..n_in * n_out).map(|i| (i % 97) as f32 - 48.0).collect();
        let x: Vec<f32> = (0..2 * n_in).map(|i| (i % 13) as f32 * 0.25).collect();
        let product = |backend: &WgpuBackend| {
            let mut rec = backend.recorder();
            let data = MatData::from_f32(n_in, n_out, &values).unwrap();
            let w = backend.load(data).unwrap();
            let mut input = backend.alloc(x.len()).unwrap();
            backend.write(&mut rec, &mut input, 0, &x).unwrap();
            let mut out = backend.alloc(2 * n_out).unwrap();
            backend.matmul(&mut rec, &w, &input, 2, &mut out).unwrap();
            let mut y = vec![0.0; 2 * n_out];
            backend.read(&mut rec, &out, 0, &mut y).unwrap();
            y
        };
        assert_eq!(product(&a), product(&b));
    }
}

#[test]
fn a_buffer_past_the_largest_binding_is_out_of_memory() {
    let mut small = WgpuOptions::default();
    small.max_binding_bytes = 1 << 20;
    if let Some(backend) = device(&small) {
        assert!(backend.alloc(1 << 18).is_ok());
        let error = backend.alloc((1 << 18) + 1).unwrap_err();
        assert!(
            matches!(error, thalweg_backend::Error::OutOfMemory { bytes } if bytes == (1 << 20) + 4)
        );
    }
}

#[test]
fn formats_without_a_decoder_are_refused_by_name() {
    if let Some(backend) = device(&WgpuOptions::default()) {
        for &ty in QuantType::ALL {
            let bytes = vec![0; ty.block_bytes()];
            let loaded = backend.load(MatData::new(ty, ty.block_len(), 1, bytes).unwrap());
            assert_eq!(loaded.is_ok(), FORMATS.contains(&ty), "{ty}");
            if let Err(e) = loaded {
                assert_eq!(
                    e.to_string(),
                    format!("wgpu has no kernels for {ty} weights")
                );
            }
        }
    }
}

#[test]
fn an_adapter_that_is_not_there_is_an_error_with_those_that_are() {
    let mut options = WgpuOptions::default();
    options.adapter = Some("no such adapter".to_owned());
    let error = WgpuBackend::new(&options).unwrap_err();
    assert!(matches!(error, Error::NoAdapter { .. }), "{error}");
}

#[test]
fn every_call_after_a_loss_says_so() {
    if let Some(backend) = device(&WgpuOptions::default()) {
        let mut rec = backend.recorder();
        let mut x = backend.alloc(4).unwrap();
        backend.write(&mut rec, &mut x, 0, &[1.0; 4]).unwrap();
        backend.lose();
        let mut out = [0.0; 4];
        let error = backend.read(&mut rec, &x, 0, &mut out).unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.starts_with("the device was lost"), "{source}");
        assert!(backend.alloc(4).is_err());
    }
}

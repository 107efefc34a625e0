//! The suite that every backend must pass.
//!
//! Owns the cases and the naive f64 implementation that they compare with, written from the
//! formulas of [`Backend`]; shares no code with any backend. Each case is a
//! function that panics when the backend fails it; [`conformance!`](crate::conformance!) makes a
//! test of every one. Memory: a few MiB per case.
//!
//! Three kinds of case:
//! 1. values: within [`ELEMENT`] or [`SUM`] of the naive result, over odd shapes;
//! 2. exactness (`..._whatever_the_chunks`, `..._bit_for_bit`): the same bits however a sequence is
//!    cut into chunks, and sparse attention that selects every block the same as dense one;
//! 3. limits: short operands, ids out of range and absurd sizes are errors, never a panic.
//!
//! A backend whose documentation lets the order of additions depend on the chunk calls the cases
//! that it passes one by one instead. Two configurations of a backend (thread counts, instruction
//! sets) are compared with [`assert_same_results`].
//!
//! Cost: seconds when optimized; most of it is the naive side of long attention.

// Every case panics to report; a section on each would say the same.
#![allow(clippy::missing_panics_doc)]

mod attention;
mod dense;
mod limits;
mod mixture;
mod naive;
mod operands;
mod rig;
mod sequence;

pub use attention::{
    a_block_that_scores_least_is_not_seen_even_by_its_own_query, attention_is_gated_softmax,
    attention_is_the_same_whatever_the_chunks, equal_scores_select_the_lower_block,
    pooled_keys_are_mean_then_norm_then_rotation, selecting_every_block_is_dense_bit_for_bit,
    sparse_attention_switches_at_the_budget,
};
pub use dense::{
    buffers_start_zeroed_and_keep_what_is_written, embed_copies_rows_by_id,
    every_quant_type_multiplies_and_embeds, matmul_is_a_dot_product_per_row, norms_are_per_group,
    per_token_results_are_the_same_whatever_the_chunks, streams_are_gated_and_injected,
    sums_and_activations_are_per_element,
};
pub use limits::{
    absurd_sizes_are_errors_or_nothing, ids_out_of_range_are_id_errors,
    impossible_sizes_are_argument_errors, short_operands_are_shape_errors,
};
pub use mixture::{
    combine_follows_ranks_in_any_row_order, copies_of_experts_are_experts_bit_for_bit,
    experts_in_passes_are_experts_at_once_bit_for_bit, experts_run_on_their_tokens_alone,
    experts_that_do_not_fit_are_errors, router_passes_over_what_is_not_finite,
    router_takes_the_largest_and_the_lower_id,
};
pub use sequence::{
    convolution_is_the_same_whatever_the_chunks, convolution_reaches_back_by_dilation,
    delta_rule_follows_the_recurrence, delta_rule_is_the_same_whatever_the_chunks,
    delta_rule_survives_extreme_decay, heads_are_normed_and_rotated, ngram_gate_is_a_signed_root,
};

#[cfg(test)]
pub(crate) use dense::random_matrix;

use crate::Backend;

/// Tolerance, relative to `max(1, |expected|)`, where an element has at most one exponential or a
/// short sum behind it.
pub const ELEMENT: f64 = 4e-6;

/// The same, where long sums, softmax or a recurrence are behind it.
pub const SUM: f64 = 4e-5;

/// Makes a module of tests, one for each case: `conformance! { name, constructor }`.
///
/// The constructor is an expression that gives a fresh [`Backend`]; it runs
/// once a test.
///
/// ```
/// # #[cfg(feature = "testing")]
/// # mod example {
/// use thalweg_backend::{CpuBackend, CpuOptions, conformance};
///
/// conformance! { one_thread, CpuBackend::new(CpuOptions { n_threads: 1 }).expect("one thread") }
/// # }
/// ```
#[macro_export]
macro_rules! conformance {
    (@cases $new:expr; $($case:ident),+ $(,)?) => {
        $(
            #[test]
            fn $case() {
                $crate::conformance::$case(&$new);
            }
        )+
    };
    ($name:ident, $new:expr $(,)?) => {
        mod $name {
            #[allow(unused_imports)] // The constructor may name things by path.
            use super::*;

            $crate::conformance! { @cases $new;
                a_block_that_scores_least_is_not_seen_even_by_its_own_query,
                absurd_sizes_are_errors_or_nothing,
                attention_is_gated_softmax,
                attention_is_the_same_whatever_the_chunks,
                buffers_start_zeroed_and_keep_what_is_written,
                combine_follows_ranks_in_any_row_order,
                copies_of_experts_are_experts_bit_for_bit,
                convolution_is_the_same_whatever_the_chunks,
                convolution_reaches_back_by_dilation,
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
        }
    };
}

/// Fails unless two backends give the same bits for every operation.
///
/// The shapes are large enough that a backend with threads uses them.
pub fn assert_same_results<A: Backend, B: Backend>(a: &A, b: &B) {
    let pairs = [
        (dense::results(a), dense::results(b)),
        (sequence::results(a), sequence::results(b)),
        (attention::results(a), attention::results(b)),
        (mixture::results(a), mixture::results(b)),
    ];
    for (of_a, of_b) in pairs {
        for ((what, x), (_, y)) in of_a.iter().zip(&of_b) {
            let what = format!("{what}, {} against {}", a.name(), b.name());
            rig::assert_same_bits(&what, x, y);
        }
    }
}

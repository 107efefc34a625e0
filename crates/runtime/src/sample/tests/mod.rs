//! The sampler as a whole: what the tests by subject share.

mod draws;
mod edges;
mod properties;
mod steps;
mod truncation;

use super::{Candidates, SampleError, Sampler, SamplerOptions, SamplerStep};

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

/// Plain sampling at temperature 1.
fn plain() -> SamplerOptions {
    SamplerOptions {
        temperature: 1.0,
        ..Default::default()
    }
}

/// Plain sampling at another temperature.
fn temperature(temperature: f32) -> SamplerOptions {
    SamplerOptions {
        temperature,
        ..plain()
    }
}

/// Plain sampling with top-k.
fn top_k(top_k: usize) -> SamplerOptions {
    SamplerOptions { top_k, ..plain() }
}

/// Plain sampling with top-p.
fn top_p(top_p: f32) -> SamplerOptions {
    SamplerOptions { top_p, ..plain() }
}

/// Plain sampling with min-p.
fn min_p(min_p: f32) -> SamplerOptions {
    SamplerOptions { min_p, ..plain() }
}

fn sampler(options: SamplerOptions) -> Sampler {
    Sampler::new(options).expect("the options are in range")
}

/// How often each token is drawn.
fn counts(options: SamplerOptions, logits: &[f32], n: usize) -> Vec<u32> {
    let mut sampler = sampler(options);
    let mut counts = vec![0; logits.len()];
    for _ in 0..n {
        counts[sampler.sample(logits, &[]).unwrap() as usize] += 1;
    }
    counts
}

/// Logits with a long tail, reproducible, with equal values among them.
fn tailed(n: usize) -> Vec<f32> {
    let mut state = 1_u32;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let unit = f64::from(state >> 16) / 65_536.0;
            (-4.0 * (1.0 - unit).ln()) as f32
        })
        .collect()
}

/// Every kind of option set, greedy ones included.
fn option_sets() -> Vec<SamplerOptions> {
    vec![
        SamplerOptions::default(),
        plain(),
        top_k(1),
        top_k(3),
        top_p(0.0),
        top_p(0.5),
        min_p(0.1),
        min_p(1.0),
        temperature(f32::MIN_POSITIVE / 8.0),
        temperature(f32::MAX),
        SamplerOptions {
            top_k: 20,
            top_p: 0.9,
            min_p: 0.05,
            repetition_penalty: 1.1,
            ..plain()
        },
    ]
}

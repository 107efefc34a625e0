//! Distribution and reproducibility of draws; independence of how a token came into the history.

use super::*;

#[test]
fn a_token_costs_one_random_number_even_if_one_candidate_is_left() {
    let mut sampler = sampler(SamplerOptions {
        min_p: 0.9,
        seed: 3,
        ..plain()
    });
    let step = {
        let before = sampler.rng_state();
        sampler.sample(&[9.0, 0.0], &[]).unwrap();
        sampler.rng_state().wrapping_sub(before)
    };
    assert_ne!(step, 0);
    sampler.sample(&[0.0; 1000], &[]).unwrap();
    assert_eq!(
        sampler.rng_state(),
        3_u64.wrapping_add(step.wrapping_mul(2))
    );
    sampler.top_log_probs(&[0.0; 10], &[], 2).unwrap();
    assert_eq!(
        sampler.rng_state(),
        3_u64.wrapping_add(step.wrapping_mul(2))
    );
}

/// Chi-square statistic of counts against probabilities; tokens of probability 0 must not occur.
fn chi_square(counts: &[u32], probabilities: &[f64]) -> f64 {
    let n: f64 = counts.iter().map(|&count| f64::from(count)).sum();
    let mut statistic = 0.0;
    for (id, (&count, &probability)) in counts.iter().zip(probabilities).enumerate() {
        if probability > 0.0 {
            statistic += (f64::from(count) - n * probability).powi(2) / (n * probability);
        } else {
            assert_eq!(count, 0, "token {id}");
        }
    }
    statistic
}

#[test]
fn draws_follow_the_softmax() {
    let logits = [1.0, 0.0, -1.0, 2.0, 0.5, -0.5, 1.5, 2.0, 0.25, -2.0, -INF];
    for (options, kept, critical) in [
        // 99.9 % points of the chi-square distribution for 9, 9 and 3 degrees of freedom.
        (plain(), 10, 27.88),
        (temperature(2.0), 10, 27.88),
        (top_k(4), 4, 16.27),
    ] {
        let mut ranked = logits;
        ranked.sort_by(|a, b| b.total_cmp(a));
        let weights: Vec<f64> = logits
            .iter()
            .map(|&logit| f64::from(logit / options.temperature).exp())
            .enumerate()
            .map(|(id, weight)| {
                if logits[id] >= ranked[kept - 1] {
                    weight
                } else {
                    0.0
                }
            })
            .collect();
        let total: f64 = weights.iter().sum();
        let probabilities: Vec<f64> = weights.iter().map(|weight| weight / total).collect();

        let counts = counts(
            SamplerOptions {
                seed: 42,
                ..options
            },
            &logits,
            100_000,
        );
        let statistic = chi_square(&counts, &probabilities);
        assert!(statistic < critical, "{statistic} for {options:?}");
        // The measure itself must notice another distribution.
        let mut wrong = probabilities.clone();
        wrong.swap(0, 3);
        assert!(chi_square(&counts, &wrong) > 100.0);
    }
}

#[test]
fn a_quantile_belongs_to_the_candidate_that_begins_there() {
    // Token 0 has no weight; enough tokens for several blocks of weights follow.
    let mut logits = vec![0.0; 1025];
    logits[0] = -1000.0;
    let mut candidates = Candidates::new();
    candidates.collect(&logits, 1.0);
    assert_eq!(candidates.at_quantile(0.0), Some(1));
    for i in 0..1024_u32 {
        let start = f64::from(i) / 1024.0;
        assert_eq!(candidates.at_quantile(start), Some(i + 1));
        assert_eq!(candidates.at_quantile(start + 0.9 / 1024.0), Some(i + 1));
    }
    assert_eq!(candidates.at_quantile(1.0 - f64::EPSILON / 2.0), Some(1024));
    candidates.collect(&[NAN], 1.0);
    assert_eq!(candidates.at_quantile(0.0), None);
}

#[test]
fn tokens_of_one_seed_are_fixed_for_ever() {
    // Computed apart from this code: SplitMix64 and sums of exact exponentials, in Python.
    let logits = [0.0, 1.0, 2.0, 3.0, 2.5, 1.5, 0.5, -1.0];
    let mut sampler = sampler(SamplerOptions {
        seed: 1_234_567,
        ..plain()
    });
    let ids: Vec<u32> = (0..GOLDEN.len())
        .map(|_| sampler.sample(&logits, &[]).unwrap())
        .collect();
    assert_eq!(ids, GOLDEN);
}

const GOLDEN: [u32; 12] = [3, 2, 3, 3, 5, 3, 3, 3, 3, 4, 3, 3];

#[test]
fn equal_seeds_give_equal_tokens_and_others_differ() {
    let logits = tailed(3_000);
    let run = |options: SamplerOptions, seed: u64| {
        let mut sampler = sampler(SamplerOptions { seed, ..options });
        let mut history = vec![5, 5, 9];
        for _ in 0..60 {
            history.push(sampler.sample(&logits, &history).unwrap());
        }
        history
    };
    for options in [
        plain(),
        top_k(50),
        SamplerOptions {
            top_p: 0.9,
            repetition_penalty: 1.3,
            ..plain()
        },
        SamplerOptions {
            min_p: 0.01,
            repetition_penalty: 1.3,
            repetition_window: 8,
            ..plain()
        },
    ] {
        assert_eq!(run(options, 11), run(options, 11));
        assert_ne!(run(options, 11), run(options, 12));
    }
}

#[test]
fn the_generator_advances_from_token_to_token() {
    let mut sampler = sampler(plain());
    let ids: Vec<u32> = (0..50)
        .map(|_| sampler.sample(&[0.0; 1000], &[]).unwrap())
        .collect();
    let mut distinct = ids.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert!(distinct.len() > 40, "{ids:?}");
    sampler.reset_seed(0);
    let again: Vec<u32> = (0..50)
        .map(|_| sampler.sample(&[0.0; 1000], &[]).unwrap())
        .collect();
    assert_eq!(ids, again);
}

#[test]
fn a_restored_sampler_continues_like_the_original() {
    let options = SamplerOptions {
        repetition_penalty: 1.5,
        top_p: 0.95,
        ..plain()
    };
    let logits = tailed(500);
    let mut original = sampler(options);
    // The original saw its prompt token by token, the restored one gets the history at once.
    let mut history = vec![3; 200];
    for _ in 0..20 {
        history.push(original.sample(&logits, &history).unwrap());
    }
    let mut restored = sampler(options);
    restored.reset_seed(original.rng_state());
    for _ in 0..20 {
        let id = original.sample(&logits, &history).unwrap();
        assert_eq!(restored.sample(&logits, &history), Ok(id));
        history.push(id);
    }
}

#[test]
fn the_draw_does_not_depend_on_how_often_a_token_occurs() {
    let options = SamplerOptions {
        repetition_penalty: 1.7,
        ..plain()
    };
    let logits = tailed(50);
    let (mut once, mut often) = (sampler(options), sampler(options));
    for id in 0..50 {
        assert_eq!(
            once.sample(&logits, &[id]),
            often.sample(&logits, &[id; 200])
        );
        let log_probs = once.top_log_probs(&logits, &[id], 50);
        assert_eq!(log_probs, often.top_log_probs(&logits, &[id; 200], 50));
    }
}

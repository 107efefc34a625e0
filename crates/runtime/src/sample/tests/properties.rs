//! Properties for arbitrary options, logits, masks and histories.

use proptest::prelude::*;

use super::super::greedy::best;
use super::*;

fn any_logit() -> impl Strategy<Value = f32> {
    prop_oneof![
        6 => -30.0_f32..30.0,
        2 => prop::num::f32::ANY,
        1 => prop_oneof![Just(NAN), Just(INF), Just(-INF), Just(0.0), Just(-0.0), Just(f32::MAX)],
    ]
}

fn any_options() -> impl Strategy<Value = SamplerOptions> {
    let temperatures = prop_oneof![Just(0.0), 0.01_f32..3.0, prop::num::f32::POSITIVE];
    let top_ks = prop_oneof![Just(0), 1_usize..20, Just(usize::MAX)];
    let top_ps = prop_oneof![Just(0.0), Just(1.0), 0.0_f32..=1.0];
    let min_ps = prop_oneof![Just(0.0), Just(1.0), 0.0_f32..=1.0];
    let penalties = prop_oneof![Just(1.0), 0.5_f32..2.0, prop::num::f32::POSITIVE];
    let windows = prop_oneof![Just(0), 1_usize..20, Just(usize::MAX)];
    (
        temperatures,
        top_ks,
        top_ps,
        min_ps,
        penalties,
        windows,
        any::<u64>(),
    )
        .prop_map(
            |(temperature, top_k, top_p, min_p, repetition_penalty, repetition_window, seed)| {
                SamplerOptions {
                    temperature,
                    top_k,
                    top_p,
                    min_p,
                    repetition_penalty,
                    repetition_window,
                    seed,
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn a_result_is_always_usable_and_a_failure_always_justified(
        options in any_options(),
        logits in prop::collection::vec(any_logit(), 0..700),
        mask in prop::collection::vec(prop_oneof![0_u32..700, any::<u32>()], 0..20),
        history in prop::collection::vec(prop_oneof![0_u32..700, any::<u32>()], 0..50),
    ) {
        let Ok(mut sampler) = Sampler::new(options) else {
            prop_assert!(options.validate().is_err());
            return Ok(());
        };
        sampler.mask(&mask);
        let usable = |id: u32| {
            !mask.contains(&id)
                && logits.get(id as usize).is_some_and(|&logit| logit > f32::NEG_INFINITY)
        };
        let n_usable = (0..700).filter(|&id| usable(id)).count();
        for _ in 0..3 {
            match sampler.sample(&logits, &history) {
                Ok(id) => prop_assert!(usable(id), "{id} is not usable"),
                Err(_) => prop_assert_eq!(n_usable, 0),
            }
            if let Ok(log_probs) = sampler.top_log_probs(&logits, &history, 10) {
                prop_assert!(!log_probs.is_empty() && log_probs.len() <= n_usable.min(10));
                for &(id, log_prob) in &log_probs {
                    prop_assert!(usable(id) && log_prob <= 0.0 && log_prob.is_finite());
                }
                prop_assert!(log_probs.windows(2).all(|pair| pair[0].1 >= pair[1].1));
            }
        }
    }

    #[test]
    fn the_best_token_survives_every_truncation(
        options in any_options(),
        logits in prop::collection::vec(-50.0_f32..50.0, 1..300),
    ) {
        let Ok(mut sampler) = Sampler::new(options) else { return Ok(()) };
        let expected = best(&logits);
        sampler.adjust(&logits, &[]);
        if !options.is_greedy() {
            sampler.candidates.collect(&logits, options.temperature);
            for step in &mut sampler.steps {
                step.truncate(&mut sampler.candidates);
            }
            let kept = sampler.candidates.as_slice();
            prop_assert!(kept.iter().any(|c| Some(c.id) == expected && c.logit >= 0.0));
            prop_assert!(options.top_k == 0 || kept.len() <= options.top_k);
        }
    }
}

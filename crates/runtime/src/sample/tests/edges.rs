//! Unusual logits and options, greedy sampling, scratch.

use super::*;

#[test]
fn nan_logits_are_never_chosen() {
    for options in option_sets() {
        let mut sampler = sampler(options);
        for _ in 0..200 {
            let id = sampler
                .sample(&[NAN, 1.0, -NAN, 0.5, NAN], &[0, 1])
                .unwrap();
            assert!(id == 1 || id == 3, "{options:?} chose {id}");
        }
    }
}

#[test]
fn infinite_logits_are_chosen_first() {
    for options in option_sets() {
        let mut sampler = sampler(options);
        for _ in 0..200 {
            let id = sampler
                .sample(&[f32::MAX, NAN, INF, -INF, 3.0], &[2])
                .unwrap();
            assert_eq!(id, 2, "{options:?}");
        }
    }
    // Several of them are alike.
    let counts = counts(plain(), &[INF, 0.0, INF], 10_000);
    assert_eq!(counts[1], 0);
    assert!(counts[0].abs_diff(counts[2]) < 500, "{counts:?}");
}

#[test]
fn rows_without_a_usable_token_are_an_error_with_figures() {
    for options in option_sets() {
        let mut sampler = sampler(options);
        let state = sampler.rng_state();
        for logits in [&[][..], &[NAN], &[-INF; 9], &[NAN, -INF, NAN]] {
            let expected = SampleError::NoCandidate {
                n_logits: logits.len(),
                n_masked: 0,
            };
            assert_eq!(sampler.sample(logits, &[0]), Err(expected.clone()));
            assert_eq!(sampler.top_log_probs(logits, &[0], 3), Err(expected));
        }
        sampler.mask(&[0, 1, 1, 2, 700]);
        let error = sampler.sample(&[1.0, 2.0, INF], &[]).unwrap_err();
        assert_eq!(
            error,
            SampleError::NoCandidate {
                n_logits: 3,
                n_masked: 3
            }
        );
        assert_eq!(
            sampler.rng_state(),
            state,
            "a failed call takes no random number"
        );
        sampler.clear_mask();
        sampler.sample(&[1.0, 2.0, 3.0], &[]).unwrap();
    }
}

#[test]
fn options_out_of_range_are_refused_by_name() {
    let check = |options: SamplerOptions, name: &str| {
        let Err(SampleError::Option { option, found, .. }) = Sampler::new(options) else {
            panic!("{name} was accepted: {options:?}");
        };
        assert_eq!(option, name);
        let message = options.validate().unwrap_err().to_string();
        assert!(
            message.starts_with(name) && message.contains(&found.to_string()),
            "{message}"
        );
    };
    for value in [NAN, INF, -INF, -0.1] {
        check(temperature(value), "temperature");
        check(top_p(value), "top_p");
        check(min_p(value), "min_p");
        check(
            SamplerOptions {
                repetition_penalty: value,
                ..plain()
            },
            "repetition_penalty",
        );
    }
    check(top_p(1.001), "top_p");
    check(min_p(1.001), "min_p");
    check(
        SamplerOptions {
            repetition_penalty: 0.0,
            ..plain()
        },
        "repetition_penalty",
    );
    for options in option_sets() {
        assert_eq!(options.validate(), Ok(()));
    }
}

#[test]
fn greedy_has_three_spellings_and_takes_no_random_number() {
    let logits = [0.5, 2.0, -1.0, 2.0];
    for options in [
        SamplerOptions::default(),
        SamplerOptions {
            temperature: -0.0,
            top_k: 40,
            ..plain()
        },
        top_k(1),
        top_p(0.0),
    ] {
        let mut sampler = sampler(SamplerOptions { seed: 5, ..options });
        assert!(options.is_greedy());
        assert_eq!(
            sampler.sample(&logits, &[]),
            Ok(1),
            "the lower of equal ids"
        );
        assert_eq!(sampler.rng_state(), 5);
        assert_eq!(sampler.step_names().count(), 0);
    }
}

#[test]
fn greedy_obeys_mask_and_penalty() {
    let options = SamplerOptions {
        repetition_penalty: 4.0,
        ..Default::default()
    };
    let mut sampler = sampler(options);
    let logits = [1.0, 3.0, 2.0];
    assert_eq!(sampler.sample(&logits, &[]), Ok(1));
    assert_eq!(sampler.sample(&logits, &[1]), Ok(2));
    assert_eq!(sampler.sample(&logits, &[1, 2]), Ok(0));
    sampler.mask(&[1]);
    assert_eq!(sampler.sample(&logits, &[]), Ok(2));
}

#[test]
fn scratch_is_allocated_once() {
    let options = SamplerOptions {
        top_k: 40,
        top_p: 0.9,
        repetition_penalty: 1.1,
        ..plain()
    };
    let mut sampler = sampler(options);
    let logits = tailed(4_000);
    sampler.sample(&logits, &[1]).unwrap();
    let place = |sampler: &Sampler| {
        (
            sampler.row.as_ptr(),
            sampler.candidates.as_slice().as_ptr(),
            sampler.candidates.capacity(),
        )
    };
    let before = place(&sampler);
    for n in [4_000, 7, 4_000, 3_999] {
        sampler.sample(&logits[..n], &[1, 2, 3]).unwrap();
        assert_eq!(place(&sampler), before);
    }
}

//! What the logits kept can decide.

use thalweg_trace::{Error, Logits, Trace};

use super::*;

#[test]
fn a_bias_beyond_the_logits_kept_is_refused() {
    let row = [5.0, 4.0, 3.0, 2.5, 1.0, 0.0];
    let limit_of = |logits, row: &[f32]| {
        let bytes = one_layer(&Shape::new(1, 6, 2).with_logits(logits), &[0, 1], row);
        let trace = Trace::parse(&bytes).expect("valid");
        let layer = trace.token(0).and_then(|t| t.layer(0)).expect("there");
        let limit = layer.beta_limit();
        if limit.is_finite() {
            assert!(trace.check_beta(limit).is_err(), "the limit is excluded");
            if limit > 0.0 {
                trace.check_beta(limit * 0.999).expect("below the limit");
            }
        } else {
            trace.check_beta(1e30).expect("no limit");
        }
        assert!(trace.check_beta(f32::NAN).is_err());
        limit
    };
    let top = |m| Logits::Top { m };
    assert!((limit_of(top(2), &row)).abs() < 1e-9);
    assert!((limit_of(top(3), &row) - 1.0).abs() < 1e-9);
    assert!((limit_of(top(5), &row) - 3.0).abs() < 1e-9);
    assert!(limit_of(top(6), &row).is_infinite());
    assert!(limit_of(Logits::FullF16, &row).is_infinite());
    assert!(limit_of(Logits::FullF32, &row).is_infinite());
    // Everything beyond the third is masked: no bias brings it back.
    let masked = [
        5.0,
        4.0,
        3.0,
        f32::NEG_INFINITY,
        f32::NEG_INFINITY,
        f32::NEG_INFINITY,
    ];
    assert!(limit_of(top(4), &masked).is_infinite());
    let all_masked = [f32::NEG_INFINITY; 6];
    assert!((limit_of(top(4), &all_masked)).abs() < 1e-9);

    let trace = Trace::parse(TINY_NONE).expect("valid");
    assert!(matches!(trace.check_beta(0.0), Err(Error::NoLogits)));
}

#[test]
fn logits_that_rank_otherwise_are_counted() {
    let conflicts = |logits, experts: &[u16], row: &[f32]| {
        let bytes = one_layer(&Shape::new(1, 6, 2).with_logits(logits), experts, row);
        Trace::parse(&bytes).expect("valid").rank_conflicts()
    };
    let row = [5.0, 4.0, 3.0, 2.5, 1.0, 0.0];
    for logits in [Logits::FullF16, Logits::FullF32, Logits::Top { m: 4 }] {
        assert_eq!(conflicts(logits, &[0, 1], &row), 0);
        assert_eq!(conflicts(logits, &[1, 0], &row), 1, "order");
        assert_eq!(
            conflicts(logits, &[0, 2], &row),
            1,
            "another expert ranks before"
        );
        assert_eq!(conflicts(logits, &[1, 2], &row), 1, "the best was left out");
        assert_eq!(conflicts(logits, &[0, 5], &row), 1, "not in the list");
    }
    // Different in f32, equal in half precision: the lower id would have won.
    let close = [1.0, 1.000_01, 0.0, 0.0, 0.0, 0.0];
    assert_eq!(conflicts(Logits::FullF32, &[1, 0], &close), 0);
    assert_eq!(conflicts(Logits::FullF16, &[1, 0], &close), 1);
    assert_eq!(conflicts(Logits::None, &[1, 0], &close), 0);
}

#[test]
fn equal_logits_are_kept_by_the_lower_expert() {
    let shape = Shape::new(1, 40, 2).with_logits(Logits::Top { m: 20 });
    let mut row = [1.0; 40];
    row[39] = 2.0;
    let bytes = one_layer(&shape, &[39, 0], &row);
    let trace = Trace::parse(&bytes).expect("valid");
    let layer = trace.token(0).and_then(|t| t.layer(0)).expect("there");
    let kept: Vec<u16> = layer.logits().map(|(expert, _)| expert).collect();
    let expected: Vec<u16> = std::iter::once(39).chain(0..19).collect();
    assert_eq!(kept, expected);
    assert!(!layer.rank_conflict());
}

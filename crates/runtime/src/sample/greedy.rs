//! The best token of a row.
//!
//! Cost: one pass for the maximum in independent lanes, one up to where it stands.

/// Id of the largest logit, the lower id among equals; `None` if all are NaN or negative infinity.
pub(super) fn best(logits: &[f32]) -> Option<u32> {
    let max = largest(logits);
    // `>=` and not `==`: the same here, since nothing is above the maximum, and false for NaN.
    (0..=u32::MAX)
        .zip(logits)
        .find(|&(_, &logit)| logit >= max && logit > f32::NEG_INFINITY)
        .map(|(id, _)| id)
}

/// Largest logit; NaN is skipped, negative infinity is returned if there is nothing else.
pub(super) fn largest(logits: &[f32]) -> f32 {
    // A maximum is the same in any order, so lanes change nothing but the time.
    let greater = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (chunks, rest) = logits.as_chunks::<16>();
    for chunk in chunks {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            *lane = greater(*lane, logit);
        }
    }
    lanes
        .into_iter()
        .chain(rest.iter().copied())
        .fold(f32::NEG_INFINITY, greater)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lower_of_equal_ids_wins_at_every_place() {
        for first in 0..40 {
            for second in first + 1..40 {
                let mut logits = [-1.0; 40];
                logits[first] = 3.0;
                logits[second] = 3.0;
                assert_eq!(best(&logits), u32::try_from(first).ok());
            }
        }
    }

    #[test]
    fn zeros_of_both_signs_are_equal() {
        assert_eq!(best(&[-0.0, 0.0]), Some(0));
        assert_eq!(best(&[0.0, -0.0]), Some(0));
    }

    #[test]
    fn nan_and_negative_infinity_are_never_the_best() {
        let (nan, none) = (f32::NAN, f32::NEG_INFINITY);
        assert_eq!(best(&[nan, none, f32::MIN, nan]), Some(2));
        assert_eq!(best(&[nan, none, -nan]), None);
        assert_eq!(best(&[]), None);
    }

    #[test]
    fn positive_infinity_is_chosen_first() {
        assert_eq!(
            best(&[f32::MAX, f32::NAN, f32::INFINITY, f32::INFINITY]),
            Some(2)
        );
    }
}

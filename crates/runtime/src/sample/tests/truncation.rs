//! What top-k, top-p and min-p keep.

use super::*;

/// Ids that are drawn at least once in 2,000 draws.
fn support(options: SamplerOptions, logits: &[f32]) -> Vec<usize> {
    let counts = counts(options, logits, 2_000);
    (0..logits.len()).filter(|&id| counts[id] > 0).collect()
}

#[test]
fn truncations_keep_what_their_definitions_say() {
    // Probabilities 0.4, 0.3, 0.2, 0.1, out of order.
    let logits = [0.2_f32, 0.4, 0.1, 0.3].map(f32::ln);
    let cases = [
        (plain(), vec![0, 1, 2, 3]),
        (top_k(2), vec![1, 3]),
        (top_k(4), vec![0, 1, 2, 3]),
        (top_k(usize::MAX), vec![0, 1, 2, 3]),
        (top_p(1e-9), vec![1]),
        (top_p(0.39), vec![1]),
        (top_p(0.41), vec![1, 3]),
        (top_p(0.69), vec![1, 3]),
        (top_p(0.71), vec![0, 1, 3]),
        (top_p(0.91), vec![0, 1, 2, 3]),
        // Thresholds are shares of 0.4.
        (min_p(0.24), vec![0, 1, 2, 3]),
        (min_p(0.26), vec![0, 1, 3]),
        (min_p(0.51), vec![1, 3]),
        (min_p(1.0), vec![1]),
        // Top-p counts what top-k left: 0.4 / 0.7 = 0.57.
        (
            SamplerOptions {
                top_k: 2,
                top_p: 0.56,
                ..plain()
            },
            vec![1],
        ),
        (
            SamplerOptions {
                top_k: 2,
                top_p: 0.58,
                ..plain()
            },
            vec![1, 3],
        ),
        (
            SamplerOptions {
                top_p: 0.91,
                min_p: 0.26,
                ..plain()
            },
            vec![0, 1, 3],
        ),
        // The temperature comes first: at 0.5 the best has 0.16 / 0.3 = 0.53.
        (
            SamplerOptions {
                temperature: 0.5,
                top_p: 0.52,
                ..plain()
            },
            vec![1],
        ),
        (
            SamplerOptions {
                temperature: 0.5,
                top_p: 0.54,
                ..plain()
            },
            vec![1, 3],
        ),
    ];
    for (options, expected) in cases {
        assert_eq!(support(options, &logits), expected, "{options:?}");
    }
}

#[test]
fn equal_logits_at_a_border_keep_the_lower_ids() {
    let logits = [0.0; 10];
    assert_eq!(support(top_k(3), &logits), [0, 1, 2]);
    assert_eq!(support(top_p(0.35), &logits), [0, 1, 2, 3]);
    let large = vec![0.0; 5_000];
    assert_eq!(support(top_k(3), &large), [0, 1, 2]);
}

#[test]
fn selection_agrees_with_a_full_sort_on_large_rows() {
    let tail = tailed(20_000);
    let ascending: Vec<f32> = (0_u16..20_000).map(|i| f32::from(i) * 1e-3).collect();
    let descending: Vec<f32> = ascending.iter().rev().copied().collect();
    for logits in [tail, ascending, descending, vec![1.0; 20_000]] {
        let all = collected(&logits);
        let mut ranked = all.as_slice().to_vec();
        ranked.sort_by(|a, b| b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id)));

        for k in [1, 2, 63, 255, 256, 257, 511, 513, 5_000, 19_999] {
            let mut candidates = collected(&logits);
            candidates.keep_best(k);
            assert_eq!(candidates.as_slice(), &ranked[..k], "k {k}");
        }
        for mass in [0.001, 0.1, 0.5, 0.9, 0.999, 0.999_999_9] {
            let mut candidates = collected(&logits);
            candidates.keep_mass(mass);
            let wanted = f64::from(mass) * all.total_weight();
            let mut sum = 0.0;
            let fewest = ranked.iter().take_while(|candidate| {
                let short = sum < wanted;
                sum += f64::from(candidate.weight());
                short
            });
            let n = fewest.count();
            assert_eq!(candidates.as_slice(), &ranked[..n], "mass {mass}");
        }
        for (mass, n) in [
            (-1.0, 1),
            (0.0, 1),
            (1.0, 20_000),
            (2.0, 20_000),
            (NAN, 20_000),
        ] {
            let mut candidates = collected(&logits);
            candidates.keep_mass(mass);
            assert_eq!(candidates.as_slice(), &ranked[..n], "mass {mass}");
        }
        for weight in [-1.0, 0.0, 0.01, 0.5, 1.0, 7.0, NAN] {
            let mut candidates = collected(&logits);
            candidates.keep_weight(weight);
            let n = ranked
                .iter()
                .filter(|c| c.weight() >= weight.min(1.0))
                .count();
            assert_eq!(candidates.len(), n, "weight {weight}");
            assert!(!candidates.is_empty());
        }
    }
}

fn collected(logits: &[f32]) -> Candidates {
    let mut candidates = Candidates::new();
    candidates.collect(logits, 1.0);
    candidates
}

//! What makes routers pick as asked. Owns: pick shares by rank, the biases that yield them, each
//! layer's order of experts, how slowly the common part of the router's noise must move. Does not
//! own: where in the residual these parts lie (`recipe`).
//!
//! A token picks the experts with the largest `bias + noise`, the noise being normal with
//! deviation 1. With many experts the smallest picked score hardly varies, so an expert is picked
//! with the probability that its noise exceeds it: the bias is the normal quantile of the share.
//! Invariants: 1. shares fall with the rank and add up to the picks of a token. 2. Only operations
//! that are rounded alike everywhere: no `ln`, `exp` or `powf` of the system.
//! Cost: microseconds a layer.

use crate::random::Random;

/// No expert is picked more often than this, or the tokens' own choice would vanish.
const MAX_SHARE: f64 = 0.95;
/// Above this the picks would stay the same for hundreds of tokens.
pub(crate) const MAX_CORRELATION: f64 = 0.95;

/// Share of picks repeated beyond what skew gives, and the correlation from token to token of a
/// router's noise that yields it. Simulated: 64 to 512 experts, 4 to 10 picks, skew 0 to 1.5;
/// shares agree to 0.03.
const REPEATED: [(f64, f64); 9] = [
    (0.0, 0.0),
    (0.06, 0.2),
    (0.15, 0.4),
    (0.275, 0.6),
    (0.46, 0.8),
    (0.60, 0.9),
    (0.735, 0.96),
    (0.855, 0.99),
    (1.0, 1.0),
];

/// Share of tokens that pick the expert of each rank, best first: `r^-skew` in proportion, capped.
pub(crate) fn shares(n_expert: usize, n_used: usize, skew: f64) -> Vec<f64> {
    let weights: Vec<f64> = (1..=n_expert)
        .map(|rank| exp(-skew * ln(rank as f64)))
        .collect();
    // With almost all experts used, the cap gives way.
    let cap = MAX_SHARE.max(n_used as f64 / n_expert as f64);
    let capped = |scale: f64| weights.iter().map(move |w| (scale * w).min(cap));
    let (mut low, mut high) = (0.0, n_used as f64);
    while capped(high).sum::<f64>() < n_used as f64 && high < 1e30 {
        high *= 2.0;
    }
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if capped(middle).sum::<f64>() < n_used as f64 {
            low = middle;
        } else {
            high = middle;
        }
    }
    capped(high).collect()
}

/// The router's bias of each rank, in deviations of its noise.
pub(crate) fn biases(n_expert: usize, n_used: usize, skew: f64) -> Vec<f64> {
    let shares = shares(n_expert, n_used, skew);
    shares.into_iter().map(normal_quantile).collect()
}

/// The experts of a layer by falling share.
pub(crate) fn ranking(seed: u64, layer: usize, n_expert: usize) -> Vec<usize> {
    let mut random = Random::for_tensor(seed, &format!("ranking of layer {layer}"));
    let mut order: Vec<usize> = (0..n_expert).collect();
    for last in (1..n_expert).rev() {
        // Fewer than 2^10 experts: the bias of the remainder is below 2^-54.
        let chosen = random.next_u64() % (last as u64 + 1);
        order.swap(last, usize::try_from(chosen).unwrap_or(last));
    }
    order
}

/// How much of last token's memory remains, and equally which share of the router's noise comes
/// from the memory, for this share of repeated picks.
pub(crate) fn memory(correlation: f64) -> f64 {
    let above = REPEATED.iter().position(|(share, _)| *share >= correlation);
    let i = above.unwrap_or(REPEATED.len() - 1).max(1);
    let ((x0, y0), (x1, y1)) = (REPEATED[i - 1], REPEATED[i]);
    let noise = y0 + (y1 - y0) * (correlation - x0) / (x1 - x0);
    noise.clamp(0.0, 1.0).sqrt()
}

/// The logit of a probability.
pub(crate) fn logit(p: f64) -> f64 {
    ln(p / (1.0 - p))
}

/// The normal quantile to 0.021 between 0.001 and 0.999, after Tukey's lambda distribution with the
/// shape 0.135. Further out it falls short, by 0.5 at one in a million: experts that are meant to be
/// picked hardly ever are picked a little more often.
fn normal_quantile(p: f64) -> f64 {
    let p = p.clamp(1e-9, 1.0 - 1e-9);
    let power = |x: f64| exp(0.135 * ln(x));
    (power(p) - power(1.0 - p)) / 0.1975
}

/// The natural logarithm of a positive normal number.
fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = (bits >> 52 & 0x7ff) as f64 - 1023.0;
    let mantissa = f64::from_bits(bits & 0x000f_ffff_ffff_ffff | 0x3ff0_0000_0000_0000);
    // ln m = 2 artanh z with z at most 1/3: each term adds a factor below 1/9.
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let (mut term, mut sum) = (z, 0.0);
    for k in 0..20 {
        sum += term / f64::from(2 * k + 1);
        term *= z * z;
    }
    2.0 * sum + exponent * std::f64::consts::LN_2
}

/// `e^x` for moderate `x`.
fn exp(x: f64) -> f64 {
    // Halved until the series converges at once, then squared back.
    let (mut small, mut halvings) = (x, 0);
    while small.abs() > 0.5 {
        small /= 2.0;
        halvings += 1;
    }
    let (mut term, mut sum) = (1.0, 1.0);
    for k in 1..18 {
        term *= small / f64::from(k);
        sum += term;
    }
    (0..halvings).fold(sum, |power, _| power * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithm_and_exponential_are_those_of_the_system() {
        for i in 1..2000 {
            let x = f64::from(i) * 0.37;
            assert!((ln(x) - x.ln()).abs() < 1e-12, "{x}");
            let y = f64::from(i - 1000) * 0.02;
            assert!((exp(y) / y.exp() - 1.0).abs() < 1e-12, "{y}");
        }
    }

    #[test]
    fn quantiles_are_those_of_the_normal_distribution() {
        // Abramowitz and Stegun, table 26.5.
        for (p, x) in [
            (0.5, 0.0),
            (0.9, 1.28155),
            (0.05, -1.64485),
            (0.01, -2.32635),
            (0.999, 3.09023),
        ] {
            assert!((normal_quantile(p) - x).abs() < 0.022, "{p}");
        }
    }

    #[test]
    fn shares_add_up_and_fall_with_the_power_asked_for() {
        let even = shares(64, 4, 0.0);
        assert!(even.iter().all(|p| (p - 0.0625).abs() < 1e-9));
        let steep = shares(256, 10, 1.0);
        assert!((steep.iter().sum::<f64>() - 10.0).abs() < 1e-6);
        assert!(
            (steep[19] / steep[199] - 10.0).abs() < 1e-6,
            "ranks 20 and 200"
        );
        assert!((steep[0] - MAX_SHARE).abs() < 1e-9, "rank 1 is capped");
        let all = shares(8, 8, 1.0);
        assert!(all.iter().all(|p| (p - 1.0).abs() < 1e-6));
    }

    #[test]
    fn every_layer_has_an_order_of_its_own_with_each_expert_once() {
        let first = ranking(1, 0, 100);
        assert_ne!(first, ranking(1, 1, 100));
        assert_ne!(first, ranking(2, 0, 100));
        let mut sorted = first;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn memory_grows_with_the_correlation() {
        assert!(memory(0.0) < 1e-9);
        let steps: Vec<f64> = (0..20).map(|i| memory(0.05 * f64::from(i))).collect();
        assert!(steps.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(steps[19] < 1.0);
    }
}

//! The closed loop: logits are routed with a bias toward what is resident, the choice feeds the
//! cache, and the cache's content feeds the next choice.
//!
//! Owns the loop and one router. Does not own logits: a function gives them, so hidden states are
//! frozen (those of the recorded run). Memory: that of `Simulator` and two rows. Cost: a decision
//! is O(n_expert) and that of the policy; nothing allocates after the first decisions.

use alloc::vec;
use alloc::vec::Vec;

use super::{KeepMap, RoutedReport, SimConfig, Simulator};
use crate::{
    Access, Error, ExpertKey, KeySpace, Moce, Probs, RangeMean, Route, Router, Weights, softmax,
};

/// Routes recorded logits with a bias toward what is resident, and feeds the choice to the cache
/// (closed loop with frozen hidden states: the logits are those of an unbiased run).
///
/// `row(token, layer, out)` writes the logits of one decision, `[n_expert]`; it is called for every
/// layer of every token in order. The batch, `config.batch`, is the number of experts a decision
/// chooses. With the bias off this equals [`replay`](super::replay) of the unbiased choices.
///
/// Experts are left out by giving them minus infinity ([`KeepMap::mask`] does it): such an expert
/// has no part in the choice, in the range that scales a relative bias, nor in the figures.
///
/// An offline policy cannot be used: its future depends on its decisions. So Belady's bound on the
/// unbiased log is no bound here.
///
/// # Errors
/// As [`replay`](super::replay), and what [`Moce::check`] and [`Router::new`] find.
pub fn route(
    n_tokens: u64,
    config: &SimConfig<'_>,
    moce: &Moce,
    row: impl FnMut(u64, u16, &mut [f32]),
) -> Result<RoutedReport, Error> {
    route_observed(n_tokens, config, moce, row, |_, _| {})
}

/// As [`route`], showing every access before it is served and the decision behind it.
///
/// This is how the picks of a biased run become a log, which an offline policy can then replay.
///
/// # Errors
/// As [`route`].
pub fn route_observed(
    n_tokens: u64,
    config: &SimConfig<'_>,
    moce: &Moce,
    mut row: impl FnMut(u64, u16, &mut [f32]),
    mut observe: impl FnMut(&Access<'_>, &Route<'_>),
) -> Result<RoutedReport, Error> {
    moce.check()?;
    let space = config.space;
    let k = u16::try_from(config.batch).unwrap_or(u16::MAX);
    let mut router = Router::new(space.n_expert(), k)?;
    let mut simulator = Simulator::new(config, None)?;
    let mut means = vec![RangeMean::default(); usize::from(space.n_layer())];
    let mut logits = vec![0.0f32; usize::from(space.n_expert())];
    let mut probs = logits.clone();
    let (mut keys, mut near) = (Vec::with_capacity(k.into()), Vec::with_capacity(k.into()));
    let mut report = RoutedReport::new(config);
    for token in 0..n_tokens {
        for (layer, mean) in (0u16..).zip(&mut means) {
            row(token, layer, &mut logits);
            let beta = moce.beta(mean, &logits);
            let key = |expert| space.key(ExpertKey::new(layer, expert));
            let resident = |expert| key(expert).is_some_and(|key| simulator.is_resident(key));
            let route = router.route(&logits, beta, moce.protect_top_j, moce.weights, resident)?;
            keys.clear();
            keys.extend(route.experts.iter().filter_map(|&e| key(e)));
            near.clear();
            // An expert that was left out was not near.
            let finite = |e: &&u16| logits[usize::from(**e)].is_finite();
            near.extend(route.near.iter().filter(finite).filter_map(|&e| key(e)));
            let mut access = Access::new(token, &keys).with_near(&near);
            if config.policy.uses_probs() {
                softmax(&logits, &mut probs);
                access.probs = key(0).map(|first| Probs::new(first, &probs));
            }
            observe(&access, &route);
            simulator.access(&access)?;
            if token >= config.skip_tokens {
                report.add(&route, simulator.domain());
            }
        }
    }
    report.cache = simulator.into_report();
    Ok(report)
}

/// What it costs the routing to keep only some experts, before any cache.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct Restriction {
    /// Mean share of the full model's experts that are still chosen.
    pub agreement: f64,
    /// Mean of ln(P(full choice) / P(choice among the kept)), P the sum of full-softmax
    /// probabilities; at least 0.
    pub routing_kl: f64,
}

/// Compares the choice among kept experts with the choice among all, over recorded logits.
///
/// Arguments as in [`route`]; `k` experts are chosen in a decision.
///
/// # Errors
/// [`Error::BadShape`] unless `1 <= k <= n_expert`; [`Error::BatchTooLarge`] when fewer than `k`
/// experts are kept.
pub fn restrict(
    n_tokens: u64,
    space: KeySpace,
    k: u16,
    keep: &KeepMap,
    mut row: impl FnMut(u64, u16, &mut [f32]),
) -> Result<Restriction, Error> {
    let mut router = Router::new(space.n_expert(), k)?;
    if keep.n_kept() < k {
        return Err(Error::BatchTooLarge {
            batch: k.into(),
            n_slots: keep.n_kept().into(),
        });
    }
    let mut logits = vec![0.0f32; usize::from(space.n_expert())];
    let (mut agreement, mut routing_kl, mut n) = (0.0, 0.0, 0u64);
    for token in 0..n_tokens {
        for layer in 0..space.n_layer() {
            row(token, layer, &mut logits);
            // A bias beyond the range makes the choice one among the kept. Not a huge one: the sum
            // must still tell the logits apart.
            let finite = logits
                .iter()
                .filter(|z| z.is_finite())
                .map(|&z| f64::from(z));
            let (least, greatest) = finite.fold((0.0f64, 0.0f64), |(least, greatest), z| {
                (least.min(z), greatest.max(z))
            });
            let kept = |expert| keep.contains(layer, expert);
            let beta = greatest - least + 1.0;
            let route = router.route(&logits, beta, 0, Weights::Unbiased, kept)?;
            agreement += f64::from(route.n_agree) / f64::from(k);
            routing_kl += route.routing_kl;
            n += 1;
        }
    }
    let n = n.max(1) as f64;
    Ok(Restriction {
        agreement: agreement / n,
        routing_kl: routing_kl / n,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Document, Scope, replay};
    use crate::testing::Synth;
    use crate::{AccessLog, Bias, PolicyKind, RangeAvg};

    const N_TOKENS: u64 = 60;

    fn space() -> KeySpace {
        KeySpace::new(2, 16)
    }

    fn row(token: u64, layer: u16, out: &mut [f32]) {
        // Deterministic and without ties.
        let mut rng = crate::SplitMix64::new((token / 8) * 31 + u64::from(layer));
        let mut fresh = crate::SplitMix64::new(token * 977 + u64::from(layer) + 5);
        for z in out {
            *z = (rng.unit() * 3.0 + fresh.unit() * 1.5) as f32;
        }
    }

    fn biased(lambda: f32) -> Moce {
        Moce::new(Bias::Relative {
            lambda,
            avg: RangeAvg::Cumulative,
        })
        .with_protected(1)
    }

    fn close(a: Option<f64>, b: f64) {
        let a = a.expect("there were decisions");
        assert!((a - b).abs() < 1e-12, "{a} is not {b}");
    }

    #[test]
    fn masked_experts_are_never_asked_for_and_leave_no_trace_in_the_figures() {
        let keep = KeepMap::new(space(), &[[1, 2, 4, 7, 9, 15], [0, 3, 5, 6, 11, 12]]);
        let keep = keep.expect("valid");
        for &policy in PolicyKind::ALL {
            if policy.is_offline() {
                continue;
            }
            let config = SimConfig::new(policy, space(), 5, 3).with_scope(Scope::PerLayer);
            let masked = |token, layer, out: &mut [f32]| {
                row(token, layer, out);
                keep.mask(layer, out);
            };
            let mut keys = Vec::new();
            let report = route_observed(N_TOKENS, &config, &biased(0.2), masked, |access, _| {
                keys.extend(access.keys.iter().chain(access.near).copied());
            });
            let report = report.expect("valid");
            for key in keys {
                let e = space().expert(key).expect("in range");
                assert!(keep.contains(e.layer, e.expert), "{policy} {e}");
            }
            // A model that has only the kept experts gives the same counts.
            let small = KeySpace::new(2, 6);
            let config = SimConfig {
                space: small,
                ..config
            };
            let compact = |token, layer: u16, out: &mut [f32]| {
                let mut full = [0.0; 16];
                row(token, layer, &mut full);
                for (out, &e) in out.iter_mut().zip(keep.layer(layer)) {
                    *out = full[usize::from(e)];
                }
            };
            let compact = route(N_TOKENS, &config, &biased(0.2), compact).expect("valid");
            if policy != PolicyKind::Random {
                assert_eq!(report.cache.total, compact.cache.total, "{policy}");
                close(report.routing_kl(), compact.routing_kl().expect("ran"));
            }
        }
    }

    #[test]
    fn the_picks_of_a_biased_run_replay_to_the_same_misses() {
        let config = SimConfig::new(PolicyKind::Lru, space(), 6, 3).with_scope(Scope::PerLayer);
        let mut log = AccessLog::new();
        let report = route_observed(N_TOKENS, &config, &biased(0.3), row, |access, _| {
            log.push(access);
        });
        let report = report.expect("valid");
        assert_eq!(replay(&log, &config).expect("valid"), report.cache);
        let oracle = SimConfig {
            policy: PolicyKind::BeladyMin,
            ..config
        };
        let oracle = replay(&log, &oracle).expect("valid");
        assert!(oracle.total.n_misses <= report.cache.total.n_misses);
    }

    #[test]
    fn domains_add_up_to_the_total_and_have_their_own_figures() {
        let documents = [(0, 0), (10, 1), (30, 0)];
        let documents = documents.map(|(first_token, domain)| Document {
            first_token,
            domain,
        });
        let mut config = SimConfig::new(PolicyKind::Lru, space(), 6, 3);
        config.documents = &documents;
        config.skip_tokens = 5;
        let report = route(N_TOKENS, &config, &biased(0.2), row).expect("valid");
        let sum = |of: fn(&super::super::RouteCounts) -> u64| -> u64 {
            report.domains.iter().map(of).sum()
        };
        assert_eq!(sum(|d| d.n_decisions), report.total.n_decisions);
        assert_eq!(report.total.n_decisions, (N_TOKENS - 5) * 2);
        assert_eq!(report.domains[1].n_decisions, 40);
        assert_eq!(sum(|d| d.n_exact), report.total.n_exact);
        let weighted: f64 = report
            .domains
            .iter()
            .map(|d| d.agreement().expect("ran") * d.n_decisions as f64)
            .sum();
        close(
            report.agreement(),
            weighted / report.total.n_decisions as f64,
        );
        assert_ne!(
            report.domains[0].routing_kl(),
            report.domains[1].routing_kl()
        );
    }

    #[test]
    fn restricting_costs_nothing_if_all_are_kept_and_matches_the_definition_if_not() {
        let all = restrict(N_TOKENS, space(), 3, &KeepMap::all(space()), row).expect("valid");
        close(Some(all.agreement), 1.0);
        close(Some(all.routing_kl), 0.0);

        let synth = Synth::new(3, 40, 8);
        let logits = |token: u64, _: u16, out: &mut [f32]| {
            for (out, &z) in out.iter_mut().zip(synth.row(token as usize)) {
                *out = z as f32;
            }
        };
        let space = KeySpace::new(1, 8);
        let keep = KeepMap::new(space, &[[0, 2, 3, 6]]).expect("valid");
        let found = restrict(40, space, 2, &keep, logits).expect("valid");
        // By hand: sort, sum, take the logarithm.
        let (mut kl, mut agreement) = (0.0, 0.0);
        for token in 0..40 {
            let mut z = [0.0; 8];
            logits(token, 0, &mut z);
            let mut order: Vec<usize> = (0..8).collect();
            order.sort_by(|&a, &b| z[b].total_cmp(&z[a]));
            let full = &order[..2];
            let kept: Vec<usize> = order
                .iter()
                .copied()
                .filter(|e| [0, 2, 3, 6].contains(e))
                .take(2)
                .collect();
            let mass = |set: &[usize]| -> f64 { set.iter().map(|&e| f64::from(z[e]).exp()).sum() };
            kl += (mass(full) / mass(&kept)).ln() / 40.0;
            agreement += kept.iter().filter(|e| full.contains(e)).count() as f64 / 80.0;
        }
        assert!((found.routing_kl - kl).abs() < 1e-9);
        assert!((found.agreement - agreement).abs() < 1e-9);
        let too_few = KeepMap::new(space, &[[5]]).expect("valid");
        assert!(restrict(40, space, 2, &too_few, logits).is_err());
    }
}

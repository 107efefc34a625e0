//! The simulator: replays recorded accesses, or routes recorded logits, against simulated caches.
//!
//! Owns the two loops: open (what is asked for is fixed) and closed (it depends on what is
//! resident). Does not own traces: keys come as an `AccessLog`, logits through a function. Nothing
//! is loaded: a miss is a number. Cost: that of `serve`, of the policy and, in the closed loop, of
//! `Router`.

mod config;
mod report;
mod simulator;

use alloc::vec;
use alloc::vec::Vec;

pub use self::config::{Document, KeyBytes, Scope, SimConfig};
pub use self::report::{Counts, Report, RoutedReport};
pub use self::simulator::{BuildPolicy, Simulator};
use crate::{Access, AccessLog, Error, ExpertKey, Moce, Probs, RangeMean, Router, softmax};

/// Replays a log (open loop: what is asked for does not depend on what is resident).
///
/// ```
/// use thalweg_cache::{sim, Access, AccessLog, Key, KeySpace, PolicyKind};
/// let mut log = AccessLog::new();
/// for (token, key) in [0, 1, 2, 0, 1, 2].into_iter().enumerate() {
///     log.push(&Access::new(token as u64, &[Key::new(key)]));
/// }
/// let config = |policy| sim::SimConfig::new(policy, KeySpace::new(1, 3), 2, 1);
/// assert_eq!(sim::replay(&log, &config(PolicyKind::Lru))?.total.n_misses, 6);
/// assert_eq!(sim::replay(&log, &config(PolicyKind::BeladyMin))?.total.n_misses, 4);
/// # Ok::<(), thalweg_cache::Error>(())
/// ```
///
/// # Errors
/// A configuration that [`Simulator::new`] refuses, or an access that
/// [`Simulator::access`] refuses.
pub fn replay(log: &AccessLog, config: &SimConfig<'_>) -> Result<Report, Error> {
    let mut simulator = Simulator::new(config, Some(log))?;
    for access in log.iter() {
        simulator.access(&access)?;
    }
    Ok(simulator.into_report())
}

/// Routes recorded logits with a bias toward what is resident, and feeds the choice to the cache
/// (closed loop with frozen hidden states: the logits are those of an unbiased run).
///
/// `row(token, layer, out)` writes the logits of one decision, `[n_expert]`; it is called for every
/// layer of every token in order. The batch, `config.batch`, is the number of experts a decision
/// chooses. With the bias off this equals [`replay`] of the unbiased choices.
///
/// An offline policy cannot be used: its future depends on its decisions. So Belady's bound on the
/// unbiased log is no bound here.
///
/// # Errors
/// As [`replay`], and what [`Moce::check`] and [`Router::new`] find.
pub fn route(
    n_tokens: u64,
    config: &SimConfig<'_>,
    moce: &Moce,
    mut row: impl FnMut(u64, u16, &mut [f32]),
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
    let mut report = RoutedReport::default();
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
            near.extend(route.near.iter().filter_map(|&e| key(e)));
            if token >= config.skip_tokens {
                report.n_decisions += 1;
                report.n_exact += u64::from(route.is_exact());
                report.n_invalid_rows += u64::from(route.n_invalid > 0);
                report.agree_sum += f64::from(route.n_agree) / f64::from(k);
                report.kl_sum += route.routing_kl;
            }
            softmax(&logits, &mut probs);
            let mut access = Access::new(token, &keys).with_near(&near);
            access.probs = key(0).map(|first| Probs::new(first, &probs));
            simulator.access(&access)?;
        }
    }
    report.cache = simulator.into_report();
    Ok(report)
}

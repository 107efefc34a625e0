//! The simulator: replays recorded accesses, or routes recorded logits, against simulated caches.
//!
//! Owns the two loops: open (what is asked for is fixed) and closed (it depends on what is
//! resident), and what is counted in them. Does not own traces: keys come as an `AccessLog`, logits
//! through a function. Nothing is loaded: a miss is a number. Cost: that of `serve`, of the policy
//! and, in the closed loop, of `Router`.

mod closed;
mod config;
mod keep;
mod report;
mod simulator;
mod synthetic;
mod usage;

pub use self::closed::{Restriction, restrict, route, route_observed};
pub use self::config::{Document, KeyBytes, Scope, SimConfig};
pub use self::keep::KeepMap;
pub use self::report::{Counts, Report, RouteCounts, RoutedReport};
pub use self::simulator::{BuildPolicy, Simulator};
pub use self::synthetic::{Synthetic, SyntheticConfig};
pub use self::usage::{Score, Usage};
use crate::{AccessLog, Error};

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

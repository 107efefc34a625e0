//! Test equipment: synthetic accesses and the suite that every policy has to pass.
//!
//! Compiled for this crate's tests and with feature `testing`. The suite's functions panic on a
//! failure, as tests do; `policy_tests!` turns them into tests of one policy. Costs are those of a
//! test.

mod ops;
mod synth;

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;
use core::convert::Infallible;

pub use self::ops::{
    OPS_N_KEYS, OPS_N_SLOTS, Op, check_ops, check_random_ops, fuzz_ops, ops_config, ops_future,
};
pub use self::synth::{Synth, random_log};
use crate::{
    Access, AccessLog, Error, Key, Policy, PolicyConfig, PolicyKind, Probs, Residency, SplitMix64,
    serve,
};

/// Builds a policy of any type.
pub type Build<'a> = &'a dyn Fn(&PolicyConfig<'_>) -> Result<Box<dyn Policy>, Error>;

/// Boxes what a constructor returns, so that it can be passed as [`Build`].
pub fn boxed<P: Policy + 'static>(
    new: impl Fn(&PolicyConfig<'_>) -> Result<P, Error>,
) -> impl Fn(&PolicyConfig<'_>) -> Result<Box<dyn Policy>, Error> {
    move |config| {
        let policy: Box<dyn Policy> = Box::new(new(config)?);
        Ok(policy)
    }
}

/// Declares the tests that every policy has to pass, in the current module.
///
/// ```
/// use thalweg_cache::{Error, Key, Policy, PolicyConfig};
///
/// struct Mine(Vec<Key>);
///
/// impl Mine {
///     fn new(config: &PolicyConfig<'_>) -> Result<Self, Error> {
///         config.check()?;
///         Ok(Self(Vec::with_capacity(config.capacity as usize)))
///     }
/// }
///
/// impl Policy for Mine {
///     fn on_hit(&mut self, _: Key) {}
///     fn on_insert(&mut self, key: Key) {
///         if !self.0.contains(&key) {
///             self.0.push(key);
///         }
///     }
///     fn on_evict(&mut self, key: Key) {
///         self.0.retain(|&k| k != key);
///     }
///     fn victim(&mut self, evictable: &dyn Fn(Key) -> bool) -> Option<Key> {
///         self.0.iter().copied().find(|&key| evictable(key))
///     }
/// }
///
/// mod mine_keeps_the_contract {
///     thalweg_cache::policy_tests!(super::Mine::new);
/// }
/// # use thalweg_cache::testing::{boxed, check_contract, check_every_resident_is_offered};
/// # check_contract(&boxed(Mine::new));
/// # check_every_resident_is_offered(&boxed(Mine::new));
/// ```
#[macro_export]
macro_rules! policy_tests {
    ($new:expr) => {
        #[test]
        fn the_batch_contract_holds_and_belady_is_the_bound() {
            $crate::testing::check_contract(&$crate::testing::boxed($new));
        }

        #[test]
        fn any_sequence_of_operations_keeps_the_invariants() {
            $crate::testing::check_random_ops(&$crate::testing::boxed($new));
        }

        #[test]
        fn every_resident_is_offered_once_and_nothing_else() {
            $crate::testing::check_every_resident_is_offered(&$crate::testing::boxed($new));
        }

        #[test]
        fn keys_out_of_range_and_senseless_reports_are_ignored() {
            $crate::testing::check_nonsense(&$crate::testing::boxed($new));
        }

        #[test]
        fn the_same_accesses_give_the_same_evictions() {
            $crate::testing::check_repeatable(&$crate::testing::boxed($new));
        }
    };
}

/// Serves synthetic and random logs: the batch is resident after each access, nothing else was
/// pushed out while a slot was free, misses are at least Belady's, and with room for all keys only
/// first uses miss.
///
/// # Panics
/// When one of these fails.
pub fn check_contract(build: Build<'_>) {
    for seed in 0..6 {
        let log = if seed < 2 {
            Synth::new(seed, 150, 24).log(3)
        } else {
            random_log(seed, 150, 24, 3)
        };
        let first_uses: BTreeSet<Key> = log.iter().flat_map(|a| a.keys.to_vec()).collect();
        for capacity in [3, 4, 5, 8, 13, 24, 40] {
            let config = PolicyConfig::new(24, capacity, 3).with_future(&log);
            let misses = serve_log(build, &config, &log).len() as u64;
            let bound = serve_log(&|c| PolicyKind::BeladyMin.build(c), &config, &log).len() as u64;
            assert!(misses >= bound, "{misses} misses beat the optimum {bound}");
            if capacity >= 24 {
                assert_eq!(misses, first_uses.len() as u64);
            }
        }
    }
}

/// After a run, asks for victims until there is none: each resident comes exactly once; and a
/// single evictable key is always found.
///
/// # Panics
/// When a key is missing, repeated or invented.
pub fn check_every_resident_is_offered(build: Build<'_>) {
    let log = random_log(77, 120, 20, 2);
    let config = PolicyConfig::new(20, 7, 2).with_future(&log);
    let mut table = Residency::new(20, 7).expect("small");
    let mut policy = build(&config).expect("valid");
    for access in log.iter() {
        serve_one(&mut table, &mut *policy, &access);
    }
    let mut residents: BTreeSet<Key> = table.residents().map(|(key, _)| key).collect();
    assert_eq!(residents.len(), 7);
    for &only in &residents {
        assert_eq!(policy.victim(&|key| key == only), Some(only));
    }
    assert_eq!(policy.victim(&|_| false), None);
    while let Some(key) = policy.victim(&|_| true) {
        assert!(residents.remove(&key), "{key} is not resident");
        policy.on_evict(key);
        policy.validate().expect("sound");
    }
    assert!(residents.is_empty(), "never offered: {residents:?}");
}

/// Reports that no driver makes: nothing may panic, and the policy stays sound.
///
/// # Panics
/// When it does.
pub fn check_nonsense(build: Build<'_>) {
    let future = AccessLog::new();
    let mut policy = build(&PolicyConfig::new(6, 3, 2).with_future(&future)).expect("valid");
    let mut rng = SplitMix64::new(1);
    for clock in 0..2000 {
        // Clocks that run backward, keys beyond the table and beyond u16, repeated keys.
        let keys = [(); 3].map(|()| Key::new(rng.below(9) as u32 * 40_000 / 39_000));
        let far = [Key::new(u32::MAX), Key::new(70_000)];
        let values = [0.5, f32::NAN, 2.0];
        let access = Access::new(clock ^ 5, &keys)
            .with_near(&far)
            .with_probs(Probs::new(Key::new(u32::MAX - 1), &values));
        match rng.below(7) {
            0 => policy.begin(&access),
            1 => policy.on_hit(keys[0]),
            2 => policy.on_miss(keys[0]),
            3 => policy.on_insert(keys[0]),
            4 => policy.on_evict(keys[0]),
            5 => policy.end(&access),
            _ => {
                let offered = policy.victim(&|key| key.id() % 2 == 0);
                assert!(offered.is_none_or(|key| key.id() % 2 == 0 && key.id() < 6));
            }
        }
        policy.begin(&Access::new(0, &[]));
        policy.end(&Access::new(0, &far));
    }
    let empty = build(&PolicyConfig::new(0, 1, 1).with_future(&future));
    let mut empty = empty.expect("no keys is no error");
    empty.on_insert(Key::new(0));
    assert_eq!(empty.victim(&|_| true), None);
}

/// Two policies built alike evict alike.
///
/// # Panics
/// When they do not.
pub fn check_repeatable(build: Build<'_>) {
    let log = Synth::new(3, 200, 24).log(3);
    let config = PolicyConfig::new(24, 7, 3).with_future(&log).with_seed(9);
    let first = serve_log(build, &config, &log);
    assert_eq!(first, serve_log(build, &config, &log));
    assert!(first.iter().any(Option::is_some), "nothing was evicted");
}

/// Serves a log and returns, for every miss, the key that it displaced.
fn serve_log(build: Build<'_>, config: &PolicyConfig<'_>, log: &AccessLog) -> Vec<Option<Key>> {
    let mut table = Residency::new(config.n_keys, config.capacity).expect("small");
    let mut policy = build(config).expect("valid");
    let mut displaced = Vec::new();
    for access in log.iter() {
        let before: BTreeSet<Key> = table.residents().map(|(key, _)| key).collect();
        let n_free = table.n_free();
        let loaded = serve_one(&mut table, &mut *policy, &access);
        policy.validate().expect("sound policy");
        table.validate().expect("sound table");
        assert!(access.keys.iter().all(|&key| table.is_resident(key)));
        assert_eq!(table.n_pinned(), 0);
        let after: BTreeSet<Key> = table.residents().map(|(key, _)| key).collect();
        let mut gone = before.difference(&after).copied();
        // Free slots are used before anything is evicted.
        for index in 0..loaded.len() {
            let key = if index < n_free as usize {
                None
            } else {
                gone.next()
            };
            assert!(key.is_none_or(|key| !access.keys.contains(&key)));
            displaced.push(key);
        }
        assert_eq!(gone.next(), None);
    }
    displaced
}

/// Serves one access; returns the keys loaded.
fn serve_one(table: &mut Residency, policy: &mut dyn Policy, access: &Access<'_>) -> Vec<Key> {
    let mut loaded = vec![];
    serve(table, policy, access, |key, _| {
        loaded.push(key);
        Ok::<(), Infallible>(())
    })
    .expect("capacity suffices");
    loaded
}

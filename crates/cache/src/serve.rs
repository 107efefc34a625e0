//! `serve`: the batch contract as code.
//!
//! Owns nothing but the order of calls documented at [`Access`]; a store that loads in the
//! background follows the same order. Cost: two passes over the batch, no allocation.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use crate::{Access, Error, Key, Policy, Residency, SlotId};

/// What an access found.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Served {
    /// Keys that were resident.
    pub n_hit: u32,
    /// Keys that had to be loaded.
    pub n_miss: u32,
    /// Keys that had to leave for them.
    pub n_evicted: u32,
    /// Missed keys that were used without being kept ([`serve_admitting`] only).
    pub n_bypassed: u32,
}

/// Why an access could not be served.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ServeError<E> {
    /// The batch or the tables do not allow it.
    Cache(Error),
    /// The caller's load of `key` failed.
    Load {
        /// The key.
        key: Key,
        /// What the caller's function returned.
        source: E,
    },
}

impl<E> From<Error> for ServeError<E> {
    fn from(error: Error) -> Self {
        Self::Cache(error)
    }
}

impl<E: fmt::Display> fmt::Display for ServeError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cache(error) => error.fmt(f),
            Self::Load { key, source } => write!(f, "loading key {key} failed: {source}"),
        }
    }
}

impl<E: core::error::Error + 'static> core::error::Error for ServeError<E> {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Cache(error) => Some(error),
            Self::Load { source, .. } => Some(source),
        }
    }
}

/// Serves one access: on return all of its keys are resident, and stay so until the next call
/// that may evict.
///
/// `load(key, slot)` fills the slot before it returns.
///
/// # Errors
/// [`ServeError::Cache`] when the batch does not pass
/// [`check_batch`](Residency::check_batch) (nothing has changed then), when other pins leave too
/// few slots, or when somebody else is loading a key of the batch; [`ServeError::Load`] with what
/// `load` returned. The keys loaded so far stay, no pin of this access remains, and the policy's
/// `end` is not called.
///
/// # Cost
/// O(batch) plus the policy's operations; no allocation.
pub fn serve<E>(
    residency: &mut Residency,
    policy: &mut dyn Policy,
    access: &Access<'_>,
    mut load: impl FnMut(Key, SlotId) -> Result<(), E>,
) -> Result<Served, ServeError<E>> {
    serve_admitting(
        residency,
        policy,
        access,
        |_| true,
        |key, slot| match slot {
            Some(slot) => load(key, slot),
            // Every key is admitted, so every key has a slot.
            None => Ok(()),
        },
    )
}

/// Like [`serve`], but a missed key is kept only if `admit` says so or a slot is free.
///
/// For the others `load(key, None)` is called: they are to be used from a transient buffer and
/// are not resident on return. This departs from rule 3 of the contract and is therefore an
/// option: with it a policy sees `begin` and `end` name keys that it never gets to insert.
///
/// # Errors
/// As [`serve`].
///
/// # Cost
/// As [`serve`].
pub fn serve_admitting<E>(
    residency: &mut Residency,
    policy: &mut dyn Policy,
    access: &Access<'_>,
    mut admit: impl FnMut(Key) -> bool,
    mut load: impl FnMut(Key, Option<SlotId>) -> Result<(), E>,
) -> Result<Served, ServeError<E>> {
    residency.check_batch(access.keys)?;
    let mut served = Served::default();
    policy.begin(access);
    for key in access.ascending() {
        if residency.is_resident(key) {
            residency.pin(key)?;
            policy.on_hit(key);
            served.n_hit += 1;
        }
    }
    let result = load_missing(
        residency,
        policy,
        access,
        &mut admit,
        &mut load,
        &mut served,
    );
    if result.is_ok() {
        policy.end(access);
    }
    // What this access pinned is exactly what is resident now: its hits and what it loaded.
    for key in access.ascending() {
        if residency.is_resident(key) {
            residency.unpin(key)?;
        }
    }
    result.map(|()| served)
}

/// Fills free slots with `keys`, coldest first, so that the last one is the most recent; returns
/// how many were loaded.
///
/// Stops at the first key when no slot is free: a fill never evicts and leaves no pin. Keys that
/// are present already are skipped.
///
/// # Errors
/// [`ServeError::Cache`] for a key out of range, [`ServeError::Load`] with what `load` returned.
pub fn fill<E>(
    residency: &mut Residency,
    policy: &mut dyn Policy,
    keys: impl IntoIterator<Item = Key>,
    mut load: impl FnMut(Key, SlotId) -> Result<(), E>,
) -> Result<u32, ServeError<E>> {
    let mut n_loaded = 0;
    for key in keys {
        if residency.n_free() == 0 {
            break;
        }
        if residency.slot(key).is_some() {
            continue;
        }
        load_one(residency, policy, key, &mut load)?;
        residency.unpin(key)?;
        n_loaded += 1;
    }
    Ok(n_loaded)
}

/// Admits a key on its second miss: the first is remembered, not kept.
///
/// Keeps keys that are used once from pushing out keys that are used often. A miss counts as the
/// second if the first lies at most `window_misses` misses back. Memory: 8 bytes a key.
///
/// ```
/// use thalweg_cache::{Key, SecondMiss};
/// let mut filter = SecondMiss::new(10, 4);
/// assert!(!filter.admit(Key::new(3)));
/// assert!(filter.admit(Key::new(3)));
/// ```
#[derive(Clone, Debug)]
pub struct SecondMiss {
    last: Vec<u64>,
    n_misses: u64,
    window_misses: u64,
}

impl SecondMiss {
    /// A filter for the keys `0..n_keys`.
    #[must_use]
    pub fn new(n_keys: u32, window_misses: u64) -> Self {
        Self {
            last: vec![0; n_keys as usize],
            n_misses: 0,
            window_misses,
        }
    }

    /// Counts a miss of `key`; whether it is to be kept. Keys out of range never are.
    pub fn admit(&mut self, key: Key) -> bool {
        self.n_misses += 1;
        let Some(last) = self.last.get_mut(key.index()) else {
            return false;
        };
        let before = core::mem::replace(last, self.n_misses);
        before > 0 && self.n_misses - before <= self.window_misses
    }
}

fn load_missing<E>(
    residency: &mut Residency,
    policy: &mut dyn Policy,
    access: &Access<'_>,
    admit: &mut impl FnMut(Key) -> bool,
    load: &mut impl FnMut(Key, Option<SlotId>) -> Result<(), E>,
    served: &mut Served,
) -> Result<(), ServeError<E>> {
    for key in access.ascending() {
        if residency.is_resident(key) {
            continue;
        }
        served.n_miss += 1;
        // Asked for every miss, also when a slot is free, so that the filter sees them all.
        let keep = admit(key) || residency.n_free() > 0;
        if keep {
            let evicted = load_one(residency, policy, key, |key, slot| load(key, Some(slot)))?;
            served.n_evicted += u32::from(evicted.is_some());
        } else {
            load(key, None).map_err(|source| ServeError::Load { key, source })?;
            served.n_bypassed += 1;
        }
    }
    Ok(())
}

/// Reserves, loads and completes one key, which stays pinned; returns the key it displaced.
fn load_one<E>(
    residency: &mut Residency,
    policy: &mut dyn Policy,
    key: Key,
    mut load: impl FnMut(Key, SlotId) -> Result<(), E>,
) -> Result<Option<Key>, ServeError<E>> {
    let taken = residency.reserve(key, policy)?;
    match load(key, taken.slot) {
        Ok(()) => {
            residency.complete(taken.slot)?;
            Ok(taken.evicted)
        }
        Err(source) => {
            residency.abort(taken.slot, policy)?;
            Err(ServeError::Load { key, source })
        }
    }
}

//! `Simulator`: simulated caches, fed one access at a time.
//!
//! Owns the tables and policies, one for all layers or one a layer, and who has been seen before.
//! Memory: that of the policies and tables, and a byte a key. Cost: that of `serve` and of the
//! policy; after the first accesses nothing allocates.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::convert::Infallible;

use super::{Counts, Report, Scope, SimConfig};
use crate::{
    Access, AccessLog, Error, Key, KeySpace, Policy, PolicyConfig, Probs, Residency, SecondMiss,
    ServeError, Served, fill, serve_admitting,
};

/// Makes the policy of one cache.
pub type BuildPolicy<'b> = dyn FnMut(&PolicyConfig<'_>) -> Result<Box<dyn Policy>, Error> + 'b;

/// Caches under simulation, fed one access at a time.
pub struct Simulator<'a> {
    config: SimConfig<'a>,
    caches: Vec<Cache>,
    seen: Vec<bool>,
    report: Report,
    /// Last counted clock: of all accesses, of each layer, of each domain.
    last: Option<u64>,
    last_of_layer: Vec<Option<u64>>,
    last_of_domain: Vec<Option<u64>>,
    /// Documents started so far.
    n_documents: usize,
    local: Local,
}

struct Cache {
    residency: Residency,
    policy: Box<dyn Policy>,
    filter: Option<SecondMiss>,
}

/// Scratch: an access with keys counted from the layer's first.
#[derive(Default)]
struct Local {
    keys: Vec<Key>,
    near: Vec<Key>,
}

impl<'a> Simulator<'a> {
    /// Builds the caches and warms them. `future` is needed by offline policies only.
    ///
    /// # Errors
    /// What [`PolicyKind::build`](crate::PolicyKind::build) finds; [`Error::ShapeMismatch`] when
    /// `key_bytes` has not one entry a layer or documents are out of order;
    /// [`Error::KeyOutOfRange`] for keys in `warm` or `future`.
    pub fn new(config: &SimConfig<'a>, future: Option<&AccessLog>) -> Result<Self, Error> {
        Self::with_policy(config, future, &mut |c| config.policy.build(c))
    }

    /// As [`new`](Self::new) with a policy of one's own: `build` is called once a cache.
    ///
    /// # Errors
    /// As [`new`](Self::new), and what `build` returns.
    pub fn with_policy(
        config: &SimConfig<'a>,
        future: Option<&AccessLog>,
        build: &mut BuildPolicy<'_>,
    ) -> Result<Self, Error> {
        config.check()?;
        let n_layer = usize::from(config.space.n_layer());
        let (n_caches, keys_per_cache, layers_per_cache) = match config.scope {
            Scope::Global => (1, config.space.n_keys(), config.space.n_layer().max(1)),
            Scope::PerLayer => (n_layer, u32::from(config.space.n_expert()), 1),
        };
        let futures = match (future, config.scope) {
            (Some(log), Scope::PerLayer) => Some(split_by_layer(log, config.space)?),
            _ => None,
        };
        let mut caches = Vec::with_capacity(n_caches);
        for index in 0..n_caches {
            let mut parts = PolicyConfig::new(keys_per_cache, config.capacity, config.batch)
                .with_layers(layers_per_cache)
                .with_seed(config.seed)
                .with_tuning(config.tuning);
            parts.future = match &futures {
                Some(logs) => logs.get(index),
                None => future,
            };
            caches.push(Cache {
                residency: Residency::new(keys_per_cache, config.capacity)?,
                policy: build(&parts)?,
                filter: config
                    .second_miss_window
                    .map(|window| SecondMiss::new(keys_per_cache, window)),
            });
        }
        let n_domain = config.n_domain();
        let mut simulator = Self {
            config: *config,
            caches,
            seen: vec![false; config.space.n_keys() as usize],
            report: Report {
                total: Counts::default(),
                layers: vec![Counts::default(); n_layer],
                domains: vec![Counts::default(); n_domain],
            },
            last: None,
            last_of_layer: vec![None; n_layer],
            last_of_domain: vec![None; n_domain],
            n_documents: 0,
            local: Local::default(),
        };
        simulator.warm()?;
        Ok(simulator)
    }

    /// Whether a key is resident now.
    #[must_use]
    pub fn is_resident(&self, key: Key) -> bool {
        self.place(key)
            .and_then(|(cache, local)| Some(self.caches.get(cache)?.residency.is_resident(local)))
            .unwrap_or(false)
    }

    /// Serves one access. An empty one is ignored.
    ///
    /// # Errors
    /// What [`Residency::check_batch`] finds; with [`Scope::PerLayer`],
    /// [`Error::ShapeMismatch`] when the keys are not of one layer.
    pub fn access(&mut self, access: &Access<'_>) -> Result<Served, Error> {
        let Some(&first) = access.keys.first() else {
            return Ok(Served::default());
        };
        self.start_documents(access.clock)?;
        let space = self.config.space;
        let out_of_range = Error::KeyOutOfRange {
            key: first,
            n_keys: space.n_keys(),
        };
        let layer = space.expert(first).ok_or(out_of_range)?.layer;
        let (index, base) = match self.config.scope {
            Scope::Global => (0, 0),
            Scope::PerLayer => (
                usize::from(layer),
                u32::from(layer) * u32::from(space.n_expert()),
            ),
        };
        let mut local = core::mem::take(&mut self.local);
        let result = local
            .translate(access, base, &self.config)
            .and_then(|access| self.serve(index, base, &access));
        self.local = local;
        let (served, first_uses, bytes) = result?;
        self.count(access.clock, layer, &served, first_uses, bytes);
        Ok(served)
    }

    /// The domain of the document that the last access belongs to; `None` before the first.
    #[must_use]
    pub fn domain(&self) -> Option<usize> {
        let document = self.n_documents.checked_sub(1)?;
        Some(self.config.documents.get(document)?.domain as usize)
    }

    /// The counters so far.
    #[must_use]
    pub const fn report(&self) -> &Report {
        &self.report
    }

    /// The counters.
    #[must_use]
    pub fn into_report(self) -> Report {
        self.report
    }

    /// Checks every table and policy; for tests, slow.
    ///
    /// # Errors
    /// [`Error::Broken`] names the first invariant found broken.
    pub fn validate(&self) -> Result<(), Error> {
        for cache in &self.caches {
            cache.residency.validate()?;
            cache.policy.validate()?;
        }
        let total = &self.report.total;
        let facts = [
            total.n_hits + total.n_misses == total.n_picks,
            total.n_compulsory <= total.n_misses,
        ];
        for (invariant, holds) in (1..).zip(facts) {
            if !holds {
                return Err(Error::Broken {
                    owner: "simulator",
                    invariant,
                    key: None,
                });
            }
        }
        Ok(())
    }

    fn serve(
        &mut self,
        index: usize,
        base: u32,
        access: &Access<'_>,
    ) -> Result<(Served, u64, u64), Error> {
        let Cache {
            residency,
            policy,
            filter,
        } = &mut self.caches[index];
        let (mut first_uses, mut bytes) = (0, 0u64);
        let seen = &self.seen;
        let config = &self.config;
        let served = serve_admitting(
            residency,
            &mut **policy,
            access,
            |key| filter.as_mut().is_none_or(|filter| filter.admit(key)),
            |key, _| {
                let key = Key::new(base + key.id());
                first_uses += u64::from(!seen[key.index()]);
                bytes = bytes.saturating_add(config.bytes_of(key));
                Ok::<(), Infallible>(())
            },
        )
        .map_err(only_cache)?;
        for key in access.keys {
            self.seen[base as usize + key.index()] = true;
        }
        Ok((served, first_uses, bytes))
    }

    fn count(&mut self, clock: u64, layer: u16, served: &Served, first_uses: u64, bytes: u64) {
        if clock < self.config.skip_tokens {
            return;
        }
        let add = |counts: &mut Counts, last: &mut Option<u64>| {
            let new_token = last.replace(clock) != Some(clock);
            counts.add(served, first_uses, bytes, new_token);
        };
        add(&mut self.report.total, &mut self.last);
        let layer = usize::from(layer);
        add(
            &mut self.report.layers[layer],
            &mut self.last_of_layer[layer],
        );
        if let Some(domain) = self.domain() {
            add(
                &mut self.report.domains[domain],
                &mut self.last_of_domain[domain],
            );
        }
    }

    /// Notes the documents that have started by now.
    fn start_documents(&mut self, clock: u64) -> Result<(), Error> {
        let before = self.n_documents;
        let documents = self.config.documents;
        while documents
            .get(self.n_documents)
            .is_some_and(|d| d.first_token <= clock)
        {
            self.n_documents += 1;
        }
        // The first document finds the caches as they were warmed.
        let cleared = self.config.clear_at_documents && before > 0 && self.n_documents > before;
        if cleared {
            for cache in &mut self.caches {
                for id in 0..cache.residency.n_keys() {
                    if cache.residency.is_resident(Key::new(id)) {
                        cache.residency.evict(Key::new(id), &mut *cache.policy)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn warm(&mut self) -> Result<(), Error> {
        // Choose the hottest keys that fit, then load them coldest first.
        let mut room = vec![self.config.capacity; self.caches.len()];
        let mut chosen = Vec::with_capacity(self.config.warm.len());
        let mut taken = vec![false; self.config.space.n_keys() as usize];
        for &key in self.config.warm {
            let out_of_range = Error::KeyOutOfRange {
                key,
                n_keys: self.config.space.n_keys(),
            };
            let (index, local) = self.place(key).ok_or(out_of_range)?;
            if room[index] > 0 && !core::mem::replace(&mut taken[key.index()], true) {
                room[index] -= 1;
                chosen.push((index, local));
            }
        }
        for (index, local) in chosen.into_iter().rev() {
            let cache = &mut self.caches[index];
            fill(&mut cache.residency, &mut *cache.policy, [local], |_, _| {
                Ok::<(), Infallible>(())
            })
            .map_err(only_cache)?;
        }
        Ok(())
    }

    /// The cache of a key, and the key within it.
    fn place(&self, key: Key) -> Option<(usize, Key)> {
        let expert = self.config.space.expert(key)?;
        Some(match self.config.scope {
            Scope::Global => (0, key),
            Scope::PerLayer => (
                usize::from(expert.layer),
                Key::new(u32::from(expert.expert)),
            ),
        })
    }
}

impl core::fmt::Debug for Simulator<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Simulator")
            .field("config", &self.config)
            .field("report", &self.report)
            .finish_non_exhaustive()
    }
}

impl Local {
    /// The access with its keys counted from `base`, the first key of its cache.
    fn translate<'a>(
        &'a mut self,
        access: &Access<'a>,
        base: u32,
        config: &SimConfig<'_>,
    ) -> Result<Access<'a>, Error> {
        if config.scope == Scope::Global {
            return Ok(*access);
        }
        let n_expert = u32::from(config.space.n_expert());
        let shift = |key: Key| match key.id().checked_sub(base) {
            Some(id) if id < n_expert => Ok(Key::new(id)),
            _ => Err(Error::ShapeMismatch {
                what: "layer of a key in a per-layer access",
                expected: u64::from(base / n_expert),
                found: u64::from(key.id() / n_expert),
            }),
        };
        self.keys.clear();
        for &key in access.keys {
            self.keys.push(shift(key)?);
        }
        self.near.clear();
        for &key in access.near {
            self.near.push(shift(key)?);
        }
        let mut local = Access::new(access.clock, &self.keys).with_near(&self.near);
        if let Some(probs) = access.probs {
            local = local.with_probs(Probs::new(shift(probs.first)?, probs.values));
        }
        Ok(local)
    }
}

/// One log a layer, with keys counted from the layer's first.
fn split_by_layer(log: &AccessLog, space: KeySpace) -> Result<Vec<AccessLog>, Error> {
    let mut logs = vec![AccessLog::new(); usize::from(space.n_layer())];
    let mut keys = Vec::new();
    for access in log.iter() {
        keys.clear();
        let mut layer = None;
        for &key in access.keys {
            let expert = space.expert(key).ok_or_else(|| Error::KeyOutOfRange {
                key,
                n_keys: space.n_keys(),
            })?;
            layer.get_or_insert(expert.layer);
            keys.push(Key::new(u32::from(expert.expert)));
        }
        if let Some(layer) = layer {
            logs[usize::from(layer)].push(&Access::new(access.clock, &keys));
        }
    }
    Ok(logs)
}

fn only_cache(error: ServeError<Infallible>) -> Error {
    match error {
        ServeError::Cache(error) => error,
        ServeError::Load { source, .. } => match source {},
    }
}

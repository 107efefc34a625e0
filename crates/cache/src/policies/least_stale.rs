//! Least-stale: for one arena over all layers, evict what its own layer has passed over most often.
//!
//! A key is as stale as its layer has been visited since the key's last use; among equals the layer
//! whose next visit is farthest gives way. A plain LRU over all layers suffers from their cyclic
//! order, which this takes into account (after the idea in SpecMD, arXiv 2602.03921). Owns a
//! recency list a layer and a last-use clock a key. An access is taken to belong to the layer of
//! its first key; the clock is `Access::clock`. Invariant: the lists hold exactly the inserted
//! keys, each in its layer's list. Memory: 18 bytes a key, 12 a layer. Cost: O(1), a victim
//! O(layers).

use alloc::vec;
use alloc::vec::Vec;

use crate::lists::Lists;
use crate::{Access, Error, Key, Policy, PolicyConfig};

/// Staleness counted in visits of the key's own layer. With one layer it is LRU.
#[derive(Debug)]
pub struct LeastStale {
    lists: Lists,
    last_use: Vec<u64>,
    n_layer: u16,
    keys_per_layer: u32,
    /// Layer and clock of the access under way.
    layer: u16,
    clock: u64,
}

impl LeastStale {
    /// An empty policy; the layers come from [`PolicyConfig::with_layers`].
    ///
    /// # Errors
    /// What [`PolicyConfig::check`] finds; [`Error::BadShape`] for 65535 layers, whose list
    /// number is taken.
    pub fn new(config: &PolicyConfig<'_>) -> Result<Self, Error> {
        config.check()?;
        if config.n_layer == u16::MAX {
            return Err(Error::BadShape {
                name: "n_layer",
                found: u32::from(u16::MAX),
                min: 1,
                max: u32::from(u16::MAX - 1),
            });
        }
        Ok(Self {
            lists: Lists::new(config.n_keys, config.n_layer),
            last_use: vec![0; config.n_keys as usize],
            n_layer: config.n_layer,
            keys_per_layer: config.n_keys / u32::from(config.n_layer),
            layer: 0,
            clock: 0,
        })
    }

    /// The layer of a key, `None` out of range.
    fn layer_of(&self, key: Key) -> Option<u16> {
        let layer = key.id().checked_div(self.keys_per_layer)?;
        u16::try_from(layer).ok().filter(|&l| l < self.n_layer)
    }

    fn touch(&mut self, key: Key) {
        if let Some(layer) = self.layer_of(key) {
            self.lists.push_back(layer, key);
            self.last_use[key.index()] = self.clock;
        }
    }

    /// How readily a key of `layer` is given up: (staleness + 1, visits until the layer's next).
    fn readiness(&self, layer: u16, key: Key) -> (u64, u16) {
        // Layers up to the current one have been visited at the current clock already.
        let visited = u64::from(layer <= self.layer);
        let stale = self.clock.saturating_sub(self.last_use[key.index()]) + visited;
        let ahead = if layer > self.layer {
            layer - self.layer - 1
        } else {
            self.n_layer - 1 - (self.layer - layer)
        };
        (stale, ahead)
    }
}

impl Policy for LeastStale {
    fn begin(&mut self, access: &Access<'_>) {
        self.clock = access.clock;
        if let Some(layer) = access.keys.first().and_then(|&key| self.layer_of(key)) {
            self.layer = layer;
        }
    }

    fn on_hit(&mut self, _key: Key) {}

    fn victim(&mut self, evictable: &dyn Fn(Key) -> bool) -> Option<Key> {
        // Within a layer the stalest key is the least recent; `ahead` differs between layers.
        (0..self.n_layer)
            .filter_map(|layer| Some((layer, self.lists.oldest(layer, evictable)?)))
            .max_by_key(|&(layer, key)| self.readiness(layer, key))
            .map(|(_, key)| key)
    }

    fn on_evict(&mut self, key: Key) {
        self.lists.remove(key);
    }

    fn on_insert(&mut self, key: Key) {
        self.touch(key);
    }

    fn end(&mut self, access: &Access<'_>) {
        for key in access.ascending() {
            if self.lists.list_of(key).is_some() {
                self.touch(key);
            }
        }
    }

    fn validate(&self) -> Result<(), Error> {
        for layer in 0..self.n_layer {
            let stray = self
                .lists
                .iter(layer)
                .find(|&k| self.layer_of(k) != Some(layer));
            if stray.is_some() {
                return Err(Error::Broken {
                    owner: "least_stale",
                    invariant: 1,
                    key: stray,
                });
            }
        }
        self.lists.validate("least_stale")
    }
}

//! Ids: what is cached (`Key`, `ExpertKey`) and where it sits (`SlotId`).
//!
//! Owns the newtypes and the checked mapping between (layer, expert) pairs and dense keys.
//! Owns no storage. Invariants: 1. `KeySpace` maps every pair in range to one key below `n_keys`
//! and back; 2. keys of one layer are consecutive. Cost: arithmetic only.

use core::fmt;

/// A cached thing, numbered densely from zero; `n_keys` in a constructor bounds it.
///
/// Dense ids let every structure here be a flat table: no hashing, no allocation after `new`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key(u32);

impl Key {
    /// Wraps a dense id. Range checks happen where `n_keys` is known.
    #[must_use]
    pub const fn new(id: u32) -> Self {
        Self(id)
    }

    /// The dense id.
    #[must_use]
    pub const fn id(self) -> u32 {
        self.0
    }

    /// The dense id as a table index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// One cell of the arena that a [`Residency`](crate::Residency) describes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotId(u32);

impl SlotId {
    /// Wraps a slot number. Range checks happen where `n_slots` is known.
    #[must_use]
    pub const fn new(id: u32) -> Self {
        Self(id)
    }

    /// The slot number.
    #[must_use]
    pub const fn id(self) -> u32 {
        self.0
    }

    /// The slot number as a table index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A routed expert of a Mixture-of-Experts model: `expert` within `layer`, both from zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ExpertKey {
    /// Layer, `0..n_layer`.
    pub layer: u16,
    /// Expert within the layer, `0..n_expert`.
    pub expert: u16,
}

impl ExpertKey {
    /// Names expert `expert` of layer `layer`.
    #[must_use]
    pub const fn new(layer: u16, expert: u16) -> Self {
        Self { layer, expert }
    }
}

impl fmt::Display for ExpertKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.layer, self.expert)
    }
}

/// The rectangle of (layer, expert) pairs, numbered layer by layer.
///
/// ```
/// use thalweg_cache::{ExpertKey, KeySpace};
/// let space = KeySpace::new(48, 512);
/// let key = space.key(ExpertKey::new(2, 5)).unwrap();
/// assert_eq!(key.id(), 2 * 512 + 5);
/// assert_eq!(space.expert(key), Some(ExpertKey::new(2, 5)));
/// assert_eq!(space.key(ExpertKey::new(2, 512)), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KeySpace {
    n_layer: u16,
    n_expert: u16,
}

impl KeySpace {
    /// A space of `n_layer` layers with `n_expert` experts each; either may be zero.
    #[must_use]
    pub const fn new(n_layer: u16, n_expert: u16) -> Self {
        Self { n_layer, n_expert }
    }

    /// Number of layers.
    #[must_use]
    pub const fn n_layer(self) -> u16 {
        self.n_layer
    }

    /// Number of experts in each layer.
    #[must_use]
    pub const fn n_expert(self) -> u16 {
        self.n_expert
    }

    /// Number of keys, `n_layer * n_expert`.
    #[must_use]
    pub const fn n_keys(self) -> u32 {
        // 65535 * 65535 fits in u32.
        self.n_layer as u32 * self.n_expert as u32
    }

    /// The dense key of a pair, or `None` when layer or expert is out of range.
    #[must_use]
    pub const fn key(self, expert: ExpertKey) -> Option<Key> {
        if expert.layer >= self.n_layer || expert.expert >= self.n_expert {
            return None;
        }
        Some(Key(
            expert.layer as u32 * self.n_expert as u32 + expert.expert as u32
        ))
    }

    /// The pair behind a dense key, or `None` when the key is out of range.
    #[must_use]
    pub const fn expert(self, key: Key) -> Option<ExpertKey> {
        if key.0 >= self.n_keys() {
            return None;
        }
        let n_expert = self.n_expert as u32;
        // Both quotient and remainder are below 65536 because the key is in range.
        Some(ExpertKey {
            layer: (key.0 / n_expert) as u16,
            expert: (key.0 % n_expert) as u16,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_maps_to_its_own_key_and_back() {
        let space = KeySpace::new(3, 5);
        let mut next = 0;
        for layer in 0..3 {
            for expert in 0..5 {
                let pair = ExpertKey::new(layer, expert);
                let key = space.key(pair).expect("in range");
                assert_eq!(key.id(), next);
                assert_eq!(space.expert(key), Some(pair));
                next += 1;
            }
        }
        assert_eq!(space.n_keys(), next);
    }

    #[test]
    fn pairs_and_keys_out_of_range_have_no_image() {
        let space = KeySpace::new(3, 5);
        assert_eq!(space.key(ExpertKey::new(3, 0)), None);
        assert_eq!(space.key(ExpertKey::new(0, 5)), None);
        assert_eq!(space.expert(Key::new(15)), None);
        assert_eq!(KeySpace::new(4, 0).expert(Key::new(0)), None);
        assert_eq!(KeySpace::new(u16::MAX, u16::MAX).n_keys(), 4_294_836_225);
    }
}

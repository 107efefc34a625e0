//! `KeepMap`: which experts of each layer are left after pruning, as a restriction of the choice.
//!
//! Owns the kept ids and a bit an expert. Does not own how they were chosen (`Usage` scores by what
//! a trace shows; saliency needs activations). Invariants: 1. every layer keeps the same number, at
//! least one; 2. kept ids ascend and are in range. Memory: 3 bytes an expert. Cost: O(n_expert) a
//! masked row.

use alloc::vec;
use alloc::vec::Vec;

use crate::{Error, ExpertKey, KeySpace};

/// The experts that a router may choose, the same number in each layer.
///
/// ```
/// use thalweg_cache::{KeySpace, sim::KeepMap};
/// let keep = KeepMap::new(KeySpace::new(2, 4), &[[0, 3], [1, 2]])?;
/// let mut row = [0.1, 0.2, 0.3, 0.4];
/// keep.mask(1, &mut row);
/// assert_eq!(row, [f32::NEG_INFINITY, 0.2, 0.3, f32::NEG_INFINITY]);
/// # Ok::<(), thalweg_cache::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeepMap {
    space: KeySpace,
    n_kept: u16,
    /// `[n_layer][n_kept]`.
    ids: Vec<u16>,
    kept: Vec<bool>,
}

impl KeepMap {
    /// All experts.
    #[must_use]
    pub fn all(space: KeySpace) -> Self {
        let layers = (0..space.n_layer()).flat_map(|_| 0..space.n_expert());
        Self {
            space,
            n_kept: space.n_expert(),
            ids: layers.collect(),
            kept: vec![true; space.n_keys() as usize],
        }
    }

    /// The given experts, strictly ascending in each layer.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] unless there is one list a layer, all of the same length;
    /// [`Error::BadShape`] if they are empty, if an expert is out of range or does not ascend.
    pub fn new(space: KeySpace, layers: &[impl AsRef<[u16]>]) -> Result<Self, Error> {
        let mismatch = |what, expected: usize, found: usize| Error::ShapeMismatch {
            what,
            expected: expected as u64,
            found: found as u64,
        };
        let n_layer = usize::from(space.n_layer());
        if layers.len() != n_layer {
            return Err(mismatch("layers of a keep-map", n_layer, layers.len()));
        }
        let n_kept = layers.first().map_or(1, |layer| layer.as_ref().len());
        let bad = |name, found: u32, min: u32, max: u32| Error::BadShape {
            name,
            found,
            min,
            max,
        };
        let n_expert = space.n_expert();
        if n_kept == 0 || n_kept > usize::from(n_expert) {
            let found = u32::try_from(n_kept).unwrap_or(u32::MAX);
            return Err(bad("kept experts", found, 1, n_expert.into()));
        }
        let mut ids = Vec::with_capacity(n_layer * n_kept);
        let mut kept = vec![false; space.n_keys() as usize];
        for (layer, experts) in (0u16..).zip(layers) {
            let experts = experts.as_ref();
            if experts.len() != n_kept {
                return Err(mismatch("kept experts of a layer", n_kept, experts.len()));
            }
            let mut least = 0;
            for &expert in experts {
                let key = space.key(ExpertKey::new(layer, expert));
                let Some(key) = key.filter(|_| u32::from(expert) >= least) else {
                    let max = u32::from(n_expert).saturating_sub(1);
                    return Err(bad("kept expert", expert.into(), least, max));
                };
                least = u32::from(expert) + 1;
                kept[key.index()] = true;
                ids.push(expert);
            }
        }
        Ok(Self {
            space,
            // At most n_expert.
            n_kept: n_kept as u16,
            ids,
            kept,
        })
    }

    /// Experts kept in each layer.
    #[must_use]
    pub const fn n_kept(&self) -> u16 {
        self.n_kept
    }

    /// The experts kept in a layer, ascending; empty out of range.
    #[must_use]
    pub fn layer(&self, layer: u16) -> &[u16] {
        let n = usize::from(self.n_kept);
        let start = usize::from(layer) * n;
        self.ids.get(start..start + n).unwrap_or(&[])
    }

    /// Whether an expert is kept; false out of range.
    #[must_use]
    pub fn contains(&self, layer: u16, expert: u16) -> bool {
        let key = self.space.key(ExpertKey::new(layer, expert));
        key.is_some_and(|key| self.kept[key.index()])
    }

    /// Gives the others minus infinity in a row of logits, `[n_expert]`.
    pub fn mask(&self, layer: u16, row: &mut [f32]) {
        for (expert, z) in (0..=u16::MAX).zip(row) {
            if !self.contains(layer, expert) {
                *z = f32::NEG_INFINITY;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_of_the_wrong_shape_are_refused() {
        let space = KeySpace::new(2, 4);
        let map = |layers: [&[u16]; 2]| KeepMap::new(space, &layers);
        assert!(map([&[0, 1], &[2, 3]]).is_ok());
        let shape = |e: &Error| matches!(e, Error::BadShape { .. });
        for (layers, is_shape) in [
            ([&[0u16, 1][..], &[2][..]], false),
            ([&[], &[]], true),
            ([&[1, 0], &[2, 3]], true),
            ([&[1, 1], &[2, 3]], true),
            ([&[0, 4], &[2, 3]], true),
            ([&[0, 1, 2, 3, 3], &[0, 1, 2, 3, 3]], true),
        ] {
            let error = map(layers).expect_err("wrong shape");
            assert_eq!(shape(&error), is_shape, "{error}");
        }
        assert!(KeepMap::new(space, &[[0, 1]]).is_err());
        assert!(KeepMap::new(KeySpace::new(2, 0), &[[], []] as &[[u16; 0]]).is_err());
    }

    #[test]
    fn everything_kept_masks_nothing() {
        let keep = KeepMap::all(KeySpace::new(2, 3));
        let mut row = [1.0, 2.0, 3.0];
        keep.mask(1, &mut row);
        assert_eq!(row.map(f32::to_bits), [1.0, 2.0, 3.0f32].map(f32::to_bits));
        assert_eq!(keep.layer(1), [0, 1, 2]);
        assert_eq!(keep.layer(2), [0u16; 0]);
        assert!(!keep.contains(2, 0) && !keep.contains(0, 3));
    }
}

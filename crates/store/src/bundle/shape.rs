//! `BundleShape`: what determines the places of all bundles.
//!
//! Owns the arithmetic from lengths of parts to strides, classes and offsets; not the fingerprint
//! and the checksums (`header`). Invariants: 1. at most [`MAX_BUNDLES`] experts in all, at least
//! one layer and one expert; 2. a layer has three parts with bytes, or none and then no experts;
//! 3. a stride fits u32. Memory: a few words a layer. Cost: O(layers).

use super::{BUNDLE_ALIGNMENT_BYTES, BUNDLE_PARTS, BundleFault, bad};
use crate::{Error, ExpertLayout, Result};

/// Most experts of all layers together: a mistaken header must not take memory.
pub const MAX_BUNDLES: u64 = 1 << 20;

/// Bytes of a layer's entry in the header.
const LAYER_BYTES: u64 = 32;
/// Bytes of an expert's entry in the index.
const ENTRY_BYTES: u64 = 16;
/// Bytes before the layers.
pub(super) const PREFIX_BYTES: usize = 56;

/// The experts of one layer, all alike.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[expect(clippy::exhaustive_structs, reason = "callers describe their layers")]
pub struct BundleLayer {
    /// Numbers of the types of gate, up and down, as in the model file. They have no meaning here.
    pub types: [u32; BUNDLE_PARTS],
    /// Bytes of gate, up and down of one expert; all zero in a layer without experts.
    pub part_bytes: [u32; BUNDLE_PARTS],
}

impl BundleLayer {
    /// Bytes of one expert.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.part_bytes.iter().map(|n| u64::from(*n)).sum()
    }

    /// From one expert to the next: the length, rounded up to the alignment.
    #[must_use]
    pub fn stride_bytes(&self) -> u64 {
        self.len_bytes().next_multiple_of(BUNDLE_ALIGNMENT_BYTES)
    }

    const fn is_empty(&self) -> bool {
        matches!(self.part_bytes, [0, 0, 0])
    }
}

/// The experts of a model, as a file of bundles has them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BundleShape {
    n_expert: u32,
    layers: Vec<BundleLayer>,
    /// Distinct strides, ascending; a layer's class is the place of its stride.
    classes: Vec<u64>,
    /// Where each layer begins, and the end.
    starts: Vec<u64>,
}

impl BundleShape {
    /// The shape of layers that have `n_expert` experts each, but for those without parts.
    ///
    /// # Errors
    /// [`Error::Bundle`] for no layers or experts, too many, and impossible parts.
    pub fn new(n_expert: u32, layers: Vec<BundleLayer>) -> Result<Self> {
        Self::check(n_expert, layers).map_err(bad)
    }

    /// The shape of the experts that a layout finds, with the types of each layer's parts.
    ///
    /// # Errors
    /// [`Error::LayerCount`]; [`Error::Unbundleable`] for layers that differ in the number of
    /// experts, have other than three parts or are too large; as [`new`](Self::new).
    pub fn of(layout: &ExpertLayout, types: &[[u32; BUNDLE_PARTS]]) -> Result<Self> {
        if types.len() != layout.n_layer() {
            return Err(Error::LayerCount {
                what: "types of parts",
                expected: layout.n_layer(),
                found: types.len(),
            });
        }
        let counts = (0..layout.n_layer()).map(|l| layout.n_expert(l));
        let n_expert = counts.clone().max().unwrap_or(0);
        let mut layers = Vec::with_capacity(types.len());
        for (layer, (n, &types)) in counts.zip(types).enumerate() {
            let refuse = |what, expected: u64, found: u64| Error::Unbundleable {
                layer,
                what,
                expected,
                found,
            };
            if n == 0 {
                layers.push(BundleLayer::default());
                continue;
            }
            if n != n_expert {
                let what = "number of experts";
                return Err(refuse(what, n_expert as u64, n as u64));
            }
            let n_parts = layout.n_parts(layer);
            if n_parts != BUNDLE_PARTS {
                let what = "number of parts";
                return Err(refuse(what, BUNDLE_PARTS as u64, n_parts as u64));
            }
            let mut part_bytes = [0; BUNDLE_PARTS];
            for (part, len) in part_bytes.iter_mut().enumerate() {
                let found = layout.part(layer, 0, part).map_or(0, |s| s.len_bytes);
                let most = u64::from(u32::MAX);
                *len = u32::try_from(found)
                    .map_err(|_| refuse("length of a part", most, found as u64))?;
            }
            layers.push(BundleLayer { types, part_bytes });
        }
        // A layout has at most u16::MAX experts in a layer.
        Self::new(u32::try_from(n_expert).unwrap_or(u32::MAX), layers)
    }

    /// Number of layers.
    #[must_use]
    pub fn n_layer(&self) -> usize {
        self.layers.len()
    }

    /// Experts of a layer; 0 out of range and in layers without parts.
    #[must_use]
    pub fn n_expert(&self, layer: usize) -> usize {
        match self.layers.get(layer) {
            Some(layer) if !layer.is_empty() => self.n_expert as usize,
            _ => 0,
        }
    }

    /// Experts of every layer that has some.
    #[must_use]
    pub const fn n_expert_max(&self) -> u32 {
        self.n_expert
    }

    /// The layers.
    #[must_use]
    pub fn layers(&self) -> &[BundleLayer] {
        &self.layers
    }

    /// Distinct strides: layers of one stride are of one class.
    #[must_use]
    pub fn n_class(&self) -> usize {
        self.classes.len()
    }

    /// Bytes before the first bundle.
    #[must_use]
    pub fn header_bytes(&self) -> u64 {
        header_bytes(self.layers.len() as u64, u64::from(self.n_expert))
    }

    /// Bytes of the whole file.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.layer_offset_bytes(usize::MAX)
    }

    /// Bytes of all experts, without padding.
    #[must_use]
    pub fn expert_bytes(&self) -> u64 {
        let layers = self.layers.iter();
        layers
            .map(|l| l.len_bytes() * u64::from(self.n_expert))
            .sum()
    }

    /// Where the first bundle of a layer begins, or would begin; the end of the file beyond the
    /// last layer.
    #[must_use]
    pub fn layer_offset_bytes(&self, layer: usize) -> u64 {
        let last = self.starts.len() - 1;
        self.starts[layer.min(last)]
    }

    /// Where the experts lie in a file of this shape, which is file 0 of its set.
    ///
    /// # Errors
    /// [`Error::TooLarge`] where an expert cannot be addressed; [`Error::TooManyExperts`].
    pub fn layout(&self) -> Result<ExpertLayout> {
        let mut layout = ExpertLayout::new();
        for (i, layer) in self.layers.iter().enumerate() {
            layout.push_bundled_layer(
                self.n_expert(i),
                0,
                self.layer_offset_bytes(i),
                layer.stride_bytes(),
                &layer.part_bytes.map(u64::from),
            )?;
        }
        Ok(layout)
    }

    /// A layer's class.
    pub(super) fn class(&self, layer: &BundleLayer) -> u32 {
        let place = self.classes.binary_search(&layer.stride_bytes());
        // Every layer's stride is among them; there are no more of them than layers.
        u32::try_from(place.unwrap_or(0)).unwrap_or(u32::MAX)
    }

    /// Compares with the shape that a model needs.
    pub(super) fn expect(&self, model: &Self) -> std::result::Result<(), BundleFault> {
        let compare = |layer, what, expected: u64, found: u64| match expected == found {
            true => Ok(()),
            false => Err(BundleFault::OtherModel {
                layer,
                what,
                expected,
                found,
            }),
        };
        let n_layer = |shape: &Self| shape.layers.len() as u64;
        compare(None, "the number of layers", n_layer(model), n_layer(self))?;
        let n_expert = |shape: &Self| u64::from(shape.n_expert);
        compare(
            None,
            "the number of experts",
            n_expert(model),
            n_expert(self),
        )?;
        const TYPES: [&str; BUNDLE_PARTS] = ["type of gate", "type of up", "type of down"];
        const BYTES: [&str; BUNDLE_PARTS] = ["bytes of gate", "bytes of up", "bytes of down"];
        for (l, (expected, found)) in model.layers.iter().zip(&self.layers).enumerate() {
            for i in 0..BUNDLE_PARTS {
                let types = [expected, found].map(|layer| u64::from(layer.types[i]));
                compare(Some(l), TYPES[i], types[0], types[1])?;
                let bytes = [expected, found].map(|layer| u64::from(layer.part_bytes[i]));
                compare(Some(l), BYTES[i], bytes[0], bytes[1])?;
            }
        }
        Ok(())
    }

    pub(super) fn check(
        n_expert: u32,
        layers: Vec<BundleLayer>,
    ) -> std::result::Result<Self, BundleFault> {
        // A count that does not fit is too many.
        let n_layer = u32::try_from(layers.len()).unwrap_or(u32::MAX);
        check_counts(n_layer, n_expert)?;
        for (i, layer) in layers.iter().enumerate() {
            let none = layer.part_bytes.contains(&0);
            let bad_types = layer.is_empty() && layer.types != [0; BUNDLE_PARTS];
            if (none && !layer.is_empty())
                || bad_types
                || u32::try_from(layer.stride_bytes()).is_err()
            {
                return Err(BundleFault::Parts {
                    layer: i,
                    found_bytes: layer.part_bytes,
                });
            }
        }
        let mut classes: Vec<_> = layers.iter().map(BundleLayer::stride_bytes).collect();
        classes.sort_unstable();
        classes.dedup();
        // At most 2^20 strides below 2^32 (invariants 1 and 3).
        let mut end = header_bytes(n_layer.into(), n_expert.into());
        let mut starts = vec![end];
        starts.extend(layers.iter().map(|layer| {
            end += layer.stride_bytes() * u64::from(n_expert);
            end
        }));
        Ok(Self {
            n_expert,
            layers,
            classes,
            starts,
        })
    }
}

pub(super) fn check_counts(n_layer: u32, n_expert: u32) -> std::result::Result<(), BundleFault> {
    let n = u64::from(n_layer) * u64::from(n_expert);
    // Ids are 16 bits, one value kept free.
    if n == 0 || n > MAX_BUNDLES || n_expert >= u32::from(u16::MAX) {
        return Err(BundleFault::Shape { n_layer, n_expert });
    }
    Ok(())
}

/// Bytes before the first bundle, of counts that [`check_counts`] passed.
pub(super) fn header_bytes(n_layer: u64, n_expert: u64) -> u64 {
    let bytes = PREFIX_BYTES as u64 + LAYER_BYTES * n_layer + ENTRY_BYTES * n_layer * n_expert;
    bytes.next_multiple_of(BUNDLE_ALIGNMENT_BYTES)
}

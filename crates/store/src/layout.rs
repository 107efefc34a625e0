//! `ExpertLayout`: where each expert lies in the files, and how it lies in a slot.
//!
//! Owns the arithmetic from (layer, expert) to file ranges and the sizes that a memory plan needs.
//! Does not own files or memory. Invariants: 1. no file offset of any expert overflows; 2. parts do
//! not overlap within a slot; 3. they begin at multiples of [`PART_ALIGNMENT_BYTES`], or the layer
//! is bundled: then they lie back to back in file and slot, and an expert begins at a multiple of
//! [`ALIGNMENT_BYTES`] in both, so that it is one read without a copy. Cost: a few words a part;
//! `slots_for_budget` is O(layers * log experts).

use crate::arena::{Region, stride_bytes};
use crate::error::Extent;
use crate::{ALIGNMENT_BYTES, AlignedBuf, Error, FileSet, Result, Segment};

/// Alignment of each part within a slot, unless the layer is bundled: a cache line.
pub const PART_ALIGNMENT_BYTES: usize = 64;

/// Experts that a `u16` id can name, one value kept free.
const MAX_EXPERTS: usize = u16::MAX as usize;

/// One part (a matrix) of every expert of a layer: expert `e` is the `len_bytes` bytes at
/// `offset_bytes + e * stride_bytes`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExpertPartLayout {
    /// Number of the file in its set.
    pub file: usize,
    /// Where expert 0 begins.
    pub offset_bytes: u64,
    /// From one expert to the next, at least `len_bytes`.
    pub stride_bytes: u64,
    /// Bytes of one expert, not zero.
    pub len_bytes: u64,
}

/// The experts of all layers.
///
/// ```
/// use thalweg_store::{ExpertLayout, ExpertPartLayout};
/// let part = |offset_bytes| ExpertPartLayout {
///     file: 0,
///     offset_bytes,
///     stride_bytes: 1000,
///     len_bytes: 1000,
/// };
/// let mut layout = ExpertLayout::new();
/// layout.push_layer(8, &[part(0), part(8000), part(16000)])?;
/// layout.push_layer(8, &[part(24000), part(32000), part(40000)])?;
/// assert_eq!(layout.slot_bytes(0), Some(4096)); // 2 * 1024 + 1000, rounded up to a page
/// assert_eq!(layout.bytes_for(&[3, 2]), 5 * 4096 + 4096); // and a page to align the arena
/// assert_eq!(layout.slots_for_budget(6 * 4096), [3, 2]);
/// # Ok::<(), thalweg_store::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ExpertLayout {
    layers: Vec<LayerLayout>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct LayerLayout {
    n_expert: usize,
    parts: Vec<Part>,
    slot_bytes: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    source: ExpertPartLayout,
    /// Where in the slot.
    start: usize,
    /// `source.len_bytes`.
    len: usize,
}

impl ExpertLayout {
    /// A layout without layers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a layer; one without routed experts has `n_expert` 0.
    ///
    /// # Errors
    /// [`Error::TooManyExperts`]; [`Error::NoParts`] and [`Error::BadPart`], which a layer without
    /// experts cannot cause; [`Error::TooLarge`] when an offset or a size overflows.
    pub fn push_layer(&mut self, n_expert: usize, parts: &[ExpertPartLayout]) -> Result<()> {
        self.push(n_expert, parts, PART_ALIGNMENT_BYTES)
    }

    /// Appends a layer whose experts are bundles: expert `e` is all of its parts, back to back, at
    /// `offset_bytes + e * stride_bytes` of a file, and lies so in its slot. A read of it is one
    /// segment, which a direct read takes straight into the slot.
    ///
    /// # Errors
    /// As [`push_layer`](Self::push_layer); [`Error::UnalignedBundle`] unless place and distance
    /// are multiples of [`ALIGNMENT_BYTES`]; [`Error::BadBundle`] for one longer than the distance.
    ///
    /// ```
    /// use thalweg_store::ExpertLayout;
    /// let mut layout = ExpertLayout::new();
    /// layout.push_bundled_layer(8, 0, 16_384, 16_384, &[5000, 5000, 6000])?;
    /// let segments = layout.segments(0, 2).unwrap();
    /// assert_eq!(segments.len(), 1);
    /// assert_eq!((segments[0].offset_bytes, segments[0].len_bytes), (3 * 16_384, 16_000));
    /// # Ok::<(), thalweg_store::Error>(())
    /// ```
    pub fn push_bundled_layer(
        &mut self,
        n_expert: usize,
        file: usize,
        offset_bytes: u64,
        stride_bytes: u64,
        part_bytes: &[u64],
    ) -> Result<()> {
        let layer = self.layers.len();
        let alignment = ALIGNMENT_BYTES as u64;
        if !offset_bytes.is_multiple_of(alignment) || !stride_bytes.is_multiple_of(alignment) {
            return Err(Error::UnalignedBundle {
                layer,
                offset_bytes,
                stride_bytes,
            });
        }
        let mut parts = Vec::with_capacity(part_bytes.len());
        let mut len_bytes = 0_u64;
        for &part in part_bytes {
            let what = "a file offset";
            let offset_bytes = offset_bytes
                .checked_add(len_bytes)
                .ok_or(Error::TooLarge { what })?;
            parts.push(ExpertPartLayout {
                file,
                offset_bytes,
                stride_bytes,
                len_bytes: part,
            });
            len_bytes = len_bytes
                .checked_add(part)
                .ok_or(Error::TooLarge { what })?;
        }
        if n_expert > 0 && len_bytes > stride_bytes {
            return Err(Error::BadBundle {
                layer,
                len_bytes,
                stride_bytes,
            });
        }
        self.push(n_expert, &parts, 1)
    }

    /// Appends a layer whose parts begin at multiples of `alignment` in the slot.
    fn push(
        &mut self,
        n_expert: usize,
        parts: &[ExpertPartLayout],
        alignment: usize,
    ) -> Result<()> {
        let layer = self.layers.len();
        if n_expert > MAX_EXPERTS {
            return Err(Error::TooManyExperts {
                layer,
                found: n_expert,
                limit: MAX_EXPERTS,
            });
        }
        if n_expert == 0 {
            self.layers.push(LayerLayout {
                n_expert,
                parts: Vec::new(),
                slot_bytes: 0,
            });
            return Ok(());
        }
        if parts.is_empty() {
            return Err(Error::NoParts { layer });
        }
        let slot = Error::TooLarge { what: "a slot" };
        let mut placed = Vec::with_capacity(parts.len());
        let mut end = 0_usize;
        for (i, source) in parts.iter().enumerate() {
            if source.len_bytes == 0 || source.stride_bytes < source.len_bytes {
                return Err(Error::BadPart {
                    layer,
                    part: i,
                    len_bytes: source.len_bytes,
                    stride_bytes: source.stride_bytes,
                });
            }
            if end_bytes(source, n_expert).is_none() {
                return Err(Error::TooLarge {
                    what: "a file offset",
                });
            }
            let start = end.checked_next_multiple_of(alignment);
            let len = usize::try_from(source.len_bytes).ok();
            let Some((start, len, next)) = start
                .zip(len)
                .and_then(|(s, l)| Some((s, l, s.checked_add(l)?)))
            else {
                return Err(slot);
            };
            placed.push(Part {
                source: *source,
                start,
                len,
            });
            end = next;
        }
        let Some(slot_bytes) = stride_bytes(end) else {
            return Err(slot);
        };
        self.layers.push(LayerLayout {
            n_expert,
            parts: placed,
            slot_bytes,
        });
        Ok(())
    }

    /// Number of layers.
    #[must_use]
    pub fn n_layer(&self) -> usize {
        self.layers.len()
    }

    /// Experts of a layer; 0 out of range.
    #[must_use]
    pub fn n_expert(&self, layer: usize) -> usize {
        self.layers.get(layer).map_or(0, |l| l.n_expert)
    }

    /// Parts of each expert of a layer; 0 out of range.
    #[must_use]
    pub fn n_parts(&self, layer: usize) -> usize {
        self.layers.get(layer).map_or(0, |l| l.parts.len())
    }

    /// Bytes of a slot of a layer, a multiple of [`ALIGNMENT_BYTES`] and from 1 MiB on of 16 KiB;
    /// `None` out of range.
    #[must_use]
    pub fn slot_bytes(&self, layer: usize) -> Option<usize> {
        self.layers.get(layer).map(|l| l.slot_bytes)
    }

    /// Bytes of the largest slot: what takes an expert of any layer.
    #[must_use]
    pub fn max_slot_bytes(&self) -> usize {
        self.layers.iter().map(|l| l.slot_bytes).max().unwrap_or(0)
    }

    /// Bytes that reading one expert of a layer takes; 0 out of range.
    #[must_use]
    pub fn expert_bytes(&self, layer: usize) -> u64 {
        let parts = self.layers.get(layer).map_or(&[][..], |l| &l.parts);
        parts.iter().map(|p| p.source.len_bytes).sum()
    }

    /// Bytes of the allocation for an arena with these slots in each layer. Tables take about 60
    /// bytes a slot and 30 an expert besides. Saturates; layers beyond the list have no slots.
    #[must_use]
    pub fn bytes_for(&self, slots: &[usize]) -> u64 {
        let sum = self
            .layers
            .iter()
            .zip(slots)
            .fold(0_u64, |sum, (layer, n)| {
                sum.saturating_add((layer.slot_bytes as u64).saturating_mul(*n as u64))
            });
        sum.saturating_add(AlignedBuf::allocated_bytes(0) as u64)
    }

    /// Bytes of the smallest arena: as many slots in each layer as experts are needed at the same
    /// time (`batch`, one entry a layer).
    #[must_use]
    pub fn min_bytes(&self, batch: &[usize]) -> u64 {
        self.bytes_for(batch)
    }

    /// The most slots for a budget: as equal over the layers as possible, what remains given to
    /// the lowest layers, never more in a layer than it has experts.
    #[must_use]
    pub fn slots_for_budget(&self, budget_bytes: u64) -> Vec<usize> {
        let equal = |n: usize| -> Vec<usize> {
            self.layers
                .iter()
                .map(|layer| layer.n_expert.min(n))
                .collect()
        };
        let fits = |n: usize| self.bytes_for(&equal(n)) <= budget_bytes;
        // The largest count that fits lies in low..=high; zero is the answer for want of a better.
        let mut low = 0;
        let mut high = self.layers.iter().map(|l| l.n_expert).max().unwrap_or(0);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if fits(middle) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        let mut slots = equal(low);
        let mut left = budget_bytes.saturating_sub(self.bytes_for(&slots));
        for (n, layer) in slots.iter_mut().zip(&self.layers) {
            let more = layer.slot_bytes as u64;
            if *n < layer.n_expert && more <= left {
                *n += 1;
                left -= more;
            }
        }
        slots
    }

    /// Where the parts of an expert lie; `None` out of range.
    ///
    /// Parts that follow each other in a file and in the slot are one segment.
    #[must_use]
    pub fn segments(&self, layer: usize, expert: u16) -> Option<Vec<Segment>> {
        let layer = self.layers.get(layer)?;
        if usize::from(expert) >= layer.n_expert {
            return None;
        }
        let mut segments: Vec<Segment> = Vec::with_capacity(layer.parts.len());
        for part in &layer.parts {
            let offset_bytes = part.offset_bytes(expert);
            if let Some(last) = segments.last_mut()
                && last.file == part.source.file
                && last.offset_bytes + last.len_bytes as u64 == offset_bytes
                && last.dst_bytes + last.len_bytes == part.start
            {
                last.len_bytes += part.len;
                continue;
            }
            segments.push(Segment {
                file: part.source.file,
                offset_bytes,
                len_bytes: part.len,
                dst_bytes: part.start,
            });
        }
        Some(segments)
    }

    /// Where a part lies in the file, as a segment into the slot; `None` out of range.
    pub(crate) fn part(&self, layer: usize, expert: u16, part: usize) -> Option<Segment> {
        let part = self.layers.get(layer)?.parts.get(part)?;
        Some(Segment {
            file: part.source.file,
            offset_bytes: part.offset_bytes(expert),
            len_bytes: part.len,
            dst_bytes: part.start,
        })
    }

    /// The files that a layer is read from, each once.
    pub(crate) fn files_of(&self, layer: usize) -> impl Iterator<Item = usize> + '_ {
        let parts = self.layers.get(layer).map_or(&[][..], |l| &l.parts);
        parts.iter().enumerate().filter_map(move |(i, part)| {
            let file = part.source.file;
            parts[..i]
                .iter()
                .all(|p| p.source.file != file)
                .then_some(file)
        })
    }

    /// Checks that all parts of all experts lie within the files.
    ///
    /// # Errors
    /// [`Error::NoSuchFile`], [`Error::BeyondFile`].
    pub fn check(&self, files: &FileSet) -> Result<()> {
        for (l, layer) in self.layers.iter().enumerate() {
            for (p, part) in layer.parts.iter().enumerate() {
                let file = part.source.file;
                files.check_index(file)?;
                let len_bytes = files.len_bytes(file).unwrap_or(0);
                // `push_layer` saw that it does not overflow.
                let end_bytes = end_bytes(&part.source, layer.n_expert).unwrap_or(u64::MAX);
                if end_bytes > len_bytes {
                    return Err(Error::BeyondFile {
                        what: Extent::Part { layer: l, part: p },
                        path: files.path_or_empty(file),
                        end_bytes,
                        len_bytes,
                    });
                }
            }
        }
        Ok(())
    }

    /// The arena regions for these slots, one a layer.
    pub(crate) fn regions(&self, slots: &[usize]) -> Vec<Region> {
        let layers = self.layers.iter().zip(slots);
        layers
            .map(|(layer, &n_slots)| Region {
                slot_bytes: layer.slot_bytes,
                n_slots,
            })
            .collect()
    }
}

impl Part {
    fn offset_bytes(&self, expert: u16) -> u64 {
        // Invariant 1: cannot overflow for experts in range, whose callers have checked.
        self.source
            .stride_bytes
            .wrapping_mul(u64::from(expert))
            .wrapping_add(self.source.offset_bytes)
    }
}

/// Where the last expert's part ends; `None` on overflow.
fn end_bytes(part: &ExpertPartLayout, n_expert: usize) -> Option<u64> {
    let before = part
        .stride_bytes
        .checked_mul(n_expert.saturating_sub(1) as u64)?;
    part.offset_bytes
        .checked_add(before)?
        .checked_add(part.len_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(offset_bytes: u64, stride_bytes: u64, len_bytes: u64) -> ExpertPartLayout {
        ExpertPartLayout {
            file: 0,
            offset_bytes,
            stride_bytes,
            len_bytes,
        }
    }

    #[test]
    fn parts_are_aligned_in_the_slot_and_do_not_overlap() {
        let mut layout = ExpertLayout::new();
        let parts = [part(10, 100, 90), part(5000, 64, 64), part(9000, 7, 1)];
        layout.push_layer(5, &parts).unwrap();
        let segments = layout.segments(0, 3).unwrap();
        let places: Vec<_> = segments
            .iter()
            .map(|s| (s.offset_bytes, s.len_bytes, s.dst_bytes))
            .collect();
        assert_eq!(places, [(310, 90, 0), (5192, 64, 128), (9021, 1, 192)]);
        assert_eq!(layout.slot_bytes(0), Some(4096));
        assert_eq!(layout.expert_bytes(0), 155);
        assert_eq!((layout.segments(0, 5), layout.segments(1, 0)), (None, None));
    }

    #[test]
    fn parts_that_follow_each_other_are_one_read() {
        let mut layout = ExpertLayout::new();
        layout
            .push_layer(
                3,
                &[part(0, 400, 128), part(128, 400, 100), part(228, 400, 9)],
            )
            .unwrap();
        let segments = layout.segments(0, 1).unwrap();
        let places: Vec<_> = segments
            .iter()
            .map(|s| (s.offset_bytes, s.len_bytes, s.dst_bytes))
            .collect();
        // The third begins at 228 in the file but at 256 in the slot.
        assert_eq!(places, [(400, 228, 0), (628, 9, 256)]);
    }

    #[test]
    fn a_bundle_is_one_segment_whatever_the_lengths_of_its_parts() {
        let mut layout = ExpertLayout::new();
        layout
            .push_bundled_layer(3, 1, 8192, 4096, &[100, 1, 999])
            .unwrap();
        let segment = |expert| Segment {
            file: 1,
            offset_bytes: 8192 + 4096 * expert,
            len_bytes: 1100,
            dst_bytes: 0,
        };
        for expert in 0..3 {
            assert_eq!(
                layout.segments(0, expert),
                Some(vec![segment(u64::from(expert))])
            );
        }
        let part = layout.part(0, 2, 2).unwrap();
        assert_eq!(
            (part.offset_bytes, part.dst_bytes, part.len_bytes),
            (16_384 + 101, 101, 999)
        );
        assert_eq!(
            (layout.slot_bytes(0), layout.expert_bytes(0)),
            (Some(4096), 1100)
        );
        layout.push_bundled_layer(0, 1, 0, 0, &[]).unwrap();
        assert_eq!((layout.n_expert(1), layout.slot_bytes(1)), (0, Some(0)));
    }

    #[test]
    fn bundles_that_could_not_be_read_at_once_are_refused() {
        let refused = |offset, stride, parts: &[u64]| {
            let mut layout = ExpertLayout::new();
            layout
                .push_bundled_layer(2, 0, offset, stride, parts)
                .unwrap_err()
        };
        for (offset, stride) in [(4096, 4097), (100, 4096)] {
            let error = refused(offset, stride, &[8]);
            assert!(matches!(error, Error::UnalignedBundle { .. }), "{error}");
        }
        let error = refused(0, 4096, &[4000, 97]);
        let Error::BadBundle {
            len_bytes: 4097, ..
        } = error
        else {
            panic!("{error}");
        };
        assert!(matches!(
            refused(0, 4096, &[5, 0]),
            Error::BadPart { part: 1, .. }
        ));
        assert!(matches!(refused(0, 4096, &[]), Error::NoParts { .. }));
        let last = u64::MAX - 4095;
        assert!(matches!(refused(4096, last, &[8]), Error::TooLarge { .. }));
        assert!(matches!(
            refused(last, last, &[4000, 1000]),
            Error::TooLarge { .. }
        ));
    }

    #[test]
    fn a_budget_of_3_4_gb_holds_2441_experts_of_a_large_model() {
        let mut scattered = ExpertLayout::new();
        let mut bundled = ExpertLayout::new();
        for layer in 0..48 {
            let third = 1_382_400 / 3;
            let at = |i: u64| 256 * third * (3 * layer + i);
            let parts = [0, 1, 2].map(|i| part(at(i), third, third));
            scattered.push_layer(256, &parts).unwrap();
            let offset = 16_384 + layer * 256 * 1_392_640;
            bundled
                .push_bundled_layer(256, 0, offset, 1_392_640, &[third; 3])
                .unwrap();
        }
        for layout in [scattered, bundled] {
            let slots = layout.slots_for_budget(3_400_000_000);
            assert_eq!(slots.iter().sum::<usize>(), 2441);
            assert_eq!(
                (slots[0], slots[40], slots[41], slots[47]),
                (51, 51, 50, 50)
            );
            let slots = layout.slots_for_budget(7_000_000_000);
            assert_eq!(slots.iter().sum::<usize>(), 5026);
        }
    }

    #[test]
    fn impossible_parts_are_refused_with_their_place() {
        let mut layout = ExpertLayout::new();
        layout.push_layer(2, &[part(0, 8, 8)]).unwrap();
        let refused = |n, parts: &[_]| layout.clone().push_layer(n, parts).unwrap_err();
        assert!(matches!(refused(2, &[]), Error::NoParts { layer: 1 }));
        for bad in [part(0, 8, 0), part(0, 7, 8)] {
            let error = refused(2, &[part(0, 8, 8), bad]);
            assert!(
                matches!(
                    error,
                    Error::BadPart {
                        layer: 1,
                        part: 1,
                        ..
                    }
                ),
                "{error}"
            );
        }
        for bad in [
            part(u64::MAX, 8, 8),
            part(0, u64::MAX, 8),
            part(u64::MAX - 15, 8, 8),
        ] {
            assert!(matches!(refused(3, &[bad]), Error::TooLarge { .. }));
        }
        let huge = part(0, u64::MAX / 2, u64::MAX / 2);
        assert!(matches!(
            refused(1, &[huge, huge, huge]),
            Error::TooLarge { .. }
        ));
        assert!(matches!(
            refused(65536, &[part(0, 8, 8)]),
            Error::TooManyExperts {
                layer: 1,
                found: 65536,
                limit: 65535
            }
        ));
    }

    #[test]
    fn a_layer_without_experts_takes_no_memory() {
        let mut layout = ExpertLayout::new();
        layout.push_layer(0, &[]).unwrap();
        layout.push_layer(4, &[part(0, 5000, 5000)]).unwrap();
        assert_eq!(layout.slots_for_budget(u64::MAX), [0, 4]);
        assert_eq!(layout.bytes_for(&[0, 4]), 4 * 8192 + 4096);
        assert_eq!(layout.segments(0, 0), None);
    }

    #[test]
    fn a_budget_is_divided_equally_then_from_the_lowest_layer() {
        let mut layout = ExpertLayout::new();
        for (n_expert, len) in [(8, 4096), (3, 4096), (8, 8192), (8, 4096)] {
            layout.push_layer(n_expert, &[part(0, len, len)]).unwrap();
        }
        let pages = |n: u64| layout.slots_for_budget(n * 4096);
        assert_eq!(pages(0), [0, 0, 0, 0]);
        assert_eq!(pages(1), [0, 0, 0, 0]);
        // Five pages a slot in every layer, one to align.
        assert_eq!(pages(6), [1, 1, 1, 1]);
        assert_eq!(pages(7), [2, 1, 1, 1]);
        assert_eq!(pages(8), [2, 2, 1, 1]);
        // Layer 2's slot of two pages does not fit; layer 3's of one does.
        assert_eq!(pages(9), [2, 2, 1, 2]);
        assert_eq!(pages(10), [2, 2, 2, 1]);
        // Layer 1 has no more than three experts.
        assert_eq!(pages(1 + 15 + 4), [4, 3, 4, 4]);
        assert_eq!(pages(1000), [8, 3, 8, 8]);
    }

    #[test]
    fn a_plan_never_exceeds_its_budget() {
        let mut layout = ExpertLayout::new();
        for (n_expert, len) in [(5, 100), (9, 5000), (0, 1), (7, 20000), (9, 5000)] {
            layout.push_layer(n_expert, &[part(0, len, len)]).unwrap();
        }
        let smallest = layout.bytes_for(&[0; 5]);
        for budget in (smallest..400_000).step_by(997) {
            let slots = layout.slots_for_budget(budget);
            assert!(layout.bytes_for(&slots) <= budget, "{budget}: {slots:?}");
            // Among the layers that have room, no slot more fits where there are fewest.
            let open = || (0..5).filter(|l| slots[*l] < layout.n_expert(*l));
            let fewest = open().map(|l| slots[l]).min();
            for l in open().filter(|l| Some(slots[*l]) == fewest) {
                let mut more = slots.clone();
                more[l] += 1;
                assert!(
                    layout.bytes_for(&more) > budget,
                    "{budget}: {slots:?}, layer {l}"
                );
            }
            // Equal: nobody with room has more than one slot fewer than somebody else.
            let most = slots.iter().copied().max().unwrap_or(0);
            assert!(fewest.is_none_or(|n| n + 1 >= most), "{budget}: {slots:?}");
        }
    }

    #[test]
    fn sizes_saturate_instead_of_wrapping() {
        let mut layout = ExpertLayout::new();
        layout.push_layer(8, &[part(0, 1 << 40, 1 << 40)]).unwrap();
        assert_eq!(layout.bytes_for(&[usize::MAX]), u64::MAX);
    }
}

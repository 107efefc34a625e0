//! Comparing a file of bundles with the model file that it was made from.
//!
//! Owns the comparison. Does not own either file. Memory: one bundle and one part.
//! Invariants: every byte of every bundle is looked at: contents against the checksum, then against
//! the model file; padding against zero. Cost: reads both files once, the bundles directly where
//! that works, so that what is on the device is compared and not what memory remembers.

use super::{BUNDLE_PARTS, BundleFault, BundleFile, BundleProgress, BundleShape, tell};
use crate::{AlignedBuf, DirectFile, ExpertLayout, FileSet, PreadBackend, Result};

impl BundleFile {
    /// Compares every expert with its checksum and with its parts in `files`, where `layout` finds
    /// them. `progress` is told bytes compared and bytes in all, and may end the work before the
    /// last.
    ///
    /// # Errors
    /// [`Error::Bundle`](crate::Error::Bundle) with the first difference; those of reads;
    /// [`Error::FileChanged`](crate::Error::FileChanged) if either changed meanwhile;
    /// [`Error::Stopped`](crate::Error::Stopped).
    pub fn verify(
        &self,
        files: &FileSet,
        layout: &ExpertLayout,
        progress: BundleProgress<'_>,
    ) -> Result<()> {
        let shape = self.header.shape();
        layout.check(files)?;
        // The types are the file's own: they are not in a layout, and `expect` compares them.
        let types: Vec<_> = shape.layers().iter().map(|layer| layer.types).collect();
        let model = BundleShape::of(layout, &types)?;
        let same = shape.expect(&model);
        same.map_err(|fault| self.faulty(fault))?;

        let direct = DirectFile::open(self.path())?;
        let start_bytes = shape.header_bytes();
        let total_bytes = shape.file_bytes() - start_bytes;
        let mut source = PreadBackend::new(files.clone());
        let mut found = AlignedBuf::zeroed(0)?;
        let mut expected = Vec::new();
        for (l, layer) in shape.layers().iter().enumerate() {
            // Both fit u32 by the shape.
            let stride_bytes = usize::try_from(layer.stride_bytes()).unwrap_or(usize::MAX);
            let len_bytes = usize::try_from(layer.len_bytes()).unwrap_or(usize::MAX);
            if found.len() != stride_bytes {
                found = AlignedBuf::zeroed(stride_bytes)?;
            }
            for expert in (0..u16::MAX).take(shape.n_expert(l)) {
                let e = usize::from(expert);
                let at = self.header.offset_bytes(l, e).unwrap_or(u64::MAX);
                direct.read_exact_at(at, &mut found)?;
                let (bundle, padding) = found.split_at(len_bytes);
                let in_index = self.header.checksum(l, e).unwrap_or(0);
                let of_bytes = crc32c::crc32c(bundle);
                if in_index != of_bytes {
                    return Err(self.faulty(BundleFault::Checksum {
                        layer: l,
                        expert: e,
                        expected: in_index,
                        found: of_bytes,
                    }));
                }
                let mut from = 0;
                for part in 0..BUNDLE_PARTS {
                    // In range: the shapes are equal.
                    let Some(segment) = layout.part(l, expert, part) else {
                        continue;
                    };
                    expected.resize(segment.len_bytes, 0);
                    source.read_segment(&segment, &mut expected)?;
                    let here = &bundle[from..from + segment.len_bytes];
                    if let Some(i) = first_difference(here, &expected) {
                        return Err(self.faulty(BundleFault::Differs {
                            layer: l,
                            expert: e,
                            part,
                            offset_bytes: at + (from + i) as u64,
                        }));
                    }
                    from += segment.len_bytes;
                }
                if let Some(i) = padding.iter().position(|byte| *byte != 0) {
                    let offset_bytes = at + (len_bytes + i) as u64;
                    return Err(self.faulty(BundleFault::Padding { offset_bytes }));
                }
                let done_bytes = at + stride_bytes as u64 - start_bytes;
                tell(progress, "comparing", done_bytes, total_bytes)?;
            }
        }
        files.verify_unchanged()?;
        self.files.verify_unchanged()
    }
}

fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    // Compared as a whole first, which is much faster.
    (a != b).then(|| a.iter().zip(b).take_while(|(a, b)| a == b).count())
}

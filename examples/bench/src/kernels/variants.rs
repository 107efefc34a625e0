//! Sizes of kernels that are compared with the usual ones.
//!
//! Owns the list; not what a size means (`thalweg_wgpu::Tuning`). Memory: compiled kernels of each.

use anyhow::Result;
use thalweg_wgpu::{Tuning, WgpuBackend};

/// The device with kernels of certain sizes.
pub(super) struct Variant {
    pub(super) backend: WgpuBackend,
    /// Whether products of one vector differ from the usual ones.
    pub(super) changes_vectors: bool,
    /// Whether products of many vectors do.
    pub(super) changes_tiles: bool,
}

impl Variant {
    /// The sizes of its products of one vector.
    pub(super) fn vectors(&self) -> String {
        let t = self.backend.tuning();
        format!(
            "{} parts, {} groups of up to {} rows, {} staged",
            t.parts, t.vector_groups, t.vector_rows, t.staged
        )
    }

    /// The sizes of its products of many vectors.
    pub(super) fn tiles(&self) -> String {
        let t = self.backend.tuning();
        let (row_groups, item_groups) = t.tile_groups;
        let (rows, items) = t.tile_block;
        format!(
            "{} parts, {row_groups}x{item_groups} groups of {rows}x{items}, {} deep",
            t.parts, t.tile_depth
        )
    }
}

/// The usual sizes, and others if they are wanted and the device allows them.
///
/// # Errors
/// None on a device that allows the usual sizes.
pub(super) fn all(backend: &WgpuBackend, others: bool) -> Result<Vec<Variant>> {
    let usual = backend.tuning();
    let mut tunings = vec![usual];
    if others {
        // One vector: interleaving, invocations, rows.
        for parts in [8, 16, 32] {
            for (invocations, rows) in [(64, 4), (128, 1), (128, 2), (128, 4), (256, 2), (256, 4)] {
                let mut tuning = usual;
                tuning.parts = parts;
                tuning.vector_groups = invocations / parts;
                tuning.vector_rows = rows;
                if parts > usual.parts {
                    // What a device has room for.
                    tuning.tile_depth = tuning.tile_depth.max(16 * parts);
                    tuning.tile_groups = (2, 2);
                }
                tunings.push(tuning);
            }
        }
        for staged in [1024, 4096] {
            let mut tuning = usual;
            tuning.staged = staged;
            tunings.push(tuning);
        }
        // Many: the tile's shape and depth, with the parts that allow them.
        for (parts, depth, groups, block) in [
            (16, 256, (2, 4), (4, 2)),
            (16, 256, (2, 4), (2, 4)),
            (16, 256, (4, 4), (2, 4)),
            (16, 256, (2, 8), (4, 2)),
            (8, 128, (4, 4), (4, 4)),
            (8, 128, (4, 8), (4, 4)),
            (8, 128, (4, 4), (8, 4)),
            (8, 128, (4, 8), (8, 4)),
            (8, 128, (4, 8), (4, 8)),
            (4, 64, (8, 8), (4, 4)),
            (4, 64, (8, 8), (8, 4)),
        ] {
            let mut tuning = usual;
            tuning.parts = parts;
            tuning.tile_depth = depth;
            tuning.tile_groups = groups;
            tuning.tile_block = block;
            // As many invocations as usual.
            tuning.vector_groups = usual.parts * usual.vector_groups / parts;
            tunings.push(tuning);
        }
    }
    let mut variants: Vec<Variant> = vec![];
    for tuning in tunings {
        let is_known = |v: &Variant| v.backend.tuning() == tuning;
        if variants.iter().any(is_known) {
            continue;
        }
        match backend.with_tuning(tuning) {
            Ok(backend) => variants.push(Variant {
                backend,
                changes_vectors: vectors(&tuning) != vectors(&usual),
                changes_tiles: tiles(&tuning) != tiles(&usual),
            }),
            Err(e) if variants.is_empty() => return Err(e.into()),
            // More workgroup memory or invocations than the device has.
            Err(_) => {}
        }
    }
    Ok(variants)
}

fn vectors(tuning: &Tuning) -> [u32; 4] {
    let Tuning {
        parts,
        vector_groups,
        vector_rows,
        staged,
        ..
    } = *tuning;
    [parts, vector_groups, vector_rows, staged]
}

fn tiles(tuning: &Tuning) -> (u32, u32, (u32, u32), (u32, u32)) {
    let Tuning {
        parts,
        tile_depth,
        tile_groups,
        tile_block,
        ..
    } = *tuning;
    (parts, tile_depth, tile_groups, tile_block)
}

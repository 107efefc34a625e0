//! Bundles: a file with the experts of a model, each one contiguous and aligned (`.experts`).
//!
//! Owns the format (MEXP, version 1; `docs/formats/experts.md`), its writer and its check. Does not
//! own experts that lie elsewhere: `pack` copies them as an [`ExpertLayout`](crate::ExpertLayout)
//! finds them and encodes nothing anew; nor the reading of experts, which goes through the layout
//! that [`BundleFile`] gives. Memory: the header (16 bytes an expert); one expert while packing.
//! Invariants: 1. the file is determined by shape, fingerprint and contents, to the byte; 2. a file
//! under its final name is complete. Cost: packing reads and writes every expert once.
//!
//! In a model file the matrices of an expert lie far apart and at odd places: several reads and a
//! copy each. A bundle is one read, straight into the slot.

mod fault;
mod file;
mod header;
mod pack;
mod shape;
#[cfg(test)]
mod tests;
mod verify;

use std::ops::ControlFlow;

use crate::{Error, Result};

pub use fault::BundleFault;
pub use file::BundleFile;
pub use header::BundleHeader;
pub use pack::{Packed, pack};
pub use shape::{BundleLayer, BundleShape, MAX_BUNDLES};

/// The first four bytes of a file.
pub const BUNDLE_MAGIC: [u8; 4] = *b"MEXP";

/// What each bundle begins at a multiple of: the largest page of common systems.
pub const BUNDLE_ALIGNMENT_BYTES: u64 = 16 << 10;

/// Matrices of an expert: gate, up and down.
pub const BUNDLE_PARTS: usize = 3;

/// Told bytes done and bytes in all; may end the work there.
pub type BundleProgress<'a> = &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>;

/// Tells the caller how far the work is; an error if that is enough.
fn tell(
    progress: BundleProgress<'_>,
    what: &'static str,
    done_bytes: u64,
    total_bytes: u64,
) -> Result<()> {
    match progress(done_bytes, total_bytes) {
        ControlFlow::Break(()) if done_bytes < total_bytes => Err(Error::Stopped {
            what,
            done_bytes,
            total_bytes,
        }),
        _ => Ok(()),
    }
}

fn bad(fault: BundleFault) -> Error {
    Error::Bundle { path: None, fault }
}

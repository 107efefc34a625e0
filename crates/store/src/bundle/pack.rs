//! `pack`: copies experts from where a layout finds them into a file of bundles.
//!
//! Owns the order of writing: space first, then bundles, then the header, then the name. Does not
//! own the temporary file (`unfinished`) nor the encoding (`header`). Memory: one bundle.
//! Invariants: 1. the target is the old file or the complete new one, whatever happens; 2. the
//! magic number is written after all bundles are on the device, so that not even the temporary file
//! looks complete before it is. Cost: reads and writes every expert once, a bundle at a time.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::{BUNDLE_PARTS, BundleHeader, BundleProgress, BundleShape, tell};
use crate::io::platform;
use crate::unfinished::{Unfinished, failed};
use crate::{Error, ExpertLayout, FileSet, PreadBackend, Result};

/// Bytes after which they are sent to the device and dropped from memory.
const FLUSH_BYTES: u64 = 64 << 20;

/// A file of bundles that was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Packed {
    /// Length of the file.
    pub file_bytes: u64,
    /// Bytes of experts in it.
    pub expert_bytes: u64,
    /// Experts in it.
    pub n_experts: u64,
    /// Whether the temporary file of an interrupted run was found and replaced.
    pub removed_leftover: bool,
}

/// Copies the experts that `layout` finds in `files` to a file of bundles at `target`, replacing
/// what is there when all is done. `types` are the types of each layer's parts, for the header;
/// `fingerprint` is that of the model file. `progress` is told bytes written and bytes in all, and
/// may end the work before the last.
///
/// While it is written the file is called `.NAME.partial`. If the process is killed that stays, is
/// never taken for a file of bundles, and is replaced by the next run for the same target.
///
/// # Errors
/// [`Error::Unbundleable`], [`Error::LayerCount`] and [`Error::Bundle`] for experts that the format
/// cannot express; [`Error::TargetIsSource`]; [`Error::BeyondFile`], [`Error::Read`], [`Error::UnexpectedEof`] and
/// [`Error::FileChanged`] for the source; [`Error::File`] for the target, also for a full drive;
/// [`Error::Busy`] while another process writes the same target; [`Error::Stopped`]. Nothing is left
/// behind then.
///
/// # Cost
/// Waits until the file and its folder are on the device.
pub fn pack(
    target: &Path,
    files: &FileSet,
    layout: &ExpertLayout,
    types: &[[u32; BUNDLE_PARTS]],
    fingerprint: [u8; 32],
    progress: BundleProgress<'_>,
) -> Result<Packed> {
    let shape = BundleShape::of(layout, types)?;
    layout.check(files)?;
    check_target(target, files)?;
    let unfinished = Unfinished::create(temporary_name(target)?)?;
    let removed_leftover = unfinished.was_left_over();
    let (file_bytes, expert_bytes) = (shape.file_bytes(), shape.expert_bytes());
    unfinished.reserve(file_bytes)?;

    let write = |at: u64, bytes: &[u8]| {
        let mut file = unfinished.file();
        let sought = file.seek(SeekFrom::Start(at));
        sought
            .and_then(|_| file.write_all(bytes))
            .map_err(failed(unfinished.path(), "write"))
    };
    let start = shape.header_bytes();
    let mut at = start;
    let mut flushed = start;
    let mut reader = PreadBackend::new(files.clone());
    let mut bundle = Vec::new();
    let mut checksums = Vec::new();
    for (l, layer) in shape.layers().iter().enumerate() {
        let n_expert = shape.n_expert(l);
        // A length and a stride fit u32 by the shape, and there is an expert to address.
        let len_bytes = usize::try_from(layer.len_bytes()).unwrap_or(usize::MAX);
        let stride_bytes = usize::try_from(layer.stride_bytes()).unwrap_or(usize::MAX);
        bundle.clear();
        bundle.resize(stride_bytes, 0);
        for expert in (0..u16::MAX).take(n_expert) {
            let mut rest = &mut bundle[..len_bytes];
            for part in (0..BUNDLE_PARTS).filter_map(|part| layout.part(l, expert, part)) {
                let (piece, after) = rest.split_at_mut(part.len_bytes);
                reader.read_segment(&part, piece)?;
                rest = after;
            }
            checksums.push(crc32c::crc32c(&bundle[..len_bytes]));
            write(at, &bundle)?;
            at += stride_bytes as u64;
            if at - flushed >= FLUSH_BYTES {
                unfinished.flush()?;
                flushed = at;
            }
            tell(progress, "packing", at - start, file_bytes - start)?;
        }
        let n_missing = shape.n_expert_max() as usize - n_expert;
        checksums.extend(std::iter::repeat_n(0, n_missing));
    }
    // What was read before and after a change would not belong together.
    files.verify_unchanged()?;
    unfinished.flush()?;
    let n_experts = (0..shape.n_layer()).map(|l| shape.n_expert(l) as u64).sum();
    write(
        0,
        &BundleHeader::new(shape, fingerprint, checksums)?.to_bytes(),
    )?;
    unfinished.rename(target)?;
    Ok(Packed {
        file_bytes,
        expert_bytes,
        n_experts,
        removed_leftover,
    })
}

/// Refuses to replace what is copied from, also under another name.
fn check_target(target: &Path, files: &FileSet) -> Result<()> {
    // What cannot be looked at yet is none of the open files.
    let id = |path: &Path| fs::metadata(path).ok().and_then(|m| platform::file_id(&m));
    let absolute = |path: &Path| fs::canonicalize(path).ok();
    let is_target = |source: &Path| {
        (id(target).is_some() && id(target) == id(source))
            || (absolute(target).is_some() && absolute(target) == absolute(source))
    };
    let mut sources = (0..files.len()).filter_map(|file| files.path(file));
    match sources.any(is_target) {
        true => Err(Error::TargetIsSource {
            path: target.to_owned(),
        }),
        false => Ok(()),
    }
}

/// Beside the target, hidden, and the same for every run, so that each finds what another left.
fn temporary_name(target: &Path) -> Result<PathBuf> {
    let Some(target_name) = target.file_name() else {
        let source = io::ErrorKind::InvalidFilename.into();
        return Err(Error::File {
            path: target.to_owned(),
            action: "make",
            source,
        });
    };
    let mut name = OsString::from(".");
    name.push(target_name);
    name.push(".partial");
    Ok(target.with_file_name(name))
}

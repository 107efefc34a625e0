//! A model without some of its experts.
//!
//! Owns which byte ranges stay and what the metadata says then; not the choice (`keep_map`). Memory:
//! a piece of a tensor (1 MiB). Invariants: 1. nothing is encoded anew: slice `i` of an expert tensor
//! is slice `keep[i]` of the source; 2. every other tensor keeps its bytes; 3. the new file routes as
//! the old one does with all other experts left out, bit for bit.
//! Cost: the kept bytes are copied once.

use std::path::Path;

use sha2::{Digest, Sha256};
use thalweg_gguf::{Gguf, TensorInfo, TensorSpec};
use thalweg_runtime::{FingerprintDepth, fingerprint};

use crate::file::hex;
use crate::{Error, KeepMap, Output, Progress, Result, Rewrite, Rewritten, Role};

/// Bytes that are copied at a time.
const PIECE_BYTES: u64 = 1 << 20;

/// The fingerprint that a keep-map and a saliency file name their model by.
///
/// # Errors
/// [`Error::Gguf`].
pub fn model_fingerprint(file: &Gguf) -> Result<String> {
    Ok(hex(&fingerprint(file, FingerprintDepth::Ends)?))
}

/// Writes `file` to `path` with the experts of `map` alone.
///
/// The new file's `prune.*` keys say what was done and to which model.
///
/// # Errors
/// [`Error::WrongModel`] for a map of another model; [`Error::OutOfRange`] for a map that keeps fewer
/// experts than a token uses, and for a model with experts in more layers than the map has (such as a
/// block for multi-token prediction); those of [`Rewrite::write`].
pub fn prune(
    file: &Gguf,
    map: &KeepMap,
    path: &Path,
    progress: &mut Progress<'_>,
) -> Result<Rewritten> {
    map.validate()?;
    let found = model_fingerprint(file)?;
    if found != map.source.fingerprint {
        return Err(Error::WrongModel {
            what: "keep-map",
            expected: map.source.fingerprint.clone(),
            found,
        });
    }
    let arch = file.metadata().str("general.architecture")?.to_owned();
    let k_used = file.metadata().u32(&format!("{arch}.expert_used_count"))?;
    if map.k < k_used as usize {
        let expected = format!("at least the {k_used} that a token uses");
        return Err(Error::out_of_range("experts to keep", map.k, expected));
    }
    let mut rewrite = Rewrite::new(file);
    for tensor in file.tensors() {
        let (Role::Expert { layer, .. } | Role::ByExpert { layer } | Role::Router { layer }) =
            Role::of(tensor)
        else {
            continue;
        };
        let Some(kept) = map.layers.get(layer) else {
            let what = format!("layer of tensor {:?}", tensor.name);
            let expected = format!("below {}, as in the keep-map", map.n_layer);
            return Err(Error::out_of_range(what, layer, expected));
        };
        let mut shape = tensor.shape().to_vec();
        let last = shape.last_mut().filter(|n| **n == map.n_expert as u64);
        let Some(last) = last else {
            let what = format!("last dimension of tensor {:?}", tensor.name);
            return Err(Error::out_of_range(
                what,
                tensor.shape()[tensor.n_dims - 1],
                map.n_expert,
            ));
        };
        *last = map.k as u64;
        let spec = TensorSpec::new(&*tensor.name, tensor.ty, &shape)?;
        rewrite.replace(spec, move |out| slices(file, tensor, map, &kept.keep, out))?;
    }
    let metadata = rewrite.metadata_mut();
    metadata.set(format!("{arch}.expert_count"), map.k as u32)?;
    metadata.set("prune.method", &*map.method.name)?;
    metadata.set("prune.k", map.k as u32)?;
    metadata.set("prune.keep_map_sha256", hex(&Sha256::digest(map.to_json())))?;
    metadata.set("prune.source_fingerprint", found)?;
    rewrite.write(path, progress)
}

/// Copies the kept slices of a tensor along its last dimension.
fn slices(
    file: &Gguf,
    tensor: &TensorInfo,
    map: &KeepMap,
    keep: &[u16],
    out: &mut Output<'_>,
) -> Result<()> {
    let slice_bytes = tensor.size_bytes / map.n_expert as u64;
    let mut piece = Vec::new();
    // Neighbors are copied together.
    for run in keep.chunk_by(|a, b| a + 1 == *b) {
        let mut start = u64::from(run[0]) * slice_bytes;
        let end = start + run.len() as u64 * slice_bytes;
        while start < end {
            // At most a piece.
            piece.resize((end - start).min(PIECE_BYTES) as usize, 0);
            file.read_tensor_range(tensor, start, &mut piece)?;
            out.write(&piece)?;
            start += piece.len() as u64;
        }
    }
    Ok(())
}

//! Sidecars: a model's routed experts in a file of their own, each one contiguous and aligned.
//!
//! Owns the way from a model file to the format's terms: fingerprint, types of parts, places of
//! experts. Does not own the format (`thalweg_store::bundle`) nor reads while a model runs. Memory:
//! one expert. Invariants: 1. a sidecar is used only with the model file it was made from, as far
//! as [`FingerprintDepth::Ends`] looks at it; 2. only headers of the model are needed, no dense
//! weights. Cost: packing reads and writes every expert; opening reads 8 KiB of each tensor.

use std::path::Path;

use thalweg_gguf::Gguf;
use thalweg_model::{ModelSpec, RouterOptions};
use thalweg_store::bundle::{self, BundleFile, BundleProgress, BundleShape, Packed};
use thalweg_store::{ExpertLayout, FileSet};

use crate::planning::expert_layout;
use crate::{Error, FingerprintDepth, Result, fingerprint};

/// Copies the routed experts of a model file to a sidecar at `target`, which is replaced when all
/// is done. `progress` is told bytes written and bytes in all, and may end the work.
///
/// # Errors
/// [`Error::Model`] for an unusable header; [`Error::Changed`] if the model file changes meanwhile;
/// [`Error::Store`] for everything that goes wrong with reading and writing, a full drive included.
/// An old sidecar is then still there and nothing else is.
///
/// # Cost
/// Reads and writes every expert once, and waits until they are on the device.
pub fn pack_sidecar(file: &Gguf, target: &Path, progress: BundleProgress<'_>) -> Result<Packed> {
    let outline = thalweg_model::outline(file, RouterOptions::default())?;
    let spec = outline.spec();
    let files = model_files(file)?;
    let fingerprint = fingerprint(file, FingerprintDepth::Ends)?;
    // The header was read through one handle, experts will be through another.
    file.verify_unchanged().map_err(Error::Changed)?;
    let layout = expert_layout(spec)?;
    let types = types(spec);
    let packed = bundle::pack(target, &files, &layout, &types, fingerprint, progress)?;
    Ok(packed)
}

/// Opens a sidecar for a model: the files and the places to read experts from, in place of the
/// model's own.
///
/// # Errors
/// [`Error::Store`] for a file that is no sidecar, is damaged, or was made from another model file
/// than `file` is now; [`Error::Gguf`] when the model file cannot be read.
///
/// # Cost
/// Two reads of 4 KiB a tensor of the model, and the sidecar's header.
pub fn open_sidecar(path: &Path, file: &Gguf, spec: &ModelSpec) -> Result<(FileSet, ExpertLayout)> {
    Ok(open(path, file, spec)?.into_parts()?)
}

/// The model's own files and the places of its experts in them: what [`open_sidecar`] gives in place
/// of, for a comparison of the two.
///
/// # Errors
/// [`Error::Store`] when the files cannot be opened.
pub fn model_experts(file: &Gguf, spec: &ModelSpec) -> Result<(FileSet, ExpertLayout)> {
    Ok((model_files(file)?, expert_layout(spec)?))
}

/// Compares every byte of a sidecar with the model file.
///
/// # Errors
/// As [`open_sidecar`]; [`Error::Store`] with the first expert that differs.
///
/// # Cost
/// Reads the sidecar and the experts of the model once.
pub fn verify_sidecar(path: &Path, file: &Gguf, progress: BundleProgress<'_>) -> Result<()> {
    let outline = thalweg_model::outline(file, RouterOptions::default())?;
    let spec = outline.spec();
    let files = model_files(file)?;
    let sidecar = open(path, file, spec)?;
    sidecar.verify(&files, &expert_layout(spec)?, progress)?;
    file.verify_unchanged().map_err(Error::Changed)
}

fn open(path: &Path, file: &Gguf, spec: &ModelSpec) -> Result<BundleFile> {
    let sidecar = BundleFile::open(path)?;
    let shape = BundleShape::of(&expert_layout(spec)?, &types(spec))?;
    sidecar.expect(&fingerprint(file, FingerprintDepth::Ends)?, &shape)?;
    Ok(sidecar)
}

fn model_files(file: &Gguf) -> Result<FileSet> {
    let paths: Vec<_> = (0..file.n_shards()).filter_map(|s| file.path(s)).collect();
    Ok(FileSet::open(&paths)?)
}

/// Numbers of the types of gate, up and down; zeros for a layer without routed experts.
fn types(spec: &ModelSpec) -> Vec<[u32; 3]> {
    let layers = spec.experts.iter();
    layers
        .map(|experts| match experts.n_expert {
            0 => [0; 3],
            _ => [0, 1, 2].map(|part| experts.parts[part].ty.ggml_type()),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::ops::ControlFlow;

    use thalweg_store::bundle::BundleFault;
    use thalweg_testkit::SmallModel;

    use super::*;

    struct Fixture {
        folder: tempfile::TempDir,
        file: Gguf,
    }

    impl Fixture {
        fn new(model: &SmallModel) -> Self {
            let folder = tempfile::tempdir().expect("temporary folder");
            let path = folder.path().join("model.gguf");
            model.write(&path).expect("room");
            let file = Gguf::open(&path).expect("just written");
            Self { folder, file }
        }

        fn spec(&self) -> ModelSpec {
            let outline =
                thalweg_model::outline(&self.file, RouterOptions::default()).expect("sound");
            outline.spec().clone()
        }

        fn target(&self) -> std::path::PathBuf {
            self.folder.path().join("model.experts")
        }

        fn pack(&self) -> Packed {
            pack_sidecar(&self.file, &self.target(), &mut |_, _| {
                ControlFlow::Continue(())
            })
            .expect("room")
        }
    }

    #[test]
    fn a_sidecar_holds_every_expert_of_the_model_file() {
        let model = Fixture::new(&SmallModel::default());
        let spec = model.spec();
        let packed = model.pack();
        assert_eq!(packed.n_experts, 4 * 16);
        let (files, layout) = open_sidecar(&model.target(), &model.file, &spec).expect("its own");
        let bytes = fs::read(model.target()).expect("readable");
        assert_eq!(files.len_bytes(0), Some(bytes.len() as u64));
        let in_model = fs::read(model.file.path(0).expect("one shard")).expect("readable");
        let cut = |bytes: &[u8], at: u64, len: usize| {
            let at = usize::try_from(at).expect("small");
            bytes[at..at + len].to_vec()
        };
        for (l, experts) in spec.experts.iter().enumerate() {
            for expert in 0..16_u16 {
                let segments = layout.segments(l, expert).expect("in range");
                let [segment] = segments.as_slice() else {
                    panic!("{segments:?}");
                };
                let expected: Vec<u8> = experts
                    .parts
                    .iter()
                    .flat_map(|p| {
                        let at = p.offset_bytes + u64::from(expert) * p.stride_bytes;
                        cut(&in_model, at, usize::try_from(p.len_bytes).expect("small"))
                    })
                    .collect();
                assert!(cut(&bytes, segment.offset_bytes, segment.len_bytes) == expected);
            }
        }
        let mut told = (0, 1);
        verify_sidecar(&model.target(), &model.file, &mut |done, all| {
            told = (done, all);
            ControlFlow::Continue(())
        })
        .expect("the same bytes");
        assert_eq!(told.0, told.1);
    }

    #[test]
    fn a_sidecar_of_another_model_file_is_stale() {
        let model = Fixture::new(&SmallModel::default());
        model.pack();
        // Same shape, other weights.
        let other = Fixture::new(&SmallModel {
            seed: 99,
            ..SmallModel::default()
        });
        let refused = open_sidecar(&model.target(), &other.file, &other.spec());
        let Err(Error::Store(thalweg_store::Error::Bundle { fault, .. })) = refused else {
            panic!("{refused:?}");
        };
        let ends = |file| fingerprint(file, FingerprintDepth::Ends).expect("readable");
        let (expected, found) = (ends(&other.file), ends(&model.file));
        assert_eq!(fault, BundleFault::Stale { expected, found });
        let refused = verify_sidecar(&model.target(), &other.file, &mut |_, _| {
            ControlFlow::Continue(())
        });
        assert!(refused.is_err());
    }

    #[test]
    fn a_damaged_sidecar_is_found_by_verifying() {
        let model = Fixture::new(&SmallModel::default());
        model.pack();
        let mut bytes = fs::read(model.target()).expect("readable");
        bytes[16_384 + 5] ^= 0x40;
        fs::write(model.target(), bytes).expect("writable");
        open_sidecar(&model.target(), &model.file, &model.spec()).expect("its header is sound");
        let refused = verify_sidecar(&model.target(), &model.file, &mut |_, _| {
            ControlFlow::Continue(())
        });
        let Err(Error::Store(thalweg_store::Error::Bundle { fault, .. })) = refused else {
            panic!("{refused:?}");
        };
        assert!(
            matches!(
                fault,
                BundleFault::Checksum {
                    layer: 0,
                    expert: 0,
                    ..
                }
            ),
            "{fault}"
        );
    }
}

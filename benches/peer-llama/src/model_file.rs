//! What a comparison has to know of a model file before anything runs.
//!
//! Owns the look into the tensor directory: which types the experts have, whether two files hold
//! the same model in other types, whether llama.cpp has kernels for a file. Reads headers only.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use thalweg_gguf::{Gguf, TensorInfo, TensorType};

/// A model file's header.
pub(crate) struct ModelFile {
    path: PathBuf,
    gguf: Gguf,
    bytes: u64,
}

impl ModelFile {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let failed = || format!("cannot open {}", path.display());
        let gguf = Gguf::open(path).with_context(failed)?;
        let mut bytes = 0;
        for shard in (0..gguf.n_shards()).filter_map(|s| gguf.path(s)) {
            bytes += shard.metadata().with_context(failed)?.len();
        }
        Ok(Self {
            path: path.to_owned(),
            gguf,
            bytes,
        })
    }

    /// Refuses another model: the tensors' names and shapes must be the same, their types need not.
    pub(crate) fn expect_same_shape(&self, other: &Self) -> Result<()> {
        let shapes = |file: &Self| -> BTreeMap<String, Vec<u64>> {
            let tensors = file.gguf.tensors().iter();
            tensors
                .map(|t| (t.name.clone(), t.shape().to_vec()))
                .collect()
        };
        let (ours, theirs) = (shapes(self), shapes(other));
        let (path, other_path) = (self.path.display(), other.path.display());
        for (name, shape) in &ours {
            let found = theirs.get(name).with_context(|| {
                format!("{other_path} is another model than {path}: it has no tensor {name}")
            })?;
            ensure!(
                found == shape,
                "{other_path} is another model than {path}: tensor {name} is {found:?} there and \
                 {shape:?} here"
            );
        }
        match theirs.keys().find(|name| !ours.contains_key(*name)) {
            Some(name) => {
                bail!("{other_path} is another model than {path}: only it has the tensor {name}")
            }
            None => Ok(()),
        }
    }

    /// How many matrices of routed experts have which type.
    fn expert_types(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        let experts = self.gguf.tensors().iter();
        for tensor in experts.filter(|t| t.name.contains("_exps.")) {
            *counts.entry(tensor.ty.name()).or_insert(0) += 1;
        }
        counts
    }

    /// A sentence where llama.cpp runs the file, or a part of it, without vector code of its own.
    pub(crate) fn slow_for_llama(&self) -> Option<String> {
        let tensors = self.gguf.tensors().iter();
        let n = tensors
            .filter(|t| is_matrix_in(t, TensorType::Q2_0))
            .count();
        (cfg!(target_arch = "x86_64") && n > 0).then(|| {
            format!(
                "{n} of the matrices in {} are Q2_0; the llama.cpp in use has no x86 kernel for \
                 that format and runs portable code, which the ratio shows more than anything else",
                self.path.display()
            )
        })
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "path": self.path.to_string_lossy(),
            "bytes": self.bytes,
            "expert_types": self.expert_types(),
        })
    }

    pub(crate) fn describe(&self) -> String {
        let types = self.expert_types();
        let types: Vec<String> = types.iter().map(|(ty, n)| format!("{n} {ty}")).collect();
        let (path, mb) = (self.path.display(), self.bytes as f64 / 1e6);
        format!("{path} ({mb:.1} MB, experts {})", types.join(", "))
    }
}

/// Whether the tensor enters matrix products in that type; tables are only looked up in.
fn is_matrix_in(tensor: &TensorInfo, ty: TensorType) -> bool {
    let is_table = tensor.name.ends_with("token_embd.weight");
    tensor.ty == ty && tensor.n_rows() > 1 && !is_table
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_gguf::{Metadata, TensorSpec, Writer};

    /// A file with tensors of zeros.
    fn file(folder: &Path, name: &str, tensors: &[(&str, TensorType, &[u64])]) -> ModelFile {
        let path = folder.join(name);
        let mut metadata = Metadata::new();
        metadata
            .insert("general.architecture", "demo")
            .expect("a key");
        let spec = |(name, ty, shape): &(&str, TensorType, &[u64])| {
            TensorSpec::new(*name, *ty, shape).expect("a tensor")
        };
        let specs: Vec<_> = tensors.iter().map(spec).collect();
        let mut writer = Writer::create(&path, &metadata, &specs).expect("a file");
        for spec in &specs {
            let zeros = vec![0; usize::try_from(spec.size_bytes()).expect("small")];
            writer.write_tensor(spec.name(), &zeros).expect("data");
        }
        writer.finish().expect("a file");
        ModelFile::open(&path).expect("a model")
    }

    const EXPERTS: &str = "blk.0.ffn_up_exps.weight";
    const TABLE: &str = "token_embd.weight";

    #[test]
    fn types_may_differ_between_peers_but_shapes_and_names_may_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let shape = &[64, 4, 2][..];
        let two_bit = file(folder.path(), "two", &[(EXPERTS, TensorType::Q2_0, shape)]);
        let four_bit = file(folder.path(), "four", &[(EXPERTS, TensorType::Q4_0, shape)]);
        two_bit
            .expect_same_shape(&four_bit)
            .expect("the same model");
        let wider = file(
            folder.path(),
            "wider",
            &[(EXPERTS, TensorType::Q2_0, &[128, 4, 2])],
        );
        let error = two_bit.expect_same_shape(&wider).expect_err("wider");
        assert!(error.to_string().contains(EXPERTS), "{error}");
        let both = [
            (EXPERTS, TensorType::Q2_0, shape),
            (TABLE, TensorType::Q2_0, &[64, 4][..]),
        ];
        let more = file(folder.path(), "more", &both);
        assert!(two_bit.expect_same_shape(&more).is_err());
        assert!(more.expect_same_shape(&two_bit).is_err());
        assert_eq!(two_bit.json()["expert_types"], json!({ "Q2_0": 1 }));
    }

    #[test]
    fn a_missing_kernel_is_told_for_products_and_not_for_tables() {
        let folder = tempfile::tempdir().expect("a folder");
        let tensors = [
            (EXPERTS, TensorType::Q2_0, &[64, 4, 2][..]),
            (TABLE, TensorType::Q2_0, &[64, 4][..]),
        ];
        let told = file(folder.path(), "two", &tensors).slow_for_llama();
        assert_eq!(told.is_some(), cfg!(target_arch = "x86_64"));
        assert!(told.is_none_or(|t| t.starts_with("1 of the matrices ")));
        let table = file(folder.path(), "table", &tensors[1..]);
        assert_eq!(table.slow_for_llama(), None);
    }
}

//! A model file written anew with some tensors replaced.
//!
//! Owns the order of the copy, its hashes and the look at what was written; not the format of the
//! file nor how it appears under its name (`thalweg-gguf`), and not what replacements hold.
//! Memory: one piece of a tensor (1 MiB), and what producers of replacements take.
//! Invariants: 1. tensors keep their order, and those that are not replaced their bytes; 2. a target
//! is the old file or the whole new one; 3. bytes are hashed on their way out, so that
//! [`verify`] compares the file with what was meant, not with itself.
//! Cost: the source is read once and the target written once; `verify` reads it once more.

use std::collections::HashMap;
use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;

use sha2::{Digest, Sha256};
use thalweg_gguf::{Gguf, Metadata, TensorInfo, TensorSpec, TensorType, Writer};

use crate::{Error, Result};

/// Bytes that are copied or compared at a time.
const PIECE_BYTES: u64 = 1 << 20;

/// Told how many of how many bytes of the source are done; `Break` ends the work with
/// [`Error::Stopped`].
pub type Progress<'p> = dyn FnMut(u64, u64) -> ControlFlow<()> + 'p;

type Produce<'a> = Box<dyn FnMut(&mut Output<'_>) -> Result<()> + 'a>;

/// A copy of a model in the making: the source with changes.
///
/// ```
/// use std::ops::ControlFlow;
/// use thalweg_compress::{Rewrite, verify};
/// use thalweg_gguf::{Gguf, TensorSpec};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let (source, target) = (folder.path().join("a.gguf"), folder.path().join("b.gguf"));
/// # thalweg_testkit::SmallModel::default().write(&source)?;
/// let file = Gguf::open(&source)?;
/// let mut rewrite = Rewrite::new(&file);
/// rewrite.metadata_mut().set("general.name", "with zeros in one norm")?;
/// let norm = file.tensor("blk.0.ssm_norm.weight").expect("it is there");
/// let zeros = vec![0; norm.size_bytes as usize];
/// rewrite.replace(TensorSpec::like(norm)?, move |out| out.write(&zeros))?;
///
/// let mut progress = |_done, _total| ControlFlow::Continue(());
/// let written = rewrite.write(&target, &mut progress)?;
/// verify(&target, &written, &mut progress)?;
/// assert_eq!(written.tensors.iter().filter(|t| t.is_changed).count(), 1);
/// # Ok(())
/// # }
/// ```
pub struct Rewrite<'a> {
    file: &'a Gguf,
    metadata: Metadata,
    changes: HashMap<String, (TensorSpec, Produce<'a>)>,
}

/// What was written: the directory with the hash of each tensor's data.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Rewritten {
    /// Metadata of the new file.
    pub metadata: Metadata,
    /// In the order of the file.
    pub tensors: Vec<WrittenTensor>,
}

/// A tensor as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WrittenTensor {
    /// Its name.
    pub name: String,
    /// Element type.
    pub ty: TensorType,
    /// Dimensions, the contiguous one first.
    pub shape: Vec<u64>,
    /// Bytes of its data.
    pub size_bytes: u64,
    /// Whether the data is new; otherwise it is that of the source.
    pub is_changed: bool,
    /// SHA-256 of the data.
    pub sha256: [u8; 32],
}

/// Where the producer of a replacement writes to.
pub struct Output<'w> {
    writer: &'w mut Writer,
    spec: &'w TensorSpec,
    hash: Sha256,
    written_bytes: u64,
    /// Of the tensor in the source, of those before it, and of all.
    source_bytes: u64,
    done_bytes: u64,
    total_bytes: u64,
    progress: &'w mut Progress<'w>,
}

impl<'a> Rewrite<'a> {
    /// A copy of all of `file`.
    #[must_use]
    pub fn new(file: &'a Gguf) -> Self {
        Self {
            file,
            metadata: file.metadata().clone(),
            changes: HashMap::new(),
        }
    }

    /// The new file's metadata, at first that of the source.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// Replaces the tensor that `spec` names: its type and shape become those of `spec`, its data
    /// what `produce` writes, in pieces of any size.
    ///
    /// # Errors
    /// [`Error::NoTensor`].
    pub fn replace(
        &mut self,
        spec: TensorSpec,
        produce: impl FnMut(&mut Output<'_>) -> Result<()> + 'a,
    ) -> Result<()> {
        let name = spec.name().to_owned();
        if self.file.tensor(&name).is_none() {
            return Err(Error::NoTensor { name });
        }
        self.changes.insert(name, (spec, Box::new(produce)));
        Ok(())
    }

    /// Size of the data section of the new file, for a look at the free space: with the header
    /// unknown, a little less than the file.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        let tensors = self.file.tensors().iter();
        tensors
            .map(|tensor| match self.changes.get(&tensor.name) {
                Some((spec, _)) => spec.size_bytes(),
                None => tensor.size_bytes,
            })
            .sum()
    }

    /// Writes the new file; it has the name `path` when it is complete, and not before.
    ///
    /// # Errors
    /// [`Error::Gguf`] when a file cannot be read or written, or when the source changed meanwhile;
    /// [`Error::Stopped`]; whatever a producer returns. Then `path` is as it was.
    pub fn write(mut self, path: &Path, progress: &mut Progress<'_>) -> Result<Rewritten> {
        let specs = self
            .file
            .tensors()
            .iter()
            .map(|tensor| match self.changes.get(&tensor.name) {
                Some((spec, _)) => Ok(spec.clone()),
                None => TensorSpec::like(tensor),
            });
        let specs: Vec<TensorSpec> = specs.collect::<Result<_, _>>()?;
        let mut writer = Writer::create(path, &self.metadata, &specs)?;
        let total_bytes = self.file.tensors().iter().map(|t| t.size_bytes).sum();
        let mut done_bytes = 0;
        let mut tensors = Vec::with_capacity(specs.len());
        for (tensor, spec) in self.file.tensors().iter().zip(&specs) {
            let mut output = Output {
                writer: &mut writer,
                spec,
                hash: Sha256::new(),
                written_bytes: 0,
                source_bytes: tensor.size_bytes,
                done_bytes,
                total_bytes,
                progress: &mut *progress,
            };
            let change = self.changes.get_mut(&tensor.name);
            let is_changed = change.is_some();
            match change {
                Some((_, produce)) => produce(&mut output)?,
                None => copy(self.file, tensor, &mut output)?,
            }
            let sha256 = output.hash.finalize().into();
            done_bytes += tensor.size_bytes;
            tensors.push(WrittenTensor {
                name: tensor.name.clone(),
                ty: spec.ty(),
                shape: spec.shape().to_vec(),
                size_bytes: spec.size_bytes(),
                is_changed,
                sha256,
            });
        }
        self.file.verify_unchanged()?;
        writer.finish()?;
        Ok(Rewritten {
            metadata: self.metadata,
            tensors,
        })
    }
}

impl fmt::Debug for Rewrite<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut changed: Vec<_> = self.changes.keys().collect();
        changed.sort_unstable();
        f.debug_struct("Rewrite")
            .field("file", self.file)
            .field("changed", &changed)
            .finish_non_exhaustive()
    }
}

impl Output<'_> {
    /// Appends to the tensor's data.
    ///
    /// # Errors
    /// [`Error::Gguf`] when it cannot be written, or is more than the tensor holds;
    /// [`Error::Stopped`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.write_chunk(self.spec.name(), bytes)?;
        self.hash.update(bytes);
        self.written_bytes += bytes.len() as u64;
        // The share of the source that stands behind what is written.
        let share = self.written_bytes as f64 / self.spec.size_bytes() as f64;
        let passed = (share * self.source_bytes as f64) as u64;
        let done_bytes = self.done_bytes + passed.min(self.source_bytes);
        let total_bytes = self.total_bytes;
        match (self.progress)(done_bytes, total_bytes) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Stopped {
                done_bytes,
                total_bytes,
            }),
        }
    }
}

impl fmt::Debug for Output<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output")
            .field("spec", self.spec)
            .field("written_bytes", &self.written_bytes)
            .finish_non_exhaustive()
    }
}

/// Reads a written file again and compares it with what was meant: metadata, directory, and the
/// hash of every tensor.
///
/// # Errors
/// [`Error::Verify`] with the first difference; [`Error::Gguf`] when the file cannot be read;
/// [`Error::Stopped`].
pub fn verify(path: &Path, meant: &Rewritten, progress: &mut Progress<'_>) -> Result<()> {
    let differs = |what: String| Error::Verify {
        path: path.to_owned(),
        what,
    };
    let file = Gguf::open(path)?;
    if *file.metadata() != meant.metadata {
        return Err(differs("the metadata".to_owned()));
    }
    if file.tensors().len() != meant.tensors.len() {
        return Err(differs("the number of tensors".to_owned()));
    }
    let total_bytes = meant.tensors.iter().map(|t| t.size_bytes).sum();
    let mut done_bytes = 0;
    let mut piece = Vec::new();
    for (found, meant) in file.tensors().iter().zip(&meant.tensors) {
        let is_same = found.name == meant.name && found.ty == meant.ty;
        if !is_same || found.shape() != meant.shape {
            return Err(differs(format!("the entry of tensor {:?}", meant.name)));
        }
        let mut hash = Sha256::new();
        for_pieces(&file, found, &mut piece, |piece| {
            hash.update(piece);
            done_bytes += piece.len() as u64;
            match progress(done_bytes, total_bytes) {
                ControlFlow::Continue(()) => Ok(()),
                ControlFlow::Break(()) => Err(Error::Stopped {
                    done_bytes,
                    total_bytes,
                }),
            }
        })?;
        if meant.sha256 != <[u8; 32]>::from(hash.finalize()) {
            return Err(differs(format!("the data of tensor {:?}", meant.name)));
        }
    }
    Ok(())
}

fn copy(file: &Gguf, tensor: &TensorInfo, output: &mut Output<'_>) -> Result<()> {
    for_pieces(file, tensor, &mut Vec::new(), |piece| output.write(piece))
}

/// Calls `each` with the data of a tensor, piece by piece.
fn for_pieces(
    file: &Gguf,
    tensor: &TensorInfo,
    piece: &mut Vec<u8>,
    mut each: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut start = 0;
    while start < tensor.size_bytes {
        let len = (tensor.size_bytes - start).min(PIECE_BYTES);
        // At most a piece.
        piece.resize(len as usize, 0);
        file.read_tensor_range(tensor, start, piece)?;
        each(piece)?;
        start += len;
    }
    Ok(())
}

//! A model in memory, open to changes. Owns: the list of tensors with their encoded bytes, edits
//! for bad-input tests, writing whole or split. Does not own: what a model consists of
//! (`small_model`), the container (`thalweg-gguf`).
//! Memory: the whole encoded model.
//!
//! Invariants: 1. what is not edited is a valid model. 2. Nothing checks the edits: a draft that
//! `thalweg-gguf` refuses to write is refused at `write`.

use std::path::{Path, PathBuf};

use thalweg_gguf::{Metadata, TensorSpec, TensorType, Writer, split};
use thalweg_quant::QuantType;

use crate::Error;

/// A model before it is written.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Draft {
    /// Metadata in file order.
    pub metadata: Metadata,
    /// Tensors in file order.
    pub tensors: Vec<DraftTensor>,
}

impl Draft {
    /// The tensor with this name.
    ///
    /// # Errors
    /// [`Error::NoTensor`].
    pub fn tensor(&self, name: &str) -> Result<&DraftTensor, Error> {
        let found = self.tensors.iter().find(|tensor| tensor.name == name);
        found.ok_or_else(|| no_tensor(name))
    }

    /// The tensor with this name, to be edited.
    ///
    /// # Errors
    /// [`Error::NoTensor`].
    pub fn tensor_mut(&mut self, name: &str) -> Result<&mut DraftTensor, Error> {
        let found = self.tensors.iter_mut().find(|tensor| tensor.name == name);
        found.ok_or_else(|| no_tensor(name))
    }

    /// Takes a tensor out.
    ///
    /// # Errors
    /// [`Error::NoTensor`].
    pub fn remove(&mut self, name: &str) -> Result<DraftTensor, Error> {
        let at = self.tensors.iter().position(|tensor| tensor.name == name);
        Ok(self.tensors.remove(at.ok_or_else(|| no_tensor(name))?))
    }

    /// Size of all tensors' data, without padding.
    #[must_use]
    pub fn data_bytes(&self) -> usize {
        self.tensors.iter().map(|tensor| tensor.bytes.len()).sum()
    }

    /// Writes one GGUF file, replacing what was there.
    ///
    /// # Errors
    /// [`Error::Gguf`] if the disk or the writer refuses.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        write(path.as_ref(), &self.metadata, &self.tensors)
    }

    /// Writes `n_files` files `FOLDER/PREFIX-0000i-of-0000n.gguf` with the tensors dealt out in
    /// runs, and returns their paths. The first has the metadata; with more files than tensors
    /// some have none.
    ///
    /// # Errors
    /// [`Error::Setting`] for no files or more than 65,535; [`Error::Gguf`] if the disk or the
    /// writer refuses.
    pub fn write_split(
        &self,
        folder: impl AsRef<Path>,
        prefix: &str,
        n_files: usize,
    ) -> Result<Vec<PathBuf>, Error> {
        let limit = Error::Setting {
            field: "n_files",
            found: n_files,
            rule: "must be from 1 to 65535",
        };
        let Some(count) = u16::try_from(n_files).ok().filter(|n| *n > 0) else {
            return Err(limit);
        };
        let n_tensors = i32::try_from(self.tensors.len()).map_err(|_| limit)?;
        let per_file = self.tensors.len().div_ceil(n_files).max(1);
        let mut runs = self.tensors.chunks(per_file);
        let mut paths = Vec::with_capacity(n_files);
        for number in 0..count {
            let mut metadata = if number == 0 {
                self.metadata.clone()
            } else {
                Metadata::new()
            };
            metadata.set(split::NUMBER_KEY, number)?;
            metadata.set(split::COUNT_KEY, count)?;
            metadata.set(split::TENSOR_COUNT_KEY, n_tensors)?;
            let name = format!("{prefix}-{:05}-of-{count:05}.gguf", u32::from(number) + 1);
            let path = folder.as_ref().join(name);
            write(&path, &metadata, runs.next().unwrap_or(&[]))?;
            paths.push(path);
        }
        Ok(paths)
    }
}

/// One tensor of a [`Draft`]: name, type, shape and encoded bytes, all free to be changed.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DraftTensor {
    /// The name.
    pub name: String,
    /// Element type.
    pub ty: TensorType,
    /// Elements along each dimension, the contiguous one first.
    pub shape: Vec<u64>,
    /// The data as it will stand in the file.
    pub bytes: Vec<u8>,
}

impl DraftTensor {
    /// Encodes values in storage order.
    ///
    /// # Errors
    /// [`Error::Quant`] if the type has no quantizer or `values` are not whole blocks;
    /// [`Error::NoCodec`].
    pub fn new(
        name: impl Into<String>,
        ty: TensorType,
        shape: &[u64],
        values: &[f32],
    ) -> Result<Self, Error> {
        let shape = shape.to_vec();
        let mut tensor = Self {
            name: name.into(),
            ty,
            shape,
            bytes: Vec::new(),
        };
        tensor.set_values(values)?;
        Ok(tensor)
    }

    /// The data decoded, in storage order.
    ///
    /// # Errors
    /// [`Error::NoCodec`]; [`Error::Quant`] if the bytes are not whole blocks.
    pub fn values(&self) -> Result<Vec<f32>, Error> {
        let codec = self.codec()?;
        let mut values = vec![0.0; self.bytes.len() / codec.block_bytes() * codec.block_len()];
        codec
            .decode_row(&self.bytes, &mut values)
            .map_err(|e| self.quant(e))?;
        Ok(values)
    }

    /// Replaces the data by these values, encoded. The shape stays as it is.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn set_values(&mut self, values: &[f32]) -> Result<(), Error> {
        let codec = self.codec()?;
        let len = codec.row_bytes(values.len()).map_err(|e| self.quant(e))?;
        let mut bytes = vec![0; len];
        codec
            .quantize_row(values, &mut bytes)
            .map_err(|e| self.quant(e))?;
        self.bytes = bytes;
        Ok(())
    }

    /// Encodes the same values in another type.
    ///
    /// # Errors
    /// As [`new`](Self::new) and [`values`](Self::values).
    pub fn convert(&mut self, ty: TensorType) -> Result<(), Error> {
        let values = self.values()?;
        *self = Self::new(std::mem::take(&mut self.name), ty, &self.shape, &values)?;
        Ok(())
    }

    /// Makes the element at `index` NaN; in a quantized type its whole block, through the scale.
    ///
    /// # Errors
    /// [`Error::Element`] if there is no such element; [`Error::NoCodec`] if the type cannot
    /// express NaN.
    pub fn poison(&mut self, index: usize) -> Result<(), Error> {
        let codec = self.codec()?;
        let at = index / codec.block_len() * codec.block_bytes();
        let (n_elements, name) = (
            self.bytes.len() / codec.block_bytes() * codec.block_len(),
            &self.name,
        );
        let Some(block) = self.bytes.get_mut(at..at + codec.block_bytes()) else {
            return Err(Error::Element {
                name: name.clone(),
                index,
                n_elements,
            });
        };
        // Wherever a type keeps its f16 scale (or its value), all ones make a NaN of it.
        for start in (0..block.len() - 1).rev() {
            let before = [block[start], block[start + 1]];
            block[start..start + 2].fill(0xff);
            if matches!(codec.first_non_finite(block), Ok(Some(_))) {
                return Ok(());
            }
            block[start..start + 2].copy_from_slice(&before);
        }
        Err(Error::NoCodec {
            name: name.clone(),
            ty: self.ty.name(),
        })
    }

    fn codec(&self) -> Result<QuantType, Error> {
        let (id, ty) = (self.ty.id(), self.ty.name());
        QuantType::from_ggml(id).ok_or_else(|| Error::NoCodec {
            name: self.name.clone(),
            ty,
        })
    }

    fn quant(&self, source: thalweg_quant::Error) -> Error {
        Error::Quant {
            name: self.name.clone(),
            source,
        }
    }
}

fn write(path: &Path, metadata: &Metadata, tensors: &[DraftTensor]) -> Result<(), Error> {
    let specs = tensors
        .iter()
        .map(|tensor| TensorSpec::new(&tensor.name, tensor.ty, &tensor.shape));
    let specs = specs.collect::<Result<Vec<_>, _>>()?;
    let mut writer = Writer::create(path, metadata, &specs)?;
    for tensor in tensors {
        writer.write_tensor(&tensor.name, &tensor.bytes)?;
    }
    Ok(writer.finish()?)
}

fn no_tensor(name: &str) -> Error {
    Error::NoTensor {
        name: name.to_owned(),
    }
}

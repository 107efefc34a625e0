//! From tensor names to resident weights, with every problem of the header found first.
//!
//! Owns the check of names, shapes and types against what an architecture expects, and the reading
//! of dense tensors; does not own their meaning. Memory: one tensor at a time passes through the
//! host before the backend keeps it.

use thalweg_backend::{Backend, MatData};
use thalweg_gguf::{Gguf, TensorInfo};
use thalweg_quant::QuantType;

use crate::routers::{RouterOptions, convert};
use crate::{Error, Problem, Result};

/// Collects what an architecture expects of a file and what the file fails to have.
#[derive(Debug)]
pub(crate) struct Check<'a> {
    file: &'a Gguf,
    problems: Vec<Problem>,
    /// Bytes of what is expected to become resident, as the loader counts them.
    dense_bytes: u64,
}

impl<'a> Check<'a> {
    pub(crate) fn new(file: &'a Gguf) -> Self {
        Self {
            file,
            problems: Vec::new(),
            dense_bytes: 0,
        }
    }

    pub(crate) fn file(&self) -> &'a Gguf {
        self.file
    }

    /// Notes a metadata problem.
    pub(crate) fn metadata(&mut self, key: &str, reason: impl Into<String>) {
        self.problems.push(Problem::Metadata {
            key: key.to_owned(),
            reason: reason.into(),
        });
    }

    /// Whether a problem of this key is noted already.
    pub(crate) fn notes_key(&self, key: &str) -> bool {
        self.problems
            .iter()
            .any(|p| matches!(p, Problem::Metadata { key: k, .. } if k == key))
    }

    /// The value of a typed accessor; a failure is noted and reads as the type's default.
    pub(crate) fn value<T: Default>(
        &mut self,
        key: &str,
        value: Result<T, thalweg_gguf::Error>,
    ) -> T {
        value.unwrap_or_else(|e| {
            self.metadata(key, e.to_string());
            T::default()
        })
    }

    /// Whether the file has a tensor.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    /// Expects a tensor that becomes resident as it is stored; shapes as for
    /// [`streamed`](Self::streamed).
    pub(crate) fn matrix(&mut self, name: &str, shapes: &[&[usize]]) {
        let bytes = self.file.tensor(name).map_or(0, |info| info.size_bytes);
        self.dense_bytes = self.dense_bytes.saturating_add(bytes);
        self.streamed(name, shapes);
    }

    /// Expects a tensor that becomes resident as f32 values.
    pub(crate) fn vector(&mut self, name: &str, shapes: &[&[usize]]) {
        let n = self.file.tensor(name).map_or(0, TensorInfo::n_elements);
        let bytes = n.saturating_mul(size_of::<f32>() as u64);
        self.dense_bytes = self.dense_bytes.saturating_add(bytes);
        self.streamed(name, shapes);
    }

    /// Expects a router, which becomes resident in every format that `options` ask for.
    pub(crate) fn router(&mut self, name: &str, shape: &[usize], options: RouterOptions) {
        self.streamed(name, &[shape]);
        let Some(info) = self.file.tensor(name) else {
            return;
        };
        let Some(ty) = QuantType::from_ggml(info.ty.id()) else {
            return;
        };
        let (n_in, n_out) = rows(info);
        match options.formats(ty).bytes(n_in, n_out) {
            Some(bytes) => self.dense_bytes = self.dense_bytes.saturating_add(bytes),
            None => self.metadata(
                name,
                format!("rows of {n_in} weights do not fill the Q8_0 blocks of a copy for guesses"),
            ),
        }
    }

    /// What the tensors expected so far take once they are resident.
    pub(crate) fn dense_bytes(&self) -> u64 {
        self.dense_bytes
    }

    /// Expects a tensor of one of the `shapes` (`ne` order; trailing ones are equal to nothing)
    /// that stays on the drive. The first shape is the one that a problem names.
    pub(crate) fn streamed(&mut self, name: &str, shapes: &[&[usize]]) {
        let wide = |s: &[usize]| s.iter().map(|d| *d as u64).collect::<Vec<_>>();
        let expected = wide(shapes[0]);
        let Some(info) = self.file.tensor(name) else {
            self.problems.push(Problem::MissingTensor {
                name: name.to_owned(),
                expected,
            });
            return;
        };
        let found = dims(info);
        if !shapes.iter().any(|s| trim(&wide(s)) == trim(&found)) {
            self.problems.push(Problem::Shape {
                name: name.to_owned(),
                expected,
                found,
            });
        }
        if QuantType::from_ggml(info.ty.id()).is_none() {
            let found = info.ty.name().to_owned();
            self.problems.push(Problem::TensorType {
                name: name.to_owned(),
                found,
            });
        }
    }

    /// Notes the first tensor of a block beyond the last: the block count is wrong then.
    pub(crate) fn no_blocks_from(&mut self, key: &str, n_block: usize) {
        let block = |name: &str| name.strip_prefix("blk.")?.split('.').next()?.parse().ok();
        let beyond = |t: &&TensorInfo| block(&t.name).is_some_and(|l: usize| l >= n_block);
        if let Some(info) = self.file.tensors().iter().find(beyond) {
            let reason = format!("{n_block} blocks, but the file has {:?}", info.name);
            self.metadata(key, reason);
        }
    }

    /// Ends the check.
    ///
    /// # Errors
    /// [`Error::Invalid`] with every problem noted.
    pub(crate) fn finish(&mut self) -> Result<()> {
        match std::mem::take(&mut self.problems) {
            problems if problems.is_empty() => Ok(()),
            problems => Err(Error::Invalid { problems }),
        }
    }

    /// Whether anything is wrong so far.
    pub(crate) fn failed(&self) -> bool {
        !self.problems.is_empty()
    }
}

/// A router in every format that was asked for.
#[derive(Debug)]
pub(crate) struct Router<M> {
    pub(crate) deciding: M,
    /// `None` where the deciding one guesses.
    pub(crate) guessing: Option<M>,
    /// `None` where the stored weights decide, or were not to be kept.
    pub(crate) kept: Option<M>,
}

/// Reads checked tensors into a backend.
#[derive(Debug)]
pub(crate) struct Loader<'a, B> {
    backend: &'a B,
    file: &'a Gguf,
    /// Bytes made resident so far, as stored (vectors count as f32).
    dense_bytes: u64,
}

impl<'a, B: Backend> Loader<'a, B> {
    pub(crate) fn new(backend: &'a B, file: &'a Gguf) -> Self {
        Self {
            backend,
            file,
            dense_bytes: 0,
        }
    }

    pub(crate) fn dense_bytes(&self) -> u64 {
        self.dense_bytes
    }

    /// A matrix in its stored format; rows are everything beyond the first dimension.
    pub(crate) fn matrix(&mut self, name: &str) -> Result<B::Matrix> {
        let (info, ty) = self.info(name)?;
        let bytes = self.read(info, ty)?;
        self.keep(info, ty, bytes)
    }

    /// A router in every format that `options` ask for.
    pub(crate) fn router(
        &mut self,
        name: &str,
        options: RouterOptions,
    ) -> Result<Router<B::Matrix>> {
        let (info, ty) = self.info(name)?;
        let bytes = self.read(info, ty)?;
        let formats = options.formats(ty);
        let mut copy = |to: QuantType| match to == ty {
            true => self.keep(info, ty, bytes.clone()),
            false => self.keep(info, to, convert(ty, &bytes, rows(info).0, to)?),
        };
        Ok(Router {
            deciding: copy(formats.deciding)?,
            guessing: formats.guessing.map(&mut copy).transpose()?,
            kept: formats.kept.map(&mut copy).transpose()?,
        })
    }

    /// Hands a matrix to the backend.
    fn keep(&mut self, info: &TensorInfo, ty: QuantType, bytes: Vec<u8>) -> Result<B::Matrix> {
        self.dense_bytes += bytes.len() as u64;
        let (n_in, n_out) = rows(info);
        Ok(self.backend.load(MatData::new(ty, n_in, n_out, bytes)?)?)
    }

    /// A vector (or small matrix) as f32 values in storage order.
    pub(crate) fn vector(&mut self, name: &str) -> Result<B::Buffer> {
        let (info, ty) = self.info(name)?;
        let bytes = self.read(info, ty)?;
        let mut values = vec![0.0; to_usize(info.ne.iter().product())];
        ty.decode_row(&bytes, &mut values)?;
        self.dense_bytes += size_of_val(values.as_slice()) as u64;
        let mut buffer = self.backend.alloc(values.len())?;
        self.backend
            .write(&mut self.backend.recorder(), &mut buffer, 0, &values)?;
        Ok(buffer)
    }

    fn info(&self, name: &str) -> Result<(&'a TensorInfo, QuantType)> {
        let missing = || Problem::MissingTensor {
            name: name.to_owned(),
            expected: Vec::new(),
        };
        let info = self.file.tensor(name);
        let info = info.ok_or_else(|| Error::Invalid {
            problems: vec![missing()],
        })?;
        let ty = QuantType::from_ggml(info.ty.id());
        let found = || Problem::TensorType {
            name: name.into(),
            found: info.ty.name().into(),
        };
        Ok((
            info,
            ty.ok_or_else(|| Error::Invalid {
                problems: vec![found()],
            })?,
        ))
    }

    fn read(&self, info: &TensorInfo, ty: QuantType) -> Result<Vec<u8>> {
        let bytes = self.file.read_tensor(info)?;
        if let Some(index) = ty.first_non_finite(&bytes)? {
            let tensor = info.name.clone();
            return Err(Error::NotFinite {
                tensor,
                index: index as u64,
            });
        }
        Ok(bytes)
    }
}

/// Weights a row and rows of a matrix; rows are everything beyond the first dimension.
fn rows(info: &TensorInfo) -> (usize, usize) {
    let n_out = info.ne[1..].iter().product();
    (to_usize(info.ne[0]), to_usize(n_out))
}

/// Dimensions as listed in the file.
pub(crate) fn dims(info: &TensorInfo) -> Vec<u64> {
    info.shape().to_vec()
}

/// Dimensions without trailing ones.
fn trim(dims: &[u64]) -> &[u64] {
    let n = dims
        .iter()
        .rposition(|d| *d != 1)
        .map_or(1, |last| last + 1);
    &dims[..n.min(dims.len())]
}

/// Sizes of tensors whose ranges were checked against a file fit the address space of a 64-bit
/// system; on a smaller one they saturate and fail as an allocation.
pub(crate) fn to_usize(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

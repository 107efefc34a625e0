//! Matrices in their stored format, borrowed and owned.
//!
//! Owns the check that bytes and shape agree; does not know what a block means (`thalweg-quant`
//! does). Holds the bytes as they were in the file: nothing is re-encoded.

use thalweg_quant::QuantType;

use crate::{Error, Result};

/// A borrowed matrix: `n_out` rows of `n_in` weights. GGUF lists it as `ne = [n_in, n_out]`.
#[derive(Debug, Clone, Copy)]
pub struct MatView<'a> {
    ty: QuantType,
    n_in: usize,
    n_out: usize,
    row_bytes: usize,
    bytes: &'a [u8],
}

impl<'a> MatView<'a> {
    /// Views `bytes` as `n_out` rows of `n_in` weights of type `ty`.
    ///
    /// # Errors
    /// [`Error::Shape`] if the byte count differs, [`Error::Quant`] if `n_in` is not a whole number
    /// of blocks.
    pub fn new(ty: QuantType, n_in: usize, n_out: usize, bytes: &'a [u8]) -> Result<Self> {
        let row_bytes = check(ty, n_in, n_out, bytes.len())?;
        Ok(Self {
            ty,
            n_in,
            n_out,
            row_bytes,
            bytes,
        })
    }

    /// Stored type.
    pub fn ty(&self) -> QuantType {
        self.ty
    }

    /// Weights per row.
    pub fn n_in(&self) -> usize {
        self.n_in
    }

    /// Rows.
    pub fn n_out(&self) -> usize {
        self.n_out
    }

    /// The stored bytes of all rows, one after the other.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Stored bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Bytes of `n` rows from `first` on; they must end at or before [`n_out`](Self::n_out).
    pub(crate) fn rows(&self, first: usize, n: usize) -> &'a [u8] {
        &self.bytes[first * self.row_bytes..(first + n) * self.row_bytes]
    }
}

/// An owned matrix on its way to a backend, as read from a file.
#[derive(Debug, Clone)]
pub struct MatData {
    ty: QuantType,
    n_in: usize,
    n_out: usize,
    bytes: Vec<u8>,
}

impl MatData {
    /// Takes `bytes` as `n_out` rows of `n_in` weights of type `ty`.
    ///
    /// # Errors
    /// As [`MatView::new`].
    pub fn new(ty: QuantType, n_in: usize, n_out: usize, bytes: Vec<u8>) -> Result<Self> {
        check(ty, n_in, n_out, bytes.len())?;
        Ok(Self {
            ty,
            n_in,
            n_out,
            bytes,
        })
    }

    /// An f32 matrix from values in row-major order.
    ///
    /// # Errors
    /// [`Error::Shape`] if `values` is not `n_in * n_out` long.
    pub fn from_f32(n_in: usize, n_out: usize, values: &[f32]) -> Result<Self> {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self::new(QuantType::F32, n_in, n_out, bytes)
    }

    /// The same matrix, borrowed.
    pub fn view(&self) -> MatView<'_> {
        MatView {
            ty: self.ty,
            n_in: self.n_in,
            n_out: self.n_out,
            row_bytes: self.bytes.len() / self.n_out.max(1),
            bytes: &self.bytes,
        }
    }
}

/// The three matrices of one routed expert: `down(silu(gate x) * (up x))`.
#[derive(Debug, Clone, Copy)]
pub struct ExpertView<'a> {
    /// `[n_ff, n_embd]`.
    pub gate: MatView<'a>,
    /// `[n_ff, n_embd]`.
    pub up: MatView<'a>,
    /// `[n_embd, n_ff]`.
    pub down: MatView<'a>,
}

/// Row length in bytes, once shape and byte count are known to agree.
fn check(ty: QuantType, n_in: usize, n_out: usize, found: usize) -> Result<usize> {
    let row_bytes = ty.row_bytes(n_in)?;
    let expected = row_bytes.saturating_mul(n_out);
    if expected != found {
        return Err(Error::Shape {
            op: "matrix",
            what: "bytes",
            expected,
            found,
        });
    }
    Ok(row_bytes)
}

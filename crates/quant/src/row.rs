//! A row whose format is known only at run time.
//!
//! Owns [`RowView`]: a format, borrowed bytes and the number of elements, checked once.
//! Memory: borrows the caller's bytes; nothing is allocated or copied.
//! Invariants: (1) `bytes.len() == format.row_bytes(len)`.

use crate::{QuantType, Result};

/// One row of quantized weights, type-erased: format, bytes and length agree by construction.
#[derive(Debug, Clone, Copy)]
pub struct RowView<'a> {
    format: QuantType,
    bytes: &'a [u8],
    n_elements: usize,
}

impl<'a> RowView<'a> {
    /// A view of `bytes` as a row of `n_elements` weights. `bytes` need not be aligned.
    ///
    /// # Errors
    /// As [`QuantType::row_bytes`], and [`Error::ByteLength`](crate::Error::ByteLength) if `bytes`
    /// has another length than that.
    pub fn new(format: QuantType, bytes: &'a [u8], n_elements: usize) -> Result<Self> {
        format.check_row(bytes.len(), n_elements)?;
        Ok(Self {
            format,
            bytes,
            n_elements,
        })
    }

    /// The block format.
    #[must_use]
    pub fn format(&self) -> QuantType {
        self.format
    }

    /// The row's bytes.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Number of weights.
    #[must_use]
    pub fn len(&self) -> usize {
        self.n_elements
    }

    /// Whether the row has no weights.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.n_elements == 0
    }

    /// Writes the weights to `out` (`[len()]`).
    ///
    /// # Errors
    /// [`Error::ElementCount`](crate::Error::ElementCount) if `out` has another length.
    pub fn decode_into(&self, out: &mut [f32]) -> Result<()> {
        self.format.check_elements(self.n_elements, out.len())?;
        self.format.decode_row(self.bytes, out)
    }

    /// Dot product with `x` (`[len()]`) in the reference order; see [`QuantType::dot_row`].
    ///
    /// # Errors
    /// [`Error::ElementCount`](crate::Error::ElementCount) if `x` has another length.
    pub fn dot(&self, x: &[f32]) -> Result<f32> {
        self.format.check_elements(self.n_elements, x.len())?;
        self.format.dot_row(self.bytes, x)
    }

    /// Index of the first weight that is NaN or infinite.
    ///
    /// # Errors
    /// None for a view that [`RowView::new`] accepted; the type is that of
    /// [`QuantType::first_non_finite`].
    pub fn first_non_finite(&self) -> Result<Option<usize>> {
        self.format.first_non_finite(self.bytes)
    }
}

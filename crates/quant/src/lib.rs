#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

pub mod arch;
pub mod encode;
mod error;
mod format;
pub mod formats;
mod quant_type;
mod row;

pub use arch::{Kernels, Loops, Q8Vectors};
pub use error::{Error, Result};
pub use format::BlockFormat;
pub use quant_type::QuantType;
pub use row::RowView;

/// Dot product of `a` and `b` with the fastest instructions of this machine; the bits are those of
/// [`arch::scalar::dot_f32`], which states the order of additions.
///
/// ```
/// # use thalweg_quant::dot_f32;
/// assert_eq!(dot_f32(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]), 32.0);
/// ```
#[inline]
#[must_use]
pub fn dot_f32(a: &[f32], b: &[f32]) -> f32 {
    Kernels::best().dot_f32(a, b)
}

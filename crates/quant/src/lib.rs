#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

pub mod arch;
mod error;
mod format;
pub mod formats;
mod quant_type;
mod row;

pub use arch::scalar::dot_f32;
pub use error::{Error, Result};
pub use format::BlockFormat;
pub use quant_type::QuantType;
pub use row::RowView;

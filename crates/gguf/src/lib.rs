#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod error;
mod file;
mod metadata;
mod platform;
mod read;
mod source;
pub mod split;
mod tensor;
mod value;
mod write;

pub use error::Error;
pub use file::{Gguf, Identity};
pub use metadata::Metadata;
pub use read::{DEFAULT_ALIGNMENT_BYTES, Header, MAX_ALIGNMENT_BYTES};
pub use source::MAX_HEADER_BYTES;
pub use tensor::{MAX_NAME_BYTES, TensorInfo, TensorSpec, TensorType};
pub use value::{Array, Value, ValueType};
pub use write::{StreamWriter, Writer};

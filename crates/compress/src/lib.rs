#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod error;
mod moments;
mod quantize;
mod rewrite;
mod role;

pub use error::{Error, Result};
pub use moments::{Exponents, InputMoments};
pub use quantize::{Fit, Plan, Planned, Quantized, QuantizedTensor, Recipe, Rule};
pub use rewrite::{Output, Progress, Rewrite, Rewritten, WrittenTensor, verify};
pub use role::{Part, Role};

#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod error;
mod file;
pub mod heal;
mod keep_map;
mod moments;
mod prune;
mod quantize;
mod rewrite;
mod role;
mod saliency;

pub use error::{Error, Result};
pub use file::hex;
pub use keep_map::{Calibration, KeepMap, Kept, Method, Retention, Source, Stats};
pub use moments::{Exponents, InputMoments};
pub use prune::{model_fingerprint, prune};
pub use quantize::{Fit, Plan, Planned, Quantized, QuantizedTensor, Recipe, Rule};
pub use rewrite::{Output, Progress, Rewrite, Rewritten, WrittenTensor, verify};
pub use role::{Part, Role};
pub use saliency::{Collector, ExpertSums, Saliency, Score};

#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod draft;
mod error;
pub mod goldens;
mod random;
mod small_model;
mod synthetic;
mod vocabulary;

pub use draft::{Draft, DraftTensor};
pub use error::Error;
pub use small_model::{SmallModel, SmallNgram, SmallTypes};
pub use synthetic::{Problem, SyntheticModel};

#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod arena;
mod backend;
mod check;
mod device;
mod error;
mod features;
mod measure;
mod ops;
mod pipeline;
mod recorder;
mod staging;
mod template;
mod tuning;

pub use backend::{WgpuBackend, WgpuBuffer, WgpuMatrix};
pub use device::{AdapterSummary, WgpuOptions, adapters};
pub use error::{Error, Result};
pub use features::Features;
pub use measure::{Arithmetic, Clock};
pub use pipeline::FORMATS;
pub use recorder::WgpuRecorder;
pub use tuning::Tuning;

/// The backend's name in reports and errors.
pub const NAME: &str = "wgpu";

#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod bias;
mod budget;
mod chunk;
mod engine;
mod error;
mod memory;
mod observe;
pub mod sample;
mod session;
mod stats;

pub use budget::{MemoryPlan, parse_bytes};
pub use engine::{Engine, EngineOptions};
pub use error::{Error, Result};
pub use memory::available_memory_bytes;
pub use observe::{Observer, Silent};
pub use session::Session;
pub use stats::Stats;
// What a caller needs to name when it opens an engine.
pub use thalweg_backend::{Backend, CpuBackend, CpuOptions, Routing};
pub use thalweg_cache::{Bias, Moce, PolicyKind};
pub use thalweg_model::ModelSpec;

#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod bias;
mod budget;
mod chunk;
mod engine;
mod error;
mod fingerprint;
mod memory;
mod observe;
pub mod sample;
mod session;
mod stats;
mod trace_record;
mod watchdog;

pub use budget::{MemoryPlan, parse_bytes};
pub use engine::{Engine, EngineOptions};
pub use error::{Error, Result};
pub use fingerprint::{FingerprintDepth, fingerprint};
pub use memory::available_memory_bytes;
pub use observe::{Observer, Silent};
pub use session::Session;
pub use stats::Stats;
pub use trace_record::TraceRecorder;
pub use watchdog::{
    MemoryReader, MemoryReading, MemorySample, SystemMemory, TripReason, Watchdog, WatchdogOptions,
    Watched,
};
// What a caller needs to name when it opens an engine.
pub use thalweg_backend::{Backend, CpuBackend, CpuOptions, Routing};
pub use thalweg_cache::{Bias, Moce, PolicyKind};
pub use thalweg_model::ModelSpec;
// What a recorder's caller needs to name.
pub use thalweg_trace::{Error as TraceError, Logits as TraceLogits};

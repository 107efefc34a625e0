#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod ahead;
mod audit;
mod bias;
mod budget;
mod chunk;
mod engine;
mod error;
mod fingerprint;
mod keep;
mod lock;
mod memory;
mod notes;
mod observe;
mod options;
mod picks;
mod planning;
mod prewarm;
mod routed;
pub mod sample;
mod session;
mod sidecar;
mod stats;
mod trace_record;
mod watchdog;

pub use budget::{DevicePlan, MemoryPlan, parse_bytes};
pub use engine::Engine;
pub use error::{Error, Result};
pub use fingerprint::{FingerprintDepth, fingerprint};
pub use memory::available_memory_bytes;
pub use notes::Note;
pub use observe::{ExpertOutputs, Observer, Silent};
pub use options::{EngineOptions, ReadAhead};
pub use planning::plan_model;
pub use session::Session;
pub use sidecar::{model_experts, open_sidecar, pack_sidecar, verify_sidecar};
pub use stats::Stats;
pub use trace_record::TraceRecorder;
pub use watchdog::{
    MemoryReader, MemoryReading, MemorySample, SystemMemory, TripReason, Watchdog, WatchdogOptions,
    Watched,
};
// What a caller needs to name when it opens an engine.
pub use thalweg_backend::{Activations, Backend, CpuBackend, CpuOptions, Routing};
pub use thalweg_cache::{Bias, Moce, PolicyKind};
pub use thalweg_model::ModelSpec;
pub use thalweg_store::bundle::{BundleProgress, Packed};
pub use thalweg_store::io::ReaderKind;
pub use thalweg_store::{LayerStats, Profile, WarmFill};
// What a recorder's caller needs to name.
pub use thalweg_trace::{Error as TraceError, Logits as TraceLogits};

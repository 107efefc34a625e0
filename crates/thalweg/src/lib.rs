#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod error;
mod generate;
mod text;

pub use error::{Error, Result};
pub use generate::{Event, Finish, GenerateOptions, Reply, generate};
pub use text::Text;
pub use thalweg_backend::{Activations, Backend, CpuBackend, CpuOptions};
pub use thalweg_cache::{Bias, Moce, PolicyKind};
pub use thalweg_gguf::Gguf;
pub use thalweg_runtime::sample::SamplerOptions;
pub use thalweg_runtime::{
    DevicePlan, Engine, EngineOptions, LayerStats, MemoryPlan, Note, Observer, Profile, ReadAhead,
    ReaderKind, Routing, Session, Silent, Stats, WarmFill, WatchdogOptions, pack_sidecar,
    parse_bytes, plan_model, verify_sidecar,
};
pub use thalweg_text::{Message, RenderOptions, SpecialTokens, Tokenizer};

/// The example of the repository's front page, compiled as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct FrontPage;

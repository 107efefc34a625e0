//! Bodies of the fuzz targets. Each takes bytes, drives one public API and panics when a promise
//! is broken; none may panic otherwise, take more than a moment or much memory.
//!
//! Every body reaches the interesting code from any bytes: where a format starts with a magic
//! number or ends with a checksum, the body puts it there. `tests/replay.rs` runs all of them on
//! recorded inputs with an ordinary toolchain.

mod bundle;
mod cache;
mod eval;
mod gguf;
mod input;
mod quant;
mod store;
mod text;
mod trace;

pub use bundle::sidecar;
pub use cache::cache_ops;
pub use eval::base_logits;
pub use gguf::{gguf, splits};
pub use quant::quant_rows;
pub use store::{arena_ops, profile, table_rows};
pub use text::{chat_template, detokenizer};
pub use trace::trace;

/// The body of a target.
pub type Body = fn(&[u8]);

/// All targets by name.
pub const TARGETS: &[(&str, Body)] = &[
    ("arena_ops", arena_ops),
    ("base_logits", base_logits),
    ("cache_ops", cache_ops),
    ("chat_template", chat_template),
    ("detokenizer", detokenizer),
    ("gguf", gguf),
    ("profile", profile),
    ("quant_rows", quant_rows),
    ("sidecar", sidecar),
    ("splits", splits),
    ("table_rows", table_rows),
    ("trace", trace),
];

//! Time of a decode token and of a prompt, from misses, bytes and a machine's constants.
//!
//! Owns the models ([`TableModel`], [`DecodeModel`], [`PrefillModel`]), the bytes that a chunked
//! prompt reads ([`union`]), and fits of the constants to rows of a table ([`fit`](mod@fit)). Does
//! not measure, and knows no model file. Invariants: 1. a constructed model holds usable constants
//! only; 2. time never falls when misses, bytes or tokens rise; 3. no prediction is below its
//! compute, nor below its reads. Cost: arithmetic; memory is said where it is not constant.
//!
//! Units: milliseconds a decode token, seconds a prompt, GB = 1e9 bytes.

mod curve;
mod decode;
pub mod fit;
mod prefill;
pub mod reference;
mod strips;
pub mod union;

pub use curve::BandwidthCurve;
pub use decode::{DecodeLoad, DecodeModel, DecodeParts, DecodeTime, TableModel, hit_rate};
pub use prefill::{PrefillChunk, PrefillModel, PrefillTime};

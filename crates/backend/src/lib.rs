#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

#[cfg(any(test, feature = "testing"))]
pub mod conformance;
mod contract;
mod cpu;
mod error;
mod routing;
mod view;

pub use contract::{
    AttentionCache, AttentionInput, AttentionShape, Backend, ConvShape, DeltaInput, DeltaShape,
    DeviceMemory, ExpertJob, ExpertRoom, HeadLayout, HeldExpert, IndexerInput, MatShape, MoeShape,
    NormShape, Retain, Rope, StreamShape,
};
pub use cpu::{Activations, CpuBackend, CpuBuffer, CpuMatrix, CpuOptions};
pub use error::{Error, Result};
pub use routing::Routing;
pub use view::{ExpertView, MatData, MatView};

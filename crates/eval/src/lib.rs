#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod base_logits;
pub mod choose;
mod error;
mod gemm;
mod host;
pub mod latency;
pub mod metrics;
pub mod overlap;
pub mod pair;
pub mod plot;
pub mod report;
pub mod side_by_side;
pub mod statistics;
mod summary;
pub mod tasks;
mod windows;

pub use error::{Error, Result};
pub use gemm::{BUCKET, GEMM_SIZE, MatrixProduct, SAG_BUCKETS, Sustained, sag};
pub use host::{
    DrivePoint, DriveReader, Gemm, HOST_FORMAT, HOST_VERSION, HostConstants, MAX_FILE_BYTES,
};
pub use summary::{DomainFigures, Figures, Summary};
pub use windows::{Cut, Window, WindowSet};

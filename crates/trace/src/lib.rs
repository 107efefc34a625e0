#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod crc;
mod csv;
mod error;
mod half;
mod header;
mod read;
mod record;
mod temp;
mod write;

pub use csv::{CSV_HEADER, export_csv, import_csv};
pub use error::Error;
pub use half::{f16_from_f32, f32_from_f16};
pub use header::{Header, Logits, MAGIC, Shape, TRAILER_MAGIC, VERSION};
pub use read::{Document, Layer, Token, Trace, TraceFile};
pub use record::{LayerChoice, RecordBuf};
pub use write::{FileWriter, Writer};

#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod access;
mod error;
mod heap;
mod key;
mod lists;
mod log;
mod math;
pub mod policies;
mod policy;
mod residency;
mod rng;
mod router;
mod routing;
mod serve;
mod set;
pub mod sim;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use access::{Access, Probs};
pub use error::Error;
pub use key::{ExpertKey, Key, KeySpace, SlotId};
pub use log::AccessLog;
pub use policy::{Policy, PolicyConfig, PolicyKind, Tuning};
pub use residency::{Reservation, Residency, SlotState};
pub use rng::SplitMix64;
pub use router::{Route, Router, softmax};
pub use routing::{Bias, Moce, RangeAvg, RangeMean, ResidentView, Weights};
pub use serve::{SecondMiss, ServeError, Served, fill, serve, serve_admitting};

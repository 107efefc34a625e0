//! The policies, one file each.
//!
//! Every type has `new(&PolicyConfig)`, allocates there and never again, and is listed in
//! `policy.rs`; [`PolicyKind::build`](crate::PolicyKind::build) makes any of them by name. Costs
//! are per call; `C` is the capacity in slots, `k` the batch. Where a victim is looked for in a
//! queue, keys that may not be evicted are passed over one by one: at most those pinned.

mod arc;
mod belady_min;
mod ema;
mod fifo;
mod inverse_router_ema;
mod least_stale;
mod lecar;
mod lfu;
mod lru;
mod lru2;
mod near_pick_ema;
mod random;
mod s3fifo;
mod sieve;
mod wtinylfu;

pub use arc::Arc;
pub use belady_min::BeladyMin;
pub use ema::Ema;
pub use fifo::Fifo;
pub use inverse_router_ema::InverseRouterEma;
pub use least_stale::LeastStale;
pub use lecar::LeCar;
pub use lfu::Lfu;
pub use lru::Lru;
pub use lru2::Lru2;
pub use near_pick_ema::NearPickEma;
pub use random::Random;
pub use s3fifo::S3Fifo;
pub use sieve::Sieve;
pub use wtinylfu::WTinyLfu;

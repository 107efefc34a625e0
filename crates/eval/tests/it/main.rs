//! What the crate's parts promise together, through its public interface alone.

mod documents;
mod engine;
mod side_by_side;
mod throttled;

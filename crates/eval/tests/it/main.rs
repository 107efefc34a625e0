//! What the crate's parts promise together, through its public interface alone.

mod documents;
mod engine;
mod throttled;

//! Criterion groups by crate.

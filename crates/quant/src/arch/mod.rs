//! Kernels by instruction set.
//!
//! Owns the arithmetic that is not about one format. `scalar` is plain Rust and the reference for
//! ever: a faster kernel for an instruction set is a file beside it, proven equal to it by tests.

pub mod scalar;

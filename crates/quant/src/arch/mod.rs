//! Kernels by instruction set, and the choice among them.
//!
//! Owns the arithmetic that is not about one format. `scalar` is plain Rust and the reference for
//! ever: a faster kernel for an instruction set is a file beside it, proven equal to it by tests.
//! `kernels` is the face: a value of [`Kernels`] is the proof that its instructions may be used.

mod kernels;
pub(crate) mod q8;
pub mod scalar;
#[cfg(target_arch = "x86_64")]
#[expect(
    unsafe_code,
    reason = "intrinsics, and entry into code for an instruction set"
)]
pub mod x86;

pub use kernels::{Kernels, Loops};
pub use q8::Q8Vectors;

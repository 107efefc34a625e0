//! The operations, one file a group as the contract's formulas go: checks, then what is recorded.

pub(crate) mod attention;
pub(crate) mod elementwise;
pub(crate) mod experts;
pub(crate) mod matmul;
pub(crate) mod norm;
pub(crate) mod sequence;

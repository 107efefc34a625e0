//! Loops over the columns of a matrix, in blocks whose sums stay in registers.
//!
//! Owns the cut into blocks; not what is computed. For operations whose columns do not depend on
//! each other, so that the cut cannot change a bit. Memory: none.

use thalweg_quant::{Kernels, Loops};

/// An operation on independent columns. Mark `columns` `#[inline(always)]`: only what is inlined is
/// compiled for the instruction set.
pub(super) trait Columns {
    /// How many there are.
    fn n_columns(&self) -> usize;

    /// Computes the `W` columns from `first` on.
    fn columns<const W: usize>(&mut self, first: usize);
}

/// Computes all columns.
pub(super) fn run(kernels: Kernels, columns: impl Columns) {
    kernels.run(InBlocks(columns));
}

struct InBlocks<C>(C);

impl<C: Columns> Loops for InBlocks<C> {
    type Output = ();

    #[inline(always)]
    fn run(mut self) {
        let (n, mut first) = (self.0.n_columns(), 0);
        while first + 64 <= n {
            self.0.columns::<64>(first);
            first += 64;
        }
        while first + 16 <= n {
            self.0.columns::<16>(first);
            first += 16;
        }
        while first < n {
            self.0.columns::<1>(first);
            first += 1;
        }
    }
}

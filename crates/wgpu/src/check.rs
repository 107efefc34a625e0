//! Checks of operands before anything is recorded, with the contract's errors.

use thalweg_backend::{Error, HeadLayout, Result, Rope};

use crate::WgpuBuffer;

/// Elements of an array of these dimensions; one too large for memory is `usize::MAX`.
pub(crate) fn volume<const N: usize>(dims: [usize; N]) -> usize {
    dims.into_iter().fold(1, usize::saturating_mul)
}

/// Fails unless `found` elements are enough.
pub(crate) fn enough(
    op: &'static str,
    what: &'static str,
    found: usize,
    expected: usize,
) -> Result<()> {
    if found < expected {
        return Err(Error::Shape {
            op,
            what,
            expected,
            found,
        });
    }
    Ok(())
}

/// Fails unless the buffer holds an array of these dimensions.
pub(crate) fn holds<const N: usize>(
    op: &'static str,
    what: &'static str,
    buffer: &WgpuBuffer,
    dims: [usize; N],
) -> Result<()> {
    enough(op, what, buffer.len(), volume(dims))
}

/// Fails unless a size satisfies its rule.
pub(crate) fn require(
    holds: bool,
    op: &'static str,
    what: &'static str,
    found: usize,
    rule: &'static str,
) -> Result<()> {
    if holds {
        return Ok(());
    }
    Err(Error::Argument {
        op,
        what,
        found,
        rule,
    })
}

/// Fails if a head reaches past its row.
pub(crate) fn layout(op: &'static str, layout: HeadLayout) -> Result<()> {
    let last = layout.n_head.saturating_sub(1);
    let reach = layout
        .offset
        .saturating_add(last.saturating_mul(layout.stride))
        .saturating_add(layout.head_dim);
    let holds = reach <= layout.row_len || layout.n_head == 0;
    require(holds, op, "end of the last head", reach, "within its row")
}

/// Fails unless a head of `dim` elements can be rotated.
pub(crate) fn rope(op: &'static str, rope: Rope, dim: usize) -> Result<()> {
    let n_rot = rope.n_rot;
    require(n_rot.is_multiple_of(2), op, "n_rot", n_rot, "even")?;
    require(
        n_rot <= dim,
        op,
        "n_rot",
        n_rot,
        "at most the head's dimensions",
    )
}

/// A size as kernels take it. What was checked against a buffer fits; what nothing reads, such as
/// the stride of a single head, may not, and is as good as any other number then.
pub(crate) fn word(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

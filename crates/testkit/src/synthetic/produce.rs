//! The bytes of one tensor after the other. Owns: cutting tensors into pieces. Does not own: what
//! the rows hold (`recipe`), how blocks are made (`blocks`).
//! Memory: one piece of about 1 MiB, or one row if that is longer.
//!
//! Invariants: 1. the pieces of a tensor add up to its size. 2. A tensor's bytes depend on the
//! model's seed, its own name and recipe alone.
//! Cost: that of the blocks.

use super::SyntheticModel;
use super::blocks::Blocks;
use super::recipe::{Data, Run, Tensor};
use crate::Error;
use crate::random::Random;

/// Blocks are made and written in pieces of about this size.
const PIECE_BYTES: usize = 1 << 20;

/// Where pieces go.
type Sink<'a> = dyn FnMut(&[u8]) -> Result<(), Error> + 'a;

/// Hands the bytes of a tensor to `sink`, in order.
///
/// # Errors
/// [`Error::NoCodec`] if the type cannot hold what the recipe asks for; [`Error::Quant`]; those of
/// `sink`.
pub(crate) fn pieces(
    model: &SyntheticModel,
    tensor: &Tensor,
    sink: &mut Sink<'_>,
) -> Result<(), Error> {
    match &tensor.data {
        Data::Rows(runs) => {
            let mut random = Random::for_tensor(model.seed, &tensor.name);
            runs.iter()
                .try_for_each(|run| rows(tensor, run, &mut random, sink))
        }
        Data::Values(values) => {
            let n = tensor.shape.iter().product();
            let mut piece = Vec::new();
            values.draw(model, &tensor.name, n, &mut |part| {
                piece.clear();
                piece.extend(part.iter().flat_map(|v| v.to_le_bytes()));
                sink(&piece)
            })
        }
    }
}

fn rows(tensor: &Tensor, run: &Run, random: &mut Random, sink: &mut Sink<'_>) -> Result<(), Error> {
    let no_codec = || Error::NoCodec {
        name: tensor.name.clone(),
        ty: tensor.ty.name(),
    };
    // Each part with the bytes that it has in a row.
    let mut parts = Vec::with_capacity(run.parts.len());
    for (len, fill) in &run.parts {
        let bytes = tensor.ty.row_bytes(*len as u64).ok_or_else(no_codec)?;
        let bytes = usize::try_from(bytes).map_err(|_| no_codec())?;
        let blocks = Blocks::new(tensor.ty, *fill).ok_or_else(no_codec)?;
        parts.push((bytes, blocks));
    }
    let row_bytes: usize = parts.iter().map(|(bytes, _)| bytes).sum();
    // Rows of a single part need not be told apart.
    let most_at_once = match parts.len() {
        1 => (PIECE_BYTES / row_bytes.max(1)).max(1),
        _ => 1,
    };
    let mut piece = Vec::with_capacity(PIECE_BYTES.max(row_bytes));
    let mut left = run.n_rows;
    while left > 0 {
        let now = left.min(most_at_once);
        left -= now;
        for (bytes, blocks) in &parts {
            let start = piece.len();
            piece.resize(start + bytes * now, 0);
            let filled = blocks.fill(random, &mut piece[start..]);
            filled.map_err(|source| Error::Quant {
                name: tensor.name.clone(),
                source,
            })?;
        }
        if left == 0 || piece.len() + row_bytes > PIECE_BYTES {
            sink(&piece)?;
            piece.clear();
        }
    }
    Ok(())
}

//! Matrix products and table look-ups on rows in their stored format.
//!
//! Each element is one `dot_f32` of the decoded row and the token's vector, whatever the kernels.
//! Rows are split over threads. Temporary space for more than one token: a tile of at most
//! [`TILE_LEN`] results, since kernels write a row's results side by side.

use super::{CpuBuffer, Team, take_mut};
use crate::contract::volume;
use crate::{Error, MatView, Result};

/// Results of a tile: 256 KiB, which stay in the second-level cache until they are moved.
const TILE_LEN: usize = 64 * 1024;
/// Rows of a tile.
const TILE_ROWS: usize = 1024;

/// `y[t, o] = W[o] . x[t]`.
pub(super) fn matmul(
    team: &Team,
    w: MatView<'_>,
    x: &[f32],
    n_tokens: usize,
    y: &mut [f32],
) -> Result<()> {
    let (n_in, n_out) = (w.n_in(), w.n_out());
    if n_tokens == 1 {
        return rows_into(team, w, 0, x, 1, y);
    }
    // Rows are split over threads, tokens are the slow dimension of `y`: compute a tile
    // transposed, then turn it.
    let tile_rows = TILE_ROWS.min(n_out).max(1);
    let tile_tokens = (TILE_LEN / tile_rows).min(n_tokens);
    let mut tile = vec![0.0; tile_rows * tile_tokens];
    for first_row in (0..n_out).step_by(tile_rows) {
        let n_rows = tile_rows.min(n_out - first_row);
        for first in (0..n_tokens).step_by(tile_tokens.max(1)) {
            let n = tile_tokens.min(n_tokens - first);
            let tile = &mut tile[..n_rows * n];
            let x = &x[first * n_in..(first + n) * n_in];
            rows_into(team, w, first_row, x, n, tile)?;
            let y = &mut y[first * n_out..(first + n) * n_out];
            team.rows(y, n_out, n_rows, |t, y| {
                for (o, y) in y[first_row..first_row + n_rows].iter_mut().enumerate() {
                    *y = tile[o * n + t];
                }
            });
        }
    }
    Ok(())
}

/// `out [rows, n]` for rows from `first_row` on and `n` tokens.
fn rows_into(
    team: &Team,
    w: MatView<'_>,
    first_row: usize,
    x: &[f32],
    n: usize,
    out: &mut [f32],
) -> Result<()> {
    team.blocks(out, n, row_work(w.n_in(), n), |row, out| {
        let rows = w.rows(first_row + row, out.len() / n.max(1));
        Ok(team.kernels().matmul(w.ty(), rows, x, n, out)?)
    })
}

/// Work of a row of `n_in` weights and `n` tokens: unpacking a weight costs about one product.
pub(super) fn row_work(n_in: usize, n: usize) -> usize {
    volume([n_in, n.saturating_add(1)])
}

/// Table rows by id, each repeated `copies` times.
pub(super) fn embed(
    team: &Team,
    table: MatView<'_>,
    ids: &[u32],
    copies: usize,
    out: &mut CpuBuffer,
) -> Result<()> {
    let n_in = table.n_in();
    let limit = table.n_out();
    if let Some(&id) = ids.iter().find(|id| **id as usize >= limit) {
        return Err(Error::Id {
            op: "embed",
            id: id.into(),
            limit: limit as u64,
        });
    }
    let row = volume([copies, n_in]);
    let out = take_mut("embed", "out", out, [ids.len(), row])?;
    team.blocks(out, row, row, |t, out| {
        for (id, out) in ids[t..].iter().zip(out.chunks_exact_mut(row)) {
            let (first, rest) = out.split_at_mut(n_in);
            let src = table.rows(*id as usize, 1);
            team.kernels().decode_row(table.ty(), src, first)?;
            for copy in rest.chunks_exact_mut(n_in) {
                copy.copy_from_slice(first);
            }
        }
        Ok(())
    })
}

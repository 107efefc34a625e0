//! Matrix products and table look-ups on rows that are dequantized as they are used.
//!
//! Rows are decoded one at a time and met by a tile of tokens, so a decoded row is reused from
//! cache. Each element is one `dot_f32` of the decoded row and the token's vector.

use thalweg_quant::dot_f32;

use super::{CpuBuffer, Team, take_mut};
use crate::contract::volume;
use crate::{Error, MatView, Result};

/// Tokens that share one decoding of a row.
const TILE_TOKENS: usize = 32;
/// Rows of a tile: bounds the temporary space to `TILE_ROWS * TILE_TOKENS` floats.
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
    // transposed, then scatter it.
    let mut tile = vec![0.0; TILE_ROWS.min(n_out) * TILE_TOKENS.min(n_tokens)];
    for first_row in (0..n_out).step_by(TILE_ROWS) {
        let n_rows = TILE_ROWS.min(n_out - first_row);
        for first in (0..n_tokens).step_by(TILE_TOKENS) {
            let n = TILE_TOKENS.min(n_tokens - first);
            let tile = &mut tile[..n_rows * n];
            rows_into(
                team,
                w,
                first_row,
                &x[first * n_in..(first + n) * n_in],
                n,
                tile,
            )?;
            for (t, y) in y[first * n_out..(first + n) * n_out]
                .chunks_exact_mut(n_out)
                .enumerate()
            {
                for (o, y) in y[first_row..first_row + n_rows].iter_mut().enumerate() {
                    *y = tile[o * n + t];
                }
            }
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
    let n_in = w.n_in();
    team.blocks(out, n, n_in * (n + 4), |row, out| {
        let mut decoded = vec![0.0; n_in];
        for (i, out) in out.chunks_exact_mut(n).enumerate() {
            w.ty()
                .decode_row(w.row(first_row + row + i), &mut decoded)?;
            for (t, y) in out.iter_mut().enumerate() {
                *y = dot_f32(&decoded, &x[t * n_in..(t + 1) * n_in]);
            }
        }
        Ok(())
    })
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
            table.ty().decode_row(table.row(*id as usize), first)?;
            for copy in rest.chunks_exact_mut(n_in) {
                copy.copy_from_slice(first);
            }
        }
        Ok(())
    })
}

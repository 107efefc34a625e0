//! Matrix products and table look-ups on rows in their stored format.
//!
//! Owns [`Vectors`], the tokens' vectors in the precision that the backend's options ask for. With
//! f32 vectors each element is one `dot_f32` of the decoded row and the vector; with vectors of
//! eight bits it is the integer dot product of `thalweg-quant`. Either has one result whatever the
//! kernels and whatever shares the call.
//! Rows are split over threads, or tokens where there are many. Temporary space for more than one
//! token: a tile of at most [`TILE_LEN`] results, or a square one of each thread, since kernels
//! write a row's results side by side; and the vectors of eight bits of a tile's tokens.

use std::ops::Range;

use thalweg_quant::{Kernels, Q8Vectors, QuantType};

use super::{Activations, CpuBuffer, Team, take_mut};
use crate::contract::volume;
use crate::{Error, MatView, Result};

/// Results of a tile: 256 KiB, which stay in the second-level cache until they are moved.
const TILE_LEN: usize = 64 * 1024;
/// Rows of a tile.
const TILE_ROWS: usize = 1024;
/// Rows and tokens of a square tile: 16 KiB.
const SQUARE: usize = 64;
/// Tokens of a thread from which on tokens are shared out and not rows: rows are then unpacked by
/// each thread, which so many tokens outweigh.
const MANY_TOKENS: usize = 16;
/// Elements of a tile's tokens that are quantized to eight bits at a time, at most three bytes each.
const Q8_LEN: usize = 320 * 1024;
/// Memory of a thread for them.
pub(super) const Q8_BYTES: u64 = 1 << 20;
/// Tokens that kernels take at once: no tile has fewer unless there are no more.
const TOKEN_GROUP: usize = 4;

/// The vectors of some tokens, as products with one format read them.
pub(super) enum Vectors<'a> {
    F32(&'a [f32], usize),
    Q8(Q8Vectors),
}

impl<'a> Vectors<'a> {
    /// `x [n_tokens, n_in]` for products with rows of `ty`.
    pub(super) fn new(team: &Team, ty: QuantType, x: &'a [f32], n_tokens: usize) -> Result<Self> {
        if Self::are_q8(team, ty) {
            let x = Q8Vectors::new(team.kernels(), ty, x, n_tokens)?;
            return Ok(Self::Q8(x));
        }
        Ok(Self::F32(x, x.len().checked_div(n_tokens).unwrap_or(0)))
    }

    /// Whether products with rows of `ty` read these vectors.
    pub(super) fn fit(&self, team: &Team, ty: QuantType) -> bool {
        match self {
            Self::F32(..) => !Self::are_q8(team, ty),
            Self::Q8(x) => x.fits(ty),
        }
    }

    /// `out[r, t] = row r . x[t]` for the vectors `tokens`.
    pub(super) fn multiply(
        &self,
        kernels: Kernels,
        ty: QuantType,
        rows: &[u8],
        tokens: Range<usize>,
        out: &mut [f32],
    ) -> Result<()> {
        match self {
            Self::F32(x, n_in) => {
                let (n, x) = (tokens.len(), &x[tokens.start * n_in..tokens.end * n_in]);
                kernels.matmul(ty, rows, x, n, out)?;
            }
            Self::Q8(x) => kernels.matmul_q8(ty, rows, x, tokens, out)?,
        }
        Ok(())
    }

    fn are_q8(team: &Team, ty: QuantType) -> bool {
        team.activations() == Activations::Q8 && Q8Vectors::supports(ty)
    }
}

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
        let x = Vectors::new(team, w.ty(), x, 1)?;
        return rows_into(team, w, 0, &x, 1, y);
    }
    if n_tokens >= MANY_TOKENS * team.n_threads() {
        let work = volume([n_in, n_out]);
        return team.blocks(y, n_out, work, |first, y| {
            let n = y.len() / n_out;
            tokens_into(team, w, &x[first * n_in..(first + n) * n_in], y)
        });
    }
    // Too few tokens to share out: rows are. Tokens are the slow dimension of `y`, so a tile is
    // computed transposed and then turned.
    let tile_rows = TILE_ROWS.min(n_out).max(1);
    let most = (Q8_LEN / n_in.max(1)).max(TOKEN_GROUP);
    let tile_tokens = (TILE_LEN / tile_rows).min(most).min(n_tokens);
    let mut tile = vec![0.0; tile_rows * tile_tokens];
    for first in (0..n_tokens).step_by(tile_tokens.max(1)) {
        let n = tile_tokens.min(n_tokens - first);
        let x = Vectors::new(team, w.ty(), &x[first * n_in..(first + n) * n_in], n)?;
        let y = &mut y[first * n_out..(first + n) * n_out];
        for first_row in (0..n_out).step_by(tile_rows) {
            let n_rows = tile_rows.min(n_out - first_row);
            let tile = &mut tile[..n_rows * n];
            rows_into(team, w, first_row, &x, n, tile)?;
            team.blocks(y, n_out, n_rows, |t, y| {
                turn(tile, n, t, y, n_out, first_row..first_row + n_rows);
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// `y[t, o] = W[o] . x[t]` on this thread, by squares that stay in the first-level cache from the
/// kernel that writes a row's results side by side to the turn.
fn tokens_into(team: &Team, w: MatView<'_>, x: &[f32], y: &mut [f32]) -> Result<()> {
    let (n_in, n_out) = (w.n_in(), w.n_out());
    let most = (Q8_LEN / n_in.max(1)).clamp(TOKEN_GROUP, SQUARE);
    let mut tile = [0.0; SQUARE * SQUARE];
    for (i, y) in y.chunks_mut(most * n_out).enumerate() {
        let (first, n) = (i * most, y.len() / n_out);
        let x = Vectors::new(team, w.ty(), &x[first * n_in..(first + n) * n_in], n)?;
        for first_row in (0..n_out).step_by(SQUARE) {
            let n_rows = SQUARE.min(n_out - first_row);
            let tile = &mut tile[..n_rows * n];
            let rows = w.rows(first_row, n_rows);
            x.multiply(team.kernels(), w.ty(), rows, 0..n, tile)?;
            turn(tile, n, 0, y, n_out, first_row..first_row + n_rows);
        }
    }
    Ok(())
}

/// Copies a tile `[columns.len(), n]`, from token `first` on, to the columns of rows `y [_, n_out]`.
///
/// Sixteen values at a time, as whole registers, which is several times faster than one by one.
fn turn(tile: &[f32], n: usize, first: usize, y: &mut [f32], n_out: usize, columns: Range<usize>) {
    const SIDE: usize = 4;
    let tokens = y.len() / n_out;
    let (whole_tokens, whole_columns) = (tokens / SIDE * SIDE, columns.len() / SIDE * SIDE);
    for t in (0..whole_tokens).step_by(SIDE) {
        for o in (0..whole_columns).step_by(SIDE) {
            let mut square = [[0.0; SIDE]; SIDE];
            for (i, row) in square.iter_mut().enumerate() {
                row.copy_from_slice(&tile[(o + i) * n + first + t..][..SIDE]);
            }
            let [a, b, c, d] = square;
            for j in 0..SIDE {
                let column = [a[j], b[j], c[j], d[j]];
                y[(t + j) * n_out + columns.start + o..][..SIDE].copy_from_slice(&column);
            }
        }
    }
    for (t, y) in y.chunks_exact_mut(n_out).enumerate() {
        let done = if t < whole_tokens { whole_columns } else { 0 };
        let rest = columns.start + done..columns.end;
        for (y, o) in y[rest].iter_mut().zip(done..) {
            *y = tile[o * n + first + t];
        }
    }
}

/// `out [rows, n]` for rows from `first_row` on and all `n` tokens of `x`.
fn rows_into(
    team: &Team,
    w: MatView<'_>,
    first_row: usize,
    x: &Vectors<'_>,
    n: usize,
    out: &mut [f32],
) -> Result<()> {
    team.blocks(out, n, row_work(w.n_in(), n), |row, out| {
        let rows = w.rows(first_row + row, out.len() / n.max(1));
        x.multiply(team.kernels(), w.ty(), rows, 0..n, out)
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

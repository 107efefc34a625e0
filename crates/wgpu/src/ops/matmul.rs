//! Products of weights and vectors, one dispatch for each part of the matrix, and table look-ups.
//!
//! A vector's result has the same bits from each kernel (`products.wgsl` says why), so which one runs
//! is a matter of time alone: one vector at a time, or tiles of them.

use bytemuck::{Pod, Zeroable, cast_slice};
use thalweg_backend::{Error, Result};
use thalweg_quant::QuantType;

use crate::check::{holds, volume, word};
use crate::pipeline::{Access, Items, Key, Op, Product};
use crate::recorder::Arg::{self, Device, Host};
use crate::{Tuning, WgpuBackend, WgpuBuffer, WgpuMatrix, WgpuRecorder};

/// A matrix that a vector is multiplied with, as `items_picks.wgsl` has it.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Pick {
    /// First byte of the matrix.
    pub(crate) matrix: u32,
    /// Row of the vectors.
    pub(crate) from: u32,
    /// Row of the results.
    pub(crate) to: u32,
}

/// Rows of weights in a buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub(crate) ty: QuantType,
    pub(crate) n_in: usize,
    pub(crate) n_rows: usize,
    pub(crate) row_bytes: usize,
    pub(crate) bytes: &'a wgpu::Buffer,
}

pub(crate) fn matmul(
    backend: &WgpuBackend,
    rec: &mut WgpuRecorder,
    w: &WgpuMatrix,
    x: &WgpuBuffer,
    n_tokens: usize,
    y: &WgpuBuffer,
) -> Result<()> {
    holds("matmul", "x", x, [n_tokens, w.n_in])?;
    holds("matmul", "y", y, [n_tokens, w.n_out])?;
    let tuning = backend.tuning();
    for part in &w.parts {
        let rows = Rows {
            ty: w.ty,
            n_in: w.n_in,
            n_rows: part.n_rows,
            row_bytes: w.row_bytes,
            bytes: &part.bytes,
        };
        let tiled = n_tokens >= tuning.tiled_from as usize;
        let n_tiles = match tiled {
            true => n_tokens.div_ceil(tuning.tile_items()),
            false => n_tokens,
        };
        let mut product = rows.product(backend, tiled, Items::Tokens, n_tokens, n_tiles, 16);
        product.first_row = part.first_row;
        product.n_out = w.n_out;
        product.record(rec, &[(3, Device(x.raw())), (4, Device(y.raw()))])?;
    }
    Ok(())
}

/// Records the products of picks with matrices of one shape and format, one behind another where
/// picks have the same matrix. The last vectors of `x` and `y` are for the caller to check.
pub(crate) fn picked(
    backend: &WgpuBackend,
    rec: &mut WgpuRecorder,
    rows: Rows<'_>,
    picks: &[Pick],
    x: &WgpuBuffer,
    y: &WgpuBuffer,
) -> Result<()> {
    let tuning = backend.tuning();
    let alignment = picks.iter().fold(16, |all, pick| all | pick.matrix) as usize;
    let alignment = 1 << alignment.trailing_zeros();
    let groups = picks.chunk_by(|a, b| a.matrix == b.matrix);
    let (few, many): (Vec<&[Pick]>, Vec<&[Pick]>) =
        groups.partition(|group| group.len() < tuning.tiled_from as usize);
    for (tiled, picks) in [(false, few.concat()), (true, many.concat())] {
        if picks.is_empty() {
            continue;
        }
        let tiles = if tiled {
            tiles(&tuning, &picks)
        } else {
            vec![]
        };
        let n_tiles = if tiled { tiles.len() } else { picks.len() };
        let n = picks.len();
        let product = rows.product(backend, tiled, Items::Picks, n, n_tiles, alignment);
        let mut args = vec![
            (3, Device(x.raw())),
            (4, Device(y.raw())),
            (5, Host(cast_slice(&picks))),
        ];
        if tiled {
            args.push((6, Host(cast_slice(&tiles))));
        }
        product.record(rec, &args)?;
    }
    Ok(())
}

/// First pick and number of picks of each tile; those of a tile have one matrix.
fn tiles(tuning: &Tuning, picks: &[Pick]) -> Vec<[u32; 2]> {
    let mut tiles = vec![];
    let mut first = 0;
    for group in picks.chunk_by(|a, b| a.matrix == b.matrix) {
        for tile in group.chunks(tuning.tile_items()) {
            tiles.push([word(first), word(tile.len())]);
            first += tile.len();
        }
    }
    tiles
}

/// A dispatch of a kernel of products.
struct Recorded<'a> {
    backend: &'a WgpuBackend,
    rows: Rows<'a>,
    key: Key,
    first_row: usize,
    n_out: usize,
    n_items: usize,
    n_tiles: usize,
    /// Rows that a workgroup computes.
    group_rows: usize,
}

impl<'a> Rows<'a> {
    /// The product of these rows, all that there are. They begin at multiples of `alignment` bytes
    /// if their length does.
    fn product(
        self,
        backend: &'a WgpuBackend,
        tiled: bool,
        items: Items,
        n_items: usize,
        n_tiles: usize,
        alignment: usize,
    ) -> Recorded<'a> {
        let tuning = backend.tuning();
        let rows = tuning.rows_for(volume([self.n_rows, n_items]));
        let alignment = alignment.min(1 << self.row_bytes.trailing_zeros().min(4));
        let (op, rows, group_rows) = match tiled {
            true => (Op::Matmul, 0, tuning.tile_rows()),
            false => (Op::Matvec, rows, (tuning.vector_groups * rows) as usize),
        };
        let product = Product {
            access: Access::of(self.ty, self.n_in, alignment),
            items,
            rows,
        };
        Recorded {
            backend,
            rows: self,
            key: Key::product(op, self.ty, product),
            first_row: 0,
            n_out: self.n_rows,
            n_items,
            n_tiles,
            group_rows,
        }
    }
}

impl Recorded<'_> {
    fn record(&self, rec: &mut WgpuRecorder, args: &[(u32, Arg<'_>)]) -> Result<()> {
        let rows = self.rows;
        let n_groups = volume([rows.n_rows.div_ceil(self.group_rows), self.n_tiles]);
        if n_groups == 0 {
            return Ok(());
        }
        let params = [
            rows.n_in,
            rows.n_rows,
            rows.row_bytes,
            self.first_row,
            self.n_out,
            self.n_items,
            self.n_tiles,
        ];
        let args = with_weights(self.backend, rows.ty, rows.bytes, args);
        rec.dispatch(self.key, &params.map(word), &args, n_groups)
    }
}

pub(crate) fn embed(
    backend: &WgpuBackend,
    rec: &mut WgpuRecorder,
    table: &WgpuMatrix,
    ids: &[u32],
    copies: usize,
    out: &WgpuBuffer,
) -> Result<()> {
    let limit = table.n_out;
    if let Some(&id) = ids.iter().find(|id| **id as usize >= limit) {
        return Err(Error::Id {
            op: "embed",
            id: id.into(),
            limit: limit as u64,
        });
    }
    holds("embed", "out", out, [ids.len(), copies, table.n_in])?;
    if volume([ids.len(), copies, table.n_in]) == 0 {
        return Ok(());
    }
    let key = Key::new(Op::Embed).of_weights(table.ty);
    for part in &table.parts {
        let params = [
            table.n_in,
            table.row_bytes,
            part.first_row,
            part.n_rows,
            ids.len(),
            copies,
        ];
        let args = [(3, Host(cast_slice(ids))), (4, Device(out.raw()))];
        let args = with_weights(backend, table.ty, &part.bytes, &args);
        let n = volume([ids.len(), copies, table.n_in.div_ceil(4)]);
        rec.each(key, &params.map(word), &args, n)?;
    }
    Ok(())
}

/// The arguments of a kernel that reads weights of `ty` from `bytes`.
pub(crate) fn with_weights<'a>(
    backend: &'a WgpuBackend,
    ty: QuantType,
    bytes: &'a wgpu::Buffer,
    others: &[(u32, Arg<'a>)],
) -> Vec<(u32, Arg<'a>)> {
    let codebook = (ty == QuantType::IQ3_S).then(|| (2, Host(cast_slice(backend.iq3_s()))));
    let weights = std::iter::once((1, Device(bytes))).chain(codebook);
    weights.chain(others.iter().copied()).collect()
}

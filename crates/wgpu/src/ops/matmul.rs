//! Products with resident matrices and table look-ups, one dispatch for each part of the matrix.

use bytemuck::cast_slice;
use thalweg_backend::{Error, Result};
use thalweg_quant::QuantType;

use crate::check::{holds, volume, word};
use crate::pipeline::{Key, Op};
use crate::recorder::Arg::{self, Device, Host};
use crate::{WgpuBackend, WgpuBuffer, WgpuMatrix, WgpuRecorder};

/// Tokens that a workgroup decodes a row for, where there are more than one.
const TOKENS: usize = 8;

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
    let tile = if n_tokens == 1 { 1 } else { TOKENS };
    let key = Key::new(Op::Matmul).of_weights(w.ty).with(word(tile));
    for part in &w.parts {
        let params = [
            w.n_in,
            part.n_rows,
            w.row_bytes,
            part.first_row,
            w.n_out,
            n_tokens,
        ];
        let args = [(3, Device(x.raw())), (4, Device(y.raw()))];
        let args = with_weights(backend, w.ty, &part.bytes, &args);
        let n_groups = volume([part.n_rows, n_tokens.div_ceil(tile)]);
        rec.dispatch(key, &params.map(word), &args, n_groups)?;
    }
    Ok(())
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

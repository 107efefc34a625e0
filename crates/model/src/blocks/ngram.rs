//! The n-gram embedding (PLE): hashed rows of a large table, gated by the residual, mixed over time.
//!
//! The table stays on disk; the caller brings the rows that [`NgramHash`] names. They depend on
//! token ids alone, so they can be on their way before the layer runs.

use thalweg_backend::{Backend, ConvShape, NormShape};
use thalweg_quant::QuantType;

use super::hyper_connection::Streams;
use crate::weights::{Check, Loader, to_usize};
use crate::{NgramHash, Result, RowSpec, Workspace};

/// Sizes of the n-gram embedding.
#[derive(Debug, Clone)]
pub(crate) struct NgramConfig {
    /// Layer before whose token mixer it acts.
    pub(crate) layer: usize,
    pub(crate) hash: NgramHash,
    /// Elements of a table row.
    pub(crate) row_dim: usize,
    pub(crate) conv_taps: usize,
    /// Tokens between the taps (the n-gram size).
    pub(crate) dilation: usize,
    /// Smallest table that holds every row of the hash.
    pub(crate) min_rows: u64,
}

impl NgramConfig {
    fn conv(&self, n_tokens: usize, s: Streams) -> ConvShape {
        let channels = s.wide();
        ConvShape {
            n_tokens,
            channels,
            taps: self.conv_taps,
            dilation: self.dilation,
        }
    }

    /// f32 elements of the convolution's history.
    pub(crate) fn state_len(&self, s: Streams) -> usize {
        self.conv(0, s).history() * s.wide()
    }
}

/// Resident weights of the n-gram embedding.
#[derive(Debug)]
pub(crate) struct Ngram<B: Backend> {
    key: B::Matrix,
    value: B::Matrix,
    norm_key: B::Buffer,
    norm_query: B::Buffer,
    norm_conv: B::Buffer,
    conv: B::Buffer,
    table_ty: QuantType,
    row_dim: usize,
}

const TABLE: &str = "per_layer_token_embd.weight";

pub(crate) fn expect(check: &mut Check<'_>, c: &NgramConfig, s: Streams) {
    let blk = format!("blk.{}", c.layer);
    check.matrix(&format!("{blk}.ple_key.weight"), &[&[s.n_embd, s.wide()]]);
    check.matrix(&format!("{blk}.ple_value.weight"), &[&[s.n_embd, s.n_embd]]);
    for norm in ["key", "query", "conv"] {
        s.expect_gamma(check, &format!("{blk}.ple_norm_{norm}.weight"));
    }
    check.vector(
        &format!("{blk}.ple_conv1d.weight"),
        &[&[c.conv_taps, s.wide()]],
    );
    // Tables are padded, so only a lower bound of the row count is known.
    let found = check.file().tensor(TABLE).map_or(0, |t| t.ne[1]);
    check.streamed(TABLE, &[&[c.row_dim, to_usize(found.max(c.min_rows))]]);
}

/// Where the table is, and its stored type; it must have passed [`expect`].
pub(crate) fn spec(check: &Check<'_>, c: &NgramConfig) -> Option<(RowSpec, QuantType)> {
    let info = check.file().tensor(TABLE)?;
    let rows = RowSpec {
        tensor: info.name.clone(),
        shard: info.file,
        offset_bytes: info.offset_bytes,
        row_bytes: to_usize(info.ty.row_bytes(info.ne[0])?),
        n_rows: info.ne[1],
        hash: c.hash.clone(),
    };
    Some((rows, QuantType::from_ggml(info.ty.id())?))
}

impl<B: Backend> Ngram<B> {
    pub(crate) fn load(
        loader: &mut Loader<'_, B>,
        c: &NgramConfig,
        table_ty: QuantType,
    ) -> Result<Self> {
        let blk = format!("blk.{}", c.layer);
        Ok(Self {
            key: loader.matrix(&format!("{blk}.ple_key.weight"))?,
            value: loader.matrix(&format!("{blk}.ple_value.weight"))?,
            norm_key: loader.vector(&format!("{blk}.ple_norm_key.weight"))?,
            norm_query: loader.vector(&format!("{blk}.ple_norm_query.weight"))?,
            norm_conv: loader.vector(&format!("{blk}.ple_norm_conv.weight"))?,
            conv: loader.vector(&format!("{blk}.ple_conv1d.weight"))?,
            table_ty,
            row_dim: c.row_dim,
        })
    }

    /// Decodes the chunk's rows, `[n_tokens, rows_per_token, row_bytes]`, into `ws.ngram`.
    pub(crate) fn embed(&self, b: &B, ws: &mut Workspace<B>, rows: &[u8]) -> Result<()> {
        let row_bytes = self.table_ty.row_bytes(self.row_dim)?;
        let n_rows = rows.len() / row_bytes;
        ws.host.resize(n_rows * self.row_dim, 0.0);
        let decoded = ws.host.chunks_exact_mut(self.row_dim);
        for (row, out) in rows.chunks_exact(row_bytes).zip(decoded) {
            self.table_ty.decode_row(row, out)?;
        }
        b.write(&mut ws.rec, &mut ws.ngram, 0, &ws.host)?;
        Ok(())
    }

    /// Adds the gated embedding and its convolution over time to the residual.
    pub(crate) fn forward(
        &self,
        b: &B,
        ws: &mut Workspace<B>,
        c: &NgramConfig,
        s: Streams,
        past: &B::Buffer,
        next: &mut B::Buffer,
    ) -> Result<()> {
        let n = ws.n_tokens;
        let len = n * s.wide();
        let rec = &mut ws.rec;
        b.matmul(rec, &self.key, &ws.ngram, n, &mut ws.normed)?;
        b.matmul(rec, &self.value, &ws.ngram, n, &mut ws.output)?;
        let key = (&ws.normed, &self.norm_key);
        let query = (&ws.residual, &self.norm_query);
        b.ngram_gate(
            rec,
            s.shape(n),
            s.eps,
            key,
            query,
            &ws.output,
            &mut ws.gates,
        )?;
        let norm = NormShape {
            n_rows: n,
            n_groups: s.count,
            width: s.n_embd,
            eps: s.eps,
        };
        b.rms_norm(rec, norm, &ws.gates, &self.norm_conv, &mut ws.proj)?;
        let conv = c.conv(n, s);
        b.causal_conv(rec, conv, &ws.proj, &self.conv, past, next, &mut ws.mixed)?;
        b.add(rec, &mut ws.residual, &ws.gates, len)?;
        b.add(rec, &mut ws.residual, &ws.mixed, len)?;
        Ok(())
    }
}

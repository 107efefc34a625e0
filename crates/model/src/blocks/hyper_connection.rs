//! Hyper-connections: how a block reads from and writes to the residual's streams.
//!
//! Reading ("mix") norms each stream, gates it through a low-rank bottleneck and takes the mean;
//! writing ("inject") adds the block's output to every stream with a weight of its own. They stand
//! where other models have layer norms; there are no others.
//!
//! Source: Hyper-Connections, arXiv 2409.19606, in the low-rank form of `qwen4exp`.

use thalweg_backend::{Backend, NormShape, StreamShape};

use crate::weights::{Check, Loader};
use crate::{Result, Workspace};

/// Sizes of the streams.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Streams {
    pub(crate) count: usize,
    pub(crate) n_embd: usize,
    pub(crate) low_rank: usize,
    pub(crate) eps: f32,
}

impl Streams {
    pub(crate) fn wide(&self) -> usize {
        self.count * self.n_embd
    }

    pub(crate) fn shape(&self, n_tokens: usize) -> StreamShape {
        StreamShape {
            n_tokens,
            n_streams: self.count,
            n_embd: self.n_embd,
        }
    }

    /// Expects a gamma over the wide residual, flat or by stream.
    pub(crate) fn expect_gamma(&self, check: &mut Check<'_>, name: &str) {
        check.vector(name, &[&[self.wide()], &[self.n_embd, self.count]]);
    }
}

/// Weights of one reading (and writing) of the streams.
#[derive(Debug)]
pub(crate) struct HyperConnection<B: Backend> {
    norm: B::Buffer,
    down: B::Matrix,
    up: B::Matrix,
    inject: Option<B::Matrix>,
}

/// Expects `{prefix}_{norm,down,up}.weight`, and `_inject` where the block writes back.
pub(crate) fn expect(check: &mut Check<'_>, prefix: &str, s: Streams, writes: bool) {
    s.expect_gamma(check, &format!("{prefix}_norm.weight"));
    check.matrix(&format!("{prefix}_down.weight"), &[&[s.wide(), s.low_rank]]);
    check.matrix(&format!("{prefix}_up.weight"), &[&[s.low_rank, s.wide()]]);
    if writes {
        check.matrix(&format!("{prefix}_inject.weight"), &[&[s.wide(), s.count]]);
    }
}

impl<B: Backend> HyperConnection<B> {
    pub(crate) fn load(loader: &mut Loader<'_, B>, prefix: &str, writes: bool) -> Result<Self> {
        let inject = format!("{prefix}_inject.weight");
        Ok(Self {
            norm: loader.vector(&format!("{prefix}_norm.weight"))?,
            down: loader.matrix(&format!("{prefix}_down.weight"))?,
            up: loader.matrix(&format!("{prefix}_up.weight"))?,
            inject: writes.then(|| loader.matrix(&inject)).transpose()?,
        })
    }

    /// Residual to `ws.input`; write weights to `ws.inject`.
    ///
    /// `n = rms(x_s) * norm`, `g = up silu(down n / S)`, `input = mean_s sigmoid(g_s) n_s`.
    pub(crate) fn mix(&self, b: &B, ws: &mut Workspace<B>, s: Streams) -> Result<()> {
        let n_tokens = ws.n_tokens;
        let rec = &mut ws.rec;
        let norm = NormShape {
            n_rows: n_tokens,
            n_groups: s.count,
            width: s.n_embd,
            eps: s.eps,
        };
        b.rms_norm(rec, norm, &ws.residual, &self.norm, &mut ws.normed)?;
        b.matmul(rec, &self.down, &ws.normed, n_tokens, &mut ws.low_rank)?;
        b.silu(rec, &mut ws.low_rank, s.count as f32, n_tokens * s.low_rank)?;
        b.matmul(rec, &self.up, &ws.low_rank, n_tokens, &mut ws.gates)?;
        b.gate_streams(rec, s.shape(n_tokens), &ws.gates, &ws.normed, &mut ws.input)?;
        if let Some(inject) = &self.inject {
            b.matmul(rec, inject, &ws.normed, n_tokens, &mut ws.inject)?;
        }
        Ok(())
    }
}

/// `ws.output` into the residual with the weights of the last `mix`.
pub(crate) fn write_back<B: Backend>(b: &B, ws: &mut Workspace<B>, s: Streams) -> Result<()> {
    let shape = s.shape(ws.n_tokens);
    b.inject(&mut ws.rec, shape, &ws.inject, &ws.output, &mut ws.residual)?;
    Ok(())
}

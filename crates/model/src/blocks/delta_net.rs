//! Gated delta net: a short convolution, then a linear recurrence with a matrix state per head.
//!
//! Source: Gated Delta Networks, arXiv 2412.06464, as used by `qwen4exp`. Value heads are in GGUF
//! order ("tiled"): value head `g` belongs to key head `g mod Hk`.

use thalweg_backend::{Backend, ConvShape, DeltaInput, DeltaShape};

use crate::weights::{Check, Loader};
use crate::{RecurrentState, Result, Workspace};

/// Sizes of a gated delta net.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeltaConfig {
    pub(crate) n_embd: usize,
    pub(crate) n_head_k: usize,
    pub(crate) n_head_v: usize,
    pub(crate) head_dim: usize,
    pub(crate) conv_taps: usize,
    pub(crate) eps: f32,
}

impl DeltaConfig {
    pub(crate) fn shape(&self, n_tokens: usize) -> DeltaShape {
        DeltaShape {
            n_tokens,
            n_head_k: self.n_head_k,
            n_head_v: self.n_head_v,
            head_dim: self.head_dim,
            eps: self.eps,
        }
    }

    pub(crate) fn channels(&self) -> usize {
        self.shape(0).channels()
    }

    /// Width of values, gate and output.
    pub(crate) fn width(&self) -> usize {
        self.n_head_v * self.head_dim
    }

    fn conv(&self, n_tokens: usize) -> ConvShape {
        let channels = self.channels();
        ConvShape {
            n_tokens,
            channels,
            taps: self.conv_taps,
            dilation: 1,
        }
    }

    /// f32 elements of one layer's state.
    pub(crate) fn state_len(&self) -> usize {
        self.shape(0).state_len() + self.conv(0).history() * self.channels()
    }

    pub(crate) fn state<B: Backend>(&self, b: &B) -> Result<RecurrentState<B>> {
        Ok(RecurrentState {
            delta: b.alloc(self.shape(0).state_len())?,
            conv: b.alloc(self.conv(0).history() * self.channels())?,
        })
    }
}

/// Weights of one gated delta net layer.
#[derive(Debug)]
pub(crate) struct DeltaNet<B: Backend> {
    qkv: B::Matrix,
    gate: B::Matrix,
    beta: B::Matrix,
    alpha: B::Matrix,
    a_log: B::Buffer,
    dt: B::Buffer,
    conv: B::Buffer,
    norm: B::Buffer,
    out: B::Matrix,
}

pub(crate) fn expect(check: &mut Check<'_>, blk: &str, c: DeltaConfig) {
    check.matrix(
        &format!("{blk}.attn_qkv.weight"),
        &[&[c.n_embd, c.channels()]],
    );
    check.matrix(
        &format!("{blk}.attn_gate.weight"),
        &[&[c.n_embd, c.width()]],
    );
    check.matrix(
        &format!("{blk}.ssm_beta.weight"),
        &[&[c.n_embd, c.n_head_v]],
    );
    check.matrix(
        &format!("{blk}.ssm_alpha.weight"),
        &[&[c.n_embd, c.n_head_v]],
    );
    check.vector(&format!("{blk}.ssm_a"), &[&[c.n_head_v]]);
    check.vector(&format!("{blk}.ssm_dt.bias"), &[&[c.n_head_v]]);
    check.vector(
        &format!("{blk}.ssm_conv1d.weight"),
        &[&[c.conv_taps, c.channels()]],
    );
    check.vector(&format!("{blk}.ssm_norm.weight"), &[&[c.head_dim]]);
    check.matrix(&format!("{blk}.ssm_out.weight"), &[&[c.width(), c.n_embd]]);
}

impl<B: Backend> DeltaNet<B> {
    pub(crate) fn load(loader: &mut Loader<'_, B>, blk: &str) -> Result<Self> {
        Ok(Self {
            qkv: loader.matrix(&format!("{blk}.attn_qkv.weight"))?,
            gate: loader.matrix(&format!("{blk}.attn_gate.weight"))?,
            beta: loader.matrix(&format!("{blk}.ssm_beta.weight"))?,
            alpha: loader.matrix(&format!("{blk}.ssm_alpha.weight"))?,
            a_log: loader.vector(&format!("{blk}.ssm_a"))?,
            dt: loader.vector(&format!("{blk}.ssm_dt.bias"))?,
            conv: loader.vector(&format!("{blk}.ssm_conv1d.weight"))?,
            norm: loader.vector(&format!("{blk}.ssm_norm.weight"))?,
            out: loader.matrix(&format!("{blk}.ssm_out.weight"))?,
        })
    }

    /// `ws.input` to `ws.output`; the state after the chunk goes to `next`.
    pub(crate) fn forward(
        &self,
        b: &B,
        ws: &mut Workspace<B>,
        c: DeltaConfig,
        past: &RecurrentState<B>,
        next: &mut RecurrentState<B>,
    ) -> Result<()> {
        let n = ws.n_tokens;
        let rec = &mut ws.rec;
        b.matmul(rec, &self.qkv, &ws.input, n, &mut ws.proj)?;
        b.matmul(rec, &self.gate, &ws.input, n, &mut ws.gate)?;
        b.matmul(rec, &self.beta, &ws.input, n, &mut ws.beta)?;
        b.matmul(rec, &self.alpha, &ws.input, n, &mut ws.decay)?;
        let conv = c.conv(n);
        b.causal_conv(
            rec,
            conv,
            &ws.proj,
            &self.conv,
            &past.conv,
            &mut next.conv,
            &mut ws.mixed,
        )?;
        let input = DeltaInput {
            u: &ws.mixed,
            b: &ws.beta,
            a: &ws.decay,
            z: &ws.gate,
            a_log: &self.a_log,
            dt: &self.dt,
            gamma: &self.norm,
        };
        b.delta_rule(
            rec,
            c.shape(n),
            input,
            &past.delta,
            &mut next.delta,
            &mut ws.heads,
        )?;
        b.matmul(rec, &self.out, &ws.heads, n, &mut ws.output)?;
        Ok(())
    }
}

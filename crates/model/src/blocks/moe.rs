//! Routed experts and the shared expert: what is resident of them.
//!
//! The router and the shared expert are dense weights; routed experts come from the caller, whose
//! results wait in `ws.partial` for the ordered sum.

use thalweg_backend::{Backend, MoeShape};
use thalweg_gguf::TensorInfo;
use thalweg_quant::QuantType;

use crate::weights::{Check, Loader, Router, to_usize};
use crate::{ExpertPart, ExpertSpec, Result, RouterOptions, Workspace};

/// Sizes of a layer's experts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MoeConfig {
    pub(crate) n_embd: usize,
    pub(crate) n_expert: usize,
    pub(crate) k: usize,
    pub(crate) n_ff: usize,
    pub(crate) n_ff_shared: usize,
}

/// Resident weights of one layer's experts.
#[derive(Debug)]
pub(crate) struct Moe<B: Backend> {
    router: Router<B::Matrix>,
    gate: B::Matrix,
    up: B::Matrix,
    down: B::Matrix,
    scale: B::Matrix,
}

pub(crate) fn expect(check: &mut Check<'_>, blk: &str, c: MoeConfig, routers: RouterOptions) {
    let (d, f, e, s) = (c.n_embd, c.n_ff, c.n_expert, c.n_ff_shared);
    check.router(&format!("{blk}.ffn_gate_inp.weight"), &[d, e], routers);
    let fused = format!("{blk}.ffn_gate_up_exps.weight");
    if check.has(&fused) {
        check.streamed(&fused, &[&[d, 2 * f, e]]);
    } else {
        check.streamed(&format!("{blk}.ffn_gate_exps.weight"), &[&[d, f, e]]);
        check.streamed(&format!("{blk}.ffn_up_exps.weight"), &[&[d, f, e]]);
    }
    check.streamed(&format!("{blk}.ffn_down_exps.weight"), &[&[f, d, e]]);
    check.matrix(&format!("{blk}.ffn_gate_inp_shexp.weight"), &[&[d]]);
    check.matrix(&format!("{blk}.ffn_gate_shexp.weight"), &[&[d, s]]);
    check.matrix(&format!("{blk}.ffn_up_shexp.weight"), &[&[d, s]]);
    check.matrix(&format!("{blk}.ffn_down_shexp.weight"), &[&[s, d]]);
}

/// Where the layer's routed experts are; the tensors must have passed [`expect`].
pub(crate) fn spec(check: &Check<'_>, blk: &str, c: MoeConfig) -> Option<ExpertSpec> {
    let tensor = |name: &str| check.file().tensor(&format!("{blk}.{name}.weight"));
    let (gate, up) = match tensor("ffn_gate_up_exps") {
        Some(fused) => (part(fused, c.n_ff, 0)?, part(fused, c.n_ff, c.n_ff)?),
        None => (
            part(tensor("ffn_gate_exps")?, c.n_ff, 0)?,
            part(tensor("ffn_up_exps")?, c.n_ff, 0)?,
        ),
    };
    let down = part(tensor("ffn_down_exps")?, c.n_embd, 0)?;
    let router = QuantType::from_ggml(tensor("ffn_gate_inp")?.ty.id())?;
    Some(ExpertSpec {
        n_expert: c.n_expert,
        router,
        k: c.k,
        parts: [gate, up, down],
    })
}

impl<B: Backend> Moe<B> {
    pub(crate) fn load(
        loader: &mut Loader<'_, B>,
        blk: &str,
        routers: RouterOptions,
    ) -> Result<Self> {
        Ok(Self {
            router: loader.router(&format!("{blk}.ffn_gate_inp.weight"), routers)?,
            gate: loader.matrix(&format!("{blk}.ffn_gate_shexp.weight"))?,
            up: loader.matrix(&format!("{blk}.ffn_up_shexp.weight"))?,
            down: loader.matrix(&format!("{blk}.ffn_down_shexp.weight"))?,
            scale: loader.matrix(&format!("{blk}.ffn_gate_inp_shexp.weight"))?,
        })
    }

    /// Scores experts for `ws.input` and chooses; the decision is in `ws.routing`.
    pub(crate) fn route(&self, b: &B, ws: &mut Workspace<B>, c: MoeConfig) -> Result<()> {
        b.matmul(
            &mut ws.rec,
            &self.router.deciding,
            &ws.input,
            ws.n_tokens,
            &mut ws.router,
        )?;
        ws.routing.reset(ws.n_tokens, c.n_expert, c.k);
        b.route(&mut ws.rec, &ws.router, &mut ws.routing)?;
        Ok(())
    }

    /// Logits of the tokens of `ws.input` into `out`, without a choice.
    pub(crate) fn predict(&self, b: &B, ws: &mut Workspace<B>, out: &mut [f32]) -> Result<()> {
        let router = self.router.guessing.as_ref();
        score(b, ws, router.unwrap_or(&self.router.deciding), out)
    }

    /// As [`predict`](Self::predict), by the stored weights as far as they were kept.
    pub(crate) fn stored(&self, b: &B, ws: &mut Workspace<B>, out: &mut [f32]) -> Result<()> {
        let router = self.router.kept.as_ref();
        score(b, ws, router.unwrap_or(&self.router.deciding), out)
    }

    /// The shared expert of `ws.input`, which needs nothing from disk.
    pub(crate) fn shared(&self, b: &B, ws: &mut Workspace<B>, c: MoeConfig) -> Result<()> {
        let n = ws.n_tokens;
        let rec = &mut ws.rec;
        b.matmul(rec, &self.gate, &ws.input, n, &mut ws.shared_gate)?;
        b.matmul(rec, &self.up, &ws.input, n, &mut ws.shared_up)?;
        b.swiglu(rec, &mut ws.shared_gate, &ws.shared_up, n * c.n_ff_shared)?;
        b.matmul(rec, &self.down, &ws.shared_gate, n, &mut ws.shared)?;
        b.matmul(rec, &self.scale, &ws.input, n, &mut ws.shared_scale)?;
        Ok(())
    }

    /// The ordered sum of routed and shared outputs, into `ws.output`.
    ///
    /// `rows[t * k + r]` is the row of `ws.partial` that holds token `t`'s choice of rank `r`.
    pub(crate) fn combine(
        &self,
        b: &B,
        ws: &mut Workspace<B>,
        c: MoeConfig,
        rows: &[u32],
    ) -> Result<()> {
        let shape = MoeShape {
            n_tokens: ws.n_tokens,
            k: c.k,
            n_embd: c.n_embd,
        };
        b.combine(
            &mut ws.rec,
            shape,
            rows,
            ws.routing.all_weights(),
            &ws.partial,
            &ws.shared,
            &ws.shared_scale,
            &mut ws.output,
        )?;
        Ok(())
    }
}

/// A router's logits of the tokens of `ws.input`, on the host.
fn score<B: Backend>(
    b: &B,
    ws: &mut Workspace<B>,
    router: &B::Matrix,
    out: &mut [f32],
) -> Result<()> {
    let n = ws.n_tokens;
    b.matmul(&mut ws.rec, router, &ws.input, n, &mut ws.router)?;
    b.read(&mut ws.rec, &ws.router, 0, out)?;
    Ok(())
}

/// `n_out` rows from `first_row` on of every expert in a tensor `[n_in, rows, n_expert]`.
fn part(info: &TensorInfo, n_out: usize, first_row: usize) -> Option<ExpertPart> {
    let ty = QuantType::from_ggml(info.ty.id())?;
    let row_bytes = info.ty.row_bytes(info.ne[0])?;
    Some(ExpertPart {
        tensor: info.name.clone(),
        shard: info.file,
        offset_bytes: info.offset_bytes + first_row as u64 * row_bytes,
        stride_bytes: row_bytes * info.ne[1],
        len_bytes: row_bytes * n_out as u64,
        ty,
        n_in: to_usize(info.ne[0]),
        n_out,
    })
}

//! Making up for what quantization of the experts took from a layer's output.
//!
//! Owns the method: with the inputs and choices of the model before (`capture`), the quantized experts
//! run again; one factor brings their output nearest to what it was (`alpha`, into the scales of the
//! down projection), and a small change of the shared expert's down projection takes on some of the rest
//! (`ridge`), encoded in its stored type. Memory: one layer's activations several times over as f64,
//! and the changed matrices. Invariants: 1. no layer's error on the data that it was made from rises;
//! 2. every tensor but the two named keeps its bytes.
//! Both steps lower that error by construction; only other data says whether they help.

pub mod alpha;
mod capture;
pub mod ridge;

use std::ops::ControlFlow;
use std::path::Path;

use thalweg_backend::{Backend, ExpertJob, MatData, Retain};
use thalweg_gguf::{Gguf, TensorInfo, TensorSpec};
use thalweg_model::{ExpertSpec, RouterOptions, outline};
use thalweg_quant::{QuantType, encode};

pub use capture::{Capture, LayerTrace};

use crate::quantize::{decoder, to_usize};
use crate::{Error, Output, Progress, Result, Rewrite, Rewritten};
use alpha::{can_scale, scale_blocks};
use ridge::{Ridge, Step};

/// Bytes that are scaled at a time.
const PIECE_BYTES: usize = 1 << 20;

/// What is done.
#[derive(Debug, Clone)]
#[expect(
    clippy::exhaustive_structs,
    reason = "callers write `Healing { field, ..default }`"
)]
pub struct Healing {
    /// How far factors are drawn back to 1, 0 to 1; `None` leaves the experts as they are.
    pub gamma: Option<f64>,
    /// Steps of the shared expert: of several, each layer takes the one that leaves least where windows
    /// are left out, or none if none helps there. Empty leaves the shared experts as they are.
    pub steps: Vec<Step>,
}

impl Default for Healing {
    fn default() -> Self {
        Self {
            gamma: Some(0.0),
            steps: vec![Step::default()],
        }
    }
}

/// What became of a layer. Errors are sums over tokens and elements of the squared difference from the
/// routed output before quantization.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct HealedLayer {
    /// Sum of squares of the output before quantization.
    pub energy: f64,
    /// Error of the quantized experts.
    pub error: f64,
    /// Factor of their output.
    pub alpha: f64,
    /// Error with it.
    pub error_alpha: f64,
    /// Numerical rank of the shared expert's hidden vectors.
    pub rank: usize,
    /// The step that was taken, if any.
    pub step: Option<Step>,
    /// Of windows left out, where steps were compared: what the step leaves, as a share of
    /// `error_alpha`.
    pub left_out: Option<f64>,
    /// Error with it, with the weights as they are stored.
    pub error_ridge: f64,
}

/// What was written.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Healed {
    /// Every tensor.
    pub written: Rewritten,
    /// One entry a layer.
    pub layers: Vec<HealedLayer>,
}

/// Writes `file`, a quantized model, to `path`, healed toward the model that `capture` recorded.
///
/// `on_layer` is told how many of how many layers are computed, and may end the work; `progress` then
/// is that of [`Rewrite::write`].
///
/// # Errors
/// [`Error::OutOfRange`] for a recording of another shape, without tokens, or with a single window
/// where steps are compared; [`Error::Unfit`] for a down projection whose type cannot be scaled or
/// written; those of reading, encoding and writing; [`Error::Stopped`].
pub fn heal<B: Backend>(
    file: &Gguf,
    capture: &mut Capture,
    healing: &Healing,
    backend: &B,
    path: &Path,
    on_layer: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    progress: &mut Progress<'_>,
) -> Result<Healed> {
    let outline = outline(file, RouterOptions::default())?;
    let spec = outline.spec();
    let (n_expert, k) = spec.experts.first().map_or((0, 0), |e| (e.n_expert, e.k));
    let shape = [spec.n_layer, n_expert, k, spec.n_embd];
    if capture.shape() != shape {
        let found = format!("{:?}", capture.shape());
        let what = "layers, experts, experts a token and width of the recorded model";
        return Err(Error::out_of_range(what, found, format!("{shape:?}")));
    }
    if capture.n_tokens() == 0 {
        return Err(Error::out_of_range("recorded tokens", 0, "at least 1"));
    }
    let mut layers = Vec::new();
    let mut downs = Vec::new();
    for (layer, experts) in spec.experts.iter().enumerate() {
        let work = Layer {
            file,
            backend,
            experts,
            layer,
            n_embd: spec.n_embd,
        };
        let (healed, down) = work.heal(capture, healing)?;
        layers.push(healed);
        downs.push(down);
        if on_layer(layer + 1, spec.n_layer).is_break() {
            return Err(Error::Stopped {
                done_bytes: 0,
                total_bytes: file.tensors().iter().map(|t| t.size_bytes).sum(),
            });
        }
    }
    let mut rewrite = Rewrite::new(file);
    for (layer, (healed, down)) in layers.iter().zip(&downs).enumerate() {
        if let Some(bytes) = down {
            let tensor = named(file, format!("blk.{layer}.ffn_down_shexp.weight"))?;
            rewrite.replace(TensorSpec::like(tensor)?, move |out| out.write(bytes))?;
        }
        if healing.gamma.is_some() {
            let tensor = named(file, format!("blk.{layer}.ffn_down_exps.weight"))?;
            let (ty, factor) = (scalable(tensor)?, healed.alpha);
            let spec = TensorSpec::like(tensor)?;
            rewrite.replace(spec, move |out| scaled(file, tensor, ty, factor, out))?;
        }
    }
    let list =
        |of: fn(&HealedLayer) -> f64| layers.iter().map(|l| of(l) as f32).collect::<Vec<_>>();
    let metadata = rewrite.metadata_mut();
    metadata.set("thalweg.heal.tokens", capture.n_tokens() as u64)?;
    metadata.set("thalweg.heal.alpha", list(|l| l.alpha))?;
    metadata.set("thalweg.heal.eta", list(|l| l.step.map_or(0.0, |s| s.eta)))?;
    let ridge = list(|l| l.step.map_or(0.0, |s| s.ridge_rel));
    metadata.set("thalweg.heal.ridge_rel", ridge)?;
    let written = rewrite.write(path, progress)?;
    Ok(Healed { written, layers })
}

fn named(file: &Gguf, name: String) -> Result<&TensorInfo> {
    file.tensor(&name).ok_or(Error::NoTensor { name })
}

fn scalable(tensor: &TensorInfo) -> Result<QuantType> {
    let ty = decoder(tensor)?;
    match can_scale(ty) {
        true => Ok(ty),
        false => Err(Error::Unfit {
            tensor: tensor.name.clone(),
            wanted: ty.name(),
            reason: "a factor does not fit into the scales of this type",
        }),
    }
}

/// Copies a tensor with all weights times `factor`.
fn scaled(
    file: &Gguf,
    tensor: &TensorInfo,
    ty: QuantType,
    factor: f64,
    out: &mut Output<'_>,
) -> Result<()> {
    let most = PIECE_BYTES / ty.block_bytes() * ty.block_bytes();
    let (mut piece, mut start) = (Vec::new(), 0);
    while start < tensor.size_bytes {
        piece.resize(to_usize(tensor.size_bytes - start).min(most), 0);
        file.read_tensor_range(tensor, start, &mut piece)?;
        scale_blocks(ty, &mut piece, factor)?;
        out.write(&piece)?;
        start += piece.len() as u64;
    }
    Ok(())
}

/// One layer of the quantized model.
struct Layer<'a, B> {
    file: &'a Gguf,
    backend: &'a B,
    experts: &'a ExpertSpec,
    layer: usize,
    n_embd: usize,
}

impl<B: Backend> Layer<'_, B> {
    /// What becomes of the layer, and the new bytes of the shared down projection.
    fn heal(
        &self,
        capture: &mut Capture,
        healing: &Healing,
    ) -> Result<(HealedLayer, Option<Vec<u8>>)> {
        let trace = capture.layer(self.layer)?;
        let found = self.routed(&trace)?;
        let wanted: Vec<f64> = trace.output.iter().map(|y| f64::from(*y)).collect();
        let error = |factor: f64| -> f64 {
            let pairs = wanted.iter().zip(&found);
            pairs.map(|(w, f)| (w - factor * f).powi(2)).sum()
        };
        let gamma = healing.gamma;
        let alpha = gamma.map_or(1.0, |gamma| alpha::alpha(&wanted, &found, gamma));
        let mut healed = HealedLayer {
            energy: wanted.iter().map(|w| w * w).sum(),
            error: error(1.0),
            alpha,
            error_alpha: error(alpha),
            rank: 0,
            step: None,
            left_out: None,
            error_ridge: error(alpha),
        };
        if healing.steps.is_empty() {
            return Ok((healed, None));
        }
        let rest = wanted.iter().zip(&found);
        let rest: Vec<f64> = rest.map(|(w, f)| w - alpha * f).collect();
        let (hidden, width) = self.shared_hidden(&trace)?;
        let ridge = Ridge::new(width, self.n_embd, &hidden, &rest)?;
        healed.rank = ridge.rank()?;
        let mut step = healing.steps.first().copied();
        if healing.steps.len() > 1 {
            let left = ridge.left_out(capture.windows(), &healing.steps)?;
            let best = left.iter().zip(&healing.steps);
            let best = best.min_by(|a, b| a.0.total_cmp(b.0));
            step = best
                .filter(|(left, _)| **left < healed.error_alpha)
                .map(|(_, s)| *s);
            let share = best.map_or(1.0, |(left, _)| left / healed.error_alpha);
            healed.left_out = Some(share.min(1.0));
        }
        let Some(step) = step else {
            return Ok((healed, None));
        };
        let change = ridge.change(step.ridge_rel)?;
        let (bytes, stored) = self.changed_down(&change, step.eta, width)?;
        let left = ridge.left(&stored, 1.0);
        // Encoding may cost more than a small step gains.
        if left >= healed.error_alpha {
            return Ok((healed, None));
        }
        healed.step = Some(step);
        healed.error_ridge = left;
        Ok((healed, Some(bytes)))
    }

    /// The routed output of the quantized experts, `[n_tokens, n_embd]`, for the recorded inputs,
    /// choices and gates.
    fn routed(&self, trace: &LayerTrace) -> Result<Vec<f64>> {
        let (b, n_embd, k) = (self.backend, self.n_embd, self.experts.k);
        let mut picks = vec![Vec::new(); self.experts.n_expert];
        for (pick, (expert, gate)) in trace.choices.iter().enumerate() {
            picks[usize::from(*expert)].push(((pick / k) as u32, *gate));
        }
        let most = picks.iter().map(Vec::len).max().unwrap_or(0);
        let mut rec = b.recorder();
        let mut x = b.alloc(trace.input.len())?;
        b.write(&mut rec, &mut x, 0, &trace.input)?;
        let mut partial = b.alloc(most * n_embd)?;
        let mut sum = vec![0.0; trace.input.len()];
        let mut outputs = Vec::new();
        for (expert, picks) in picks.iter().enumerate().filter(|(_, p)| !p.is_empty()) {
            let mut parts = [const { Vec::new() }; 3];
            for (bytes, part) in parts.iter_mut().zip(&self.experts.parts) {
                bytes.resize(to_usize(part.len_bytes), 0);
                let at = part.offset_bytes + expert as u64 * part.stride_bytes;
                self.file.read_at(part.shard, at, bytes)?;
            }
            let tokens: Vec<u32> = picks.iter().map(|(token, _)| *token).collect();
            let job = ExpertJob {
                expert: self.experts.view([&parts[0], &parts[1], &parts[2]])?,
                tokens: &tokens,
                first_row: 0,
                retain: Retain::No,
            };
            b.experts(&mut rec, &[job], &x, &mut partial)?;
            outputs.resize(picks.len() * n_embd, 0.0);
            b.read(&mut rec, &partial, 0, &mut outputs)?;
            for ((token, gate), output) in picks.iter().zip(outputs.chunks_exact(n_embd)) {
                let sum = &mut sum[*token as usize * n_embd..][..n_embd];
                for (sum, y) in sum.iter_mut().zip(output) {
                    *sum += f64::from(*gate) * f64::from(*y);
                }
            }
        }
        Ok(sum)
    }

    /// Hidden vectors of the shared expert times its gate, `[n_tokens, width]`, and the width.
    fn shared_hidden(&self, trace: &LayerTrace) -> Result<(Vec<f64>, usize)> {
        let (b, n) = (self.backend, trace.input.len() / self.n_embd);
        let matrix = |kind: &str| -> Result<_> {
            let tensor = named(self.file, format!("blk.{}.ffn_{kind}.weight", self.layer))?;
            let (n_in, n_out) = (to_usize(tensor.ne[0]), to_usize(tensor.n_rows()));
            let bytes = self.file.read_tensor(tensor)?;
            let data = MatData::new(decoder(tensor)?, n_in, n_out, bytes)?;
            Ok((b.load(data)?, n_out))
        };
        let (gate, width) = matrix("gate_shexp")?;
        let (up, _) = matrix("up_shexp")?;
        let (scale, _) = matrix("gate_inp_shexp")?;
        let mut rec = b.recorder();
        let mut x = b.alloc(trace.input.len())?;
        b.write(&mut rec, &mut x, 0, &trace.input)?;
        let (mut g, mut u) = (b.alloc(n * width)?, b.alloc(n * width)?);
        let mut s = b.alloc(n)?;
        b.matmul(&mut rec, &gate, &x, n, &mut g)?;
        b.matmul(&mut rec, &up, &x, n, &mut u)?;
        b.swiglu(&mut rec, &mut g, &u, n * width)?;
        b.matmul(&mut rec, &scale, &x, n, &mut s)?;
        let (mut hidden, mut scales) = (vec![0.0; n * width], vec![0.0; n]);
        b.read(&mut rec, &g, 0, &mut hidden)?;
        b.read(&mut rec, &s, 0, &mut scales)?;
        let rows = hidden.chunks_exact(width).zip(&scales);
        let gated = rows.flat_map(|(row, scale)| {
            let sigmoid = 1.0 / (1.0 + (-f64::from(*scale)).exp());
            row.iter().map(move |h| sigmoid * f64::from(*h))
        });
        Ok((gated.collect(), width))
    }

    /// The shared down projection with `eta` of a change, encoded in its type, and the change that its
    /// stored weights then make, `[width, n_embd]`.
    fn changed_down(&self, change: &[f64], eta: f64, width: usize) -> Result<(Vec<u8>, Vec<f64>)> {
        let tensor = named(
            self.file,
            format!("blk.{}.ffn_down_shexp.weight", self.layer),
        )?;
        let ty = decoder(tensor)?;
        if !encode::can_encode(ty) {
            return Err(Error::Unfit {
                tensor: tensor.name.clone(),
                wanted: ty.name(),
                reason: "this type can be read here but not written",
            });
        }
        let mut bytes = self.file.read_tensor(tensor)?;
        let row_bytes = to_usize(tensor.row_bytes());
        let mut stored = vec![0.0; change.len()];
        let (mut before, mut after) = (vec![0.0_f32; width], vec![0.0_f32; width]);
        for (o, row) in bytes.chunks_exact_mut(row_bytes).enumerate() {
            let quant = |source| Error::in_row(&tensor.name, (o * width) as u64, source);
            ty.decode_row(row, &mut before).map_err(quant)?;
            for (i, (new, old)) in after.iter_mut().zip(&before).enumerate() {
                *new = (f64::from(*old) + eta * change[i * self.n_embd + o]) as f32;
            }
            encode::encode_row(ty, &after, None, row).map_err(quant)?;
            ty.decode_row(row, &mut after).map_err(quant)?;
            for (i, (new, old)) in after.iter().zip(&before).enumerate() {
                stored[i * self.n_embd + o] = f64::from(*new) - f64::from(*old);
            }
        }
        Ok((bytes, stored))
    }
}

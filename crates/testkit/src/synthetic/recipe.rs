//! Which tensors a synthetic model has and what is in them. Owns: names, shapes, types, and the
//! construction that makes routers pick as asked. Does not own: bytes of blocks (`blocks`), values
//! of F32 tensors (`values`), pick shares (`routing`), keys (`metadata` of the small models).
//! Memory: a few hundred bytes a tensor.
//!
//! The residual has three zones. In the bias zone every token has the value 1, from which routers
//! read each expert's bias. In the token zone every token has random values of its own. In the
//! memory zone the first delta net writes a moving average of the token zone: keys and queries are
//! one constant, so that its state forgets at a constant rate. Routers draw their noise from token
//! and memory zone. All other blocks write so little that the zones stay what they are.
//! Invariants: 1. mean square of the residual is 1, up to what blocks write. 2. What a block reads
//! has mean square 1. 3. Zone borders are block borders.
//! Cost: nothing is filled here.

use thalweg_gguf::TensorType;

use super::blocks::Fill;
use super::values::Values;
use super::{SyntheticModel, routing};
use crate::small_model::SmallModel;
use crate::vocabulary;

/// Zones are multiples of this, and so of every dense type's block.
pub(crate) const ZONE_STEP: usize = 64;
/// Mean square that all blocks together add to the residual's 1. It makes the next token depend on
/// the ones before, so that greedy text does not run in circles.
const WRITTEN_SHARE: f64 = 0.1;
/// The same of a model with a memory, which does that as well: what blocks write changes from token
/// to token, so that it weakens the correlation.
const WRITTEN_SHARE_WITH_MEMORY: f64 = 0.02;
/// Norms carry this gain: gates near one half make a mean square of 1 of it.
const GAIN: f32 = 2.0;
/// Root mean square of the memory's input: small enough for `silu` to be nearly linear, large
/// enough for a norm's epsilon not to matter.
const MEMORY_INPUT: f64 = 0.4;
/// Keys and queries of the memory before `silu`.
const MEMORY_KEY: f64 = 4.0;
/// Deviation of the logits.
const LOGITS: f64 = 3.0;
/// What markers such as the end of a turn have as logits, so that benchmarks are not cut short.
const MARKER_LOGIT: f64 = -20.0;

/// One tensor to be.
#[derive(Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) ty: TensorType,
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Data,
}

/// What is in a tensor.
#[derive(Debug)]
pub(crate) enum Data {
    /// Runs of equal rows, all rows together.
    Rows(Vec<Run>),
    /// F32 values.
    Values(Values),
}

/// So many rows, each with these parts: length and fill.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) n_rows: usize,
    pub(crate) parts: Vec<(usize, Fill)>,
}

/// Widths of the residual's zones, in this order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Zones {
    pub(crate) bias: usize,
    pub(crate) memory: usize,
    pub(crate) token: usize,
}

/// All tensors, in file order.
pub(crate) fn tensors(model: &SyntheticModel) -> Vec<Tensor> {
    let shape = model.shape();
    let mut recipe = Recipe {
        model,
        zones: Zones::of(model.n_embd),
        wide: shape.streams * shape.n_embd,
        streams: shape.streams as f64,
        written: 0.0,
        shape,
        tensors: Vec::new(),
    };
    let share = match recipe.has_memory() {
        true => WRITTEN_SHARE_WITH_MEMORY,
        false => WRITTEN_SHARE,
    };
    // Two blocks a layer.
    recipe.written = (share / (2.0 * model.n_layer as f64)).sqrt();
    recipe.all();
    recipe.tensors
}

impl Zones {
    pub(crate) fn of(n_embd: usize) -> Self {
        let quarter = (n_embd / 4 / ZONE_STEP).max(1) * ZONE_STEP;
        Self {
            bias: quarter,
            memory: quarter,
            token: n_embd.saturating_sub(2 * quarter),
        }
    }

    fn parts(self, bias: Fill, memory: Fill, token: Fill) -> Vec<(usize, Fill)> {
        vec![
            (self.bias, bias),
            (self.memory, memory),
            (self.token, token),
        ]
    }
}

struct Recipe<'a> {
    model: &'a SyntheticModel,
    /// The same sizes as a small model has them.
    shape: SmallModel,
    zones: Zones,
    wide: usize,
    streams: f64,
    /// Root mean square of a block's output.
    written: f64,
    tensors: Vec<Tensor>,
}

impl Recipe<'_> {
    fn all(&mut self) {
        let (d, n_vocab, zones) = (self.shape.n_embd, self.shape.n_vocab, self.zones);
        let dense = self.model.dense_type;
        let memory = if self.has_memory() {
            Fill::Zero
        } else {
            Fill::Random(1.0)
        };
        let embedding = zones.parts(Fill::Constant(1.0), memory, Fill::Random(1.0));
        self.rows(
            "token_embd.weight",
            dense,
            &[d, n_vocab],
            vec![run(n_vocab, embedding)],
        );
        let n_markers = vocabulary::MARKERS.len();
        let marker = Fill::Constant(MARKER_LOGIT / zones.bias as f64);
        let word = Fill::Random(LOGITS / ((zones.memory + zones.token) as f64).sqrt());
        let head = vec![
            run(n_markers, zones.parts(marker, Fill::Zero, Fill::Zero)),
            run(n_vocab - n_markers, zones.parts(Fill::Zero, word, word)),
        ];
        self.rows("output.weight", dense, &[d, n_vocab], head);
        self.hyper_connection("output_hc", false);
        if let Some(ngram) = self.shape.ngram {
            let n_rows = usize::try_from(ngram.n_rows()).unwrap_or(usize::MAX);
            let width = d / ngram.n_heads();
            self.random("per_layer_token_embd.weight", &[width, n_rows], 1.0);
        }
        for layer in 0..self.shape.n_layer {
            let blk = format!("blk.{layer}");
            self.hyper_connection(&format!("{blk}.hc_attn"), true);
            if !self.shape.is_recurrent(layer) {
                self.attention(&blk);
            } else if layer == 0 && self.has_memory() {
                self.memory(&blk);
            } else {
                self.delta_net(&blk);
            }
            self.hyper_connection(&format!("{blk}.hc_ffn"), true);
            self.experts(&blk, layer);
            if self.shape.ngram.is_some_and(|ngram| ngram.layer == layer) {
                self.ngram(&blk);
            }
        }
    }

    fn has_memory(&self) -> bool {
        self.model.correlation > 0.0
    }

    /// Gates within 10 % of one half, write weights within 30 % of 1.
    fn hyper_connection(&mut self, prefix: &str, writes: bool) {
        let (wide, rank) = (self.wide, self.shape.low_rank);
        self.values(
            &format!("{prefix}_norm.weight"),
            &[wide],
            Values::Normal(f64::from(GAIN), 0.1),
        );
        let per_stream = self.streams * by_fan_in(wide) / f64::from(GAIN);
        self.random(&format!("{prefix}_down.weight"), &[wide, rank], per_stream);
        // silu leaves 0.6 of a normal value; gates get a deviation of 0.2 before the sigmoid.
        let up = 0.33 * by_fan_in(rank);
        self.random(&format!("{prefix}_up.weight"), &[rank, wide], up);
        if writes {
            let shape = [wide, self.shape.streams];
            self.random(&format!("{prefix}_inject.weight"), &shape, 0.3 * per_stream);
        }
    }

    fn delta_net(&mut self, blk: &str) {
        let (d, channels, width) = self.delta_sizes();
        let (heads, unit) = (self.shape.n_head_delta_v, by_fan_in(d));
        self.random(&format!("{blk}.attn_qkv.weight"), &[d, channels], unit);
        self.random(&format!("{blk}.attn_gate.weight"), &[d, width], unit);
        self.random(&format!("{blk}.ssm_beta.weight"), &[d, heads], unit);
        self.random(&format!("{blk}.ssm_alpha.weight"), &[d, heads], unit);
        self.values(&format!("{blk}.ssm_a"), &[heads], Values::Decay);
        let steps = Values::Normal(-1.0, 0.5);
        self.values(&format!("{blk}.ssm_dt.bias"), &[heads], steps);
        let taps = [self.shape.conv_kernel, channels];
        self.values(
            &format!("{blk}.ssm_conv1d.weight"),
            &taps,
            Values::Normal(0.0, 0.5),
        );
        self.delta_norm(blk);
        let out = 2.0 * self.written * by_fan_in(width);
        self.random(&format!("{blk}.ssm_out.weight"), &[width, d], out);
    }

    /// The delta net of layer 0 as a moving average: `average += (1 - kept) (token - average)`.
    fn memory(&mut self, blk: &str) {
        let (d, channels, width) = self.delta_sizes();
        let (heads, head_dim) = (self.shape.n_head_delta_v, self.shape.delta_dim);
        let zones = self.zones;
        let kept = routing::memory(self.model.correlation);
        // The memory zone is empty still, so the norm makes the others larger.
        let one = 1.0 / (1.0 - zones.memory as f64 / d as f64).sqrt();
        let constant = |value: f64| Fill::Constant(value / (one * zones.bias as f64));
        let from_bias = |fill: Fill| zones.parts(fill, Fill::Zero, Fill::Zero);

        // The mean of `silu(x)` is zero for this mean of `x`, to the fourth order.
        let center = constant(-0.5 * MEMORY_INPUT * MEMORY_INPUT);
        let input = Fill::Random(MEMORY_INPUT * by_fan_in(zones.token) / one);
        let qkv = vec![
            run(channels - width, from_bias(constant(MEMORY_KEY))),
            run(width, zones.parts(center, Fill::Zero, input)),
        ];
        let dense = self.model.dense_type;
        self.rows(
            &format!("{blk}.attn_qkv.weight"),
            dense,
            &[d, channels],
            qkv,
        );
        // Gates stay near one half.
        self.random(
            &format!("{blk}.attn_gate.weight"),
            &[d, width],
            0.2 * by_fan_in(d),
        );
        let rate = constant(routing::logit(1.0 - kept));
        self.rows(
            &format!("{blk}.ssm_beta.weight"),
            dense,
            &[d, heads],
            vec![run(heads, from_bias(rate))],
        );
        self.rows(
            &format!("{blk}.ssm_alpha.weight"),
            dense,
            &[d, heads],
            vec![run(heads, from_bias(Fill::Zero))],
        );
        // Decay besides the rate: none worth mentioning.
        self.values(&format!("{blk}.ssm_a"), &[heads], Values::Same(-1e-4));
        self.values(&format!("{blk}.ssm_dt.bias"), &[heads], Values::Same(0.0));
        let kernel = self.shape.conv_kernel;
        self.values(
            &format!("{blk}.ssm_conv1d.weight"),
            &[kernel, channels],
            Values::LastTap(kernel),
        );
        self.delta_norm(blk);

        // The head's norm brings the average to 1, less what its epsilon takes.
        let rate = 1.0 - kept;
        let average = 0.25 * MEMORY_INPUT * MEMORY_INPUT * rate / (2.0 - rate);
        let square = average / head_dim as f64;
        let normed = (square / (square + 1e-6)).sqrt();
        let out = Fill::Random(2.0 * by_fan_in(width) / normed);
        let whole = |fill| vec![(width, fill)];
        let rows = vec![
            run(zones.bias, whole(Fill::Zero)),
            run(zones.memory, whole(out)),
            run(zones.token, whole(Fill::Zero)),
        ];
        self.rows(&format!("{blk}.ssm_out.weight"), dense, &[width, d], rows);
    }

    fn delta_sizes(&self) -> (usize, usize, usize) {
        let s = &self.shape;
        let width = s.n_head_delta_v * s.delta_dim;
        (s.n_embd, 2 * s.n_head_delta_k * s.delta_dim + width, width)
    }

    fn delta_norm(&mut self, blk: &str) {
        let dim = self.shape.delta_dim;
        self.values(
            &format!("{blk}.ssm_norm.weight"),
            &[dim],
            Values::Normal(1.0, 0.05),
        );
    }

    fn attention(&mut self, blk: &str) {
        let s = &self.shape;
        let (d, head, n_index, index) = (s.n_embd, s.head_dim, s.n_head_index, s.index_dim);
        let (q, kv, unit) = (s.n_head * head, s.n_head_kv * head, by_fan_in(d));
        // Each head has its queries, then its gates.
        self.random(&format!("{blk}.attn_q.weight"), &[d, 2 * q], unit);
        self.random(&format!("{blk}.attn_k.weight"), &[d, kv], unit);
        self.random(&format!("{blk}.attn_v.weight"), &[d, kv], unit);
        let out = 2.0 * self.written * by_fan_in(q);
        self.random(&format!("{blk}.attn_output.weight"), &[q, d], out);
        let norm = Values::Normal(1.0, 0.05);
        self.values(&format!("{blk}.attn_q_norm.weight"), &[head], norm);
        self.values(&format!("{blk}.attn_k_norm.weight"), &[head], norm);
        self.random(
            &format!("{blk}.indexer.q_proj.weight"),
            &[d, n_index * index],
            unit,
        );
        self.random(&format!("{blk}.indexer.k_proj.weight"), &[d, index], unit);
        self.values(&format!("{blk}.indexer.q_norm.weight"), &[index], norm);
        self.values(&format!("{blk}.indexer.k_norm.weight"), &[index], norm);
    }

    fn experts(&mut self, blk: &str, layer: usize) {
        let s = &self.shape;
        let (d, f, shared, n) = (s.n_embd, s.n_ff, s.n_ff_shared, s.n_expert);
        let ty = self.model.expert_type;
        self.values(
            &format!("{blk}.ffn_gate_inp.weight"),
            &[d, n],
            Values::Router(layer),
        );
        // A gated value has a root mean square near 0.6; weights or a gate halve the sum.
        let (unit, down) = (by_fan_in(d), |n: usize| 2.0 * self.written * by_fan_in(n));
        let (routed_down, shared_down) = (down(f), down(shared));
        for part in ["gate", "up"] {
            let name = format!("{blk}.ffn_{part}_exps.weight");
            self.filled(&name, ty, &[d, f, n], unit);
        }
        let name = format!("{blk}.ffn_down_exps.weight");
        self.filled(&name, ty, &[f, d, n], routed_down);
        let scale = Values::Normal(0.0, unit);
        self.values(&format!("{blk}.ffn_gate_inp_shexp.weight"), &[d], scale);
        self.random(&format!("{blk}.ffn_gate_shexp.weight"), &[d, shared], unit);
        self.random(&format!("{blk}.ffn_up_shexp.weight"), &[d, shared], unit);
        self.random(
            &format!("{blk}.ffn_down_shexp.weight"),
            &[shared, d],
            shared_down,
        );
    }

    fn ngram(&mut self, blk: &str) {
        let (d, wide) = (self.shape.n_embd, self.wide);
        let kernel = self.shape.ngram.map_or(0, |ngram| ngram.conv_kernel);
        self.random(&format!("{blk}.ple_key.weight"), &[d, wide], by_fan_in(d));
        let value = 2.0 * self.written * by_fan_in(d);
        self.random(&format!("{blk}.ple_value.weight"), &[d, d], value);
        for norm in ["key", "query", "conv"] {
            let name = format!("{blk}.ple_norm_{norm}.weight");
            self.values(&name, &[wide], Values::Normal(1.0, 0.05));
        }
        let taps = Values::Normal(0.0, self.written);
        self.values(&format!("{blk}.ple_conv1d.weight"), &[kernel, wide], taps);
    }

    /// A random matrix of the dense type.
    fn random(&mut self, name: &str, shape: &[usize], rms: f64) {
        self.filled(name, self.model.dense_type, shape, rms);
    }

    fn filled(&mut self, name: &str, ty: TensorType, shape: &[usize], rms: f64) {
        let n_rows = shape[1..].iter().product();
        let runs = vec![run(n_rows, vec![(shape[0], Fill::Random(rms))])];
        self.rows(name, ty, shape, runs);
    }

    fn rows(&mut self, name: &str, ty: TensorType, shape: &[usize], runs: Vec<Run>) {
        self.tensors.push(Tensor {
            name: name.to_owned(),
            ty: fitting(ty, shape[0]),
            shape: shape.to_vec(),
            data: Data::Rows(runs),
        });
    }

    fn values(&mut self, name: &str, shape: &[usize], values: Values) {
        self.tensors.push(Tensor {
            name: name.to_owned(),
            ty: TensorType::F32,
            shape: shape.to_vec(),
            data: Data::Values(values),
        });
    }
}

/// The type, or the nearest in size whose blocks divide the row, as llama.cpp falls back.
fn fitting(ty: TensorType, row: usize) -> TensorType {
    let small = match ty.name() {
        name if name.starts_with("IQ") => TensorType::IQ4_NL,
        _ if ty.block_len() > 32 => TensorType::Q4_0,
        _ => TensorType::Q8_0,
    };
    [ty, small, TensorType::Q8_0]
        .into_iter()
        .find(|ty| ty.row_bytes(row as u64).is_some())
        .unwrap_or(TensorType::F16)
}

fn run(n_rows: usize, parts: Vec<(usize, Fill)>) -> Run {
    Run { n_rows, parts }
}

/// The deviation that keeps a mean square of 1.
fn by_fan_in(n: usize) -> f64 {
    1.0 / (n.max(1) as f64).sqrt()
}

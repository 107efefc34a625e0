//! Small `qwen4exp` models. Owns: every key and tensor of the architecture, shapes, and values
//! under which each part matters. Does not own: encoding (`draft`), the forward pass (nothing
//! here runs a model). Names and order of dimensions as in llama.cpp's `qwen4exp`.
//! Memory: the whole model, encoded, plus one tensor as f32.
//!
//! Invariants: 1. the default is complete: a reader that checks everything accepts it. 2. Mean
//! square of activations stays near 1, routers are neither flat nor settled. 3. The same fields
//! give the same bytes on every machine.
//! Cost: about 5 ns a weight; the default has 2.2 million.

use std::path::Path;

use thalweg_gguf::{Metadata, TensorType, Value};

use crate::draft::{Draft, DraftTensor};
use crate::random::{Random, finish};
use crate::{Error, vocabulary};

const ARCHITECTURE: &str = "qwen4exp";
/// What llama.cpp's own `general.file_type` calls "mostly F32"; informative only.
const FILE_TYPE_ALL_F32: u32 = 0;

/// The shape and seed of a small model. All fields are free; [`write`](Self::write) says which do
/// not go together.
///
/// The default has 4 layers (3 gated delta nets, 1 sparse attention), 128 wide, 16 experts of
/// which 4 are used, 512 tokens, everything F32: 9 MB.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "tests write `SmallModel { field, ..default }`"
)]
pub struct SmallModel {
    /// Layers, without an MTP block.
    pub n_layer: usize,
    /// Every n-th layer is attention, the others are gated delta nets.
    pub full_attention_interval: usize,
    /// By layer, whether it is a gated delta net; written instead of relying on the interval.
    pub recurrent_layers: Option<Vec<bool>>,
    /// Appends an MTP block, which engines ignore.
    pub mtp: bool,
    /// Trained context in tokens; nothing is sized by it.
    pub n_ctx: usize,
    /// Tokens in the vocabulary, at least 261.
    pub n_vocab: usize,
    /// Width of the residual.
    pub n_embd: usize,
    /// Streams of the residual.
    pub streams: usize,
    /// Rank of the hyper-connections.
    pub low_rank: usize,

    /// Attention: query heads.
    pub n_head: usize,
    /// Attention: key and value heads, a divisor of `n_head`.
    pub n_head_kv: usize,
    /// Attention: width of a head.
    pub head_dim: usize,
    /// Attention: rotated dimensions of a head.
    pub n_rot: usize,
    /// Attention: query heads of the indexer.
    pub n_head_index: usize,
    /// Attention: width of the indexer's heads, at least `n_rot`.
    pub index_dim: usize,
    /// Attention: tokens in a block that the indexer scores as one; 0 for dense attention.
    pub block_tokens: usize,
    /// Attention: tokens that the indexer selects, a multiple of `block_tokens`.
    pub budget_tokens: usize,

    /// Delta net: query and key heads.
    pub n_head_delta_k: usize,
    /// Delta net: value heads, a multiple of the key heads.
    pub n_head_delta_v: usize,
    /// Delta net: width of a head.
    pub delta_dim: usize,
    /// Delta net: taps of the convolution over time.
    pub conv_kernel: usize,

    /// Experts of a layer.
    pub n_expert: usize,
    /// Experts that a token uses.
    pub n_expert_used: usize,
    /// Width of a routed expert.
    pub n_ff: usize,
    /// Width of the shared expert.
    pub n_ff_shared: usize,
    /// Writes gate and up of an expert as one tensor, in the type of the gate.
    pub fused_gate_up: bool,

    /// The n-gram embedding, if there is one.
    pub ngram: Option<SmallNgram>,
    /// Leaves out `output.weight`: the head is the embedding.
    pub tied: bool,
    /// Types of the tensors.
    pub types: SmallTypes,
    /// Weights follow from the seed and a tensor's name.
    pub seed: u64,
}

/// The n-gram embedding of a [`SmallModel`]. It looks up `(size - 1) * heads_per_size` rows a token;
/// a row is `n_embd` divided by that number wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "tests write `SmallNgram { field, ..default }`"
)]
pub struct SmallNgram {
    /// The layer that adds it; a gated delta net.
    pub layer: usize,
    /// Tokens in the longest n-gram, 2 to 8.
    pub size: usize,
    /// Hash heads for each length from 2 to `size`.
    pub heads_per_size: usize,
    /// Rows of a head: the moduli are the primes from here on.
    pub min_rows: u64,
    /// Taps of the convolution over time; its dilation is `size`.
    pub conv_kernel: usize,
    /// Seed of the hash multipliers.
    pub hash_seed: u64,
}

/// Tensor types of a [`SmallModel`]. Norms, routers, convolutions and the delta nets' constants
/// are always F32, as llama.cpp's converter writes them.
///
/// Where a row is not whole blocks of the type, Q8_0 is taken, or else F16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "tests write `SmallTypes { field, ..default }`"
)]
pub struct SmallTypes {
    /// Every matrix that is none of those below.
    pub dense: TensorType,
    /// `token_embd` and `output`.
    pub embedding: TensorType,
    /// Gates of routed experts.
    pub gate: TensorType,
    /// Up projections of routed experts.
    pub up: TensorType,
    /// Down projections of routed experts.
    pub down: TensorType,
    /// The n-gram table.
    pub table: TensorType,
}

impl SmallModel {
    /// Writes the model to one GGUF file, replacing what was there.
    ///
    /// # Errors
    /// [`Error::Setting`] for fields that do not go together; [`Error::Quant`] for a type without
    /// quantizer; [`Error::Gguf`] if the writer or the disk refuses.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.draft()?.write(path)
    }

    /// As [`write`](Self::write), with the draft changed by `edit` first.
    ///
    /// # Errors
    /// Those of [`write`](Self::write) and of `edit`.
    pub fn write_with(
        &self,
        path: impl AsRef<Path>,
        edit: impl FnOnce(&mut Draft) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut draft = self.draft()?;
        edit(&mut draft)?;
        draft.write(path)
    }

    /// The model in memory.
    ///
    /// # Errors
    /// [`Error::Setting`] and [`Error::Quant`] as [`write`](Self::write).
    pub fn draft(&self) -> Result<Draft, Error> {
        self.check()?;
        let metadata = self.metadata()?;
        let mut build = Build {
            model: self,
            tensors: Vec::new(),
        };
        build.model()?;
        Ok(Draft {
            metadata,
            tensors: build.tensors,
        })
    }

    /// Whether a layer is a gated delta net. The MTP block is not.
    #[must_use]
    pub fn is_recurrent(&self, layer: usize) -> bool {
        match &self.recurrent_layers {
            _ if layer >= self.n_layer => false,
            Some(layers) => layers.get(layer).copied().unwrap_or(false),
            None => !(layer + 1).is_multiple_of(self.full_attention_interval.max(1)),
        }
    }

    /// Layers and MTP block.
    fn n_block(&self) -> usize {
        self.n_layer + usize::from(self.mtp)
    }

    fn wide(&self) -> usize {
        self.streams * self.n_embd
    }

    fn delta_width(&self) -> usize {
        self.n_head_delta_v * self.delta_dim
    }

    /// Channels that the delta net's convolution runs over: queries, keys, values.
    fn delta_channels(&self) -> usize {
        2 * self.n_head_delta_k * self.delta_dim + self.delta_width()
    }

    /// What the writer would not notice; zero sizes are caught as tensor shapes.
    fn check(&self) -> Result<(), Error> {
        let rules = [
            ("n_layer", self.n_layer, self.n_layer > 0, "must be above 0"),
            (
                "n_rot",
                self.n_rot,
                self.n_rot.is_multiple_of(2),
                "must be even",
            ),
            (
                "n_rot",
                self.n_rot,
                self.n_rot <= self.head_dim.min(self.index_dim),
                "must not exceed head_dim and index_dim",
            ),
            (
                "n_head",
                self.n_head,
                self.n_head_kv > 0 && self.n_head.is_multiple_of(self.n_head_kv),
                "must be a multiple of n_head_kv",
            ),
            (
                "n_head_delta_v",
                self.n_head_delta_v,
                self.n_head_delta_k > 0 && self.n_head_delta_v.is_multiple_of(self.n_head_delta_k),
                "must be a multiple of n_head_delta_k",
            ),
            (
                "n_expert_used",
                self.n_expert_used,
                self.n_expert_used > 0 && self.n_expert_used <= self.n_expert,
                "must be from 1 to n_expert",
            ),
            (
                "budget_tokens",
                self.budget_tokens,
                self.block_tokens == 0 || self.budget_tokens.is_multiple_of(self.block_tokens),
                "must be a multiple of block_tokens",
            ),
            (
                "recurrent_layers.len()",
                self.recurrent_layers
                    .as_ref()
                    .map_or(self.n_layer, Vec::len),
                self.recurrent_layers
                    .as_ref()
                    .is_none_or(|r| r.len() == self.n_layer),
                "must be n_layer",
            ),
        ];
        let ngram = self.ngram.iter().flat_map(|ngram| {
            let heads = ngram.n_heads();
            [
                (
                    "ngram.size",
                    ngram.size,
                    (2..=8).contains(&ngram.size),
                    "must be from 2 to 8",
                ),
                (
                    "ngram.heads_per_size",
                    ngram.heads_per_size,
                    (1..=64).contains(&heads) && self.n_embd.is_multiple_of(heads),
                    "the rows of a token must be at most 64 and divide n_embd",
                ),
                (
                    "ngram.layer",
                    ngram.layer,
                    self.is_recurrent(ngram.layer),
                    "must be a gated delta net",
                ),
            ]
        });
        for (field, found, holds, rule) in rules.into_iter().chain(ngram) {
            if !holds {
                return Err(Error::Setting { field, found, rule });
            }
        }
        Ok(())
    }

    /// The keys that describe the model.
    pub(crate) fn metadata(&self) -> Result<Metadata, Error> {
        let mut keys = Keys(Metadata::new());
        keys.0.insert("general.architecture", ARCHITECTURE)?;
        keys.0
            .insert("general.name", format!("small-{}", self.seed))?;
        keys.0.insert("general.file_type", FILE_TYPE_ALL_F32)?;
        keys.0.insert("general.quantization_version", 2_u32)?;

        keys.size("block_count", self.n_block())?;
        if self.mtp {
            keys.size("nextn_predict_layers", 1)?;
        }
        keys.size("context_length", self.n_ctx)?;
        keys.size("embedding_length", self.n_embd)?;
        keys.size("attention.head_count", self.n_head)?;
        keys.size("attention.head_count_kv", self.n_head_kv)?;
        keys.size("attention.key_length", self.head_dim)?;
        keys.size("attention.value_length", self.head_dim)?;
        keys.value("attention.layer_norm_rms_epsilon", 1e-6_f32)?;
        keys.value("rope.freq_base", 1e7_f32)?;
        keys.size("rope.dimension_count", self.n_rot)?;
        let third = i32::try_from(self.n_rot / 6).unwrap_or(i32::MAX);
        let half = i32::try_from(self.n_rot / 2).unwrap_or(i32::MAX);
        keys.value(
            "rope.dimension_sections",
            vec![half - 2 * third, third, third, 0],
        )?;
        keys.size("expert_count", self.n_expert)?;
        keys.size("expert_used_count", self.n_expert_used)?;
        keys.size("expert_feed_forward_length", self.n_ff)?;
        keys.size("expert_shared_feed_forward_length", self.n_ff_shared)?;
        keys.size("ssm.conv_kernel", self.conv_kernel)?;
        keys.size("ssm.state_size", self.delta_dim)?;
        keys.size("ssm.group_count", self.n_head_delta_k)?;
        keys.size("ssm.time_step_rank", self.n_head_delta_v)?;
        keys.size("ssm.inner_size", self.delta_width())?;
        keys.size("full_attention_interval", self.full_attention_interval)?;
        let by_block = || 0..self.n_block();
        if self.recurrent_layers.is_some() {
            let recurrent: Vec<bool> = by_block().map(|l| self.is_recurrent(l)).collect();
            keys.value("attention.recurrent_layers", recurrent)?;
        }
        keys.size("hyper_connection.count", self.streams)?;
        keys.size("hyper_connection.low_rank", self.low_rank)?;
        keys.size("attention.indexer.head_count", self.n_head_index)?;
        keys.size("attention.indexer.key_length", self.index_dim)?;
        keys.size("attention.indexer.top_k", self.budget_tokens)?;
        let block_tokens = i32::try_from(self.block_tokens).unwrap_or(i32::MAX);
        // The MTP block attends to everything.
        let ratio = |l| {
            if self.is_recurrent(l) || l >= self.n_layer {
                0
            } else {
                block_tokens
            }
        };
        keys.value(
            "attention.compress_ratios",
            by_block().map(ratio).collect::<Vec<_>>(),
        )?;
        if let Some(ngram) = &self.ngram {
            let moduli = ngram.moduli();
            keys.value(
                "ple.layers",
                vec![u32::try_from(ngram.layer).unwrap_or(u32::MAX)],
            )?;
            keys.size("ple.ngram_size", ngram.size)?;
            keys.size("ple.heads_per_ngram", ngram.heads_per_size)?;
            keys.size("ple.conv_kernel", ngram.conv_kernel)?;
            keys.value("ple.eos_token_id", vocabulary::RESET)?;
            keys.size(
                "embedding_length_per_layer_input",
                self.n_embd / ngram.n_heads(),
            )?;
            keys.value("ple.layer_multipliers", ngram.multipliers(self.n_vocab))?;
            keys.value("ple.head_offsets", running_sums(&moduli))?;
            keys.value("ple.head_vocab_sizes", moduli)?;
        }
        vocabulary::describe(&mut keys.0, self.n_vocab)?;
        Ok(keys.0)
    }
}

impl Default for SmallModel {
    fn default() -> Self {
        Self {
            n_layer: 4,
            full_attention_interval: 4,
            recurrent_layers: None,
            mtp: false,
            n_ctx: 4096,
            n_vocab: 512,
            n_embd: 128,
            streams: 4,
            low_rank: 16,
            n_head: 4,
            n_head_kv: 2,
            head_dim: 32,
            n_rot: 16,
            n_head_index: 4,
            index_dim: 32,
            block_tokens: 4,
            budget_tokens: 32,
            n_head_delta_k: 2,
            n_head_delta_v: 6,
            delta_dim: 32,
            conv_kernel: 4,
            n_expert: 16,
            n_expert_used: 4,
            n_ff: 64,
            n_ff_shared: 64,
            fused_gate_up: false,
            ngram: Some(SmallNgram::default()),
            tied: false,
            types: SmallTypes::default(),
            seed: 1,
        }
    }
}

impl SmallNgram {
    /// Rows that a token looks up.
    pub(crate) fn n_heads(&self) -> usize {
        self.size.saturating_sub(1) * self.heads_per_size
    }

    /// Rows of the table.
    pub(crate) fn n_rows(&self) -> u64 {
        self.moduli().iter().sum()
    }

    /// Rows of each head: primes, so that heads collide on different n-grams.
    fn moduli(&self) -> Vec<u64> {
        (self.min_rows..)
            .filter(|n| is_prime(*n))
            .take(self.n_heads())
            .collect()
    }

    /// One odd multiplier a position in the n-gram, small enough that id times multiplier stays
    /// below 2^63 (transformers, `qwen4_exp`).
    fn multipliers(&self, n_vocab: usize) -> Vec<u64> {
        const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
        let half = (i64::MAX as u64 / (n_vocab.max(1) as u64) / 2).max(1);
        let draw = |i: u64| finish(self.hash_seed.wrapping_add(GAMMA.wrapping_mul(i + 2)));
        (0..self.size as u64)
            .map(|i| 2 * (draw(i) % half) + 1)
            .collect()
    }
}

impl Default for SmallNgram {
    fn default() -> Self {
        let hash_seed = 1234;
        Self {
            layer: 1,
            size: 3,
            heads_per_size: 2,
            min_rows: 64,
            conv_kernel: 4,
            hash_seed,
        }
    }
}

impl SmallTypes {
    /// The same type everywhere.
    #[must_use]
    pub const fn all(ty: TensorType) -> Self {
        Self {
            dense: ty,
            embedding: ty,
            gate: ty,
            up: ty,
            down: ty,
            table: ty,
        }
    }

    /// This type for the routed experts, F32 elsewhere.
    #[must_use]
    pub const fn experts(ty: TensorType) -> Self {
        Self {
            gate: ty,
            up: ty,
            down: ty,
            ..Self::all(TensorType::F32)
        }
    }
}

impl Default for SmallTypes {
    fn default() -> Self {
        Self::all(TensorType::F32)
    }
}

/// Metadata below the architecture's prefix.
struct Keys(Metadata);

impl Keys {
    fn size(&mut self, name: &'static str, size: usize) -> Result<(), Error> {
        let rule = "must fit 32 bits";
        let field = name;
        let size = u32::try_from(size).map_err(|_| Error::Setting {
            field,
            found: size,
            rule,
        })?;
        self.value(name, size)
    }

    fn value(&mut self, name: &str, value: impl Into<Value>) -> Result<(), Error> {
        Ok(self.0.insert(format!("{ARCHITECTURE}.{name}"), value)?)
    }
}

/// Tensors in the making.
struct Build<'a> {
    model: &'a SmallModel,
    tensors: Vec<DraftTensor>,
}

/// Distributions of values.
#[derive(Clone, Copy)]
enum Fill {
    /// Normal around 0, the deviation given.
    Centered(f32),
    /// Normal around 1 with deviation 0.2: norm weights (file convention, one added).
    NearOne,
    /// Normal around -1 with deviation 0.5: time-step biases, so that most states decay slowly.
    TimeStep,
    /// Uniform in -8.05..-0.05: decay rates.
    Decay,
}

impl Build<'_> {
    fn model(&mut self) -> Result<(), Error> {
        let m = self.model;
        let (d, types) = (m.n_embd, m.types);
        self.matrix("token_embd.weight", types.embedding, &[d, m.n_vocab], 1.0)?;
        if !m.tied {
            // Twice the usual scale parts the logits, so that greedy choices are clear.
            let deviation = 4.0 * by_fan_in(d);
            self.matrix("output.weight", types.embedding, &[d, m.n_vocab], deviation)?;
        }
        self.hyper_connection("output_hc", None)?;
        if let Some(ngram) = &m.ngram {
            let n_rows = running_sums(&ngram.moduli()).last().copied().unwrap_or(0)
                + ngram.moduli().last().copied().unwrap_or(0);
            let n_rows = usize::try_from(n_rows).unwrap_or(usize::MAX);
            let shape = [d / ngram.n_heads(), n_rows];
            self.matrix("per_layer_token_embd.weight", types.table, &shape, 1.0)?;
        }
        for layer in 0..m.n_block() {
            let blk = format!("blk.{layer}");
            self.hyper_connection(&format!("{blk}.hc_attn"), Some("inject"))?;
            if m.is_recurrent(layer) {
                self.delta_net(&blk)?;
            } else {
                self.attention(&blk)?;
            }
            self.hyper_connection(&format!("{blk}.hc_ffn"), Some("inject"))?;
            self.experts(&blk)?;
            if m.ngram.is_some_and(|ngram| ngram.layer == layer) {
                self.ngram(&blk)?;
            }
        }
        if m.mtp {
            self.next_token_head(&format!("blk.{}.nextn", m.n_layer))?;
        }
        Ok(())
    }

    /// Norm, low-rank gates and, inside a layer, the weights of writing back.
    fn hyper_connection(&mut self, prefix: &str, inject: Option<&str>) -> Result<(), Error> {
        let m = self.model;
        let (wide, s) = (m.wide(), m.streams as f32);
        self.vector(&format!("{prefix}_norm.weight"), wide, Fill::NearOne)?;
        // Sums over all streams are divided by their number afterwards.
        let (down, up) = (1.5 * s * by_fan_in(wide), 2.0 * by_fan_in(m.low_rank));
        self.dense(&format!("{prefix}_down.weight"), &[wide, m.low_rank], down)?;
        self.dense(&format!("{prefix}_up.weight"), &[m.low_rank, wide], up)?;
        if let Some(inject) = inject {
            let deviation = 0.7 * s * by_fan_in(wide);
            self.dense(
                &format!("{prefix}_{inject}.weight"),
                &[wide, m.streams],
                deviation,
            )?;
        }
        Ok(())
    }

    fn delta_net(&mut self, blk: &str) -> Result<(), Error> {
        let m = self.model;
        let (d, channels, width) = (m.n_embd, m.delta_channels(), m.delta_width());
        let from_mix = from_mix(d);
        self.dense(&format!("{blk}.attn_qkv.weight"), &[d, channels], from_mix)?;
        self.dense(&format!("{blk}.attn_gate.weight"), &[d, width], from_mix)?;
        self.dense(
            &format!("{blk}.ssm_beta.weight"),
            &[d, m.n_head_delta_v],
            from_mix,
        )?;
        self.dense(
            &format!("{blk}.ssm_alpha.weight"),
            &[d, m.n_head_delta_v],
            from_mix,
        )?;
        self.vector(&format!("{blk}.ssm_a"), m.n_head_delta_v, Fill::Decay)?;
        self.vector(
            &format!("{blk}.ssm_dt.bias"),
            m.n_head_delta_v,
            Fill::TimeStep,
        )?;
        let conv = Fill::Centered(0.5);
        self.float(
            &format!("{blk}.ssm_conv1d.weight"),
            &[m.conv_kernel, channels],
            conv,
        )?;
        self.vector(
            &format!("{blk}.ssm_norm.weight"),
            m.delta_dim,
            Fill::NearOne,
        )?;
        self.dense(
            &format!("{blk}.ssm_out.weight"),
            &[width, d],
            2.0 * by_fan_in(width),
        )
    }

    fn attention(&mut self, blk: &str) -> Result<(), Error> {
        let m = self.model;
        let (d, from_mix) = (m.n_embd, from_mix(m.n_embd));
        let (q, kv, index) = (m.n_head * m.head_dim, m.n_head_kv * m.head_dim, m.index_dim);
        // Each head has its queries, then its gates.
        self.dense(&format!("{blk}.attn_q.weight"), &[d, 2 * q], from_mix)?;
        self.dense(&format!("{blk}.attn_k.weight"), &[d, kv], from_mix)?;
        self.dense(&format!("{blk}.attn_v.weight"), &[d, kv], from_mix)?;
        self.dense(
            &format!("{blk}.attn_output.weight"),
            &[q, d],
            2.0 * by_fan_in(q),
        )?;
        self.vector(
            &format!("{blk}.attn_q_norm.weight"),
            m.head_dim,
            Fill::NearOne,
        )?;
        self.vector(
            &format!("{blk}.attn_k_norm.weight"),
            m.head_dim,
            Fill::NearOne,
        )?;
        let n_index = m.n_head_index * index;
        self.dense(
            &format!("{blk}.indexer.q_proj.weight"),
            &[d, n_index],
            from_mix,
        )?;
        self.dense(
            &format!("{blk}.indexer.k_proj.weight"),
            &[d, index],
            from_mix,
        )?;
        self.vector(
            &format!("{blk}.indexer.q_norm.weight"),
            index,
            Fill::NearOne,
        )?;
        self.vector(
            &format!("{blk}.indexer.k_norm.weight"),
            index,
            Fill::NearOne,
        )
    }

    fn experts(&mut self, blk: &str) -> Result<(), Error> {
        let m = self.model;
        let (d, f, s, e, types) = (m.n_embd, m.n_ff, m.n_ff_shared, m.n_expert, m.types);
        let from_mix = from_mix(d);
        let router = Fill::Centered(1.5 * from_mix);
        self.float(&format!("{blk}.ffn_gate_inp.weight"), &[d, e], router)?;
        let (gate, up) = (
            format!("{blk}.ffn_gate_exps.weight"),
            format!("{blk}.ffn_up_exps.weight"),
        );
        self.matrix(&gate, types.gate, &[d, f, e], from_mix)?;
        self.matrix(&up, types.up, &[d, f, e], from_mix)?;
        if m.fused_gate_up {
            self.fuse(&gate, &up, &format!("{blk}.ffn_gate_up_exps.weight"))?;
        }
        let down = 2.0 * by_fan_in(f);
        self.matrix(
            &format!("{blk}.ffn_down_exps.weight"),
            types.down,
            &[f, d, e],
            down,
        )?;
        let scale = Fill::Centered(from_mix);
        self.float(&format!("{blk}.ffn_gate_inp_shexp.weight"), &[d], scale)?;
        self.dense(&format!("{blk}.ffn_gate_shexp.weight"), &[d, s], from_mix)?;
        self.dense(&format!("{blk}.ffn_up_shexp.weight"), &[d, s], from_mix)?;
        self.dense(
            &format!("{blk}.ffn_down_shexp.weight"),
            &[s, d],
            2.0 * by_fan_in(s),
        )
    }

    fn ngram(&mut self, blk: &str) -> Result<(), Error> {
        let m = self.model;
        let (d, wide) = (m.n_embd, m.wide());
        let conv_kernel = m.ngram.map_or(0, |ngram| ngram.conv_kernel);
        self.dense(&format!("{blk}.ple_key.weight"), &[d, wide], by_fan_in(d))?;
        self.dense(&format!("{blk}.ple_value.weight"), &[d, d], by_fan_in(d))?;
        for norm in ["key", "query", "conv"] {
            self.vector(
                &format!("{blk}.ple_norm_{norm}.weight"),
                wide,
                Fill::NearOne,
            )?;
        }
        let conv = Fill::Centered(0.4);
        self.float(
            &format!("{blk}.ple_conv1d.weight"),
            &[conv_kernel, wide],
            conv,
        )
    }

    fn next_token_head(&mut self, prefix: &str) -> Result<(), Error> {
        let m = self.model;
        let d = m.n_embd;
        self.dense(
            &format!("{prefix}.eh_proj.weight"),
            &[2 * d, d],
            by_fan_in(2 * d),
        )?;
        self.vector(&format!("{prefix}.enorm.weight"), d, Fill::NearOne)?;
        self.vector(&format!("{prefix}.hnorm.weight"), m.wide(), Fill::NearOne)?;
        self.hyper_connection(&format!("{prefix}.hc_head"), None)
    }

    /// Joins gate and up into one tensor: of each expert the gate's rows, then those of up. The
    /// values are those of the separate tensors.
    fn fuse(&mut self, gate: &str, up: &str, name: &str) -> Result<(), Error> {
        let m = self.model;
        let part = m.n_embd * m.n_ff;
        let take = |tensors: &[DraftTensor], name: &str| {
            tensors
                .iter()
                .find(|t| t.name == name)
                .map_or(Ok(Vec::new()), DraftTensor::values)
        };
        let (gates, ups) = (take(&self.tensors, gate)?, take(&self.tensors, up)?);
        self.tensors.retain(|t| t.name != gate && t.name != up);
        let pairs = gates.chunks(part).zip(ups.chunks(part));
        let values: Vec<f32> = pairs.flat_map(|(g, u)| [g, u].concat()).collect();
        let shape = [m.n_embd, 2 * m.n_ff, m.n_expert];
        self.push(name, m.types.gate, &shape, &values)
    }

    fn dense(&mut self, name: &str, shape: &[usize], deviation: f32) -> Result<(), Error> {
        self.matrix(name, self.model.types.dense, shape, deviation)
    }

    fn matrix(
        &mut self,
        name: &str,
        ty: TensorType,
        shape: &[usize],
        deviation: f32,
    ) -> Result<(), Error> {
        let values = self.values(name, shape, Fill::Centered(deviation));
        self.push(name, ty, shape, &values)
    }

    fn vector(&mut self, name: &str, len: usize, fill: Fill) -> Result<(), Error> {
        self.float(name, &[len], fill)
    }

    /// A tensor that is F32 whatever the model's types.
    fn float(&mut self, name: &str, shape: &[usize], fill: Fill) -> Result<(), Error> {
        let values = self.values(name, shape, fill);
        self.push(name, TensorType::F32, shape, &values)
    }

    fn push(
        &mut self,
        name: &str,
        ty: TensorType,
        shape: &[usize],
        values: &[f32],
    ) -> Result<(), Error> {
        let shape: Vec<u64> = shape.iter().map(|n| *n as u64).collect();
        let row = shape.first().copied().unwrap_or(0);
        let fits = |ty: &TensorType| ty.row_bytes(row).is_some();
        let ty = [ty, TensorType::Q8_0]
            .into_iter()
            .find(fits)
            .unwrap_or(TensorType::F16);
        self.tensors
            .push(DraftTensor::new(name, ty, &shape, values)?);
        Ok(())
    }

    fn values(&self, name: &str, shape: &[usize], fill: Fill) -> Vec<f32> {
        let mut random = Random::for_tensor(self.model.seed, name);
        let mut next = || match fill {
            Fill::Centered(deviation) => deviation * random.normal(),
            Fill::NearOne => 1.0 + 0.2 * random.normal(),
            Fill::TimeStep => -1.0 + 0.5 * random.normal(),
            Fill::Decay => -0.05 - 8.0 * random.unit(),
        };
        (0..shape.iter().product()).map(|_| next()).collect()
    }
}

/// The deviation that keeps the size of activations of mean square 1.
fn by_fan_in(n: usize) -> f32 {
    // Layers are far narrower than 2^24.
    1.0 / (n.max(1) as f32).sqrt()
}

/// The same for what reads a mixed residual: gates near one half halve it.
fn from_mix(n_embd: usize) -> f32 {
    2.0 * by_fan_in(n_embd)
}

/// Where each part starts when parts of these sizes follow each other.
fn running_sums(sizes: &[u64]) -> Vec<u64> {
    let add = |sum: &mut u64, n: &u64| Some(std::mem::replace(sum, *sum + n));
    sizes.iter().scan(0, add).collect()
}

fn is_prime(n: u64) -> bool {
    n >= 2
        && (2..)
            .take_while(|d| d * d <= n)
            .all(|d| !n.is_multiple_of(d))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_constants_of_the_published_model_follow_from_its_seed() {
        // Constants of Qwen3.8-Flash-Next as its GGUF files carry them.
        let ngram = SmallNgram {
            heads_per_size: 8,
            min_rows: 20_000_000,
            ..Default::default()
        };
        let multipliers = [23_703_573_157_769, 20_109_073_645_365, 8_052_911_324_071];
        assert_eq!(ngram.multipliers(248_320), multipliers);
        let moduli = ngram.moduli();
        assert_eq!(moduli[..3], [20_000_003, 20_000_023, 20_000_033]);
        assert_eq!(moduli[15], 20_000_171);
        assert_eq!(running_sums(&moduli)[15], 300_001_275);
    }

    #[test]
    fn fields_that_do_not_go_together_are_refused_by_name() {
        let refused = |model: SmallModel| match model.draft() {
            Err(Error::Setting { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        let base = SmallModel::default;
        assert_eq!(
            refused(SmallModel {
                n_layer: 0,
                ..base()
            }),
            "n_layer"
        );
        assert_eq!(refused(SmallModel { n_rot: 7, ..base() }), "n_rot");
        assert_eq!(
            refused(SmallModel {
                n_rot: 64,
                ..base()
            }),
            "n_rot"
        );
        assert_eq!(
            refused(SmallModel {
                n_head_kv: 3,
                ..base()
            }),
            "n_head"
        );
        assert_eq!(
            refused(SmallModel {
                n_head_delta_k: 0,
                ..base()
            }),
            "n_head_delta_v"
        );
        assert_eq!(
            refused(SmallModel {
                n_expert_used: 17,
                ..base()
            }),
            "n_expert_used"
        );
        assert_eq!(
            refused(SmallModel {
                block_tokens: 5,
                ..base()
            }),
            "budget_tokens"
        );
        assert_eq!(
            refused(SmallModel {
                n_vocab: 100,
                ..base()
            }),
            "n_vocab"
        );
        let on_attention = Some(SmallNgram {
            layer: 3,
            ..Default::default()
        });
        assert_eq!(
            refused(SmallModel {
                ngram: on_attention,
                ..base()
            }),
            "ngram.layer"
        );
        let recurrent_layers = Some(vec![true]);
        let short = SmallModel {
            recurrent_layers,
            ..base()
        };
        assert_eq!(refused(short), "recurrent_layers.len()");
    }
}

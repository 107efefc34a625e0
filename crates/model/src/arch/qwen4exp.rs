//! `qwen4exp` (Qwen3.8-Flash-Next).
//!
//! Three of four layers are gated delta nets, the fourth is sparse attention; every layer has
//! routed experts and a shared one; the residual is a set of streams that blocks read and write
//! through hyper-connections; one layer adds an n-gram embedding. An MTP block at the end of a file
//! is not needed for logits and is ignored.
//!
//! Facts follow llama.cpp (`src/models/qwen4exp.cpp`) and transformers (`qwen4_exp`).

use thalweg_backend::Backend;
use thalweg_gguf::Gguf;
use thalweg_quant::QuantType;

use crate::arch::{Architecture, Outline};
use crate::blocks::attention::{self, AttentionConfig, SparseAttention};
use crate::blocks::delta_net::{self, DeltaConfig, DeltaNet};
use crate::blocks::hyper_connection::{self, HyperConnection, Streams, write_back};
use crate::blocks::moe::{self, Moe, MoeConfig};
use crate::blocks::ngram::{self, Ngram, NgramConfig};
use crate::config::Keys;
use crate::weights::{Check, Loader, to_usize};
use crate::{
    Error, LayerState, ModelSpec, NgramHash, Result, RouterOptions, SequenceState, Staging,
    Workspace, WorkspaceShape,
};

pub(super) const NAME: &str = "qwen4exp";

/// Most experts that a router may have (expert ids are 16 bits; llama.cpp's limit).
const MAX_EXPERTS: usize = 1024;
/// Most layers that a file may have (llama.cpp's limit).
const MAX_LAYERS: usize = 512;

/// The bound model.
#[derive(Debug)]
pub(super) struct Qwen4Exp<B: Backend> {
    outlined: Outlined,
    embedding: B::Matrix,
    /// `None` where the output shares the embedding's weights.
    output: Option<B::Matrix>,
    head: HyperConnection<B>,
    layers: Vec<Layer<B>>,
    ngram: Option<Ngram<B>>,
}

/// A header that passed every check.
#[derive(Debug)]
pub(super) struct Outlined {
    config: Config,
    spec: ModelSpec,
    /// Stored type of the n-gram table.
    table_ty: Option<QuantType>,
}

#[derive(Debug)]
struct Layer<B: Backend> {
    mixer_hc: HyperConnection<B>,
    mixer: Mixer<B>,
    ffn_hc: HyperConnection<B>,
    moe: Moe<B>,
}

#[derive(Debug)]
enum Mixer<B: Backend> {
    Delta(DeltaNet<B>),
    Attention(AttentionConfig, SparseAttention<B>),
}

/// Everything that the metadata says.
#[derive(Debug)]
struct Config {
    n_vocab: usize,
    /// Blocks of the file: layers, and MTP blocks behind them.
    n_block: usize,
    n_ctx_train: usize,
    streams: Streams,
    delta: DeltaConfig,
    moe: MoeConfig,
    /// By layer: `None` is a gated delta net.
    attention: Vec<Option<AttentionConfig>>,
    ngram: Option<NgramConfig>,
}

impl Outlined {
    pub(super) fn read(file: &Gguf, routers: RouterOptions) -> Result<Self> {
        let mut check = Check::new(file);
        let config = Config::read(&mut check);
        // Tensors are only meaningful against a sound configuration.
        if !check.failed() {
            config.expect(&mut check, routers);
        }
        check.finish()?;

        let n_layer = config.attention.len();
        let experts = (0..n_layer)
            .filter_map(|l| moe::spec(&check, &blk(l), config.moe))
            .collect();
        let rows = config.ngram.as_ref();
        let (rows, table_ty) = rows.and_then(|c| ngram::spec(&check, c)).unzip();
        let spec = ModelSpec {
            architecture: NAME,
            n_layer,
            n_embd: config.streams.n_embd,
            residual_len: config.streams.wide(),
            n_vocab: config.n_vocab,
            n_ctx_train: config.n_ctx_train,
            experts,
            rows,
            dense_bytes: check.dense_bytes(),
        };
        Ok(Self {
            config,
            spec,
            table_ty,
        })
    }
}

impl<B: Backend> Qwen4Exp<B> {
    pub(super) fn bind(backend: &B, file: &Gguf, routers: RouterOptions) -> Result<Self> {
        let outlined = Outlined::read(file, routers)?;
        let config = &outlined.config;
        let mut loader = Loader::new(backend, file);
        let embedding = loader.matrix("token_embd.weight")?;
        let output = file
            .tensor("output.weight")
            .map(|t| loader.matrix(&t.name))
            .transpose()?;
        let head = HyperConnection::load(&mut loader, "output_hc", false)?;
        let mut layers = Vec::with_capacity(config.attention.len());
        for (l, attention) in config.attention.iter().enumerate() {
            let blk = blk(l);
            layers.push(Layer {
                mixer_hc: HyperConnection::load(&mut loader, &format!("{blk}.hc_attn"), true)?,
                mixer: match attention {
                    None => Mixer::Delta(DeltaNet::load(&mut loader, &blk)?),
                    Some(c) => Mixer::Attention(*c, SparseAttention::load(&mut loader, &blk, *c)?),
                },
                ffn_hc: HyperConnection::load(&mut loader, &format!("{blk}.hc_ffn"), true)?,
                moe: Moe::load(&mut loader, &blk, routers)?,
            });
        }
        let ngram = match (&config.ngram, outlined.table_ty) {
            (Some(c), Some(ty)) => Some(Ngram::load(&mut loader, c, ty)?),
            _ => None,
        };
        debug_assert_eq!(loader.dense_bytes(), outlined.spec.dense_bytes);
        Ok(Self {
            outlined,
            embedding,
            output,
            head,
            layers,
            ngram,
        })
    }
}

impl Outline for Outlined {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn workspace_shape(&self) -> WorkspaceShape {
        let c = &self.config;
        let attention = c.attention.iter().flatten().next();
        let of = |f: fn(&AttentionConfig) -> usize| attention.map_or(0, f);
        let wide = c.streams.wide();
        let conv = wide.max(c.delta.channels());
        WorkspaceShape {
            residual: wide,
            normed: wide,
            gates: wide,
            low_rank: c.streams.low_rank,
            inject: c.streams.count,
            embd: c.streams.n_embd,
            proj: conv.max(of(|a| 2 * a.width())),
            mixed: conv.max(of(AttentionConfig::width)),
            heads: c.delta.width().max(of(AttentionConfig::width)),
            gate: c
                .delta
                .width()
                .max(of(|a| a.kv_width().max(a.index_width()).max(a.index_dim))),
            beta: c.delta.n_head_v.max(of(AttentionConfig::index_width)),
            decay: c.delta.n_head_v,
            router: c.moe.n_expert,
            picks: c.moe.k,
            shared: c.moe.n_ff_shared,
            // An expert in work holds its tokens' inputs and two hidden rows; a token has k
            // experts, of which a few are in work at once.
            transient: 2 * (c.streams.n_embd + 2 * c.moe.n_ff),
        }
    }

    fn state_len(&self, n_ctx: usize) -> usize {
        let attention = self.config.attention.iter().flatten();
        self.staging_len() + attention.map(|a| a.state_len(n_ctx)).sum::<usize>()
    }

    fn staging_len(&self) -> usize {
        let c = &self.config;
        let n_delta = c.attention.iter().filter(|a| a.is_none()).count();
        let ngram = c.ngram.as_ref().map_or(0, |n| n.state_len(c.streams));
        n_delta * c.delta.state_len() + ngram
    }
}

impl<B: Backend> Outline for Qwen4Exp<B> {
    fn spec(&self) -> &ModelSpec {
        &self.outlined.spec
    }

    fn workspace_shape(&self) -> WorkspaceShape {
        self.outlined.workspace_shape()
    }

    fn state_len(&self, n_ctx: usize) -> usize {
        self.outlined.state_len(n_ctx)
    }

    fn staging_len(&self) -> usize {
        self.outlined.staging_len()
    }
}

impl<B: Backend> Architecture<B> for Qwen4Exp<B> {
    fn state(&self, b: &B, n_ctx: usize) -> Result<SequenceState<B>> {
        let layers = self.outlined.config.attention.iter().map(|attention| {
            Ok(match attention {
                None => LayerState::Recurrent(self.outlined.config.delta.state(b)?),
                Some(c) => LayerState::Attention(c.state(b, n_ctx)?),
            })
        });
        let layers = layers.collect::<Result<_>>()?;
        Ok(SequenceState {
            n_tokens: 0,
            n_ctx,
            layers,
            ngram: self.ngram_state(b)?,
        })
    }

    fn staging(&self, b: &B) -> Result<Staging<B>> {
        let layers = self
            .outlined
            .config
            .attention
            .iter()
            .map(|attention| match attention {
                None => Ok(Some(self.outlined.config.delta.state(b)?)),
                Some(_) => Ok(None),
            });
        Ok(Staging {
            layers: layers.collect::<Result<_>>()?,
            ngram: self.ngram_state(b)?,
        })
    }

    fn embed(&self, b: &B, ws: &mut Workspace<B>, tokens: &[u32], rows: &[u8]) -> Result<()> {
        let n_vocab = self.outlined.config.n_vocab;
        if let Some(&id) = tokens.iter().find(|id| **id as usize >= n_vocab) {
            return Err(Error::Token { id, n_vocab });
        }
        if tokens.len() > ws.capacity {
            let (wanted, available) = (tokens.len(), ws.capacity);
            return Err(Error::Capacity {
                what: "chunk",
                wanted,
                available,
            });
        }
        ws.n_tokens = tokens.len();
        let streams = self.outlined.config.streams.count;
        b.embed(
            &mut ws.rec,
            &self.embedding,
            tokens,
            streams,
            &mut ws.residual,
        )?;
        match &self.ngram {
            Some(ngram) => ngram.embed(b, ws, rows),
            None => Ok(()),
        }
    }

    fn route(
        &self,
        b: &B,
        ws: &mut Workspace<B>,
        state: &mut SequenceState<B>,
        staging: &mut Staging<B>,
        layer: usize,
    ) -> Result<()> {
        let c = &self.outlined.config;
        let streams = c.streams;
        if let (Some(ngram), Some(config)) = (&self.ngram, &c.ngram)
            && config.layer == layer
            && let (Some(past), Some(next)) = (&state.ngram, &mut staging.ngram)
        {
            ngram.forward(b, ws, config, streams, past, next)?;
        }
        let Layer {
            mixer_hc,
            mixer,
            ffn_hc,
            moe,
        } = &self.layers[layer];
        mixer_hc.mix(b, ws, streams)?;
        match (mixer, &mut state.layers[layer], &mut staging.layers[layer]) {
            (Mixer::Delta(net), LayerState::Recurrent(past), Some(next)) => {
                net.forward(b, ws, c.delta, past, next)?;
            }
            (Mixer::Attention(config, attention), LayerState::Attention(cache), _) => {
                attention.forward(b, ws, *config, state.n_tokens, cache)?;
            }
            _ => unreachable!("states are made by this model, layer by layer of the same kind"),
        }
        write_back(b, ws, streams)?;
        ffn_hc.mix(b, ws, streams)?;
        moe.route(b, ws, c.moe)
    }

    fn shared(&self, b: &B, ws: &mut Workspace<B>, layer: usize) -> Result<()> {
        self.layers[layer]
            .moe
            .shared(b, ws, self.outlined.config.moe)
    }

    fn predict(&self, b: &B, ws: &mut Workspace<B>, layer: usize, out: &mut [f32]) -> Result<()> {
        self.layers[layer].moe.predict(b, ws, out)
    }

    fn stored_router(
        &self,
        b: &B,
        ws: &mut Workspace<B>,
        layer: usize,
        out: &mut [f32],
    ) -> Result<()> {
        self.layers[layer].moe.stored(b, ws, out)
    }

    fn combine(&self, b: &B, ws: &mut Workspace<B>, layer: usize, rows: &[u32]) -> Result<()> {
        self.layers[layer]
            .moe
            .combine(b, ws, self.outlined.config.moe, rows)?;
        write_back(b, ws, self.outlined.config.streams)
    }

    fn head(&self, b: &B, ws: &mut Workspace<B>) -> Result<()> {
        self.head.mix(b, ws, self.outlined.config.streams)
    }

    fn logits(&self, b: &B, ws: &mut Workspace<B>, row: usize, out: &mut [f32]) -> Result<()> {
        let n_embd = self.outlined.config.streams.n_embd;
        let weights = self.output.as_ref().unwrap_or(&self.embedding);
        b.copy(
            &mut ws.rec,
            (&ws.input, row * n_embd),
            (&mut ws.output, 0),
            n_embd,
        )?;
        b.matmul(&mut ws.rec, weights, &ws.output, 1, &mut ws.logits)?;
        b.read(&mut ws.rec, &ws.logits, 0, out)?;
        Ok(())
    }
}

impl<B: Backend> Qwen4Exp<B> {
    fn ngram_state(&self, b: &B) -> Result<Option<B::Buffer>> {
        let ngram = self.outlined.config.ngram.as_ref();
        ngram
            .map(|n| Ok(b.alloc(n.state_len(self.outlined.config.streams))?))
            .transpose()
    }
}

/// Name of a block.
fn blk(l: usize) -> String {
    format!("blk.{l}")
}

impl Config {
    fn read(check: &mut Check<'_>) -> Self {
        // The embedding's second dimension is the vocabulary; its absence is noted by `expect`.
        let n_vocab = check
            .file()
            .tensor("token_embd.weight")
            .map_or(0, |t| to_usize(t.ne[1]));
        let mut keys = Keys::new(check, NAME);

        let eps = keys.positive("attention.layer_norm_rms_epsilon");
        let n_embd = keys.size("embedding_length");
        let streams = Streams {
            count: keys.size("hyper_connection.count"),
            n_embd,
            low_rank: keys.size("hyper_connection.low_rank"),
            eps,
        };
        if streams.count == 1 {
            keys.refuse("hyper_connection.count", "must be above 1, found 1");
        }

        let delta = DeltaConfig {
            n_embd,
            n_head_k: keys.size("ssm.group_count"),
            n_head_v: keys.size("ssm.time_step_rank"),
            head_dim: keys.size("ssm.state_size"),
            conv_taps: keys.size("ssm.conv_kernel"),
            eps,
        };
        let inner = keys.size("ssm.inner_size");
        if inner != delta.width() {
            let expected = delta.width();
            keys.refuse(
                "ssm.inner_size",
                format!("expected heads x size = {expected}, found {inner}"),
            );
        }
        if delta.n_head_k > 0 && !delta.n_head_v.is_multiple_of(delta.n_head_k) {
            let (k, v) = (delta.n_head_k, delta.n_head_v);
            keys.refuse(
                "ssm.time_step_rank",
                format!("{v} is not a multiple of {k} key heads"),
            );
        }

        let moe = MoeConfig {
            n_embd,
            n_expert: keys.size("expert_count"),
            k: keys.size("expert_used_count"),
            n_ff: keys.size("expert_feed_forward_length"),
            n_ff_shared: keys.size("expert_shared_feed_forward_length"),
        };
        if moe.n_expert > MAX_EXPERTS {
            let found = moe.n_expert;
            keys.refuse(
                "expert_count",
                format!("at most {MAX_EXPERTS}, found {found}"),
            );
        }
        if moe.k > moe.n_expert {
            let (k, n) = (moe.k, moe.n_expert);
            keys.refuse("expert_used_count", format!("{k} of only {n} experts"));
        }

        let attention = Self::read_attention(&mut keys, n_embd, eps);
        let ngram = keys
            .has("ple.layers")
            .then(|| Self::read_ngram(&mut keys, n_embd, n_vocab, &attention));
        let n_ctx_train = keys.size("context_length");
        let n_block = attention.len() + keys.size_or("nextn_predict_layers", 0);
        Self {
            n_vocab,
            n_block,
            n_ctx_train,
            streams,
            delta,
            moe,
            attention,
            ngram: ngram.flatten(),
        }
    }

    /// Kind and sizes of each layer's token mixer.
    fn read_attention(
        keys: &mut Keys<'_, '_>,
        n_embd: usize,
        eps: f32,
    ) -> Vec<Option<AttentionConfig>> {
        let n_block = keys.size("block_count");
        let n_mtp = keys.size_or("nextn_predict_layers", 0);
        if n_block > MAX_LAYERS || n_mtp >= n_block.max(1) {
            let reason = format!("{n_block} blocks of which {n_mtp} are MTP blocks");
            keys.refuse("block_count", reason);
            return Vec::new();
        }
        let n_layer = n_block - n_mtp;

        let base = AttentionConfig {
            n_embd,
            n_head: keys.size("attention.head_count"),
            n_head_kv: keys.size("attention.head_count_kv"),
            head_dim: keys.size("attention.key_length"),
            n_rot: keys.size("rope.dimension_count"),
            rope_base: keys.positive("rope.freq_base"),
            eps,
            block_tokens: 0,
            budget_tokens: keys.size("attention.indexer.top_k"),
            n_head_index: keys.size("attention.indexer.head_count"),
            index_dim: keys.size("attention.indexer.key_length"),
        };
        let value_dim = keys.size("attention.value_length");
        if value_dim != base.head_dim {
            let k = base.head_dim;
            let reason = format!("values of {value_dim} and keys of {k} are not supported");
            keys.refuse("attention.value_length", reason);
        }
        if base.n_head_kv > 0 && !base.n_head.is_multiple_of(base.n_head_kv) {
            let (q, kv) = (base.n_head, base.n_head_kv);
            keys.refuse(
                "attention.head_count",
                format!("{q} is not a multiple of {kv} kv heads"),
            );
        }
        let smallest = base.head_dim.min(base.index_dim);
        if !base.n_rot.is_multiple_of(2) || base.n_rot > smallest {
            let n = base.n_rot;
            let reason = format!("must be even and at most {smallest}, found {n}");
            keys.refuse("rope.dimension_count", reason);
        }

        let recurrent = Self::read_pattern(keys, n_layer);
        let ratios = keys
            .opt_array("attention.compress_ratios")
            .unwrap_or_default();
        let ratio = |l: usize| ratios.get(l).map_or(0, |r| *r as usize);
        let mut layers = Vec::with_capacity(n_layer);
        let mut block = None;
        for (l, recurrent) in recurrent.into_iter().enumerate() {
            let block_tokens = ratio(l);
            if !recurrent && block_tokens > 0 {
                if block_tokens == 1 || !base.budget_tokens.is_multiple_of(block_tokens) {
                    let budget = base.budget_tokens;
                    let reason =
                        format!("{block_tokens} of layer {l} must be above 1 and divide {budget}");
                    keys.refuse("attention.compress_ratios", reason);
                }
                if *block.get_or_insert(block_tokens) != block_tokens {
                    keys.refuse(
                        "attention.compress_ratios",
                        "all that are not 0 must be equal",
                    );
                }
            }
            layers.push((!recurrent).then_some(AttentionConfig {
                block_tokens,
                ..base
            }));
        }
        layers
    }

    /// By layer: whether it is a gated delta net.
    fn read_pattern(keys: &mut Keys<'_, '_>, n_layer: usize) -> Vec<bool> {
        if let Some(recurrent) = keys.opt_array("attention.recurrent_layers") {
            if recurrent.len() < n_layer {
                let found = recurrent.len();
                let reason = format!("{found} entries for {n_layer} layers");
                keys.refuse("attention.recurrent_layers", reason);
            }
            return (0..n_layer)
                .map(|l| recurrent.get(l).is_some_and(|r| *r != 0))
                .collect();
        }
        let interval = keys.size_or("full_attention_interval", 4);
        if interval == 0 {
            keys.refuse("full_attention_interval", "must be above 0, found 0");
            return vec![true; n_layer];
        }
        (1..=n_layer).map(|l| !l.is_multiple_of(interval)).collect()
    }

    fn read_ngram(
        keys: &mut Keys<'_, '_>,
        n_embd: usize,
        n_vocab: usize,
        attention: &[Option<AttentionConfig>],
    ) -> Option<NgramConfig> {
        let layers = keys.opt_array("ple.layers").unwrap_or_default();
        let &[layer] = layers.as_slice() else {
            if !layers.is_empty() {
                let reason = format!("one n-gram layer is supported, found {}", layers.len());
                keys.refuse("ple.layers", reason);
            }
            return None;
        };
        let layer = layer as usize;
        // Without layers another problem is noted already.
        if !attention.is_empty() && attention.get(layer).is_none_or(Option::is_some) {
            let reason = format!("layer {layer} is not a gated delta net layer");
            keys.refuse("ple.layers", reason);
        }
        let n = keys.size("ple.ngram_size");
        let per_order = keys.size("ple.heads_per_ngram");
        if !(2..=8).contains(&n) {
            keys.refuse("ple.ngram_size", format!("must be 2..=8, found {n}"));
            return None;
        }
        let n_heads = (n - 1) * per_order;
        if n_heads > 64 {
            keys.refuse(
                "ple.heads_per_ngram",
                format!("{n_heads} heads, at most 64"),
            );
        }
        let row_dim = keys.size("embedding_length_per_layer_input");
        if n_embd > 0 && row_dim.checked_mul(n_heads) != Some(n_embd) {
            let reason = format!("{n_heads} rows of {row_dim} do not make {n_embd}");
            keys.refuse("embedding_length_per_layer_input", reason);
        }
        let mut multipliers = keys.long_array("ple.layer_multipliers");
        let mut offsets = keys.long_array("ple.head_offsets");
        let mut moduli = keys.long_array("ple.head_vocab_sizes");
        for (name, array, needed) in [
            ("ple.layer_multipliers", &mut multipliers, n),
            ("ple.head_offsets", &mut offsets, n_heads),
            ("ple.head_vocab_sizes", &mut moduli, n_heads),
        ] {
            if array.len() < needed {
                keys.refuse(
                    name,
                    format!("{needed} entries needed, found {}", array.len()),
                );
            }
            array.truncate(needed);
        }
        let heads: Vec<_> = moduli.into_iter().zip(offsets).collect();
        let ends = heads
            .iter()
            .map(|(modulus, offset)| modulus.checked_add(*offset));
        let end = ends.max_by_key(|end| end.unwrap_or(u64::MAX)).flatten();
        let min_rows = end.filter(|end| *end < 1 << 31);
        if min_rows.is_none() || heads.iter().any(|(modulus, _)| *modulus == 0) {
            keys.refuse(
                "ple.head_vocab_sizes",
                "must be above 0 and end below 2^31 rows",
            );
        }
        let reset = u32::try_from(keys.size_or("ple.eos_token_id", 0)).unwrap_or(u32::MAX);
        if !keys.has("ple.eos_token_id") {
            keys.refuse("ple.eos_token_id", "is missing");
        } else if reset as usize >= n_vocab {
            let reason = format!("id {reset} is outside the vocabulary of {n_vocab}");
            keys.refuse("ple.eos_token_id", reason);
        }
        Some(NgramConfig {
            layer,
            hash: NgramHash::new(multipliers, heads, reset)?,
            row_dim,
            conv_taps: keys.size("ple.conv_kernel"),
            dilation: n,
            min_rows: min_rows?,
        })
    }

    /// Expects every tensor that the configuration implies.
    fn expect(&self, check: &mut Check<'_>, routers: RouterOptions) {
        let s = self.streams;
        check.matrix("token_embd.weight", &[&[s.n_embd, self.n_vocab]]);
        if check.has("output.weight") {
            check.matrix("output.weight", &[&[s.n_embd, self.n_vocab]]);
        }
        hyper_connection::expect(check, "output_hc", s, false);
        for (l, attention) in self.attention.iter().enumerate() {
            let blk = format!("blk.{l}");
            hyper_connection::expect(check, &format!("{blk}.hc_attn"), s, true);
            match attention {
                None => delta_net::expect(check, &blk, self.delta),
                Some(c) => attention::expect(check, &blk, *c),
            }
            hyper_connection::expect(check, &format!("{blk}.hc_ffn"), s, true);
            moe::expect(check, &blk, self.moe, routers);
        }
        if let Some(ngram) = &self.ngram {
            ngram::expect(check, ngram, s);
        }
        check.no_blocks_from("qwen4exp.block_count", self.n_block);
    }
}

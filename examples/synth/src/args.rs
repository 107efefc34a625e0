//! Flags of `synth`, and the model that they describe.

use std::path::PathBuf;

use clap::Parser;
use thalweg_examples_common::{count, whole};
use thalweg_gguf::TensorType;
use thalweg_testkit::SyntheticModel;

/// Write a synthetic qwen4exp model of any size, to measure streaming and caches with.
///
/// Weights are random, so the text that it generates means nothing. Sizes are free; how unevenly
/// routers pick experts and how often they repeat a pick is chosen. The same flags give the same
/// bytes on every machine. Memory use stays below 64 MiB.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "\
Examples:
  synth full.gguf                        sizes of the published model with half its experts: 19 GB
  synth --experts 64 six.gguf            the same with fewer experts
  synth --layers 6 --hidden 256 --experts 64 --top-k 4 small.gguf
                                         small enough for a test
  synth --skew 0 --correlation 0.5 m.gguf
                                         no favorite experts, but half of a token's picks are
                                         those of the token before
  synth --dry-run --json --experts 512   how large would it be?"
)]
pub(crate) struct Args {
    /// The file to write; an existing one is replaced once the new one is complete
    #[arg(required_unless_present = "dry_run")]
    pub(crate) out: Option<PathBuf>,

    /// Layers
    #[arg(long, value_name = "N", default_value_t = 48, value_parser = count)]
    layers: usize,
    /// Width of the residual, a multiple of 64 from 256 on
    #[arg(long, value_name = "N", default_value_t = 2560, value_parser = count)]
    hidden: usize,
    /// Every n-th layer is sparse attention, the others are gated delta nets
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = count)]
    attention_every: usize,

    /// Experts in each layer
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = count)]
    experts: usize,
    /// Experts that a token uses
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = count)]
    top_k: usize,
    /// Width of an expert [default: a quarter of --hidden]
    #[arg(long, value_name = "N", value_parser = count)]
    expert_width: Option<usize>,
    /// Width of the shared expert [default: as --expert-width]
    #[arg(long, value_name = "N", value_parser = count)]
    shared_width: Option<usize>,
    /// Type of the experts: q2_0, iq3_s, q4_k and others (an unknown one lists all)
    #[arg(long, value_name = "TYPE", default_value = "q2_0", value_parser = tensor_type)]
    expert_type: TensorType,
    /// Type of other matrices: f32, f16, bf16, q8_0, q4_0 or q2_0. Routers are F32
    #[arg(long, value_name = "TYPE", default_value = "q4_0", value_parser = tensor_type)]
    dense_type: TensorType,

    /// Query heads [default: 24 of 256 at a width of 2560, in proportion otherwise]
    #[arg(long, value_name = "N", value_parser = count)]
    heads: Option<usize>,
    /// Key and value heads, a divisor of --heads [default: 2]
    #[arg(long, value_name = "N", value_parser = count)]
    kv_heads: Option<usize>,
    /// Width of an attention head; delta nets have heads half as wide [default: 256, less for
    /// small models]
    #[arg(long, value_name = "N", value_parser = count)]
    head_dim: Option<usize>,

    /// Tokens in the vocabulary, 261 to 262144
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = count)]
    vocab: usize,
    /// Context that the model claims to be trained for; nothing is sized by it
    #[arg(long, value_name = "TOKENS", default_value_t = 262_144, value_parser = count)]
    ctx: usize,
    /// Rows in each hash head of the n-gram embedding
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = count)]
    ngram_rows: usize,
    /// Leave the n-gram embedding out
    #[arg(long, conflicts_with = "ngram_rows")]
    no_ngram: bool,

    /// The expert of rank r is picked in proportion to r^-SKEW; 0 to 4, 0 is even. Each layer
    /// ranks its experts in an order of its own
    #[arg(long, value_name = "SKEW", default_value_t = 1.0)]
    skew: f64,
    /// Share of a token's experts that the token before picked as well, beyond what the skew alone
    /// gives; 0 to 0.95
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    correlation: f64,
    /// Weights follow from it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole)]
    seed: u64,

    /// Check the flags and print the size of the file, but write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

impl Args {
    /// The model that the flags describe; they are not checked yet.
    pub(crate) fn model(&self) -> SyntheticModel {
        let base = SyntheticModel::of_width(self.hidden);
        let n_ff = self.expert_width.unwrap_or(base.n_ff);
        let n_head_kv = self.kv_heads.unwrap_or(base.n_head_kv);
        let head_dim = self.head_dim.unwrap_or(base.head_dim);
        // Other heads keep the width of all heads together.
        let width = base.n_head * base.head_dim;
        let derived = width
            .checked_div(head_dim * n_head_kv)
            .map_or(0, |groups| groups.max(1) * n_head_kv);
        SyntheticModel {
            n_layer: self.layers,
            full_attention_interval: self.attention_every,
            n_expert: self.experts,
            n_expert_used: self.top_k,
            n_ff,
            n_ff_shared: self.shared_width.unwrap_or(n_ff),
            expert_type: self.expert_type,
            dense_type: self.dense_type,
            n_head: self.heads.unwrap_or(derived),
            n_head_kv,
            head_dim,
            n_vocab: self.vocab,
            n_ctx: self.ctx,
            ngram_rows: (!self.no_ngram).then_some(self.ngram_rows),
            skew: self.skew,
            correlation: self.correlation,
            seed: self.seed,
            ..base
        }
    }
}

fn tensor_type(text: &str) -> Result<TensorType, String> {
    TensorType::from_name(text).ok_or_else(|| {
        let names: Vec<String> = TensorType::ALL
            .iter()
            .map(|ty| ty.name().to_lowercase())
            .collect();
        format!(
            "no tensor type has this name; known are {}",
            names.join(", ")
        )
    })
}

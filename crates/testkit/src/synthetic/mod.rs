//! Synthetic `qwen4exp` models of any size, streamed to disk. Owns: the shape, what it must
//! satisfy, the writing. Does not own: contents of tensors (`recipe`, `values`), pick shares
//! (`routing`), bytes of blocks (`blocks`); keys are those of small models.
//! Memory: the header twice, and pieces of 1 MiB: 10 MB for a small vocabulary, whatever the size.
//!
//! Invariants: 1. what `check` accepts, a reader that checks everything accepts. 2. The same fields
//! give the same bytes on every machine. 3. The target appears complete or not at all.
//! Cost: 2.7 GB/s on one core; the drive decides.

mod blocks;
mod produce;
mod recipe;
mod routing;
#[cfg(test)]
mod tests;
mod values;

use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use thalweg_gguf::{Metadata, StreamWriter, TensorSpec, TensorType, Writer};

use self::blocks::{DENSE, random_types};
use self::recipe::{Tensor, ZONE_STEP};
use crate::small_model::{SmallModel, SmallNgram, SmallTypes};
use crate::{Error, vocabulary};

/// What llama.cpp accepts.
const MAX_EXPERTS: usize = 1024;
const MAX_LAYERS: usize = 512;
/// Keeps the header within the memory promised above.
const MAX_VOCAB: usize = 1 << 18;
const STREAMS: usize = 4;
const NGRAM_SIZE: usize = 3;

/// A model of any size with random weights, whose routers pick experts as asked.
///
/// For measuring what depends on sizes and routing alone: streaming, caches, memory. The text it
/// generates has no meaning. [`default`](Self::default) has the sizes of the published model with
/// half its experts: 19 GB. Start from [`of_width`](Self::of_width) for another one.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "users write `SyntheticModel { field, ..of_width(n) }`"
)]
pub struct SyntheticModel {
    /// Layers.
    pub n_layer: usize,
    /// Width of the residual, a multiple of 64 from 256 on.
    pub n_embd: usize,
    /// Every n-th layer is attention, the others are gated delta nets.
    pub full_attention_interval: usize,
    /// Experts of a layer.
    pub n_expert: usize,
    /// Experts that a token uses.
    pub n_expert_used: usize,
    /// Width of a routed expert.
    pub n_ff: usize,
    /// Width of the shared expert.
    pub n_ff_shared: usize,
    /// Type of routed experts. Where a row is not whole blocks of it, `IQ4_NL`, `Q4_0`, `Q8_0` or
    /// `F16` is taken, as llama.cpp does.
    pub expert_type: TensorType,
    /// Type of all other matrices except routers: F32, F16, BF16, Q8_0, Q4_0 or Q2_0.
    pub dense_type: TensorType,
    /// Attention: query heads.
    pub n_head: usize,
    /// Attention: key and value heads, a divisor of `n_head`.
    pub n_head_kv: usize,
    /// Attention: width of a head, a multiple of 8; heads of delta nets and of the indexer are half
    /// as wide.
    pub head_dim: usize,
    /// Tokens in the vocabulary, at least 261.
    pub n_vocab: usize,
    /// Trained context in tokens; nothing is sized by it.
    pub n_ctx: usize,
    /// Rows of each hash head of the n-gram embedding, if there is one.
    pub ngram_rows: Option<usize>,
    /// The expert of rank r is picked about in proportion to `r^-skew`; each layer has its own
    /// order of experts. 0: all alike.
    pub skew: f64,
    /// About this share of a token's experts was picked by the token before as well, beyond what
    /// skew alone gives; 0 to 0.95.
    pub correlation: f64,
    /// Weights follow from the seed and a tensor's name.
    pub seed: u64,
}

/// A field that does not go with the others, or with the format.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// The field of [`SyntheticModel`].
    pub field: &'static str,
    /// Its value.
    pub found: String,
    /// What it must satisfy.
    pub rule: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}: {}", self.field, self.found, self.rule)
    }
}

impl SyntheticModel {
    /// A model with this width of the residual; everything else as in the published model, heads
    /// and experts in proportion.
    #[must_use]
    pub fn of_width(n_embd: usize) -> Self {
        // Published: 2560 wide, 24 heads of 256 for 2 key-value heads, experts of 640.
        let head_dim = if n_embd >= 2048 {
            256
        } else {
            (n_embd / 8 / 32).max(1) * 32
        };
        let n_head_kv = 2;
        let n_head = (n_embd * 12 / 5 / head_dim / n_head_kv).max(1) * n_head_kv;
        let n_ff = (n_embd / 4 / 64).max(1) * 64;
        Self {
            n_layer: 48,
            n_embd,
            full_attention_interval: 4,
            n_expert: 256,
            n_expert_used: 10,
            n_ff,
            n_ff_shared: n_ff,
            expert_type: TensorType::Q2_0,
            dense_type: TensorType::Q4_0,
            n_head,
            n_head_kv,
            head_dim,
            n_vocab: 8192,
            n_ctx: 262_144,
            ngram_rows: Some(20_000),
            skew: 1.0,
            correlation: 0.0,
            seed: 1,
        }
    }

    /// Everything that is wrong with the fields; empty if the model can be written.
    #[must_use]
    pub fn check(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut rule = |holds: bool, field, found: &dyn fmt::Display, rule: &str| {
            if !holds {
                let (found, rule) = (found.to_string(), rule.to_owned());
                problems.push(Problem { field, found, rule });
            }
        };
        let n = self.n_layer;
        rule(
            (1..=MAX_LAYERS).contains(&n),
            "n_layer",
            &n,
            "must be 1 to 512",
        );
        let n = self.n_embd;
        let fits = n.is_multiple_of(ZONE_STEP) && (256..=1 << 20).contains(&n);
        rule(
            fits,
            "n_embd",
            &n,
            "must be a multiple of 64 from 256 to 1048576",
        );
        let interval = self.full_attention_interval;
        rule(
            interval > 0,
            "full_attention_interval",
            &interval,
            "must be above 0",
        );
        let n = self.n_expert;
        rule(
            (1..=MAX_EXPERTS).contains(&n),
            "n_expert",
            &n,
            "must be 1 to 1024",
        );
        let used = self.n_expert_used;
        let fits = (1..=n).contains(&used);
        rule(fits, "n_expert_used", &used, "must be from 1 to n_expert");
        for (field, n) in [("n_ff", self.n_ff), ("n_ff_shared", self.n_ff_shared)] {
            let fits = n.is_multiple_of(32) && (32..=1 << 20).contains(&n);
            rule(
                fits,
                field,
                &n,
                "must be a multiple of 32 from 32 to 1048576",
            );
        }
        let names = |types: &mut dyn Iterator<Item = TensorType>| {
            let names: Vec<&str> = types.map(TensorType::name).collect();
            format!("must be one of {}", names.join(", "))
        };
        let ty = self.expert_type;
        let known = random_types().any(|known| known == ty);
        rule(known, "expert_type", &ty, &names(&mut random_types()));
        let ty = self.dense_type;
        let known = DENSE.contains(&ty);
        rule(known, "dense_type", &ty, &names(&mut DENSE.into_iter()));
        let (n, kv) = (self.n_head, self.n_head_kv);
        let fits = kv > 0 && n > 0 && n.is_multiple_of(kv) && n <= 1 << 16;
        rule(
            fits,
            "n_head",
            &n,
            "must be a multiple of n_head_kv, at most 65536",
        );
        let n = self.head_dim;
        let fits = n.is_multiple_of(8) && (8..=1 << 12).contains(&n);
        rule(
            fits,
            "head_dim",
            &n,
            "must be a multiple of 8 from 8 to 4096",
        );
        let n = self.n_vocab;
        let fits = (vocabulary::MARKERS.len() + 256..=MAX_VOCAB).contains(&n);
        rule(
            fits,
            "n_vocab",
            &n,
            "must be from 261 (5 markers and 256 bytes) to 262144",
        );
        let n = self.n_ctx;
        let fits = n > 0 && u32::try_from(n).is_ok();
        rule(fits, "n_ctx", &n, "must be from 1 to 4294967295");
        if let Some(n) = self.ngram_rows {
            // Heads of 16 and the gaps between primes stay below 2^31 rows together.
            rule(
                (2..=1 << 26).contains(&n),
                "ngram_rows",
                &n,
                "must be from 2 to 67108864",
            );
            let name = "full_attention_interval";
            rule(
                interval != 1,
                name,
                &interval,
                "an n-gram embedding needs a delta net",
            );
        }
        let n = self.skew;
        rule((0.0..=4.0).contains(&n), "skew", &n, "must be from 0 to 4");
        let n = self.correlation;
        let fits = (0.0..=routing::MAX_CORRELATION).contains(&n);
        rule(fits, "correlation", &n, "must be from 0 to 0.95");
        let fits = n <= 0.0 || interval != 1;
        rule(
            fits,
            "correlation",
            &n,
            "needs a delta net as the first layer",
        );
        problems
    }

    /// Length of the file.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] with all that [`check`](Self::check) finds; [`Error::Gguf`] if the
    /// file would exceed 2^63 bytes.
    pub fn file_bytes(&self) -> Result<u64, Error> {
        let (metadata, specs) = self.describe(&self.tensors()?)?;
        let writer = StreamWriter::new(io::sink(), &metadata, &specs)?;
        let alignment = 32;
        let last = writer.tensors().last();
        Ok(last.map_or(0, |t| t.end_bytes().next_multiple_of(alignment)))
    }

    /// Writes the model, replacing what was there once everything is on disk. `on_progress` learns
    /// the bytes written and the length of the file about every MiB; with `Break` nothing is left.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] with all that [`check`](Self::check) finds; [`Error::Stopped`];
    /// [`Error::Gguf`] if the disk refuses.
    ///
    /// # Cost
    /// One pass, bounded memory.
    pub fn write(
        &self,
        path: impl AsRef<Path>,
        mut on_progress: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let tensors = self.tensors()?;
        let total_bytes = self.file_bytes()?;
        let (metadata, specs) = self.describe(&tensors)?;
        let mut writer = Writer::create(path, &metadata, &specs)?;
        let mut done_bytes = writer.tensors().first().map_or(0, |t| t.offset_bytes);
        for tensor in &tensors {
            produce::pieces(self, tensor, &mut |piece| {
                writer.write_chunk(&tensor.name, piece)?;
                done_bytes += piece.len() as u64;
                match on_progress(done_bytes.min(total_bytes), total_bytes) {
                    ControlFlow::Continue(()) => Ok(()),
                    ControlFlow::Break(()) => Err(Error::Stopped {
                        done_bytes,
                        total_bytes,
                    }),
                }
            })?;
        }
        Ok(writer.finish()?)
    }

    /// The experts of a layer, the most picked one first.
    #[must_use]
    pub fn ranking(&self, layer: usize) -> Vec<usize> {
        routing::ranking(self.seed, layer, self.n_expert)
    }

    /// The share of tokens that are meant to pick the expert of each rank.
    #[must_use]
    pub fn pick_shares(&self) -> Vec<f64> {
        routing::shares(self.n_expert, self.n_expert_used, self.skew)
    }

    fn tensors(&self) -> Result<Vec<Tensor>, Error> {
        let problems = self.check();
        if !problems.is_empty() {
            return Err(Error::Unsuitable { problems });
        }
        Ok(recipe::tensors(self))
    }

    fn describe(&self, tensors: &[Tensor]) -> Result<(Metadata, Vec<TensorSpec>), Error> {
        let mut metadata = self.shape().metadata()?;
        metadata.set("general.name", format!("synthetic-{}", self.seed))?;
        let description = format!(
            "random weights; picks fall as rank^-{}, correlation {}, seed {}",
            self.skew, self.correlation, self.seed
        );
        metadata.insert("general.description", description)?;
        vocabulary::fill(&mut metadata)?;
        let specs = tensors.iter().map(|tensor| {
            let shape: Vec<u64> = tensor.shape.iter().map(|n| *n as u64).collect();
            TensorSpec::new(&tensor.name, tensor.ty, &shape)
        });
        Ok((metadata, specs.collect::<Result<_, _>>()?))
    }

    /// The same sizes as a small model, whose keys describe them.
    fn shape(&self) -> SmallModel {
        let delta_dim = self.head_dim / 2;
        let n_head_delta_k = (self.n_embd * 4 / 5 / delta_dim).max(1);
        let rows_of = |heads: usize| self.n_embd / ((NGRAM_SIZE - 1) * heads);
        // Rows of whole blocks, as many as the published model has.
        let heads_per_size = [8, 4, 2, 1]
            .into_iter()
            .find(|heads| rows_of(*heads).is_multiple_of(32))
            .unwrap_or(1);
        let ngram = self.ngram_rows.map(|rows| SmallNgram {
            layer: usize::from(self.n_layer > 1 && self.full_attention_interval != 2),
            size: NGRAM_SIZE,
            heads_per_size,
            min_rows: rows as u64,
            conv_kernel: 4,
            hash_seed: 1234,
        });
        SmallModel {
            n_layer: self.n_layer,
            full_attention_interval: self.full_attention_interval,
            recurrent_layers: None,
            mtp: false,
            n_ctx: self.n_ctx,
            n_vocab: self.n_vocab,
            n_embd: self.n_embd,
            streams: STREAMS,
            low_rank: self.n_embd / 8,
            n_head: self.n_head,
            n_head_kv: self.n_head_kv,
            head_dim: self.head_dim,
            n_rot: self.head_dim / 4,
            n_head_index: 4,
            index_dim: self.head_dim / 2,
            block_tokens: 4,
            budget_tokens: 2048,
            n_head_delta_k,
            n_head_delta_v: 3 * n_head_delta_k,
            delta_dim,
            conv_kernel: 4,
            n_expert: self.n_expert,
            n_expert_used: self.n_expert_used,
            n_ff: self.n_ff,
            n_ff_shared: self.n_ff_shared,
            fused_gate_up: false,
            ngram,
            tied: false,
            types: SmallTypes::default(),
            seed: self.seed,
        }
    }
}

impl Default for SyntheticModel {
    fn default() -> Self {
        Self::of_width(2560)
    }
}

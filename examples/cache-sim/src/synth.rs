//! `synth`: a trace of a model that is not there.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;
use thalweg_cache::sim::{Synthetic, SyntheticConfig};
use thalweg_cache::{KeySpace, Router, Weights};
use thalweg_examples_common::{check_outputs, print_line, whole};
use thalweg_runtime::TraceLogits;
use thalweg_trace::{FileWriter, LayerChoice, RecordBuf, Shape};

use crate::record::logits;
use crate::sweep::progress;

/// Write a synthetic trace for a shape that there is no model for.
///
/// An expert's logit is what it always has (its popularity, by --skew) plus what drifts from token
/// to token (by --spread and --persistence). It shows how a cache behaves under so much skew and so
/// much correlation, not what a real model asks for.
///
/// OUT is replaced when the new trace is complete, and never before. A run that is killed leaves
/// `.OUT.records.partial` or `.OUT.partial`, which the next one to the same OUT takes over.
#[derive(Debug, Args)]
pub(crate) struct SynthArgs {
    /// Layers
    #[arg(long, value_name = "N", default_value_t = 48)]
    layers: u16,

    /// Experts of a layer
    #[arg(long, value_name = "N", default_value_t = 512)]
    experts: u16,

    /// Experts of a choice
    #[arg(short, long, value_name = "N", default_value_t = 10)]
    k: u16,

    /// Tokens
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = whole)]
    tokens: u64,

    /// Spread of popularity in nats; 0 uses all experts alike
    #[arg(long, value_name = "NATS", default_value_t = 1.0)]
    skew: f64,

    /// Spread of the drifting part in nats
    #[arg(long, value_name = "NATS", default_value_t = 1.5)]
    spread: f64,

    /// Correlation of the drifting part between neighboring tokens, below 1
    #[arg(long, value_name = "R", default_value_t = 0.8)]
    persistence: f64,

    /// Seed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole)]
    seed: u64,

    /// Bytes of one expert, noted in the trace
    #[arg(long, value_name = "BYTES", default_value_t = 1_382_400, value_parser = whole)]
    expert_bytes: u64,

    /// What is kept of the logits: none, f16, f32 or top:M
    #[arg(long, value_name = "KIND", default_value = "f16", value_parser = logits)]
    logits: TraceLogits,

    /// Trace to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// Writes the trace.
pub(crate) fn run(args: &SynthArgs) -> Result<()> {
    check_outputs(&[("--out", &args.out)], &[])?;
    let mut config = SyntheticConfig::default();
    config.skew = args.skew;
    config.spread = args.spread;
    config.persistence = args.persistence;
    config.seed = args.seed;
    let space = KeySpace::new(args.layers, args.experts);
    let mut source = Synthetic::new(space, &config)?;
    let mut router = Router::new(args.experts, args.k)?;
    let shape = Shape::new(args.layers.into(), args.experts.into(), args.k);
    let shape = shape.with_weights().with_logits(args.logits);
    let mut writer = FileWriter::create(&args.out, &shape, [0; 32])
        .with_context(|| format!("cannot write {}", args.out.display()))?;
    let provenance = json!({
        "format": "routing-trace",
        "model": "synthetic",
        "domains": ["synthetic"],
        "expert_bytes": vec![args.expert_bytes; args.layers.into()],
        "skew": args.skew,
        "spread": args.spread,
        "persistence": args.persistence,
        "seed": args.seed,
    });
    writer.set_provenance(provenance.to_string());
    writer.start_document(0, 0);
    let mut record = RecordBuf::new(&shape)?;
    let mut row = vec![0.0f32; args.experts.into()];
    let bar = progress(usize::try_from(args.tokens)?);
    for _ in 0..args.tokens {
        record.start(0);
        for layer in 0..args.layers {
            source.row(layer, &mut row);
            let route = router.route(&row, 0.0, 0, Weights::Unbiased, |_| false)?;
            let choice = LayerChoice::new(route.experts).with_weights(route.weights);
            record.push_layer(&choice.with_logits(&row))?;
        }
        writer.push(&record)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let bytes = writer.finish()?;
    print_line(&format!(
        "{}: {} tokens, {bytes} bytes",
        args.out.display(),
        args.tokens
    ))?;
    Ok(())
}

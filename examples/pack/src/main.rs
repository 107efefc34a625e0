//! Packs a model's routed experts into a sidecar. Owns: flags and the report. Does not own:
//! the format, copying and comparing (`thalweg-store`), nor what is copied (`thalweg-runtime`).

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use serde_json::{Value, json};
use thalweg_examples_common::{ByteBar, Interrupt, check_outputs, parse, print_line, report};
use thalweg_gguf::Gguf;
use thalweg_runtime::{Packed, pack_sidecar, verify_sidecar};

/// Pack the routed experts of a model into a file of their own, each one contiguous and aligned, so
/// that an expert is one direct read instead of three with copies.
///
/// Nothing is encoded anew: output is the same with and without the sidecar, it only arrives
/// sooner. A sidecar belongs to the model file that it was made from and is refused with any other;
/// it needs about as much room as the experts do.
///
/// OUT is replaced when the new file is complete, and never before. An interrupted run leaves at
/// most `.OUT.partial`, which the next one replaces.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "\
Examples:
  pack model.gguf model.experts              write the sidecar
  pack --verify model.gguf model.experts     compare every byte of an existing one
  pack model-00001-of-00003.gguf m.experts   a split model, from any of its files
  pack --json model.gguf model.experts       for programs"
)]
struct Args {
    /// The model file, or any file of a split model
    file: PathBuf,

    /// The sidecar
    #[arg(value_name = "OUT.experts")]
    out: PathBuf,

    /// Write nothing; compare OUT with the model file, and its checksums with its bytes
    #[arg(long)]
    verify: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    report(run(&parse()).map(|()| true))
}

fn run(args: &Args) -> Result<()> {
    let file = Gguf::open(&args.file).context("cannot open the model")?;
    if !args.verify {
        let shards = (0..file.n_shards()).filter_map(|shard| file.path(shard));
        let inputs: Vec<_> = shards.map(|path| ("the model", path)).collect();
        check_outputs(&[("OUT", &args.out)], &inputs)?;
    }
    let interrupt = Interrupt::listen()?;
    let bar = ByteBar::new(if args.verify { "comparing" } else { "packing" });
    let mut total_bytes = 0;
    let mut progress = |done: u64, total: u64| {
        total_bytes = total;
        bar.update(done, total);
        interrupt.flow()
    };
    let packed = match args.verify {
        true => verify_sidecar(&args.out, &file, &mut progress).map(|()| None),
        false => pack_sidecar(&file, &args.out, &mut progress).map(Some),
    };
    let took = bar.finish();
    let packed = packed?;
    tell(args, packed.as_ref(), total_bytes, took)
}

/// Reports what was done with `bytes` bytes of bundles.
fn tell(args: &Args, packed: Option<&Packed>, bytes: u64, took: Duration) -> Result<()> {
    let seconds = took.as_secs_f64();
    let mb_per_s = bytes as f64 / 1e6 / seconds.max(1e-9);
    if args.json {
        let packed = match packed {
            None => Value::Null,
            Some(packed) => json!({
                "file_bytes": packed.file_bytes,
                "expert_bytes": packed.expert_bytes,
                "experts": packed.n_experts,
                "replaced_leftover": packed.removed_leftover,
            }),
        };
        let value = json!({
            "model": args.file.to_string_lossy(),
            "sidecar": args.out.to_string_lossy(),
            "verified": args.verify,
            "packed": packed,
            "bundle_bytes": bytes,
            "seconds": seconds,
            "mb_per_s": mb_per_s,
        });
        return print_line(&value.to_string());
    }
    let out = args.out.display();
    let rate = format!("{seconds:.1} s, {mb_per_s:.0} MB/s");
    match packed {
        None => print_line(&format!(
            "{out} equals the model file, byte for byte: {rate}"
        )),
        Some(packed) => print_line(&format!(
            "{} experts, {:.3} GB in {out}: {rate}",
            packed.n_experts,
            packed.file_bytes as f64 / 1e9
        )),
    }
}

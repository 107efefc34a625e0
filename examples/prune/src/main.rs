//! Writes a model with some of its experts. Owns: flags, the bar, the report. Does not own: the choice
//! of experts (`saliency`) nor the cut (`thalweg-compress`).

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use serde_json::json;
use thalweg_compress::{KeepMap, hex, prune, verify};
use thalweg_examples_common::{
    ByteBar, Interrupt, check_outputs, check_space, parse, print_line, report,
};
use thalweg_gguf::Gguf;

/// Write a model with the experts of a keep-map alone.
///
/// Bytes of the kept experts and their rows of the router are copied; nothing is encoded anew. The
/// new model gives exactly what the old one would with the other experts left out. A keep-map belongs
/// to the model file that was measured and is refused with any other. The new file is read again and
/// compared with what was meant.
///
/// OUT is replaced when the new file is complete, and never before.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "\
Examples:
  saliency collect --model model.gguf --text *.txt --out s.json
  saliency keep s.json --k 48 --score reap_l2_sum --out keep.json
  prune model.gguf keep.json small.gguf
  prune --json model.gguf keep.json small.gguf       with the hash of every tensor"
)]
struct Args {
    /// The model file, or any file of a split model
    #[arg(value_name = "IN")]
    file: PathBuf,

    /// The keep-map
    #[arg(value_name = "KEEP")]
    map: PathBuf,

    /// The new file, never split
    out: PathBuf,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    report(run(&parse()).map(|()| true))
}

fn run(args: &Args) -> Result<()> {
    let file = Gguf::open(&args.file).context("cannot open the model")?;
    let map = KeepMap::read(&args.map).context("cannot use the keep-map")?;
    let shards = (0..file.n_shards()).filter_map(|shard| file.path(shard));
    let mut inputs: Vec<_> = shards.map(|path| ("the model", path)).collect();
    inputs.push(("the keep-map", &args.map));
    check_outputs(&[("OUT", &args.out)], &inputs)?;
    // Never more than the source.
    let before: u64 = file.tensors().iter().map(|t| t.size_bytes).sum();
    let experts = file.tensors().iter().filter(|t| t.name.contains("_exps."));
    let experts: u64 = experts.map(|t| t.size_bytes).sum();
    let dropped = (map.n_expert - map.k) as f64 / map.n_expert as f64;
    check_space(&args.out, before - (experts as f64 * dropped) as u64)?;

    let interrupt = Interrupt::listen()?;
    let bar = ByteBar::new("copying");
    let written = prune(&file, &map, &args.out, &mut |done, total| {
        bar.update(done, total);
        interrupt.flow()
    });
    let seconds = bar.finish().as_secs_f64();
    let written = written?;
    let bar = ByteBar::new("reading it again");
    let verified = verify(&args.out, &written, &mut |done, total| {
        bar.update(done, total);
        interrupt.flow()
    });
    bar.finish();
    verified?;

    let after: u64 = written.tensors.iter().map(|t| t.size_bytes).sum();
    let n_changed = written.tensors.iter().filter(|t| t.is_changed).count();
    if args.json {
        let tensors = written.tensors.iter().map(|t| {
            json!({
                "name": t.name,
                "shape": t.shape,
                "bytes": t.size_bytes,
                "pruned": t.is_changed,
                "sha256": hex(&t.sha256),
            })
        });
        let value = json!({
            "model": args.file.to_string_lossy(),
            "file": args.out.to_string_lossy(),
            "k": map.k,
            "of": map.n_expert,
            "method": map.method.name,
            "data_bytes_before": before,
            "data_bytes": after,
            "pruned": n_changed,
            "copied": written.tensors.len() - n_changed,
            "seconds": seconds,
            "tensors": tensors.collect::<Vec<_>>(),
        });
        return print_line(&value.to_string());
    }
    print_line(&format!(
        "{} of {} experts a layer by {}: {n_changed} tensors cut, {} copied, all read again and equal \
         to what was meant",
        map.k,
        map.n_expert,
        map.method.name,
        written.tensors.len() - n_changed
    ))?;
    let mb = |bytes: u64| format!("{:.2} MB", bytes as f64 / 1e6);
    print_line(&format!(
        "{} -> {} in {seconds:.1} s: {}",
        mb(before),
        mb(after),
        args.out.display()
    ))
}

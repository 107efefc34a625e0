//! Prints what a GGUF file, or a split set of them, holds, and which GPUs there are. Owns: arguments
//! and layout of the output. Does not own: reading and checking (`thalweg-gguf`). Memory: the header, and with
//! `--json` a second copy of it. Cost: reads headers only, whatever the size of the model.

mod gpu;
mod json;

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use thalweg_examples_common::{parse, report};
use thalweg_gguf::{Array, Gguf, TensorType, Value};

/// Show what a GGUF file holds: metadata, tensors, totals by type.
///
/// Only headers are read, so a model of any size is shown at once. A file with any fault in its
/// header is refused with the reason, so this also checks a download.
#[derive(Parser)]
#[command(
    version,
    after_help = "\
Examples:
  inspect model.gguf                           everything, long values shortened
  inspect --no-tensors --full model.gguf       all metadata, whole vocabulary included
  inspect model-00002-of-00003.gguf            a split model, from any of its files
  inspect --json model.gguf | jq .totals       for programs
  inspect --gpu                                the GPUs that --backend wgpu can use"
)]
struct Args {
    /// The file, or any file of a split model
    #[arg(required_unless_present = "gpu")]
    file: Option<PathBuf>,
    /// List the GPUs of this machine instead: what --adapter can name, its limits and features
    #[arg(long, conflicts_with_all = ["file", "full", "no_metadata", "no_tensors"])]
    gpu: bool,
    /// Print one JSON object; nothing is shortened
    #[arg(long)]
    json: bool,
    /// Print long arrays and strings whole
    #[arg(long)]
    full: bool,
    /// Leave the metadata out
    #[arg(long)]
    no_metadata: bool,
    /// Leave the list of tensors out
    #[arg(long)]
    no_tensors: bool,
}

fn main() -> ExitCode {
    report(run(&parse()).map(|()| true))
}

fn run(args: &Args) -> anyhow::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    match &args.file {
        Some(file) => {
            let model = Gguf::open(file)?;
            match args.json {
                true => write_json(&mut out, &json::object(&model, args))?,
                false => print(&model, args, &mut out)?,
            }
        }
        // There is a file unless GPUs are asked for.
        None => {
            let adapters = thalweg_wgpu::adapters();
            match args.json {
                true => write_json(&mut out, &gpu::object(&adapters))?,
                false => gpu::print(&adapters, &mut out)?,
            }
        }
    }
    Ok(out.flush()?)
}

fn write_json(out: &mut impl Write, object: &serde_json::Value) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, object).map_err(io::Error::from)?;
    writeln!(out)
}

/// Tensors, elements and bytes of each type.
fn totals(model: &Gguf) -> BTreeMap<TensorType, [u64; 3]> {
    let mut totals = BTreeMap::new();
    for tensor in model.tensors() {
        let sums = totals.entry(tensor.ty).or_insert([0; 3]);
        for (sum, n) in sums
            .iter_mut()
            .zip([1, tensor.n_elements(), tensor.size_bytes])
        {
            *sum += n;
        }
    }
    totals
}

fn print(model: &Gguf, args: &Args, out: &mut impl Write) -> io::Result<()> {
    for shard in 0..model.n_shards() {
        let (Some(path), Some(identity)) = (model.path(shard), model.identity(shard)) else {
            continue;
        };
        let version = model.version(shard).unwrap_or_default();
        let start = model.data_start_bytes(shard).unwrap_or_default();
        let alignment = model.alignment_bytes(shard).unwrap_or_default();
        writeln!(out, "file {shard}: {}", path.display())?;
        writeln!(
            out,
            "  GGUF {version}, {} bytes, data from byte {start}, aligned to {alignment}",
            identity.len_bytes
        )?;
    }

    if !args.no_metadata {
        let metadata = model.metadata();
        writeln!(out, "\n{} metadata keys", metadata.len())?;
        let width = metadata
            .iter()
            .map(|(key, _)| key.chars().count())
            .max()
            .unwrap_or(0);
        for (key, value) in metadata.iter() {
            let key = key.escape_debug().to_string();
            let ty = type_name(value);
            writeln!(out, "  {key:width$}  {ty:12}  {}", shown(value, args.full))?;
        }
    }

    if !args.no_tensors {
        let tensors = model.tensors();
        writeln!(
            out,
            "\n{} tensors: type, bytes, offset, file, name, shape",
            tensors.len()
        )?;
        let width = tensors
            .iter()
            .map(|t| t.name.chars().count())
            .max()
            .unwrap_or(0);
        for t in tensors {
            let (ty, size, offset, file) = (t.ty, t.size_bytes, t.offset_bytes, t.file);
            let name = t.name.escape_debug().to_string();
            let shape = t.shape();
            writeln!(
                out,
                "  {ty:8} {size:12} {offset:14} {file:2}  {name:width$}  {shape:?}"
            )?;
        }
    }

    writeln!(
        out,
        "\ntotals: type, tensors, elements, bytes, bits per element"
    )?;
    let mut all = [0; 3];
    for (ty, sums) in totals(model) {
        all.iter_mut().zip(sums).for_each(|(all, n)| *all += n);
        print_total(ty.name(), sums, out)?;
    }
    print_total("all", all, out)
}

fn print_total(ty: &str, [n, elements, bytes]: [u64; 3], out: &mut impl Write) -> io::Result<()> {
    let bits = bytes as f64 * 8.0 / elements.max(1) as f64;
    writeln!(out, "  {ty:8} {n:6} {elements:16} {bytes:14} {bits:7.3}")
}

fn type_name(value: &Value) -> String {
    match value {
        Value::Array(array) => format!("{}[{}]", array.element_type(), array.len()),
        scalar => scalar.value_type().to_string(),
    }
}

/// The value on one line. Unless `full`, long arrays and strings end in dots.
fn shown(value: &Value, full: bool) -> String {
    const MOST_ITEMS: usize = 8;
    const MOST_CHARS: usize = 100;
    match value {
        Value::Array(array) if !full && array.len() > MOST_ITEMS => {
            let items: Vec<String> = items(array)
                .take(MOST_ITEMS)
                .map(|item| shown(&item, full))
                .collect();
            format!("[{}, ...]", items.join(", "))
        }
        Value::String(text) if !full => match text.char_indices().nth(MOST_CHARS) {
            Some((end, _)) => format!("{:?}...", &text[..end]),
            None => format!("{text:?}"),
        },
        short => short.to_string(),
    }
}

fn items(array: &Array) -> impl Iterator<Item = Value> {
    (0..array.len()).filter_map(|i| array.get(i))
}

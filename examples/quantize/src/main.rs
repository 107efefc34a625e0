//! Writes a model with some of its tensors in other types. Owns: flags, the bar, the report. Does
//! not own: the choice of tensors by role, encoding and copying (`thalweg-compress`).

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use serde_json::json;
use thalweg_compress::{Exponents, Fit, InputMoments, Plan, Quantized, Recipe, Rule, verify};
use thalweg_examples_common::{
    ByteBar, Interrupt, check_outputs, check_space, count, parse, print_line, report,
};
use thalweg_gguf::{Gguf, TensorSpec};
use thalweg_quant::{QuantType, encode};

/// Write a model with its experts, or any other matrices, in other types.
///
/// Rows are decoded and encoded anew, on all cores, in a few MiB of memory whatever the size of the
/// model; all other tensors are copied. Encoders find the blocks of least error (Q2_0, IQ4_NL, Q4_0:
/// exactly; Q4_K, Q6_K: by search), weighed by --importance if there is one. The new file is read
/// again and compared with what was meant.
///
/// OUT is replaced when the new file is complete, and never before.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "\
Examples:
  quantize model.gguf small.gguf --experts q2_0
                            experts at 2.25 bits a weight, everything else as it is
  quantize model.gguf small.gguf --experts q2_0 --importance moments.json
                            the same, weighed by what a calibration run saw
  quantize model.gguf small.gguf --experts q4_k --dense q8_0 --tensor 'output.weight=q6_k'
                            a type for each kind of tensor, and one by name
  quantize model.gguf small.gguf --tensor '*_shexp.weight=iq4_nl'
                            by pattern: a star stands for any text
  quantize --dry-run model.gguf --experts q2_0
                            how large would it be?"
)]
struct Args {
    /// The model file, or any file of a split model
    #[arg(value_name = "IN")]
    file: PathBuf,

    /// The new file, never split
    #[arg(value_name = "OUT", required_unless_present = "dry_run")]
    out: Option<PathBuf>,

    /// Type for routed experts
    #[arg(long, value_name = "TYPE", value_parser = quant_type)]
    experts: Option<QuantType>,

    /// Type for other matrices, shared experts and embeddings among them; routers, norms and the
    /// n-gram table stay as they are
    #[arg(long, value_name = "TYPE", value_parser = quant_type)]
    dense: Option<QuantType>,

    /// Type for tensors by name; may be given several times, the last that fits a name wins
    #[arg(long = "tensor", value_name = "NAME=TYPE", value_parser = rule)]
    tensors: Vec<Rule>,

    /// Second moments of the experts' input, which weigh errors
    #[arg(long, value_name = "FILE")]
    importance: Option<PathBuf>,

    /// Power of the moments that weighs gate and up; 0 does not weigh
    #[arg(long, value_name = "POWER", default_value_t = Exponents::default().input)]
    beta: f64,

    /// Power of the moments of an expert's hidden vector that weighs down
    #[arg(long, value_name = "POWER", default_value_t = Exponents::default().hidden)]
    beta_down: f64,

    /// exact: blocks of least error. reference: the bytes of llama.cpp's reference quantizer
    #[arg(long, value_name = "NAME", default_value = "exact")]
    fit: FitName,

    /// Threads [default: all cores]; does not change the output
    #[arg(long, value_name = "N", value_parser = count)]
    threads: Option<usize>,

    /// Print what would become of each tensor, but write nothing
    #[arg(long)]
    dry_run: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FitName {
    Exact,
    Reference,
}

fn main() -> ExitCode {
    report(run(&parse()).map(|()| true))
}

fn run(args: &Args) -> Result<()> {
    let is_asked = args.experts.is_some() || args.dense.is_some() || !args.tensors.is_empty();
    ensure!(
        is_asked,
        "nothing to change; name types with --experts, --dense or --tensor"
    );
    let file = Gguf::open(&args.file).context("cannot open the model")?;
    let moments = args.importance.as_deref().map(InputMoments::read);
    let moments = moments.transpose().context("cannot use --importance")?;
    let recipe = Recipe {
        experts: args.experts,
        dense: args.dense,
        rules: args.tensors.clone(),
        fit: match args.fit {
            FitName::Exact => Fit::Exact,
            FitName::Reference => Fit::Reference,
        },
        moments: moments.as_ref(),
        exponents: Exponents {
            input: args.beta,
            hidden: args.beta_down,
        },
    };
    let plan = recipe.plan(&file)?;
    let bytes = size(&file, &plan)?;
    let Some(out) = args.out.as_deref().filter(|_| !args.dry_run) else {
        return tell_plan(args, &file, &plan, bytes);
    };
    let shards = (0..file.n_shards()).filter_map(|shard| file.path(shard));
    let mut inputs: Vec<_> = shards.map(|path| ("the model", path)).collect();
    inputs.extend(
        args.importance
            .as_deref()
            .map(|path| ("--importance", path)),
    );
    check_outputs(&[("OUT", out)], &inputs)?;
    check_space(out, bytes)?;

    let threads = rayon::ThreadPoolBuilder::new().num_threads(args.threads.unwrap_or(0));
    let threads = threads.build().context("cannot start threads")?;
    let interrupt = Interrupt::listen()?;
    let bar = ByteBar::new("quantizing");
    let made = threads.install(|| {
        recipe.write(&file, out, &mut |done, total| {
            bar.update(done, total);
            interrupt.flow()
        })
    });
    let took = bar.finish();
    let made = made?;
    let bar = ByteBar::new("reading it again");
    let verified = verify(out, &made.written, &mut |done, total| {
        bar.update(done, total);
        interrupt.flow()
    });
    bar.finish();
    verified?;
    tell(args, &file, &plan, &made, took)
}

/// Bytes of the new file's data.
fn size(file: &Gguf, plan: &Plan) -> Result<u64> {
    let mut bytes = 0;
    for (tensor, planned) in file.tensors().iter().zip(&plan.tensors) {
        bytes += TensorSpec::new(&*planned.name, planned.to, tensor.shape())?.size_bytes();
    }
    Ok(bytes)
}

fn tell_plan(args: &Args, file: &Gguf, plan: &Plan, bytes: u64) -> Result<()> {
    if args.json {
        let tensors = plan.tensors.iter().map(|t| {
            json!({
                "name": t.name,
                "from": t.from.name(),
                "to": t.to.name(),
                "kept_because": t.kept_because,
            })
        });
        let value = json!({
            "model": args.file.to_string_lossy(),
            "written": false,
            "data_bytes_before": data_bytes(file),
            "data_bytes": bytes,
            "tensors": tensors.collect::<Vec<_>>(),
        });
        return print_line(&value.to_string());
    }
    for planned in &plan.tensors {
        let what = match planned.kept_because {
            Some(reason) => format!("{}, {reason}", planned.from),
            None if planned.from == planned.to => planned.from.to_string(),
            None => format!("{} -> {}", planned.from, planned.to),
        };
        print_line(&format!("{:48} {what}", planned.name))?;
    }
    let (before, after) = (mb(data_bytes(file)), mb(bytes));
    print_line(&format!("{before} -> {after}, not written"))
}

fn tell(args: &Args, file: &Gguf, plan: &Plan, made: &Quantized, took: Duration) -> Result<()> {
    let seconds = took.as_secs_f64();
    let changed = |name: &str| made.changed.iter().find(|t| t.name == name);
    let weights: u64 = file
        .tensors()
        .iter()
        .filter(|t| changed(&t.name).is_some())
        .map(|t| t.n_elements())
        .sum();
    // As the encoders see them.
    let mb_per_s = weights as f64 * 4.0 / 1e6 / seconds.max(1e-9);
    let after: u64 = made.written.tensors.iter().map(|t| t.size_bytes).sum();
    let energy: f64 = made.changed.iter().map(|t| t.energy).sum();
    let error: f64 = made.changed.iter().map(|t| t.squared_error).sum();
    let relative_error = if energy > 0.0 { error / energy } else { 0.0 };
    let out = args.out.as_deref().map(|out| out.to_string_lossy());
    if args.json {
        let tensors = made.written.tensors.iter().map(|t| {
            let changed = changed(&t.name);
            json!({
                "name": t.name,
                "type": t.ty.name(),
                "shape": t.shape,
                "bytes": t.size_bytes,
                "sha256": hex(&t.sha256),
                "from": changed.map(|c| c.from.name()),
                "weighted": changed.map(|c| c.is_weighted),
                "relative_error": changed.map(|c| c.relative_error()),
            })
        });
        let value = json!({
            "model": args.file.to_string_lossy(),
            "file": out,
            "written": true,
            "data_bytes_before": data_bytes(file),
            "data_bytes": after,
            "changed": made.changed.len(),
            "copied": made.written.tensors.len() - made.changed.len(),
            "relative_error": relative_error,
            "seconds": seconds,
            "f32_mb_per_s": mb_per_s,
            "tensors": tensors.collect::<Vec<_>>(),
        });
        return print_line(&value.to_string());
    }
    for planned in plan.tensors.iter().filter(|t| t.kept_because.is_some()) {
        let reason = planned.kept_because.unwrap_or_default();
        print_line(&format!(
            "kept {} as {}: {reason}",
            planned.name, planned.from
        ))?;
    }
    let kept = made.written.tensors.len() - made.changed.len();
    print_line(&format!(
        "{} tensors encoded, {kept} copied, all read again and equal to what was meant",
        made.changed.len(),
    ))?;
    print_line(&format!(
        "{} -> {}; squared error {:.3} % of the energy of what changed",
        mb(data_bytes(file)),
        mb(after),
        100.0 * relative_error
    ))?;
    print_line(&format!(
        "{} in {seconds:.1} s, {mb_per_s:.0} MB/s of f32 weights",
        out.unwrap_or_default()
    ))
}

fn data_bytes(file: &Gguf) -> u64 {
    file.tensors().iter().map(|t| t.size_bytes).sum()
}

fn mb(bytes: u64) -> String {
    format!("{:.2} MB", bytes as f64 / 1e6)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn rule(text: &str) -> Result<Rule, String> {
    let (pattern, ty) = text
        .split_once('=')
        .ok_or("expected NAME=TYPE, such as output.weight=q6_k")?;
    Ok(Rule::new(pattern, quant_type(ty)?))
}

fn quant_type(text: &str) -> Result<QuantType, String> {
    let known = QuantType::ALL.iter().filter(|ty| encode::can_encode(**ty));
    let mut known = known.copied();
    known
        .find(|ty| ty.name().eq_ignore_ascii_case(text))
        .ok_or_else(|| {
            let known = QuantType::ALL.iter().filter(|ty| encode::can_encode(**ty));
            let names: Vec<String> = known.map(|ty| ty.name().to_lowercase()).collect();
            format!(
                "no type that can be written has this name; there are {}",
                names.join(", ")
            )
        })
}

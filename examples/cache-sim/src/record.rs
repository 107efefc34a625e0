//! `record`: runs a model over texts and writes what its routers chose.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::json;
use thalweg::{Gguf, Observer, Routing, Text};
use thalweg_examples_common::{
    CountBar, ModelArgs, Settings, StatsFormat, check_outputs, count, print_line, print_stats,
    read_text,
};
use thalweg_runtime::{FingerprintDepth, ModelSpec, TraceLogits, TraceRecorder, fingerprint};

/// A line that separates documents.
const SEPARATOR: &str = "<|endoftext|>";

/// Run a model over texts and write a routing trace.
///
/// Each document is a sequence of its own, taken in as a prompt; what is longer than the context is
/// cut. The trace is the same for every budget, chunk and policy. Markers such as <|im_start|> in
/// the texts are parsed, so use trusted texts.
///
/// OUT is replaced when the new trace is complete, and never before. A run that is killed leaves
/// `.OUT.records.partial` or `.OUT.partial`, which the next one to the same OUT takes over.
#[derive(Debug, Args)]
pub(crate) struct RecordArgs {
    #[command(flatten)]
    model: ModelArgs,

    /// Text files; documents are separated by a line "<|endoftext|>", the domain is the file's name
    /// up to the first dot
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    text: Vec<PathBuf>,

    /// Trace to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// Most tokens of the trace, an equal share for each text [default: all]
    #[arg(long, value_name = "N", value_parser = count)]
    max_tokens: Option<usize>,

    /// Tokens of context: longer documents are cut
    #[arg(long, value_name = "TOKENS", default_value_t = 2048, value_parser = count)]
    ctx: usize,

    /// What is kept of the router's logits: none, f16, f32 or top:M
    #[arg(long, value_name = "KIND", default_value = "f16", value_parser = logits)]
    logits: TraceLogits,

    /// Print what the run did, on standard error: with --chunk 1 its misses are those that `replay`
    /// predicts for the same policy and slots
    #[arg(long, value_name = "FORMAT")]
    stats: Option<StatsFormat>,
}

/// Writes the trace.
pub(crate) fn run(args: &RecordArgs) -> Result<()> {
    let start = Instant::now();
    let file = args.model.file()?;
    check_paths(args, &file)?;
    let name = file.path(0).and_then(Path::file_name).unwrap_or_default();
    let name = name.to_string_lossy().into_owned();
    let text = Text::from_file(&file)?;
    let documents = documents(args, &text)?;
    let total: usize = documents.iter().map(|d| d.tokens.len()).sum();
    ensure!(total > 0, "the texts hold no tokens");

    let mut engine = args.model.engine(file, args.ctx)?;
    let mut session = engine.session()?;
    let mark = fingerprint(engine.file(), FingerprintDepth::Ends)?;
    let recorder = TraceRecorder::create(&args.out, engine.spec(), args.logits, mark)
        .with_context(|| format!("cannot record to {}", args.out.display()))?;
    let bar = CountBar::tokens("recording");
    let mut watch = Watch {
        recorder,
        bar,
        done: 0,
        total,
    };
    watch
        .recorder
        .set_provenance(provenance(args, &name, engine.spec()));
    for document in &documents {
        engine.reset(&mut session)?;
        let recorder = &mut watch.recorder;
        recorder.start_document(document.domain, document.tokens.len());
        recorder.feed(&document.tokens);
        let ran = engine.prefill(&mut session, &document.tokens, &mut watch);
        watch.recorder.end_document(session.tokens().len())?;
        ran?;
        watch.done += document.tokens.len();
    }
    watch.bar.update(total, total);
    let bytes = watch.recorder.finish()?;
    let seconds = start.elapsed().as_secs_f64();
    print_line(&format!(
        "{}: {total} tokens in {} documents of {} domains, {bytes} bytes, {seconds:.1} s",
        args.out.display(),
        documents.len(),
        domains(args).len(),
    ))?;
    match args.stats {
        Some(format) => {
            let settings = Settings::of(&args.model, &engine);
            print_stats(format, &settings, &engine.stats(), engine.plan(), None)
        }
        None => Ok(()),
    }
}

/// The trace must not replace what it is made from.
fn check_paths(args: &RecordArgs, file: &Gguf) -> Result<()> {
    let shards = (0..file.n_shards()).filter_map(|shard| file.path(shard));
    let more = [
        ("--sidecar", &args.model.sidecar),
        ("--profile", &args.model.profile),
    ];
    let more = more
        .into_iter()
        .filter_map(|(f, p)| Some((f, p.as_deref()?)));
    let texts = args.text.iter().map(|path| ("--text", path.as_path()));
    let inputs: Vec<(&str, &Path)> = shards
        .map(|path| ("--model", path))
        .chain(more)
        .chain(texts)
        .collect();
    check_outputs(&[("--out", &args.out)], &inputs)
}

/// The recorder with a progress bar over all documents.
struct Watch {
    recorder: TraceRecorder,
    bar: CountBar,
    done: usize,
    total: usize,
}

impl Observer for Watch {
    fn on_progress(&mut self, done: usize, total: usize) -> ControlFlow<()> {
        self.bar.update(self.done + done, self.total);
        self.recorder.on_progress(done, total)
    }

    fn on_routes(&mut self, layer: usize, first_position: usize, routing: &Routing) {
        self.recorder.on_routes(layer, first_position, routing);
    }
}

struct Document {
    domain: u32,
    tokens: Vec<u32>,
}

/// The documents of all texts, cut to the context and to each text's share.
fn documents(args: &RecordArgs, text: &Text) -> Result<Vec<Document>> {
    let domains = domains(args);
    let share = args.max_tokens.map(|n| n.div_ceil(args.text.len()));
    let mut documents = Vec::new();
    for path in &args.text {
        let whole = read_text(path)?;
        let domain = domains.iter().position(|d| *d == domain(path)).unwrap_or(0);
        let mut left = share.unwrap_or(usize::MAX);
        for part in split(&whole) {
            let mut tokens = text.raw(part.trim());
            tokens.truncate(args.ctx.min(left));
            left -= tokens.len();
            if !tokens.is_empty() {
                let domain = u32::try_from(domain).context("too many domains")?;
                documents.push(Document { domain, tokens });
            }
        }
    }
    Ok(documents)
}

fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for line in text.split_inclusive('\n') {
        if line.trim_end() == SEPARATOR {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push_str(line);
        }
    }
    parts
}

/// The names of all texts' domains, each once, in the order of the texts.
fn domains(args: &RecordArgs) -> Vec<String> {
    let mut domains = Vec::new();
    for path in &args.text {
        let name = domain(path);
        if !domains.contains(&name) {
            domains.push(name);
        }
    }
    domains
}

fn domain(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').next().unwrap_or_default().to_owned()
}

/// What the trace was made from, and what a replay wants to know beyond the header.
fn provenance(args: &RecordArgs, model: &str, spec: &ModelSpec) -> String {
    let bytes: Vec<u64> = spec
        .experts
        .iter()
        .map(|e| e.parts.iter().map(|p| p.len_bytes).sum())
        .collect();
    let texts: Vec<_> = args
        .text
        .iter()
        .map(|t| t.file_name().unwrap_or_default().to_string_lossy())
        .collect();
    json!({
        "format": "routing-trace",
        "model": model,
        "architecture": spec.architecture,
        "domains": domains(args),
        "texts": texts,
        "n_ctx": args.ctx,
        "expert_bytes": bytes,
    })
    .to_string()
}

/// Reads what is to be kept of logits.
pub(crate) fn logits(text: &str) -> Result<TraceLogits> {
    Ok(match text {
        "none" => TraceLogits::None,
        "f16" => TraceLogits::FullF16,
        "f32" => TraceLogits::FullF32,
        _ => match text.strip_prefix("top:").map(str::parse) {
            Some(Ok(m)) => TraceLogits::Top { m },
            _ => bail!("expected none, f16, f32 or top:M, found {text:?}"),
        },
    })
}

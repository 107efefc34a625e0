//! Runs texts through a model, window by window, under the eyes of a collector.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use sha2::{Digest, Sha256};
use thalweg::{SpecialTokens, Text};
use thalweg_compress::{Collector, ExpertSums, hex, model_fingerprint};
use thalweg_examples_common::{CountBar, check_outputs, print_line, read_text, write_whole};

use crate::{Collect, domain};

pub(crate) fn run(args: &Collect) -> Result<()> {
    ensure!(
        args.window > 0,
        "--window is 0; a window has at least 1 token"
    );
    let file = args.model.file()?;
    let mut outputs: Vec<(&str, &Path)> = vec![("--out", &args.out)];
    outputs.extend(args.moments.as_deref().map(|path| ("--moments", path)));
    let shards = (0..file.n_shards()).filter_map(|shard| file.path(shard));
    let mut inputs: Vec<_> = shards.map(|path| ("the model", path)).collect();
    inputs.extend(args.text.iter().map(|path| ("--text", path.as_path())));
    check_outputs(&outputs, &inputs)?;

    let text = Text::from_file(&file).context("the model has no usable vocabulary")?;
    let source = file
        .path(0)
        .unwrap_or_else(|| Path::new(""))
        .to_string_lossy()
        .into_owned();
    let fingerprint = model_fingerprint(&file)?;
    let mut engine = args.model.engine(file, args.window)?;
    let mut texts = Vec::new();
    let mut hash = Sha256::new();
    for path in &args.text {
        let mut tokens = text
            .tokenizer()
            .encode(&read_text(path)?, SpecialTokens::Parse);
        tokens.truncate(args.max_tokens.unwrap_or(usize::MAX));
        tokens.iter().for_each(|id| hash.update(id.to_le_bytes()));
        texts.push((domain(path), tokens));
    }
    let total: usize = texts.iter().map(|(_, tokens)| tokens.len()).sum();
    ensure!(total > 0, "the texts have no tokens");
    let bar = CountBar::tokens("measuring");
    let mut collector = Collector::new(engine.spec().n_layer);
    let mut session = engine.session()?;
    let start = Instant::now();
    for window in texts
        .iter()
        .flat_map(|(_, tokens)| tokens.chunks(args.window))
    {
        engine.reset(&mut session)?;
        engine.prefill(&mut session, window, &mut collector)?;
        bar.update(collector.n_tokens() as usize, total);
    }
    bar.finish();
    let seconds = start.elapsed().as_secs_f64();

    let domains = texts.iter();
    let domains = domains.map(|(name, tokens)| (name.clone(), tokens.len() as u64));
    let k = engine.spec().experts.first().map_or(0, |e| e.k);
    let hash = hex(&hash.finalize());
    let saliency = collector.saliency(&source, &fingerprint, k, &hash, domains.collect())?;
    write_whole(&args.out, &saliency.to_json())?;
    if let Some(path) = &args.moments {
        let moments = collector.moments(&source, &fingerprint)?;
        write_whole(path, &moments.to_json()?)?;
    }
    let never: Vec<usize> = saliency
        .layers
        .iter()
        .map(|l| l.count.iter().filter(|c| **c == 0).count())
        .collect();
    let effective = saliency.layers.iter().map(ExpertSums::effective_experts);
    let effective = effective.sum::<f64>() / saliency.layers.len() as f64;
    let rate = saliency.n_tokens as f64 / seconds.max(1e-9);
    if args.json {
        let value = json!({
            "model": source,
            "fingerprint": fingerprint,
            "file": args.out.to_string_lossy(),
            "tokens": saliency.n_tokens,
            "domains": saliency.domains,
            "coverage": saliency.coverage(),
            "never_chosen": never,
            "effective_experts": effective,
            "seconds": seconds,
            "tokens_per_s": rate,
        });
        return print_line(&value.to_string());
    }
    print_line(&format!(
        "{} tokens of {} texts in {seconds:.1} s, {rate:.0} tok/s",
        saliency.n_tokens,
        texts.len()
    ))?;
    print_line(&format!(
        "{:.2} % of all experts were chosen, {} never were; on average a layer is as varied as \
         {effective:.1} equal experts",
        100.0 * saliency.coverage(),
        never.iter().sum::<usize>()
    ))?;
    print_line(&format!("written to {}", args.out.display()))
}

//! Chooses experts by measurements, and compares measurements.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use thalweg_compress::{KeepMap, Retention, Saliency, Score};
use thalweg_examples_common::{check_outputs, note, print_line, write_whole};

use crate::{Diff, Keep};

/// The only architecture that experts are measured in.
const ARCHITECTURE: &str = "qwen4exp";

pub(crate) fn run(args: &Keep) -> Result<()> {
    let saliency = Saliency::read(&args.saliency).context("cannot use the sums")?;
    let heldout = args.heldout.as_deref().map(Saliency::read);
    let heldout = heldout.transpose().context("cannot use --heldout")?;
    if let Some(heldout) = &heldout {
        ensure!(
            heldout.tokens_sha256 != saliency.tokens_sha256,
            "--heldout is of the same texts as the sums that the choice is made from"
        );
        if heldout.fingerprint != saliency.fingerprint {
            note("note: --heldout was measured in another model");
        }
    }
    ensure!(
        args.kappa >= 0.0 && args.kappa.is_finite() && args.z.is_finite(),
        "--kappa must be at least 0, --z finite"
    );
    ensure!(
        (0.0..=1.0).contains(&args.alpha),
        "--alpha must be from 0 to 1"
    );
    let scores = match args.score {
        Some(score) => vec![score],
        None => Score::ALL.to_vec(),
    };
    let mut rows = Vec::new();
    for score in scores {
        let score = with_constants(score, args);
        let map = KeepMap::choose(&saliency, ARCHITECTURE, score, args.k)?;
        let inside = map.retention(&saliency)?;
        let outside = heldout.as_ref().map(|h| map.retention(h)).transpose()?;
        rows.push((map, inside, outside));
    }
    if let Some((out, (map, ..))) = args.out.as_deref().zip(rows.first()) {
        let mut inputs = vec![("the sums", args.saliency.as_path())];
        inputs.extend(args.heldout.as_deref().map(|path| ("--heldout", path)));
        check_outputs(&[("--out", out)], &inputs)?;
        write_whole(out, &map.to_json())?;
    }
    if args.json {
        let scores = rows.iter().map(|(map, inside, outside)| {
            json!({
                "score": map.method.name,
                "kappa": map.method.kappa,
                "z": map.method.z,
                "alpha": map.method.alpha,
                "zero_hit_kept": map.stats.zero_hit_kept,
                "in_sample": figures(inside),
                "out_of_sample": outside.as_ref().map(figures),
            })
        });
        let value = json!({
            "saliency": args.saliency.to_string_lossy(),
            "k": args.k,
            "keep_map": args.out.as_ref().map(|out| out.to_string_lossy()),
            "scores": scores.collect::<Vec<_>>(),
        });
        return print_line(&value.to_string());
    }
    print_line(&format!(
        "{} of {} experts a layer; shares of sum g n (mean of layers), choices and gates that they \
         carry, in %",
        args.k,
        saliency.layers.first().map_or(0, |l| l.count.len())
    ))?;
    print_line("score          in-sample    out-of-sample   choices  gates  never chosen")?;
    for (map, inside, outside) in &rows {
        let outside_text = outside.as_ref().map_or_else(
            || "n/a".to_owned(),
            |o| format!("{:.2}", 100.0 * o.macro_mean),
        );
        let shown = outside.as_ref().unwrap_or(inside);
        print_line(&format!(
            "{:14} {:9.2} {outside_text:>16} {:9.2} {:6.2} {:13}",
            map.method.name,
            100.0 * inside.macro_mean,
            100.0 * shown.picks,
            100.0 * shown.gate_mass,
            map.stats.zero_hit_kept
        ))?;
    }
    print_line(
        "reap_l2_sum is first in-sample by construction; only out-of-sample figures compare",
    )?;
    match &args.out {
        Some(out) => print_line(&format!("written to {}", out.display())),
        None => Ok(()),
    }
}

pub(crate) fn diff(args: &Diff) -> Result<()> {
    let read = |path| Saliency::read(path).context("cannot use the sums");
    let (a, b) = (read(&args.a)?, read(&args.b)?);
    let n_expert = a.layers.first().map_or(0, |l| l.count.len());
    let k = args.k.unwrap_or(n_expert / 2);
    let mut rows = Vec::new();
    for score in Score::ALL {
        let of_a = KeepMap::choose(&a, ARCHITECTURE, score, k)?;
        // Refuses another shape.
        let retained = of_a.retention(&b)?;
        let of_b = KeepMap::choose(&b, ARCHITECTURE, score, k)?;
        let layers = of_a.layers.iter().zip(&of_b.layers);
        let common = layers.map(|(a, b)| a.keep.iter().filter(|e| b.keep.contains(e)).count());
        let common = common.sum::<usize>() as f64 / (k * of_a.n_layer) as f64;
        rows.push((score, common, retained, of_b.retention(&b)?));
    }
    if args.json {
        let scores = rows.iter().map(|(score, common, retained, own)| {
            json!({
                "score": score.name(),
                "common": common,
                "retention_of_a_on_b": figures(retained),
                "retention_of_b_on_b": figures(own),
            })
        });
        let value = json!({
            "a": args.a.to_string_lossy(),
            "b": args.b.to_string_lossy(),
            "same_model": a.fingerprint == b.fingerprint,
            "same_texts": a.tokens_sha256 == b.tokens_sha256,
            "tokens": [a.n_tokens, b.n_tokens],
            "coverage": [a.coverage(), b.coverage()],
            "k": k,
            "scores": scores.collect::<Vec<_>>(),
        });
        return print_line(&value.to_string());
    }
    print_line(&format!(
        "{} and {} tokens, {:.2} and {:.2} % of all experts chosen",
        a.n_tokens,
        b.n_tokens,
        100.0 * a.coverage(),
        100.0 * b.coverage()
    ))?;
    print_line(&format!(
        "the best {k} of {n_expert} by A and by B: what they have in common, and what both retain of \
         B's sum g n, in %"
    ))?;
    print_line("score           common  A's on B  B's on B")?;
    for (score, common, retained, own) in rows {
        print_line(&format!(
            "{:14} {:7.2} {:9.2} {:9.2}",
            score.name(),
            100.0 * common,
            100.0 * retained.macro_mean,
            100.0 * own.macro_mean
        ))?;
    }
    Ok(())
}

fn with_constants(score: Score, args: &Keep) -> Score {
    let (kappa, z, alpha) = (args.kappa, args.z, args.alpha);
    match score {
        Score::ReapShrink { .. } => Score::ReapShrink { kappa, z },
        Score::ReapHybrid { .. } => Score::ReapHybrid { kappa, z, alpha },
        other => other,
    }
}

fn figures(retention: &Retention) -> Value {
    json!({
        "macro": retention.macro_mean,
        "pooled": retention.pooled,
        "picks": retention.picks,
        "gate_mass": retention.gate_mass,
    })
}

//! The command on the shortest prompts of the demo model's golden, as a person would run it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo.gguf");
const GOLDEN: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../crates/testkit/goldens/demo"
);
const PROMPTS: [&str; 2] = ["chat_pkg", "chat_json"];

fn quality(golden: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_thalweg-peer-llama"))
        .args(["quality", "--model", MODEL, "--golden"])
        .arg(golden)
        .args(args)
        .output()
        .expect("the command starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A folder with two of the golden's prompts.
fn short_golden() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let manifest = fs::read(PathBuf::from(GOLDEN).join("manifest.json")).expect("a manifest");
    let mut manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
    let prompts = manifest["prompts"].as_array_mut().expect("a list");
    prompts.retain(|p| PROMPTS.iter().any(|name| p["name"] == *name));
    for prompt in prompts.iter() {
        let name = prompt["logits_file"].as_str().expect("a name");
        let (from, to) = (PathBuf::from(GOLDEN).join(name), folder.path().join(name));
        fs::copy(from, to).expect("a copy");
    }
    let manifest = manifest.to_string();
    fs::write(folder.path().join("manifest.json"), manifest).expect("a file");
    folder
}

#[test]
fn every_engine_is_near_the_reference_and_f32_nearest() {
    let folder = short_golden();
    let output = quality(folder.path(), &["--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let number = |value: &Value| {
        value
            .as_f64()
            .unwrap_or_else(|| panic!("{value} in {found}"))
    };
    assert_eq!(found["tokens"], 84);
    for engine in ["llama", "thalweg_f32", "thalweg_q8"] {
        let all = &found[engine];
        assert_eq!(
            (&all["positions"], &all["beside_f32"]["positions"]),
            (&4.into(), &84.into())
        );
        let prompts = all["prompts"].as_array().expect("a list");
        assert_eq!(prompts.len(), 2);
        // The mean is that of positions, of which one prompt has 1 and the other 3.
        let weighted = |p: &Value| number(&p["mean_kld"]) * number(&p["positions"]);
        let sum: f64 = prompts.iter().map(weighted).sum();
        let mean = number(&all["mean_kld"]);
        assert!((sum / 4.0 - mean).abs() <= 1e-12, "{found}");
        // Quantized operands move the distributions a little; a wrong formula moves them by nats.
        assert!(mean < 0.05, "{found}");
        assert!(number(&all["top1_agreement"]) > 0.5, "{found}");
        assert!(number(&all["max_abs_diff"]) < 3.0, "{found}");
    }
    let exact = &found["thalweg_f32"];
    assert!(number(&exact["mean_kld"]) < 1e-9, "{found}");
    assert!(number(&exact["max_abs_diff"]) < 1e-3, "{found}");
    assert_eq!(exact["beside_f32"]["mean_kld"], 0.0);
    // Other arithmetic, and not the same column three times.
    let mean = |engine: &str| number(&found[engine]["mean_kld"]);
    assert!(mean("llama") > mean("thalweg_f32") && mean("thalweg_q8") > mean("thalweg_f32"));
    assert!(mean("llama").to_bits() != mean("thalweg_q8").to_bits());
}

#[test]
fn people_get_a_line_for_each_engine() {
    let folder = short_golden();
    let output = quality(folder.path(), &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    for name in ["llama.cpp ", "Thalweg f32 ", "Thalweg q8 "] {
        let lines = table.lines().filter(|l| l.trim_start().starts_with(name));
        assert_eq!(lines.count(), 2, "{table}");
    }
    assert!(table.contains("from the reference, 4 positions"), "{table}");
}

#[test]
fn nonsense_is_refused_before_anything_runs() {
    let folder = short_golden();
    for args in [&["--threads", "0"][..], &["--threads", "two"]] {
        let output = quality(folder.path(), args);
        assert!(!output.status.success(), "{args:?}");
        assert!(text(&output.stderr).starts_with("error: "), "{args:?}");
    }
    let output = quality(Path::new("/nowhere"), &[]);
    let error = text(&output.stderr);
    assert!(
        error.starts_with("error: cannot read /nowhere/manifest.json"),
        "{error}"
    );
    // Logits that are cut short.
    let name = folder.path().join("chat_pkg.logits.f32");
    let bytes = fs::read(&name).expect("logits");
    fs::write(&name, &bytes[..bytes.len() - 4]).expect("a file");
    let output = quality(folder.path(), &["--json"]);
    let error = text(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty());
    assert!(
        error.contains("chat_pkg") && error.contains("8191 logits"),
        "{error}"
    );
}

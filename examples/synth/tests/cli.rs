//! The binary from end to end, and what it says to bad input.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use thalweg::{CpuBackend, CpuOptions, Engine, EngineOptions, Silent, Text};
use thalweg_gguf::{Gguf, TensorType};

/// Flags of a model that is written in an instant.
const SMALL: [&str; 12] = [
    "--layers",
    "4",
    "--hidden",
    "256",
    "--experts",
    "6",
    "--top-k",
    "2",
    "--vocab",
    "300",
    "--ngram-rows",
    "50",
];

fn run<S: AsRef<OsStr>>(args: &[S], folder: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_synth"))
        .args(args)
        .current_dir(folder)
        .output()
        .expect("the binary runs")
}

fn ok(args: &[&str], folder: &Path) -> String {
    let output = run(args, folder);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// What a run says that must fail, and leave nothing.
fn fails(args: &[&str]) -> String {
    let folder = tempfile::tempdir().expect("writable");
    let output = run(args, folder.path());
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{args:?} succeeded");
    assert!(!errors.contains("panicked"), "{errors}");
    let left = fs::read_dir(folder.path()).expect("readable").count();
    assert_eq!(left, 0, "{args:?} left a file");
    errors
}

fn small<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&SMALL[..], more].concat()
}

/// The logits after a few tokens in the engine.
fn logits(path: &Path) -> Vec<f32> {
    let file = Gguf::open(path).expect("a GGUF file");
    let text = Text::from_file(&file).expect("a tokenizer");
    let prompt = text.raw("the rain in the north");
    let backend = CpuBackend::new(CpuOptions { n_threads: 1 }).expect("one thread");
    let options = EngineOptions {
        n_ctx: 32,
        ..EngineOptions::default()
    };
    let mut engine = Engine::from_file(file, backend, options).expect("a complete model");
    let mut session = engine.session().expect("fits");
    engine
        .prefill(&mut session, &prompt, &mut Silent)
        .expect("finite");
    session.logits().to_vec()
}

#[test]
fn the_same_flags_give_the_same_file_and_it_runs() {
    let folder = tempfile::tempdir().expect("writable");
    let said = ok(&small(&["a.gguf"]), folder.path());
    assert!(
        said.contains("4 layers, 256 wide, 6 experts of 64 (top 2)"),
        "{said}"
    );
    ok(&small(&["b.gguf"]), folder.path());
    ok(&small(&["--seed", "2", "c.gguf"]), folder.path());
    let bytes = |name: &str| fs::read(folder.path().join(name)).expect("written");
    assert!(bytes("a.gguf") == bytes("b.gguf"));
    assert!(bytes("a.gguf") != bytes("c.gguf"));
    let logits = logits(&folder.path().join("a.gguf"));
    assert_eq!(logits.len(), 300);
    let spread = logits.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
    assert!((1.0..30.0).contains(&spread), "{spread}");
}

#[test]
fn every_flag_reaches_the_file() {
    let folder = tempfile::tempdir().expect("writable");
    let args = [
        "--layers",
        "3",
        "--hidden",
        "320",
        "--attention-every",
        "3",
        "--experts",
        "5",
        "--top-k",
        "3",
        "--expert-width",
        "96",
        "--shared-width",
        "128",
        "--expert-type",
        "q8_0",
        "--dense-type",
        "f16",
        "--heads",
        "6",
        "--kv-heads",
        "3",
        "--head-dim",
        "40",
        "--vocab",
        "333",
        "--ctx",
        "777",
        "--no-ngram",
        "m.gguf",
    ];
    ok(&args, folder.path());
    let file = Gguf::open(folder.path().join("m.gguf")).expect("a GGUF file");
    let key = |name: &str| {
        let value = file.metadata().u32(&format!("qwen4exp.{name}"));
        value.unwrap_or_else(|e| panic!("{name}: {e}"))
    };
    let keys = [
        ("block_count", 3),
        ("embedding_length", 320),
        ("full_attention_interval", 3),
        ("expert_count", 5),
        ("expert_used_count", 3),
        ("expert_feed_forward_length", 96),
        ("expert_shared_feed_forward_length", 128),
        ("attention.head_count", 6),
        ("attention.head_count_kv", 3),
        ("attention.key_length", 40),
        ("context_length", 777),
    ];
    for (name, value) in keys {
        assert_eq!(key(name), value, "{name}");
    }
    let ty = |name: &str| {
        let tensor = file.tensors().iter().find(|t| t.name == name);
        tensor.map(|t| t.ty)
    };
    assert_eq!(ty("blk.0.ffn_up_exps.weight"), Some(TensorType::Q8_0));
    assert_eq!(ty("blk.2.attn_q.weight"), Some(TensorType::F16));
    assert_eq!(ty("per_layer_token_embd.weight"), None);
    logits(&folder.path().join("m.gguf"));
}

#[test]
fn every_type_of_expert_runs() {
    let folder = tempfile::tempdir().expect("writable");
    let path = folder.path().join("m.gguf");
    let refused = fails(&small(&["--expert-type", "i32", "m.gguf"]));
    let (_, types) = refused.split_once("must be one of ").expect("a list");
    let types: Vec<String> = types.trim().split(", ").map(str::to_lowercase).collect();
    assert!(types.len() > 20, "{types:?}");
    for ty in types {
        let more = ["--expert-width", "256", "--expert-type", &ty, "m.gguf"];
        ok(&small(&more), folder.path());
        let file = Gguf::open(&path).expect("a GGUF file");
        let down = file
            .tensors()
            .iter()
            .find(|t| t.name.ends_with("down_exps.weight"));
        assert_eq!(down.map(|t| t.ty.name().to_lowercase()), Some(ty));
        assert!(logits(&path).iter().all(|v| v.is_finite()));
    }
}

#[test]
fn a_dry_run_foretells_the_size_and_writes_nothing() {
    let folder = tempfile::tempdir().expect("writable");
    let said = ok(&small(&["--dry-run", "--json", "m.gguf"]), folder.path());
    let foretold: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(foretold["written"], false);
    assert!(foretold["mb_per_s"].is_null());
    assert!(!folder.path().join("m.gguf").exists());

    let said = ok(&small(&["--json", "m.gguf"]), folder.path());
    let written: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(written["written"], true);
    assert!(written["mb_per_s"].as_f64().expect("a rate") > 0.0);
    let bytes = fs::metadata(folder.path().join("m.gguf"))
        .expect("written")
        .len();
    assert_eq!(written["bytes"], bytes);
    assert_eq!(foretold["bytes"], bytes);
    let shares = written["pick_shares"].as_array().expect("a list");
    assert_eq!(shares.len(), 6);
    let sum: f64 = shares.iter().filter_map(Value::as_f64).sum();
    assert!((sum - 2.0).abs() < 1e-6);
}

#[test]
fn bad_flags_are_refused_with_all_their_faults() {
    let said = fails(&["--experts", "8", "--hidden", "100", "--skew", "9", "m.gguf"]);
    assert!(
        said.contains("n_embd = 100: must be a multiple of 64"),
        "{said}"
    );
    assert!(
        said.contains("n_expert_used = 10: must be from 1 to n_expert"),
        "{said}"
    );
    assert!(said.contains("skew = 9: must be from 0 to 4"), "{said}");

    let said = fails(&["--expert-type", "q9_9", "m.gguf"]);
    assert!(said.contains("known are f32, f16, q4_0"), "{said}");
    let said = fails(&["--head-dim", "0", "m.gguf"]);
    assert!(said.contains("head_dim = 0"), "{said}");
    let said = fails(&["--kv-heads", "0", "m.gguf"]);
    assert!(said.contains("must be a multiple of n_head_kv"), "{said}");
    let said = fails(&small(&[]));
    assert!(said.contains("<OUT>"), "{said}");
    let said = fails(&small(&["nowhere/m.gguf"]));
    assert!(said.contains("nowhere"), "{said}");
}

#[test]
fn a_file_that_the_drive_has_no_room_for_is_refused_at_once() {
    let huge = [
        "--layers",
        "512",
        "--experts",
        "1024",
        "--hidden",
        "16384",
        "m.gguf",
    ];
    let said = fails(&huge);
    assert!(said.contains("left"), "{said}");
}

#[cfg(unix)]
#[test]
fn a_link_is_not_replaced_by_a_model() {
    let folder = tempfile::tempdir().expect("writable");
    let link = folder.path().join("link.gguf");
    std::os::unix::fs::symlink("elsewhere.gguf", &link).expect("linked");
    let output = run(&[&SMALL[..], &["link.gguf"]].concat(), folder.path());
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("OUT link.gguf is a symbolic link"),
        "{error}"
    );
    assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
}

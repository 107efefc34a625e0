//! Runs the program as a user does.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value as Json, json};
use thalweg_gguf::{Metadata, TensorSpec, TensorType, Writer};

fn demo() -> PathBuf {
    PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../models/demo.gguf"
    ))
}

fn inspect() -> Command {
    Command::new(env!("CARGO_BIN_EXE_inspect"))
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[track_caller]
fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    output
}

#[test]
fn demo_model_is_shown_on_one_page_each() {
    let output = run(inspect().arg(demo()));
    let shown = text(&output.stdout);
    assert!(
        shown.contains("GGUF 3, 35296672 bytes, data from byte 300704"),
        "{shown}"
    );
    assert!(shown.contains("qwen4exp.block_count"), "{shown}");
    assert!(shown.contains("string[8192]"), "{shown}");
    assert!(
        shown.lines().all(|line| line.chars().count() < 400),
        "long values are shortened"
    );

    let full = run(inspect().args(["--full", "--no-tensors"]).arg(demo()));
    assert!(
        text(&full.stdout).contains("\"</tool_response>\""),
        "the last token"
    );
    assert!(!text(&full.stdout).contains("output.weight"));
}

#[test]
fn json_holds_everything_and_sums_up() {
    let output = run(inspect().arg("--json").arg(demo()));
    let object: Json = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        object["metadata"]["qwen4exp.block_count"],
        json!({ "type": "u32", "value": 12 })
    );
    let tokens = object["metadata"]["tokenizer.ggml.tokens"]["value"]
        .as_array()
        .unwrap();
    assert_eq!(tokens.len(), 8192);
    let tensors = object["tensors"].as_array().unwrap();
    let bytes: u64 = tensors
        .iter()
        .map(|t| t["size_bytes"].as_u64().unwrap())
        .sum();
    let totals = object["totals"].as_object().unwrap();
    let by_type: u64 = totals
        .values()
        .map(|sums| sums["bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(bytes, by_type);
    assert!(bytes <= object["files"][0]["len_bytes"].as_u64().unwrap());
}

#[test]
fn odd_values_survive_both_forms() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd.gguf");
    let mut metadata = Metadata::new();
    metadata.insert("nan", f32::NAN).unwrap();
    metadata.insert("max", u64::MAX).unwrap();
    metadata.insert("min", i64::MIN).unwrap();
    metadata.insert("none", Vec::<String>::new()).unwrap();
    metadata.insert("bell\x07", "\x1b[2J").unwrap();
    let specs = [TensorSpec::new("t\x1b", TensorType::F32, &[2]).unwrap()];
    let mut writer = Writer::create(&path, &metadata, &specs).unwrap();
    writer.write_tensor("t\x1b", &[0; 8]).unwrap();
    writer.finish().unwrap();

    let output = run(inspect().arg(&path));
    assert!(
        !text(&output.stdout).contains(['\x1b', '\x07']),
        "no control characters"
    );
    let output = run(inspect().arg("--json").arg(&path));
    let object: Json = serde_json::from_slice(&output.stdout).unwrap();
    let value = |key: &str| object["metadata"][key]["value"].clone();
    assert_eq!(value("nan"), json!("NaN"));
    assert_eq!(value("max"), json!(u64::MAX));
    assert_eq!(value("min"), json!(i64::MIN));
    assert_eq!(value("none"), json!([]));
    assert_eq!(value("bell\x07"), json!("\x1b[2J"));
}

#[test]
fn fault_is_one_line_and_exit_code_1() {
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad.gguf");
    std::fs::write(&bad, b"GGUF\x01\0\0\0").unwrap();
    for path in [
        bad,
        folder.path().join("absent.gguf"),
        folder.path().to_owned(),
    ] {
        let output = inspect().arg(&path).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty());
        let message = text(&output.stderr);
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(
            message.starts_with(&format!("error: {}: ", path.display())),
            "{message}"
        );
    }
}

#[test]
fn reader_that_leaves_early_is_no_failure() {
    for form in ["--full", "--json"] {
        let mut child = inspect()
            .arg(form)
            .arg(demo())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_standard_error_is_no_panic() {
    let full = std::fs::File::options().write(true).open("/dev/full");
    let mut command = inspect();
    command.arg("no-such.gguf").stderr(full.unwrap());
    assert_eq!(command.output().unwrap().status.code(), Some(1));
}

#[test]
fn gpus_are_listed_by_what_an_adapter_can_be_named_by() {
    let output = run(inspect().args(["--gpu", "--json"]));
    let found: Json = serde_json::from_slice(&output.stdout).unwrap();
    let adapters = found["adapters"].as_array().unwrap();
    if adapters.is_empty() {
        assert!(std::env::var_os("THALWEG_GPU_REQUIRED").is_none());
    }
    let shown = run(inspect().arg("--gpu")).stdout;
    let shown = text(&shown);
    for (i, adapter) in adapters.iter().enumerate() {
        let name = adapter["name"].as_str().unwrap();
        assert_eq!(adapter["index"], i);
        assert!(shown.contains(&format!("{i}: {name}\n")), "{shown}");
        assert!(adapter["max_binding_bytes"].as_u64().unwrap() >= 1 << 20);
    }
    assert_eq!(adapters.is_empty(), shown.starts_with("no GPU"));
}

#[test]
fn without_a_file_and_with_both_the_program_says_what_it_needs() {
    for args in [&[][..], &["--gpu", "model.gguf"], &["--gpu", "--full"]] {
        let output = inspect().args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
}

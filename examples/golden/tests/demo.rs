//! The embedded model against the goldens of an independent implementation, through the binary.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn golden(args: &[&str], dir: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_golden"));
    command
        .arg("--model")
        .arg(root().join("models/demo.gguf"))
        .args(args)
        .arg(dir);
    command.output().unwrap()
}

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect()
}

#[test]
fn all_six_prompts_agree_with_the_reference() {
    let output = golden(&[], &root().join("crates/testkit/goldens/demo"));
    let found = lines(&output);
    assert!(output.status.success(), "{found:#?}");
    assert_eq!(found.len(), 6);
    for line in found {
        assert!(line["max_abs"].as_f64().unwrap() <= 2e-3, "{line}");
        assert!(line["mean_abs"].as_f64().unwrap() <= 1e-4, "{line}");
        assert!(line["max_nll_diff"].as_f64().unwrap() <= 1e-3, "{line}");
        assert_eq!(line["greedy_mismatches"], 0, "{line}");
        assert_eq!(line["route_mismatches"], 0, "{line}");
        assert_eq!(line["compared"]["greedy"], 48, "{line}");
    }
}

#[test]
fn activations_of_eight_bits_stay_near_the_reference() {
    let args = ["--class", "fast", "--activations", "q8"];
    let dir = root().join("crates/testkit/goldens/demo");
    let output = golden(&args, &dir);
    let found = lines(&output);
    assert!(output.status.success(), "{found:#?}");
    assert_eq!(found.len(), 7);
    let all = &found[6];
    assert_eq!(all["prompt"], "(all)");
    assert_eq!(all["passed"], true);
    // They do round.
    assert!(all["mean_kld"].as_f64().unwrap() > 1e-5, "{all}");
}

#[test]
fn the_fast_class_can_be_failed() {
    let args = [
        "--class",
        "fast",
        "--activations",
        "q8",
        "--max-kld",
        "1e-6",
    ];
    let output = golden(&args, &root().join("crates/testkit/goldens/demo"));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(lines(&output)[6]["passed"], false);
}

#[test]
fn a_tight_tolerance_fails_and_says_which_prompt() {
    let output = golden(
        &["--tol", "1e-9"],
        &root().join("crates/testkit/goldens/demo"),
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(lines(&output).iter().all(|l| l["passed"] == false));
}

#[cfg(unix)]
#[test]
fn the_exit_code_is_the_check_s_whoever_reads_the_lines() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_golden"));
    command
        .arg("--model")
        .arg(root().join("models/demo.gguf"))
        .args(["--tol", "1e-9"])
        .arg(root().join("crates/testkit/goldens/demo"))
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A reader that has had enough before the first line.
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

#[test]
fn a_folder_without_goldens_is_an_error() {
    let output = golden(&[], &root().join("docs"));
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("manifest.json"), "{text}");
}

#[cfg(unix)]
#[test]
fn a_pipe_in_the_folder_is_refused_rather_than_waited_for() {
    for name in ["manifest.json", "tokens.txt"] {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join(name);
        assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
        let mut command = Command::new("timeout");
        command.args(["30", env!("CARGO_BIN_EXE_golden")]);
        let output = command.arg(folder.path()).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(name) && text.contains("regular"), "{text}");
    }
}

#[test]
fn the_fast_class_needs_only_the_tokens_of_a_folder_of_one_sequence() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tokens.txt"), "5 6 7 8").unwrap();
    let mut empty = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (0,), }";
    empty.extend(format!("{header:<117}\n").bytes());
    for name in ["logits.npy", "hidden.npy"] {
        fs::write(folder.path().join(name), &empty).unwrap();
    }
    let output = golden(&["--class", "fast", "--activations", "q8"], folder.path());
    let found = lines(&output);
    assert_eq!(found.len(), 2, "{output:?}");
    assert_eq!(found[1]["positions"], 4);
    assert!(found[1]["mean_kld"].as_f64().unwrap() > 0.0);
    // The exact class compares with what is stored: nothing.
    let output = golden(&[], folder.path());
    assert_eq!(output.status.code(), Some(1));
}

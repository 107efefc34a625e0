//! The command on a small model, as a person would run it.
//!
//! Where control groups cannot be made the command must refuse, and that is what is tested then.

use std::path::Path;
use std::process::{Command, Output};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo.gguf");

fn stream(model: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_thalweg-peer-llama"))
        .args(["stream".as_ref(), "--model".as_ref(), model.as_os_str()])
        .args(args)
        .output()
        .expect("the command starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The answer, or `None` where memory cannot be limited.
fn answer(model: &Path, args: &[&str]) -> Option<serde_json::Value> {
    let output = stream(model, args);
    let error = text(&output.stderr);
    if !output.status.success() {
        assert!(error.contains("error: cannot limit memory"), "{error}");
        assert!(output.stdout.is_empty(), "a result without a limit");
        return None;
    }
    Some(serde_json::from_slice(&output.stdout).expect("JSON"))
}

#[test]
fn both_engines_do_the_same_work_within_the_limit() {
    let args = [
        "--limit", "256MiB", "-p", "8", "-n", "6", "-w", "2", "-r", "1", "--json",
    ];
    let Some(found) = answer(MODEL.as_ref(), &args) else {
        return;
    };
    for engine in ["llama", "thalweg"] {
        let rate = found[engine]["decode_tokens_per_s"].as_f64();
        assert!(rate.expect("a rate") > 0.0, "{found}");
        let peak = found[engine]["peak_bytes"].as_f64().expect("a peak");
        assert!(peak > 1e6 && peak <= f64::from(256 << 20), "{found}");
    }
    assert!(found["decode_ratio"].as_f64().expect("a ratio") > 0.0);
    // Programs without common code, on quantized weights and activations.
    let check = &found["check"];
    assert_eq!(check["steps"], 6);
    assert!(
        check["top1_same"].as_u64().expect("a count") >= 5,
        "{check}"
    );
    let (diff, std) = (&check["max_abs_diff"], &check["logits_std"]);
    let (diff, std) = (diff.as_f64().expect("diff"), std.as_f64().expect("std"));
    assert!(std > 0.0 && diff < std, "{check}");
}

#[test]
fn faults_on_a_mapped_file_are_counted_as_reads() {
    let args = [
        "--limit", "256MiB", "-p", "1", "-n", "1", "-w", "0", "-r", "1", "--json",
    ];
    // Nobody else reads a copy, so that nobody else has its pages.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("temporary folder");
    let own = folder.path().join("own.gguf");
    std::fs::copy(MODEL, &own).expect("a copy");
    let Some(found) = answer(&own, &args) else {
        return;
    };
    let run = &found["llama"]["runs"][0];
    let model = found["model_bytes"].as_f64().expect("a size");
    let read = run["load_read_bytes"].as_f64().expect("a count");
    assert!(read > 0.8 * model, "{read} of {model}");
}

#[test]
fn a_limit_that_is_too_small_is_an_error_and_leaves_nothing_behind() {
    let args = ["--limit", "6MiB", "--margin", "1MiB", "-r", "1"];
    let output = stream(MODEL.as_ref(), &args);
    assert!(!output.status.success(), "{}", text(&output.stdout));
    let error = text(&output.stderr);
    assert!(error.contains("error: "), "{error}");
    // What the command says when it cannot remove a group.
    assert!(!error.contains("is left"), "{error}");
}

#[test]
fn nonsense_is_refused_before_anything_runs() {
    for args in [
        &["--limit", "256MiB", "-p", "500", "-n", "64"][..],
        &["--limit", "256MiB", "--margin", "256MiB"],
        &["--limit", "256MiB", "-r", "0"],
        // No control group, hence no limit.
        &["--limit", "256MiB", "--cgroup", "/"],
    ] {
        let output = stream(MODEL.as_ref(), args);
        assert!(!output.status.success(), "{args:?}");
        assert!(text(&output.stderr).starts_with("error: "), "{args:?}");
    }
}

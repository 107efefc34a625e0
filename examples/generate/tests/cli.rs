//! The first command of the front page, through the binary.

use std::path::Path;
use std::process::{Command, Output};

const PROMPT: &str = "What is the package libssl-dev?";

fn generate(args: &[&str]) -> Output {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo.gguf");
    let mut command = Command::new(env!("CARGO_BIN_EXE_generate"));
    command.arg("--model").arg(model).args(args);
    command.output().unwrap()
}

fn text(output: &Output) -> &str {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    str::from_utf8(&output.stdout).unwrap()
}

#[test]
fn the_reply_is_one_whatever_the_budget_the_chunk_and_the_threads() {
    let output = generate(&[PROMPT]);
    let reply = text(&output);
    assert!(reply.starts_with("libssl-dev (libdevel): "), "{reply}");
    for args in [
        &["--budget", "20MiB"][..],
        &["--budget", "24MiB", "--chunk", "7"],
        &["--slots", "6", "--threads", "1", "--policy", "s3fifo"],
    ] {
        let output = generate(&[args, &[PROMPT]].concat());
        assert_eq!(text(&output), reply, "{args:?}");
    }
}

#[test]
fn statistics_are_json_on_standard_error() {
    let output = generate(&["--stats", "json", "-n", "5", PROMPT]);
    let stats: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    // The first token comes from the prompt.
    assert_eq!(stats["decode_tokens"], 4);
    assert!(stats["prefill_tokens"].as_u64().unwrap() > 5);
    let plan = &stats["plan"];
    assert!(plan["total_bytes"].as_u64() <= plan["budget_bytes"].as_u64());
    let (hits, misses) = (&stats["expert_hits"], &stats["expert_misses"]);
    assert!(hits.as_u64().unwrap() + misses.as_u64().unwrap() > 0);
}

#[test]
fn settings_that_mean_everything_are_words_and_a_huge_budget_is_noted() {
    let output = generate(&["--stats", "text", "-n", "2", "--budget", "1EiB", PROMPT]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{told}");
    assert!(told.contains("repeat_window all"), "{told}");
    // Where the system says what is available, which nobody has an EiB of.
    let known = cfg!(target_os = "linux");
    assert_eq!(
        told.contains("note: the budget of 1073741824.00 GiB"),
        known,
        "{told}"
    );
}

#[test]
fn negative_numbers_are_answered_with_the_range() {
    for (flag, value, expected) in [
        ("--ctx", "-1", "from 0 to"),
        ("--slots", "-6", "from 0 to"),
        ("--budget", "-1GiB", "as a size in bytes"),
        ("--seed", "-1", "from 0 to"),
    ] {
        let output = generate(&[flag, value, PROMPT]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        let first = error.lines().next().unwrap();
        assert!(first.contains(flag) && first.contains(expected), "{error}");
    }
}

#[test]
fn a_missing_model_is_named_once() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_generate"));
    let output = command
        .args(["--model", "none.gguf", "x"])
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.starts_with("error: cannot open the model: "),
        "{error}"
    );
    assert_eq!(error.matches("none.gguf").count(), 1, "{error}");
}

#[test]
fn undefined_rates_are_null() {
    let output = generate(&["--stats", "json", "-n", "1", PROMPT]);
    let stats: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(stats["decode_tokens"], 0);
    assert!(stats["decode_tokens_per_s"].is_null());
}

#[test]
fn what_cannot_run_is_refused_in_one_line_with_what_to_do() {
    for (args, expected) in [
        (&["--budget", "1MiB", PROMPT][..], "raise the budget"),
        (
            &["--budget", "24MiB", "--transit", "0", PROMPT],
            "transit slots must be at least 1",
        ),
        (&["--temp", "-1", PROMPT], "temperature"),
        (&["--slots", "5", PROMPT], "at least the 6 experts"),
        (&["--raw", ""], "the prompt is empty"),
        (&["--ctx", "3", PROMPT], "shorten the prompt"),
        (&["--threads", "100000", PROMPT], "at most 256"),
        (&["--policy", "belady_min", PROMPT], "offline"),
    ] {
        let output = generate(args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {error}");
        assert!(
            error.starts_with("error: ") && error.lines().count() == 1,
            "{error}"
        );
        assert!(error.contains(expected), "{args:?}: {error}");
    }
}

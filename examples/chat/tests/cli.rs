//! A conversation through the binary.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// What the binary prints, and the statistics of each reply.
fn chat(args: &[&str], lines: &str) -> (String, Vec<serde_json::Value>) {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo.gguf");
    let mut command = Command::new(env!("CARGO_BIN_EXE_chat"));
    command
        .arg("--model")
        .arg(model)
        .args(["--stats", "json"])
        .args(args);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(lines.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    let stats = errors
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    (String::from_utf8(output.stdout).unwrap(), stats.collect())
}

fn prefilled(stats: &[serde_json::Value]) -> Vec<u64> {
    stats
        .iter()
        .map(|s| s["prefill_tokens"].as_u64().unwrap())
        .collect()
}

#[test]
fn the_first_question_is_read_whole_and_answered() {
    let (text, stats) = chat(&[], "What is the package curl?\n");
    assert!(text.starts_with("curl ("), "{text}");
    assert!(prefilled(&stats)[0] > 10, "{:?}", prefilled(&stats));
}

#[test]
fn later_turns_read_only_what_is_new_even_where_sampled_text_splits_otherwise() {
    for seed in ["1", "2", "3"] {
        let args = ["-n", "30", "--temp", "1.2", "--seed", seed];
        let (_, stats) = chat(&args, "Write\nb\nc\nd\n");
        let prefilled = prefilled(&stats);
        assert_eq!(prefilled.len(), 4);
        // A turn's markers, its letter, and a last token that was never decoded.
        assert!(
            prefilled[1..].iter().all(|n| *n <= 16),
            "seed {seed}: {prefilled:?}"
        );
    }
}

#[test]
fn a_slash_line_is_no_message_and_clear_forgets() {
    let (text, stats) = chat(&["-n", "8"], "/help\nhi\n/clear\nhi\n/quit\nnever\n");
    assert_eq!(stats.len(), 2);
    assert_eq!(prefilled(&stats)[0], prefilled(&stats)[1]);
    let replies: Vec<_> = text.lines().collect();
    assert_eq!(replies[0], replies[replies.len() / 2]);
}

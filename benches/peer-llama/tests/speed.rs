//! The command on a small model, as a person would run it, with little work.

use std::process::{Command, Output};

use serde_json::Value;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo.gguf");

fn speed(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_thalweg-peer-llama"))
        .args(["speed", "--model", MODEL])
        .args(args)
        .output()
        .expect("the command starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn answer(args: &[&str]) -> Value {
    let output = speed(args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn number(value: &Value) -> f64 {
    let number = value.as_f64();
    number.unwrap_or_else(|| panic!("{value} is no number"))
}

/// The median of three.
fn middle(values: &Value) -> f64 {
    let mut values: Vec<f64> = values
        .as_array()
        .expect("a list")
        .iter()
        .map(number)
        .collect();
    assert_eq!(values.len(), 3);
    values.sort_by(f64::total_cmp);
    values[1]
}

#[test]
fn each_round_has_both_engines_and_its_ratio() {
    let found = answer(&[
        "-p",
        "12",
        "-n",
        "3",
        "--rounds",
        "3",
        "--threads",
        "1",
        "--json",
    ]);
    assert_eq!(found["threads"], 1);
    assert_eq!(
        (&found["rounds"], &found["batch_tokens"]),
        (&3.into(), &512.into())
    );
    let first = serde_json::json!(["llama", "thalweg", "llama"]);
    assert_eq!(found["first_in_round"], first);
    for (ratio, ratios, rate) in [
        ("decode_ratio", "decode_ratios", "decode_tokens_per_s"),
        ("prefill_ratio", "prefill_ratios", "prefill_tokens_per_s"),
    ] {
        let mid = middle(&found[ratios]);
        assert_eq!(number(&found[ratio]).to_bits(), mid.to_bits(), "{found}");
        for round in 0..3 {
            let [theirs, ours] =
                ["llama", "thalweg"].map(|e| number(&found[e]["runs"][round][rate]));
            assert!(theirs > 0.0 && ours > 0.0, "{found}");
            let expected = ours / theirs;
            let found = number(&found[ratios][round]);
            assert!(
                (found / expected - 1.0).abs() < 1e-12,
                "{found}, {expected}"
            );
        }
    }
    let info = found["llama"]["system_info"].as_str().expect("a text");
    assert!(info.starts_with("CPU : "), "{info}");
    for engine in ["llama", "thalweg"] {
        let set = found[engine]["instruction_set"].as_str().expect("a name");
        assert!(!set.is_empty(), "{found}");
    }
    assert_eq!(found["thalweg"]["activations"], "q8");
    // All experts are in memory before the first round.
    assert_eq!(found["thalweg"]["about"]["decode"]["misses"], 0);
    assert_eq!(found["thalweg"]["about"]["slots"][0], 64);
    let types = serde_json::json!({ "IQ3_S": 24, "IQ4_NL": 12 });
    assert_eq!(found["model"]["expert_types"], types);
    assert_eq!(
        (&found["peer_model"], &found["check"]["steps"]),
        (&Value::Null, &3.into())
    );
}

#[test]
fn a_prompt_longer_than_a_batch_is_taken_in_by_both() {
    let found = answer(&[
        "-p",
        "520",
        "-n",
        "2",
        "-r",
        "1",
        "--activations",
        "f32",
        "--json",
    ]);
    assert_eq!(found["thalweg"]["activations"], "f32");
    // Programs without common code, after the same 522 tokens.
    let check = &found["check"];
    let (diff, std) = (number(&check["max_abs_diff"]), number(&check["logits_std"]));
    assert!(std > 0.0 && diff < std, "{check}");
}

#[test]
fn another_file_for_llama_is_told_and_not_compared_by_its_logits() {
    let args = [
        "-p",
        "4",
        "-n",
        "2",
        "-r",
        "1",
        "--peer-model",
        MODEL,
        "--json",
    ];
    let found = answer(&args);
    assert_eq!(found["peer_model"]["path"], MODEL);
    assert_eq!(found["check"], Value::Null);
}

#[test]
fn people_get_the_medians_and_what_llama_was_built_with() {
    let output = speed(&["-p", "4", "-n", "2", "-r", "1"]);
    let table = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for part in ["prefill, tokens/s", "decode, tokens/s", "llama.cpp: CPU : "] {
        assert!(table.contains(part), "{table}");
    }
}

#[test]
fn nonsense_is_refused_before_anything_runs() {
    for args in [
        &["--rounds", "0"][..],
        &["-p", "0"],
        &["-n", "0"],
        &["--threads", "0"],
        &["--activations", "q4"],
        &["-p", "1", "-n", "18446744073709551615"],
        &["--peer-model", "/nowhere.gguf"],
        // Not a model.
        &[
            "--peer-model",
            concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
        ],
    ] {
        let output = speed(args);
        assert!(!output.status.success(), "{args:?}");
        assert!(text(&output.stderr).starts_with("error: "), "{args:?}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

//! Runs the program as a user does, on the embedded model and the tasks that come with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn tasks(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tasks"));
    command.current_dir(folder).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn answers_are_stored_and_judged_again_by_other_rules() {
    let folder = tempfile::tempdir().unwrap();
    let model = here("../../models/demo.gguf");
    let own = here("tasks.jsonl");
    let (model, own) = (model.to_str().unwrap(), own.to_str().unwrap());
    let run = |out: &str, more: &[&str]| {
        let args = ["run", "--model", model, "--tasks", own, "--out", out];
        let output = tasks(folder.path(), &[&args[..], more].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        fs::read_to_string(folder.path().join(out)).unwrap()
    };
    let answers = run("a.jsonl", &[]);
    assert_eq!(answers.lines().count(), 6);
    assert_eq!(run("b.jsonl", &["--slots", "8", "--chunk", "9"]), answers);

    let judge = ["score", "--tasks", own, "--outputs", "a.jsonl", "--json"];
    let output = tasks(folder.path(), &judge);
    assert_eq!(output.status.code(), Some(1), "one fails on purpose");
    let scores: Value = serde_json::from_slice(&output.stdout).unwrap();
    let cause = |id: &str| {
        let tasks = scores["tasks"].as_array().unwrap();
        let task = tasks.iter().find(|t| t["id"] == id).unwrap();
        (task["passed"].as_bool().unwrap(), task["cause"].clone())
    };
    for id in ["package-curl", "package-ssl", "describe", "json-record"] {
        assert_eq!(cause(id), (true, Value::Null), "{id}");
    }
    assert_eq!(cause("cut-off"), (false, "truncated".into()));
    assert_eq!(scores["causes"]["truncated"], 2);

    let rules = r#"{"id": "cut-off", "checks": [{"kind": "regex", "pattern": "^\\{"}]}"#;
    fs::write(folder.path().join("rules.jsonl"), rules).unwrap();
    let judge = ["score", "--tasks", "rules.jsonl", "--outputs", "a.jsonl"];
    let output = tasks(folder.path(), &judge);
    let page = text(&output.stdout);
    assert!(output.status.success(), "{page}");
    assert!(
        page.contains("1 of 1 passed") && page.contains("not judged: package-curl"),
        "{page}"
    );

    let compare = [
        "compare",
        "--tasks",
        own,
        "--outputs",
        "a.jsonl",
        "--with",
        "b.jsonl",
    ];
    let output = tasks(folder.path(), &compare);
    let page = text(&output.stdout);
    assert!(
        page.contains("4 of 6 passed") && page.contains("p = 1.000"),
        "{page}"
    );
}

#[test]
fn what_cannot_be_asked_or_judged_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    put(
        "bad.jsonl",
        "{\"id\": \"a\", \"checks\": [{\"kind\": \"yaml\"}]}",
    );
    put(
        "rules.jsonl",
        "{\"id\": \"a\", \"checks\": [{\"kind\": \"json\"}]}",
    );
    put("none.jsonl", "");
    let model = here("../../models/demo.gguf");
    let model = model.to_str().unwrap();
    for (args, expected) in [
        (
            &["score", "--tasks", "bad.jsonl", "--outputs", "none.jsonl"][..],
            "line 1",
        ),
        (
            &["score", "--tasks", "rules.jsonl", "--outputs", "none.jsonl"],
            "no output for task \"a\"",
        ),
        (
            &["score", "--tasks", "rules.jsonl", "--outputs", "gone.jsonl"],
            "gone.jsonl",
        ),
        (
            &[
                "run",
                "--model",
                model,
                "--tasks",
                "rules.jsonl",
                "--out",
                "o.jsonl",
            ],
            "it has no messages",
        ),
        (
            &[
                "run",
                "--model",
                model,
                "--tasks",
                "rules.jsonl",
                "--out",
                "rules.jsonl",
            ],
            "also read",
        ),
    ] {
        let output = tasks(folder.path(), args);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {error}");
        assert!(
            error.starts_with("error: ") && error.lines().count() == 1,
            "{error}"
        );
        assert!(error.contains(expected), "{args:?}: {error}");
    }
    assert!(!folder.path().join("o.jsonl").exists());
}

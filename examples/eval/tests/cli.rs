//! Runs the program as a user does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;
use thalweg_gguf::TensorType;
use thalweg_testkit::{SmallModel, SmallTypes};

/// A model, another one, and texts.
struct Fixture {
    folder: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let model = |seed| SmallModel {
            n_vocab: 288,
            seed,
            ..SmallModel::default()
        };
        model(1).write(at("one.gguf")).unwrap();
        model(2).write(at("two.gguf")).unwrap();
        let river = |i: usize| format!("In year {i} the water stood {} feet high. ", i * 37 % 19);
        let host = |i: usize| format!("host-{i}: {} packages upgraded, none held\n", i * 11 % 23);
        fs::write(at("en.a.txt"), (100..106).map(river).collect::<String>()).unwrap();
        fs::write(at("ops.txt"), (7..13).map(host).collect::<String>()).unwrap();
        fs::write(
            at("other.txt"),
            "Nothing of the kind was ever written down by anyone.",
        )
        .unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Over short windows of both texts, in the folder.
    fn eval(&self, reference: &str, test: &str, more: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_eval"));
        command.current_dir(self.folder.path());
        command.args(["--ref", reference, "--test", test, "--threads", "1"]);
        command.args(["--budget", "64MiB", "--window", "40", "--context", "20"]);
        if !more.contains(&"--text") {
            command.args(["--text", "en.a.txt", "ops.txt"]);
        }
        command.args(more).output().unwrap()
    }

    fn json(&self, reference: &str, test: &str, more: &[&str]) -> Value {
        let output = self.eval(reference, test, &[more, &["--json"]].concat());
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{told}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// One line on standard error, behind notes, and exit code 1.
#[track_caller]
fn refused(output: &Output) -> String {
    let told = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{told}");
    let error = told.lines().last().unwrap();
    assert!(error.starts_with("error: "), "{told}");
    assert!(output.stdout.is_empty());
    error.to_owned()
}

#[test]
fn the_models_own_texts_show_that_a_model_is_itself() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo.gguf");
    let output = Command::new(env!("CARGO_BIN_EXE_eval"))
        .args(["--max-windows", "1", "--window", "96", "--json"])
        .arg("--ref")
        .arg(&model)
        .arg("--test")
        .arg(&model)
        .output()
        .unwrap();
    assert!(output.status.success());
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    for scope in ["macro", "pooled"] {
        assert_eq!(value[scope]["kld"].as_f64().unwrap().to_bits(), 0);
        assert_eq!(value[scope]["top1"], 1.0);
    }
    assert_eq!(value["domains"][1]["name"], "code");
    assert_eq!(value["pooled"]["n_tokens"], 2 * (96 - 49));
}

#[test]
fn figures_do_not_depend_on_how_the_models_are_held() {
    let here = Fixture::new();
    let found = here.json("one.gguf", "two.gguf", &[]);
    let pooled = &found["pooled"];
    assert!(pooled["kld"].as_f64().unwrap() > 0.01);
    assert!(pooled["kld_interval"][0].as_f64() < pooled["kld"].as_f64());
    let names: Vec<_> = (0..2).map(|i| &found["domains"][i]["name"]).collect();
    assert_eq!(names, ["en", "ops"]);
    let of_domains = |field: &str| -> f64 {
        let domains = found["domains"].as_array().unwrap();
        let values = domains.iter().map(|d| d[field].as_f64().unwrap());
        values.sum::<f64>() / domains.len() as f64
    };
    let difference = found["macro"]["kld"].as_f64().unwrap() - of_domains("kld");
    assert!(difference.abs() < 1e-12);

    let without_time = |mut value: Value| {
        value["seconds"].take();
        value
    };
    let found = without_time(found);
    for more in [
        &["--slots", "5", "--chunk", "3"][..],
        &["--reader", "pread"],
    ] {
        let again = here.json("one.gguf", "two.gguf", more);
        assert_eq!(without_time(again), found, "{more:?}");
    }
}

#[test]
fn routing_bias_and_eight_bits_are_the_tests_alone() {
    let here = Fixture::new();
    let args = ["--moce", "abs:4", "--protect", "1", "--slots", "6"];
    let biased = here.json("one.gguf", "one.gguf", &args);
    assert!(biased["pooled"]["kld"].as_f64().unwrap() > 0.0);
    assert_eq!(biased["reference"]["moce"], "off");
    assert_eq!(biased["test"]["moce"], "abs:4");
    assert!(
        biased["notes"]
            .to_string()
            .contains("toward resident experts")
    );
    let rounded = here.json("one.gguf", "one.gguf", &["--activations", "q8"]);
    assert_eq!(rounded["reference"]["activations"], "f32");
    let both = ["--activations", "q8", "--ref-activations", "q8"];
    let both = here.json("one.gguf", "one.gguf", &both);
    assert_eq!(both["pooled"]["kld"], 0.0);
}

#[test]
fn a_report_is_six_files_and_the_next_one_compares_with_it() {
    let here = Fixture::new();
    let quantized = SmallModel {
        n_vocab: 288,
        types: SmallTypes::experts(TensorType::Q8_0),
        ..SmallModel::default()
    };
    quantized.write(here.path("q8.gguf")).unwrap();
    here.json("one.gguf", "two.gguf", &["--report", "a"]);
    let args = ["--report", "b", "--against", "a/report.json"];
    let better = here.json("one.gguf", "q8.gguf", &args);
    let change = &better["changes"][0];
    assert_eq!(change["against"], "two.gguf");
    assert!(change["pooled"]["relative"].as_f64().unwrap() < -0.5);
    assert!(change["macro"]["z"]["z"].as_f64().unwrap() < 0.0);
    assert_eq!(change["n_worse"], 0);
    let interval = &change["pooled"]["interval"];
    assert!(interval[0].as_f64() <= interval[1].as_f64());

    let mut names: Vec<_> = fs::read_dir(here.path("b"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let expected = [
        "figures.csv",
        "quality.svg",
        "report.json",
        "report.md",
        "windows.csv",
        "windows.svg",
    ];
    assert_eq!(names, expected);
    let page = fs::read_to_string(here.path("b/report.md")).unwrap();
    assert!(page.contains("## Against two.gguf"), "{page}");
    let stored = fs::read_to_string(here.path("b/report.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&stored).unwrap(), better);

    // Reports of other windows say nothing about these.
    let args = ["--against", "a/report.json", "--max-windows", "1"];
    let said = refused(&here.eval("one.gguf", "q8.gguf", &args));
    assert!(said.contains("other windows"), "{said}");
}

#[test]
fn calibration_texts_must_be_others() {
    let here = Fixture::new();
    let clean = here.json("one.gguf", "one.gguf", &["--calibration", "other.txt"]);
    assert_eq!(clean["overlap"]["overlaps"], Value::Array(Vec::new()));
    let args = ["--calibration", "other.txt", "ops.txt"];
    let said = refused(&here.eval("one.gguf", "one.gguf", &args));
    for part in ["16-grams", "(ops)", "\"ops.txt\"", "--force"] {
        assert!(said.contains(part), "{said}");
    }
    let forced = here.json("one.gguf", "one.gguf", &[&args[..], &["--force"]].concat());
    let notes = forced["notes"].to_string();
    assert!(notes.contains("in the calibration texts"), "{notes}");
}

#[test]
fn what_cannot_be_compared_is_refused_in_one_line() {
    let here = Fixture::new();
    let other = SmallModel {
        n_vocab: 300,
        ..SmallModel::default()
    };
    other.write(here.path("other.gguf")).unwrap();
    let said = refused(&here.eval("one.gguf", "other.gguf", &[]));
    assert!(said.contains("288") && said.contains("300"), "{said}");
    for (more, expected) in [
        (&["--text", "none.txt"][..], "none.txt"),
        (&["--text", "one.gguf"], "not UTF-8"),
        (&["--against", "en.a.txt"], "not usable JSON"),
        (&["--resamples", "0"], "n_resamples is 0"),
        (&["--max-windows", "0"], "max_windows is 0"),
        (&["--ngram", "0", "--calibration", "other.txt"], "--ngram"),
        (&["--report", "no/such"], "cannot make the folder"),
        (&["--report", "one.gguf"], "one.gguf"),
        (&["--slots", "2"], "at least the 4 experts"),
    ] {
        let said = refused(&here.eval("one.gguf", "two.gguf", more));
        assert!(said.contains(expected), "{more:?}: {said}");
    }
}

#[test]
fn one_budget_holds_both_models_or_says_what_each_needs() {
    let here = Fixture::new();
    let with = |budget: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_eval"));
        command.current_dir(here.folder.path());
        command.args(["--ref", "one.gguf", "--test", "two.gguf", "--threads", "1"]);
        command.args(["--window", "40", "--text", "en.a.txt", "--json"]);
        command.args(["--budget", budget]).output().unwrap()
    };
    let said = refused(&with("1MiB"));
    assert!(
        said.contains("the reference ") && said.contains("--budget"),
        "{said}"
    );
    let needed = said.split("at least ").nth(1).unwrap();
    let needed = needed.split(' ').next().unwrap();
    let tight = with(needed);
    let told = String::from_utf8(tight.stderr.clone()).unwrap();
    assert!(tight.status.success(), "{told}");
    let least: u64 = needed.parse().unwrap();
    refused(&with(&(least - 1).to_string()));
    let mut tight: Value = serde_json::from_slice(&tight.stdout).unwrap();
    let mut generous: Value = serde_json::from_slice(&with("1GiB").stdout).unwrap();
    for value in [&mut tight, &mut generous] {
        value["seconds"].take();
    }
    assert_eq!(tight, generous);
}

#[test]
fn a_reference_can_lie_in_a_file_of_llama_cpp() {
    let here = Fixture::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_eval"));
    command.current_dir(here.folder.path());
    command.args([
        "--ref",
        "one.gguf",
        "--test",
        "two.gguf",
        "--threads",
        "1",
        "--json",
    ]);
    command.args([
        "--budget", "64MiB", "--window", "40", "--text", "en.a.txt", "ops.txt",
    ]);
    let output = command
        .args(["--write-logits", "base.kld"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let exact: Value = serde_json::from_slice(&output.stdout).unwrap();
    // Rests of texts are no chunks.
    let windows = exact["windows"].as_array().unwrap();
    let whole: Vec<_> = windows.iter().filter(|w| w["n_tokens"] == 19).collect();
    assert!(whole.len() < windows.len());
    let bytes = fs::read(here.path("base.kld")).unwrap();
    let n_chunks = u32::from_le_bytes(bytes[16..20].try_into().unwrap());
    assert_eq!(n_chunks as usize, whole.len());
    assert!(!here.path(".base.kld.partial").exists());

    let against = |model: &str, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_eval"));
        command.current_dir(here.folder.path());
        command.args([
            "--ref-logits",
            "base.kld",
            "--test",
            model,
            "--budget",
            "32MiB",
        ]);
        command.args(more).output().unwrap()
    };
    let output = against("two.gguf", &["--json"]);
    assert!(output.status.success(), "{output:?}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["windows"].as_array().unwrap().len(), whole.len());
    for (found, exact) in found["windows"].as_array().unwrap().iter().zip(whole) {
        let (found, exact) = (&found["kld"], exact["kld"].as_f64().unwrap());
        assert!((found.as_f64().unwrap() / exact - 1.0).abs() < 0.01);
    }
    assert_eq!(found["domains"][0]["name"], "base");
    let page = String::from_utf8(against("one.gguf", &[]).stdout).unwrap();
    assert!(
        page.contains("base.kld: log-probabilities") && page.contains("16 bits"),
        "{page}"
    );

    // Texts come from the file.
    let output = against("two.gguf", &["--text", "en.a.txt"]);
    assert_eq!(output.status.code(), Some(2));
    fs::write(here.path("base.kld"), &bytes[..bytes.len() - 1]).unwrap();
    let said = refused(&against("two.gguf", &[]));
    assert!(
        said.contains("base.kld") && said.contains("its header says"),
        "{said}"
    );
}

#[test]
fn spans_can_be_stated_line_by_line() {
    let here = Fixture::new();
    let spans = concat!(
        r#"{"domain": "river", "context": "In year 101 the water", "continuation": " stood high."}"#,
        "\n",
        r#"{"domain": "ids", "tokens": [40, 41, 42, 43, 44], "scored": [2, 5]}"#,
        "\n"
    );
    fs::write(here.path("spans.jsonl"), spans).unwrap();
    let with = |spans: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_eval"));
        command.current_dir(here.folder.path());
        command.args(["--ref", "one.gguf", "--test", "two.gguf", "--json"]);
        command
            .args(["--budget", "64MiB", "--spans", spans])
            .output()
            .unwrap()
    };
    let output = with("spans.jsonl");
    assert!(output.status.success(), "{output:?}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["domains"][1]["n_tokens"], 3);
    assert_eq!(found["cut"], Value::Null);
    assert!(found["pooled"]["kld"].as_f64().unwrap() > 0.0);

    let at_start = r#"{"domain": "a", "context": "", "continuation": "Nobody predicts this."}"#;
    fs::write(here.path("bad.jsonl"), at_start).unwrap();
    let said = refused(&with("bad.jsonl"));
    assert!(
        said.contains("line 1") && said.contains("begins at 0"),
        "{said}"
    );
}

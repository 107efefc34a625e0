//! Runs the program as a user does, on the model of the repository.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const TEXT: &str = "To install a package, run apt-get install and its name. The list of packages is \
    brought up to date by apt-get update, which reads the sources and fetches what is new. ";
const OTHER: &str =
    "fn main() { let mut sum = 0; for i in 0..10 { sum += i; } println!(\"{sum}\"); }";

fn saliency(folder: &Path, flags: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saliency"));
    command.current_dir(folder).args(flags);
    command.output().unwrap()
}

#[track_caller]
fn told(folder: &Path, flags: &[&str]) -> Value {
    let output = saliency(folder, &[flags, &["--json"]].concat());
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
fn refused(folder: &Path, flags: &[&str]) -> String {
    let output = saliency(folder, flags);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_measurement_leads_to_a_choice_and_is_compared_with_another() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("en.a.txt"), TEXT).unwrap();
    fs::write(folder.join("code.b.txt"), OTHER).unwrap();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo.gguf");
    let collect = |text: &str, out: &str, window: &str| {
        let flags = [
            "collect", "--model", model, "--budget", "200MiB", "--text", text,
        ];
        told(
            folder,
            &[
                &flags[..],
                &["--window", window, "--out", out, "--moments", "m.json"],
            ]
            .concat(),
        )
    };
    let a = collect("en.a.txt", "a.json", "64");
    assert_eq!(a["domains"][0][0], "en");
    assert_eq!(a["tokens"], a["domains"][0][1]);
    collect("code.b.txt", "b.json", "64");

    let flags = ["keep", "a.json", "--k", "48", "--heldout", "b.json"];
    let all = told(folder, &flags);
    assert_eq!(all["scores"].as_array().unwrap().len(), 8);
    let inside = |row: &Value| row["in_sample"]["macro"].as_f64().unwrap();
    let rows = all["scores"].as_array().unwrap();
    let best = rows.iter().find(|r| r["score"] == "reap_l2_sum").unwrap();
    assert!(rows.iter().all(|row| inside(row) <= inside(best)));
    assert!(best["out_of_sample"]["macro"].as_f64().unwrap() < inside(best));

    let flags = [
        "keep", "a.json", "--k", "48", "--score", "reap", "--out", "k.json",
    ];
    told(folder, &flags);
    let map: Value = serde_json::from_slice(&fs::read(folder.join("k.json")).unwrap()).unwrap();
    assert_eq!(map["layers"].as_array().unwrap().len(), 12);
    assert_eq!(map["layers"][11]["keep"].as_array().unwrap().len(), 48);

    let same = told(folder, &["diff", "a.json", "a.json"]);
    assert!(
        same["scores"]
            .as_array()
            .unwrap()
            .iter()
            .all(|row| row["common"] == 1.0)
    );
    let other = told(folder, &["diff", "a.json", "b.json"]);
    assert!(
        other["scores"]
            .as_array()
            .unwrap()
            .iter()
            .all(|row| row["common"] != 1.0)
    );

    let said = refused(folder, &["keep", "a.json", "--k", "5"]);
    assert!(said.contains("6 (what a token uses) to 64"), "{said}");
    let said = refused(
        folder,
        &["keep", "a.json", "--k", "48", "--heldout", "a.json"],
    );
    assert!(said.contains("same texts"), "{said}");
    let said = refused(folder, &["keep", "k.json", "--k", "48"]);
    assert!(said.contains("keep-map"), "{said}");
}

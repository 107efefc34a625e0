//! Runs the program as a user does, and on a drive that fills up.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use thalweg_gguf::Gguf;
use thalweg_testkit::SmallModel;

fn model() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    SmallModel::default().write(path).unwrap();
    folder
}

fn quantize(folder: &Path, flags: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quantize"));
    command.current_dir(folder).args(flags);
    command.output().unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let name = |e: std::io::Result<fs::DirEntry>| e.unwrap().file_name().into_string().unwrap();
    entries.map(name).collect()
}

#[track_caller]
fn refused(output: &Output) -> String {
    let message = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    message
}

#[test]
fn the_report_is_of_the_file_that_was_written() {
    let folder = model();
    let flags = ["m.gguf", "s.gguf", "--experts", "q2_0", "--json"];
    let output = quantize(folder.path(), &flags);
    assert!(output.status.success(), "{output:?}");
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let file = Gguf::open(folder.path().join("s.gguf")).unwrap();
    let bytes: u64 = file.tensors().iter().map(|t| t.size_bytes).sum();
    assert_eq!(told["data_bytes"], bytes);
    assert_eq!(told["changed"], 12);
    assert_eq!(
        told["tensors"].as_array().unwrap().len(),
        file.tensors().len()
    );

    // What a dry run foretells is what comes.
    let flags = ["m.gguf", "--experts", "q2_0", "--json", "--dry-run"];
    let foretold: Value = serde_json::from_slice(&quantize(folder.path(), &flags).stdout).unwrap();
    assert_eq!(foretold["data_bytes"], bytes);
}

#[test]
fn wrong_asks_are_told_in_one_line() {
    let folder = model();
    let said = |flags: &[&str]| refused(&quantize(folder.path(), flags));
    assert!(said(&["m.gguf", "s.gguf"]).contains("nothing to change"));
    let same = said(&["m.gguf", "m.gguf", "--experts", "q2_0"]);
    assert!(same.contains("also read"), "{same}");
    let name = said(&["m.gguf", "s.gguf", "--tensor", "no.such=q8_0"]);
    assert!(name.contains("no tensor \"no.such\""), "{name}");
    fs::write(folder.path().join("i.json"), "{}").unwrap();
    let moments = said(&[
        "m.gguf",
        "s.gguf",
        "--experts",
        "q2_0",
        "--importance",
        "i.json",
    ]);
    assert!(moments.contains("i.json"), "{moments}");
    let output = quantize(folder.path(), &["m.gguf", "s.gguf", "--experts", "iq1_s"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("q2_0") && output.status.code() == Some(2),
        "{said}"
    );
    assert_eq!(names(folder.path()).len(), 2);
}

#[cfg(unix)]
#[test]
fn a_file_that_cannot_be_finished_leaves_nothing() {
    let folder = model();
    fs::write(folder.path().join("s.gguf"), "old").unwrap();
    // As a full drive does, the limit fails a write in the middle.
    let program = env!("CARGO_BIN_EXE_quantize");
    let line = format!("trap '' XFSZ; ulimit -f 1000; exec {program} m.gguf s.gguf --experts q2_0");
    let mut shell = Command::new("bash");
    let output = shell
        .current_dir(folder.path())
        .args(["-c", &line])
        .output();
    let said = refused(&output.unwrap());
    assert!(said.contains("s.gguf"), "{said}");
    assert_eq!(fs::read(folder.path().join("s.gguf")).unwrap(), b"old");
    assert_eq!(names(folder.path()).len(), 2);
}

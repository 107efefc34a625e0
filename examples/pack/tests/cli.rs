//! Runs the program as a user does, and ends it as users and systems do.

use std::fs;
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use thalweg_gguf::Gguf;
use thalweg_testkit::SmallModel;

struct Fixture {
    folder: tempfile::TempDir,
}

impl Fixture {
    fn new(model: &SmallModel) -> Self {
        let folder = tempfile::tempdir().unwrap();
        model.write(folder.path().join("m.gguf")).unwrap();
        Self { folder }
    }

    fn small() -> Self {
        Self::new(&SmallModel::default())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn pack(&self, flags: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pack"));
        command.args(flags);
        command.arg(self.path("m.gguf")).arg(self.path("m.experts"));
        command
    }

    fn names(&self) -> Vec<String> {
        names(self.folder.path())
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[track_caller]
fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).to_owned()
}

/// One line on standard error and exit code 1.
#[track_caller]
fn fails(command: &mut Command) -> String {
    refused(&command.output().unwrap())
}

#[track_caller]
fn refused(output: &Output) -> String {
    let message = text(&output.stderr).to_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(output.stdout.is_empty());
    message
}

/// Not through print, which tests capture.
fn skipped(why: &str) {
    let line = format!("SKIPPED: {why}\n");
    stderr().write_all(line.as_bytes()).unwrap();
}

#[test]
fn the_sidecar_has_the_experts_of_the_model_byte_for_byte() {
    let here = Fixture::small();
    let shown = succeeds(&mut here.pack(&["--json"]));
    let value: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(value["packed"]["experts"], 64);
    assert_eq!(here.names(), ["m.experts", "m.gguf"]);

    // Read without the crates that wrote it: by the documented offsets.
    let bytes = fs::read(here.path("m.experts")).unwrap();
    assert_eq!(value["packed"]["file_bytes"], bytes.len());
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(&bytes[..4], b"MEXP");
    let (n_layer, n_expert) = (u32_at(12) as usize, u32_at(16) as usize);
    assert_eq!((n_layer, n_expert), (4, 16));
    let file = Gguf::open(here.path("m.gguf")).unwrap();
    let mut end = 0;
    for layer in 0..n_layer {
        for expert in 0..n_expert {
            let entry = 56 + 32 * n_layer + 16 * (layer * n_expert + expert);
            let mut at = usize::try_from(u64_at(entry)).unwrap();
            assert_eq!(at % 16_384, 0);
            let len = u32_at(entry + 8) as usize;
            end = at + len;
            for (part, name) in ["gate", "up", "down"].iter().enumerate() {
                let tensor = file
                    .tensor(&format!("blk.{layer}.ffn_{name}_exps.weight"))
                    .unwrap();
                let one = u32_at(56 + 32 * layer + 12 + 4 * part) as usize;
                assert_eq!(one * n_expert, usize::try_from(tensor.size_bytes).unwrap());
                let mut expected = vec![0; one];
                let from = (expert * one) as u64;
                file.read_tensor_range(tensor, from, &mut expected).unwrap();
                assert!(
                    bytes[at..at + one] == expected,
                    "{name} of expert {expert} of layer {layer}"
                );
                at += one;
            }
            assert_eq!(at, end);
        }
    }
    assert_eq!(end.next_multiple_of(16_384), bytes.len());
}

#[test]
fn an_existing_sidecar_is_verified_and_damage_is_named() {
    let here = Fixture::small();
    let missing = fails(&mut here.pack(&["--verify"]));
    assert!(missing.contains("m.experts"), "{missing}");
    succeeds(&mut here.pack(&[]));
    let shown = succeeds(&mut here.pack(&["--verify"]));
    assert!(shown.contains("byte for byte"), "{shown}");

    let whole = fs::read(here.path("m.experts")).unwrap();
    let mut damaged = whole.clone();
    damaged[16_384 + 70] ^= 1;
    fs::write(here.path("m.experts"), &damaged).unwrap();
    let message = fails(&mut here.pack(&["--verify"]));
    assert!(message.contains("expert 0 of layer 0"), "{message}");
    fs::write(here.path("m.experts"), &whole[..whole.len() - 1]).unwrap();
    let message = fails(&mut here.pack(&["--verify"]));
    assert!(message.contains("expected"), "{message}");
}

#[test]
fn a_stale_sidecar_is_refused_and_replaced_by_packing_again() {
    let here = Fixture::small();
    succeeds(&mut here.pack(&[]));
    let other = SmallModel {
        seed: 2,
        ..SmallModel::default()
    };
    other.write(here.path("m.gguf")).unwrap();
    let message = fails(&mut here.pack(&["--verify"]));
    assert!(message.contains("fingerprint"), "{message}");
    succeeds(&mut here.pack(&[]));
    succeeds(&mut here.pack(&["--verify"]));
}

#[test]
fn a_file_that_is_no_model_leaves_the_old_sidecar() {
    let here = Fixture::small();
    succeeds(&mut here.pack(&[]));
    let before = fs::read(here.path("m.experts")).unwrap();
    fs::write(here.path("m.gguf"), "not a model").unwrap();
    fails(&mut here.pack(&[]));
    assert!(fs::read(here.path("m.experts")).unwrap() == before);
    assert_eq!(here.names(), ["m.experts", "m.gguf"]);
}

#[test]
fn a_killed_run_leaves_nothing_that_looks_complete() {
    // Large enough to be met while it is written.
    let here = Fixture::new(&SmallModel {
        n_expert: 192,
        n_ff: 256,
        ..SmallModel::default()
    });
    let partial = here.path(".m.experts.partial");
    // An empty one has only just been made and tells the next run nothing.
    let has_content = || fs::metadata(&partial).is_ok_and(|metadata| metadata.len() > 0);
    let mut was_met = false;
    for _ in 0..20 {
        let mut child = here.pack(&[]).stdout(Stdio::null()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while !has_content() && child.try_wait().unwrap().is_none() && Instant::now() < deadline {
            sleep(Duration::from_micros(200));
        }
        // SIGKILL where there is one: the program cannot tidy up.
        child.kill().unwrap();
        child.wait().unwrap();
        was_met = has_content();
        if was_met {
            break;
        }
        let _ = fs::remove_file(here.path("m.experts"));
    }
    assert!(was_met, "no run was killed while it wrote");
    assert!(!here.path("m.experts").exists());
    // Nor is what is left taken for a sidecar under its own name.
    let mut verify = Command::new(env!("CARGO_BIN_EXE_pack"));
    verify
        .arg("--verify")
        .arg(here.path("m.gguf"))
        .arg(&partial);
    fails(&mut verify);

    let value: Value = serde_json::from_str(&succeeds(&mut here.pack(&["--json"]))).unwrap();
    assert_eq!(value["packed"]["replaced_leftover"], true);
    succeeds(&mut here.pack(&["--verify"]));
    assert_eq!(here.names(), ["m.experts", "m.gguf"]);
}

/// The system's limit on the length of a file stands for a full drive: the write fails.
#[cfg(unix)]
#[test]
fn a_file_that_may_not_grow_is_reported_and_cleaned_up() {
    let here = Fixture::small();
    succeeds(&mut here.pack(&[]));
    let before = fs::read(here.path("m.experts")).unwrap();
    assert!(before.len() > 1 << 20);
    // Blocks of 512 or 1024 bytes, by shell; ignored signals stay so in the program.
    let mut shell = Command::new("sh");
    let script = "trap '' XFSZ && ulimit -f 200 && exec \"$@\"";
    let command = here.pack(&[]);
    shell.args(["-c", script, "sh"]).arg(command.get_program());
    shell.args(command.get_args());
    let message = refused(&shell.output().unwrap());
    assert!(message.contains("cannot write"), "{message}");
    assert!(fs::read(here.path("m.experts")).unwrap() == before);
    assert_eq!(here.names(), ["m.experts", "m.gguf"]);
}

/// A drive of one MiB, in a name space of its own, which ends with the shell.
#[cfg(target_os = "linux")]
#[test]
fn a_full_drive_is_reported_and_cleaned_up() {
    let here = Fixture::small();
    let drive = here.path("drive");
    fs::create_dir(&drive).unwrap();
    let script = "mount -t tmpfs -o size=1m tmpfs \"$2\" || exit 77; \
                  \"$1\" \"$3\" \"$2/m.experts\"; code=$?; ls -A \"$2\"; exit $code";
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh"])
        .arg(env!("CARGO_BIN_EXE_pack"))
        .arg(&drive)
        .arg(here.path("m.gguf"))
        .output();
    let Ok(output) = output else {
        return skipped("there is no `unshare` to make a small drive with");
    };
    let code = output.status.code();
    if code == Some(77) || text(&output.stderr).starts_with("unshare") {
        return skipped("a small drive cannot be mounted without more rights");
    }
    let message = refused(&output);
    assert!(message.contains("No space left"), "{message}");
}

#[test]
fn a_sidecar_replaces_neither_its_model_nor_what_is_no_file() {
    let here = Fixture::small();
    let model = fs::read(here.path("m.gguf")).unwrap();
    fs::create_dir(here.path("folder")).unwrap();
    for (out, expected) in [
        ("m.gguf", "also read, as the model"),
        ("./m.gguf", "also read, as the model"),
        ("folder", "is a folder"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pack"));
        command.arg(here.path("m.gguf")).arg(out);
        let output = command.current_dir(here.folder.path()).output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(fs::read(here.path("m.gguf")).unwrap(), model);
    assert_eq!(here.names(), ["folder", "m.gguf"]);
}

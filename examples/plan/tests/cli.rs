//! Runs the program as a user does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use thalweg_gguf::Gguf;
use thalweg_runtime::pack_sidecar;
use thalweg_testkit::SmallModel;

struct Fixture {
    folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        SmallModel::default()
            .write(folder.path().join("m.gguf"))
            .unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, flags: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plan"));
        command.arg(self.path("m.gguf"));
        command.args(["--ctx", "256", "--threads", "1"]);
        command.args(flags).output().unwrap()
    }

    #[track_caller]
    fn json(&self, flags: &[&str], code: i32) -> Value {
        let output = self.run(&[flags, &["--json"]].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{errors}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn write_host(path: &Path) {
    let host = json!({
        "format": "thalweg-host",
        "version": 1,
        "drive": [{"threads": 1, "queue_depth": 1, "block_bytes": 98304, "gb_per_s": 2.0}],
        "decode_floor_ms": 5.0,
    });
    fs::write(path, host.to_string()).unwrap();
}

#[test]
fn the_split_adds_up_and_the_floor_is_the_smallest_budget_that_works() {
    let here = Fixture::new();
    let value = here.json(&["--budget", "32MiB"], 0);
    let plan = &value["plan"];
    let parts = [
        "dense",
        "state",
        "workspace",
        "row_cache",
        "overhead",
        "reader",
        "arena",
    ];
    let of = |name: &str| plan[format!("{name}_bytes")].as_u64().unwrap();
    let sum: u64 = parts.iter().map(|name| of(name)).sum();
    assert_eq!(sum, of("total"));
    assert!(sum <= 32 << 20);
    assert_eq!(plan["slots"].as_array().unwrap().len(), 4);
    // Four of sixteen experts of a layer, everything F32.
    let all = value["all_expert_bytes"].as_u64().unwrap();
    assert_eq!(value["token_expert_bytes"].as_u64().unwrap() * 4, all);

    let floor = value["floor_bytes"].as_u64().unwrap();
    let at = here.json(&["--budget", &floor.to_string()], 0);
    assert_eq!(at["fits"], true);
    let below = here.json(&["--budget", &(floor - 1).to_string()], 1);
    assert_eq!(below["fits"], false);
    assert_eq!(below["floor_bytes"], value["floor_bytes"]);
    let why = below["why_not"].as_str().unwrap();
    assert!(why.contains("dense weights"), "{why}");
    let output = here.run(&["--budget", "1MiB"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("does not fit") && text.contains("smallest budget"),
        "{text}"
    );
}

#[test]
fn the_forecast_follows_the_constants_of_the_host() {
    let here = Fixture::new();
    let host = here.path("host.json");
    write_host(&host);
    let host = host.to_str().unwrap();
    let flags = ["--budget", "32MiB", "--host", host, "--hit-rate", "0.75"];
    let value = here.json(&flags, 0);
    let forecast = &value["forecast"];
    let close = |found: &Value, expected: f64| {
        let found = found.as_f64().unwrap();
        assert!((found / expected - 1.0).abs() < 1e-9, "{found}, {expected}");
    };
    let read_ms = value["token_expert_bytes"].as_f64().unwrap() / 2.0e9 * 1e3;
    close(&forecast["cold_tokens_per_s"], 1e3 / (5.0 + read_ms));
    close(&forecast["tokens_per_s"], 1e3 / (5.0 + read_ms / 4.0));
    assert_eq!(
        forecast["prefill_tokens_per_s"],
        Value::Null,
        "not measured"
    );
    let text = String::from_utf8(here.run(&flags).stdout).unwrap();
    assert!(text.contains("no prefill_ceiling_tokens_per_s"), "{text}");
}

#[test]
fn measuring_compares_the_model_file_with_its_sidecar() {
    let here = Fixture::new();
    let file = Gguf::open(here.path("m.gguf")).unwrap();
    let sidecar = here.path("m.experts");
    pack_sidecar(&file, &sidecar, &mut |_, _| {
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    let flags = ["--measure", "--sidecar", sidecar.to_str().unwrap()];
    let value = here.json(&flags, 0);
    let rows = value["measured"].as_array().unwrap();
    for reader in ["pread", "pool"] {
        for source in ["model file", "sidecar"] {
            let is_it = |row: &&Value| row["reader"] == reader && row["source"] == source;
            let row = rows.iter().find(is_it).unwrap();
            assert!(row["gb_per_s"].as_f64().unwrap() > 0.0);
            assert!(row["tokens"].as_u64().unwrap() > 0);
        }
    }
    let alone = here.json(&["--measure"], 0);
    assert_eq!(alone["better"], Value::Null, "nothing to compare with");

    // Of another model: refused, not measured.
    let other = SmallModel {
        seed: 5,
        ..SmallModel::default()
    };
    other.write(here.path("m.gguf")).unwrap();
    let output = here.run(&flags);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("fingerprint"), "{message}");
}

#[test]
fn a_file_that_is_cut_short_is_refused() {
    let here = Fixture::new();
    let whole = fs::read(here.path("m.gguf")).unwrap();
    fs::write(here.path("m.gguf"), &whole[..whole.len() - 1000]).unwrap();
    let output = here.run(&[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
}

#[cfg(unix)]
#[test]
fn the_exit_code_says_whether_it_fits_whoever_reads_the_page() {
    let here = Fixture::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_plan"));
    command.arg(here.path("m.gguf"));
    command.args(["--ctx", "256", "--budget", "1MiB"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

#[test]
fn what_only_the_forecast_uses_needs_a_host_and_a_useless_host_is_named() {
    let here = Fixture::new();
    let error = |flags: &[&str], code: i32| {
        let output = here.run(flags);
        assert_eq!(output.status.code(), Some(code), "{flags:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    for flags in [["--hit-rate", "0.5"], ["--profile", "p"], ["--prompt", "9"]] {
        assert!(error(&flags, 2).contains("--host <FILE>"), "{flags:?}");
    }
    assert!(error(&["--hit-rate", "-0.5", "--host", "h"], 2).contains("within 0 to 1"));
    fs::write(here.path("empty.json"), "").unwrap();
    let host = here.path("empty.json");
    let said = error(&["--budget", "32MiB", "--host", host.to_str().unwrap()], 1);
    assert!(said.contains("empty.json"), "{said}");
    let said = here.run(&["--budget", "1EiB"]).stderr;
    let told = String::from_utf8(said)
        .unwrap()
        .contains("note: the budget");
    assert_eq!(told, cfg!(target_os = "linux"));
}

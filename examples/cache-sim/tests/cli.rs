//! The binary from end to end on the embedded model, and what it says to bad input.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn run(args: &[&str], folder: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cache-sim"))
        .args(args)
        .current_dir(folder)
        .output()
        .expect("the binary runs")
}

fn ok(args: &[&str], folder: &Path) -> String {
    let output = run(args, folder);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The message of a run that must fail, which must be one line and no panic.
fn fails(args: &[&str], folder: &Path) -> String {
    let output = run(args, folder);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{args:?} succeeded");
    assert!(!errors.contains("panicked"), "{errors}");
    errors
}

/// A folder with a trace `t.motr` of two domains, 80 tokens.
fn recorded(logits: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("writable");
    let path = folder.path().to_path_buf();
    let text = "The status bar shows the page number and the word count. ".repeat(20);
    fs::write(
        path.join("en.a.txt"),
        format!("{text}\n<|endoftext|>\n{text}"),
    )
    .expect("written");
    let code = "fn add(a: u32, b: u32) -> u32 { a + b }\n".repeat(30);
    fs::write(path.join("code.a.txt"), code).expect("written");
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo.gguf");
    let model = model.to_str().expect("UTF-8");
    let args = [
        "record",
        "--model",
        model,
        "--text",
        "en.a.txt",
        "code.a.txt",
        "--out",
        "t.motr",
        "--max-tokens",
        "96",
        "--ctx",
        "32",
        "--logits",
        logits,
    ];
    let said = ok(&args, &path);
    assert!(
        said.contains("80 tokens in 3 documents of 2 domains"),
        "{said}"
    );
    (folder, path)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

#[test]
fn record_replay_sweep_plot_and_choose_work_together() {
    let (_folder, path) = recorded("f32");
    let replay = |more: &[&str]| {
        let args = [
            &["replay", "--trace", "t.motr", "--json", "--slots", "12"],
            more,
        ]
        .concat();
        json(&ok(&args, &path))
    };
    let open = replay(&["--policy", "lru"]);
    assert_eq!(open["n_tokens"], 80);
    assert_eq!(open["rank_conflicts"], 0);
    assert_eq!(open["n_picks"], 80 * 12 * 6);
    assert_eq!(open["agreement"], 1.0);
    let names: Vec<_> = open["domains"].as_array().expect("two").iter().collect();
    assert_eq!(
        (&names[0]["name"], &names[1]["name"]),
        (&"en".into(), &"code".into())
    );
    let misses = |report: &Value| report["n_misses"].as_u64().expect("a count");
    assert_eq!(misses(&open), names.iter().map(|d| misses(d)).sum::<u64>());
    // All experts of the embedded model have one size.
    let bytes = open["bytes_per_token"]
        .as_f64()
        .expect("the trace notes sizes");
    let per_miss = bytes / open["misses_per_token"].as_f64().expect("a figure");
    assert!((per_miss - 23_296.0).abs() < 1e-6, "{per_miss}");
    // A bias of nothing is the open loop; more bias misses less and costs more.
    assert_eq!(misses(&replay(&["--moce", "rel:0"])), misses(&open));
    let biased = replay(&["--moce", "rel:0.2", "--protect", "1"]);
    assert!(misses(&biased) < misses(&open));
    assert!(biased["routing_kl"].as_f64() > Some(0.0));
    let bound = replay(&["--policy", "belady_min"]);
    assert!(misses(&bound) < misses(&open));
    let global = replay(&["--scope", "global"]);
    assert_ne!(misses(&global), misses(&open));
    let text = ok(&["replay", "--trace", "t.motr", "--slots", "12"], &path);
    assert!(text.lines().any(|line| line.starts_with("code")), "{text}");

    let sweep = |out: &str| {
        let said = ok(
            &["sweep", "--trace", "t.motr", "--out", out, "--csv", "s.csv"],
            &path,
        );
        assert!(said.contains("240 configurations"), "{said}");
        fs::read_to_string(path.join(out)).expect("written")
    };
    let lines = sweep("s.jsonl");
    assert_eq!(
        lines,
        sweep("again.jsonl"),
        "the same lines in the same order"
    );
    let rows: Vec<Value> = lines.lines().map(json).collect();
    let settings = |row: &Value| format!("{} {} {}", row["map"], row["policy"], row["lambda"]);
    let mut distinct: Vec<String> = rows.iter().map(settings).collect();
    distinct.sort();
    distinct.dedup();
    assert_eq!((rows.len(), distinct.len()), (240, 240));
    for row in &rows {
        assert!(
            row["lambda"].is_f64() && row["protect_top_j"].is_u64(),
            "{row}"
        );
        let exact = row["lambda"] == 0.0;
        assert_eq!(row["routing_kl"] == 0.0, exact, "{}", settings(row));
        assert!(row["n_misses"].as_u64() >= row["n_compulsory"].as_u64());
        assert_eq!(row["map_routing_kl"] == 0.0, row["map"] == "all");
    }
    let csv = fs::read_to_string(path.join("s.csv")).expect("written");
    assert_eq!(csv.lines().count(), 241);

    ok(
        &[
            "plot", "--in", "s.jsonl", "--trace", "t.motr", "--out", "plots",
        ],
        &path,
    );
    for name in ["misses", "misses_by_map", "tokens_per_s", "hit_rate"] {
        let svg = path.join("plots").join(name).with_extension("svg");
        let svg = fs::read_to_string(svg).expect("drawn");
        assert!(
            svg.starts_with("<svg") && svg.contains("polyline"),
            "{name}"
        );
    }

    let host = r#"{"format": "thalweg-host", "version": 1, "decode_floor_ms": 12.0,
        "prefill_ceiling_tokens_per_s": 356.0, "drive":
        [{"threads": 1, "queue_depth": 1, "block_bytes": 65536, "gb_per_s": 0.5}]}"#;
    fs::write(path.join("h.json"), host).expect("written");
    let choose = |more: &[&str]| {
        let args = ["choose", "--trace", "t.motr", "--host", "h.json", "--json"];
        json(&ok(&[&args, more].concat(), &path))
    };
    let choice = choose(&["--bar", "20"]);
    assert_eq!(choice["bar_is_met"], true);
    assert_eq!(choice["ranked"].as_array().map(Vec::len), Some(5 * 4 * 4));
    let turn = choose(&["--turn-seconds", "0.001", "--prompt", "64", "--reply", "10"]);
    assert_eq!(turn["bar_is_met"], false);
    let table = ok(
        &[
            "choose", "--trace", "t.motr", "--host", "h.json", "--bar", "20",
        ],
        &path,
    );
    assert!(table.contains("least costly"), "{table}");

    // What hwbench writes has no floor: then it is named, or the drive alone counts.
    let host = host.replace(r#""decode_floor_ms": 12.0,"#, "");
    fs::write(path.join("h.json"), host).expect("written");
    let fastest = |choice: &Value| choice["ranked"][0]["tokens_per_s"].as_f64();
    let named = choose(&["--bar", "20", "--floor-ms", "12"]);
    assert_eq!(fastest(&named), fastest(&choice));
    assert!(fastest(&named).is_some());
    assert!(fastest(&choose(&["--bar", "20"])) > fastest(&choice));
}

#[test]
fn a_synthetic_trace_of_a_large_shape_can_be_replayed() {
    let folder = tempfile::tempdir().expect("writable");
    let synth = [
        "synth",
        "--tokens",
        "20",
        "--layers",
        "3",
        "--out",
        "s.motr",
        "--persistence",
    ];
    let misses = |persistence: &str| {
        ok(&[&synth[..], &[persistence]].concat(), folder.path());
        let replay = ["replay", "--trace", "s.motr", "--slots", "113", "--json"];
        let report = json(&ok(&replay, folder.path()));
        assert_eq!(
            (&report["n_expert"], &report["k"]),
            (&512.into(), &10.into())
        );
        report["n_misses"].as_u64().expect("a count")
    };
    assert!(misses("0.95") < misses("0"));
    assert!(fails(&[&synth[..], &["1"]].concat(), folder.path()).contains("persistence"));
}

#[test]
fn bad_input_is_named() {
    let (_folder, path) = recorded("top:8");
    let says = |args: &[&str], what: &[&str]| {
        let errors = fails(args, &path);
        for what in what {
            assert!(
                errors.contains(what),
                "{args:?} does not say {what}: {errors}"
            );
        }
    };
    let replay = ["replay", "--trace", "t.motr", "--slots"];
    let with = |more: &[&'static str]| [&replay[..], more].concat();
    says(
        &with(&["12", "--policy", "mru"]),
        &["mru", "sieve", "belady_min"],
    );
    says(&with(&["5"]), &["5 slots", "6..=64"]);
    says(&with(&["65"]), &["65 slots"]);
    says(&with(&["12", "--moce", "rel:3"]), &["rel:3"]);
    says(&with(&["12", "--skip", "80"]), &["80 tokens"]);
    // Two experts beyond a choice of six do not decide a strong bias.
    says(&with(&["12", "--moce", "rel:0.9"]), &["bias"]);
    says(
        &["sweep", "--trace", "t.motr", "--out", "s.jsonl"],
        &["top 8 logits"],
    );
    assert!(!path.join("s.jsonl").exists());

    let whole = fs::read(path.join("t.motr")).expect("recorded");
    fs::write(path.join("cut.motr"), &whole[..whole.len() - 9]).expect("written");
    says(
        &["replay", "--trace", "cut.motr", "--slots", "9"],
        &["cut.motr", "bytes"],
    );
    let mut flipped = whole;
    let middle = flipped.len() / 2;
    flipped[middle] ^= 4;
    fs::write(path.join("bad.motr"), flipped).expect("written");
    says(
        &["replay", "--trace", "bad.motr", "--slots", "9"],
        &["bad.motr", "checksum"],
    );
    says(
        &["replay", "--trace", "none.motr", "--slots", "9"],
        &["none.motr"],
    );
    let said = fails(&["replay", "--trace", "none.motr", "--slots", "9"], &path);
    for once in ["none.motr", "No such file"] {
        assert_eq!(said.matches(once).count(), 1, "{said}");
    }
    let negative = ["replay", "--trace", "t.motr", "--slots", "-9"];
    says(&negative, &["-9", "--slots", "is not in 0.."]);

    fs::write(path.join("s.jsonl"), "{\"map\": 3}\n").expect("written");
    says(
        &["plot", "--in", "s.jsonl", "--out", "plots"],
        &["s.jsonl, line 1"],
    );
    fs::write(path.join("s.jsonl"), "").expect("written");
    says(&["plot", "--in", "s.jsonl", "--out", "plots"], &["empty"]);
    let host = [
        "choose", "--trace", "t.motr", "--host", "h.json", "--bar", "20",
    ];
    says(&host, &["h.json"]);
    says(
        &["record", "--text", "none.txt", "--out", "o.motr"],
        &["none.txt"],
    );
    let logits = [
        "record", "--text", "en.a.txt", "--out", "o.motr", "--logits",
    ];
    says(&[&logits[..], &["half"]].concat(), &["half", "top:M"]);
    says(&[&logits[..], &["top:3"]].concat(), &["o.motr"]);
    assert!(!path.join("o.motr").exists());
}

/// A pipe that nobody writes to. A binary that opens it waits for ever.
#[cfg(unix)]
fn pipe(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status();
    assert!(made.expect("mkfifo runs").success());
}

#[cfg(unix)]
#[test]
fn an_output_replaces_no_input_and_nothing_but_a_regular_file() {
    let (_folder, path) = recorded("f16");
    pipe(&path.join("pipe"));
    std::os::unix::fs::symlink("en.a.txt", path.join("link")).expect("linked");
    fs::create_dir(path.join("plots")).expect("made");
    std::os::unix::fs::symlink("../t.motr", path.join("plots/misses.svg")).expect("linked");
    let quick = ["--no-pruning", "--policies", "lru", "--lambdas", "0"];
    let sweep = |more: &[&str]| {
        let args = [&["sweep", "--trace", "t.motr"], &quick[..], more].concat();
        fails(&args, &path)
    };
    let kept = |name: &str| {
        fs::symlink_metadata(path.join(name))
            .expect("there")
            .file_type()
    };
    let before = [kept("pipe"), kept("link"), kept("plots/misses.svg")];
    let trace = fs::read(path.join("t.motr")).expect("readable");

    assert!(sweep(&["--out", "pipe"]).contains("--out pipe is a device, a pipe"));
    assert!(sweep(&["--out", "link"]).contains("a symbolic link"));
    assert!(sweep(&["--out", "s.jsonl", "--csv", "pipe"]).contains("--csv pipe"));
    assert!(sweep(&["--out", "./t.motr"]).contains("also read, as --trace"));
    assert!(sweep(&["--out", "x", "--csv", "./x"]).contains("are one file"));
    let synth = ["synth", "--tokens", "4", "--layers", "2", "--out", "pipe"];
    assert!(fails(&synth, &path).contains("--out pipe"));
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo.gguf");
    let model = model.to_str().expect("UTF-8");
    let record = |out: &str, text: &str| {
        let args = ["record", "--model", model, "--text", text, "--out", out];
        fails(&args, &path)
    };
    assert!(record("link", "code.a.txt").contains("a symbolic link"));
    assert!(record("en.a.txt", "en.a.txt").contains("also read, as --text"));
    let out = ["sweep", "--trace", "t.motr", "--out", "s.jsonl"];
    ok(&[&out[..], &quick].concat(), &path);
    let plot = ["plot", "--in", "s.jsonl", "--out", "plots"];
    assert!(fails(&plot, &path).contains("misses.svg is a symbolic link"));

    assert_eq!(
        before,
        [kept("pipe"), kept("link"), kept("plots/misses.svg")]
    );
    assert_eq!(fs::read(path.join("t.motr")).expect("readable"), trace);
    assert!(!path.join("x").exists());
}

#[cfg(unix)]
#[test]
fn a_pipe_that_nobody_writes_to_is_refused_at_once() {
    let (_folder, path) = recorded("none");
    pipe(&path.join("pipe"));
    let refused = |args: &[&str]| {
        let run = Command::new("timeout")
            .args(["30", env!("CARGO_BIN_EXE_cache-sim")])
            .args(args)
            .current_dir(&path)
            .output();
        let output = run.expect("timeout runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {errors}");
        assert!(
            errors.contains("pipe") && errors.contains("not a regular file"),
            "{errors}"
        );
    };
    let replay = ["replay", "--slots", "12", "--trace"];
    refused(&[&replay[..], &["pipe"]].concat());
    refused(&[&replay[..], &["t.motr", "--profile", "pipe"]].concat());
    refused(&["choose", "--trace", "t.motr", "--host", "pipe"]);
    refused(&["plot", "--in", "pipe", "--out", "plots"]);
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo.gguf");
    let model = model.to_str().expect("UTF-8");
    refused(&[
        "record", "--model", model, "--text", "pipe", "--out", "o.motr",
    ]);
}

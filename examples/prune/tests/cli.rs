//! Runs the program as a user does.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use thalweg_compress::model_fingerprint;
use thalweg_gguf::Gguf;
use thalweg_testkit::SmallModel;

fn prune(folder: &Path, flags: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_prune"));
    command.current_dir(folder).args(flags);
    command.output().unwrap()
}

/// A keep-map as another program would write it.
fn map(fingerprint: &str, keep: &[u16]) -> Value {
    let layers: Vec<_> = (0..4).map(|l| json!({"layer": l, "keep": keep})).collect();
    json!({
        "format": "keep-map", "version": 1, "arch": "qwen4exp", "n_layer": 4, "n_expert": 16,
        "n_expert_used": 4, "k": keep.len(), "method": {"name": "by hand"},
        "source": {"file": "m.gguf", "fingerprint": fingerprint},
        "calibration": {"tokens": 1, "saliency_sha256": "00", "domains": []},
        "layers": layers, "stats": {"retention_macro": 1.0, "zero_hit_kept": 0},
    })
}

#[test]
fn a_map_cuts_its_own_model_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    SmallModel::default().write(at("m.gguf")).unwrap();
    let fingerprint = model_fingerprint(&Gguf::open(at("m.gguf")).unwrap()).unwrap();
    let keep = [0, 3, 4, 5, 9, 15];
    fs::write(at("k.json"), map(&fingerprint, &keep).to_string()).unwrap();
    fs::write(at("other.json"), map("00", &keep).to_string()).unwrap();
    fs::write(at("few.json"), map(&fingerprint, &[1, 2, 3]).to_string()).unwrap();

    let output = prune(folder.path(), &["m.gguf", "k.json", "p.gguf", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let file = Gguf::open(at("p.gguf")).unwrap();
    assert_eq!(file.metadata().u32("qwen4exp.expert_count").unwrap(), 6);
    let bytes: u64 = file.tensors().iter().map(|t| t.size_bytes).sum();
    assert_eq!(told["data_bytes"], bytes);
    assert_eq!(told["pruned"], 4 * 4);

    for (map, words) in [("other.json", "fingerprint 00"), ("few.json", "expected 4")] {
        let output = prune(folder.path(), &["m.gguf", map, "q.gguf"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(said.contains(words), "{said}");
        assert!(!at("q.gguf").exists());
    }
    let output = prune(folder.path(), &["m.gguf", "k.json", "m.gguf"]);
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("also read")
    );
}

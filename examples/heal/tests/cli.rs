//! Runs the program as a user does, on the model of the repository.

use std::fs;
use std::ops::ControlFlow;
use std::process::Command;

use serde_json::Value;
use thalweg_compress::Recipe;
use thalweg_gguf::Gguf;
use thalweg_quant::QuantType;

const TEXT: &str = "To install a package, run apt-get install and its name. The list of packages is \
    brought up to date by apt-get update, which reads the sources and fetches what is new. ";

#[test]
fn a_quantized_model_comes_nearer_to_its_original() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo.gguf");
    let recipe = Recipe {
        experts: Some(QuantType::Q2_0),
        ..Recipe::default()
    };
    let mut go = |_, _| ControlFlow::Continue(());
    recipe
        .write(&Gguf::open(model).unwrap(), &at("q.gguf"), &mut go)
        .unwrap();
    fs::write(at("t.txt"), TEXT.repeat(2)).unwrap();
    let heal = |flags: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_heal"));
        command
            .current_dir(folder.path())
            .args(["q.gguf", "h.gguf", "--model", model]);
        command.args(["--text", "t.txt", "--budget", "300MiB"]);
        if !flags.contains(&"--window") {
            command.args(["--window", "32"]);
        }
        command.args(flags);
        command.output().unwrap()
    };
    let output = heal(&["--json"]);
    assert!(output.status.success(), "{output:?}");
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let figure = |name: &str| told[name].as_f64().unwrap();
    assert!(figure("error_alpha") < figure("error"));
    assert!(figure("error_ridge") <= figure("error_alpha"));
    assert_eq!(told["layers"].as_array().unwrap().len(), 12);
    let keys = Gguf::open(at("h.gguf")).unwrap();
    assert_eq!(
        keys.metadata()
            .f32_array("thalweg.heal.alpha")
            .unwrap()
            .len(),
        12
    );
    // Neither the recording nor anything else stays.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);

    for (flags, words) in [
        (&["--eta", "1.5"][..], "--eta must be"),
        (&["--ridge", "0"], "--ridge must be"),
        (&["--no-alpha", "--no-ridge"], "nothing to do"),
        (&["--window", "4096"], "two or more"),
    ] {
        let output = heal(flags);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(words), "{said}");
    }
}

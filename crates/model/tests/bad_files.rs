//! Files that describe no usable model: each gets an error that names everything wrong with it.

use thalweg_backend::{CpuBackend, CpuOptions};
use thalweg_gguf::{Gguf, Value};
use thalweg_model::{Architecture, Error, Problem, RouterOptions, bind};
use thalweg_testkit::{Draft, SmallModel};

type Model = Box<dyn Architecture<CpuBackend>>;

fn bound(model: &SmallModel, edit: impl FnOnce(&mut Draft)) -> Result<Model, Error> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let mut draft = model.draft().unwrap();
    edit(&mut draft);
    draft.write(&path).unwrap();
    let file = Gguf::open(&path).unwrap();
    bind(
        &CpuBackend::new(CpuOptions { n_threads: 1 }).unwrap(),
        &file,
        RouterOptions::default(),
    )
}

fn problems(edit: impl FnOnce(&mut Draft)) -> Vec<Problem> {
    match bound(&SmallModel::default(), edit) {
        Err(Error::Invalid { problems }) => problems,
        other => panic!(
            "expected a list of problems, found {:?}",
            other.map(|_| "a model")
        ),
    }
}

/// Problems as text, for keys.
fn reasons(edit: impl FnOnce(&mut Draft)) -> Vec<String> {
    problems(edit).iter().map(ToString::to_string).collect()
}

fn set(draft: &mut Draft, key: &str, value: impl Into<Value>) {
    draft
        .metadata
        .set(format!("qwen4exp.{key}"), value)
        .unwrap();
}

#[test]
fn the_unedited_model_is_bound() {
    let small = SmallModel::default();
    let model = bound(&small, |_| {}).unwrap();
    assert_eq!(model.spec().n_layer, small.n_layer);
    assert_eq!(model.spec().n_vocab, small.n_vocab);
    assert!(model.spec().rows.is_some());
}

#[test]
fn all_missing_and_misshapen_tensors_are_listed_at_once() {
    let found = problems(|d| {
        d.remove("blk.0.ssm_out.weight").unwrap();
        d.remove("output_hc_up.weight").unwrap();
        let t = d.tensor_mut("blk.3.attn_k.weight").unwrap();
        t.shape.swap(0, 1);
    });
    let names: Vec<_> = found
        .iter()
        .map(|p| match p {
            Problem::MissingTensor { name, .. } => format!("missing {name}"),
            Problem::Shape { name, .. } => format!("shape {name}"),
            other => other.to_string(),
        })
        .collect();
    assert_eq!(
        names,
        [
            "missing output_hc_up.weight",
            "missing blk.0.ssm_out.weight",
            "shape blk.3.attn_k.weight"
        ]
    );
}

#[test]
fn an_expert_count_that_disagrees_with_a_tensor_is_named() {
    let n = SmallModel::default().n_expert as u64;
    let found = problems(|d| set(d, "expert_count", 2 * n as u32));
    let gate = found.iter().find_map(|p| match p {
        Problem::Shape {
            name,
            expected,
            found,
        } if name == "blk.0.ffn_gate_exps.weight" => Some((expected[2], found[2])),
        _ => None,
    });
    assert_eq!(gate, Some((2 * n, n)));
}

#[test]
fn wrong_types_and_values_of_keys_are_all_listed() {
    let found = reasons(|d| {
        set(d, "block_count", "four");
        set(d, "hyper_connection.count", 1u32);
        set(d, "embedding_length", -5i32);
        d.metadata.remove("qwen4exp.rope.freq_base").unwrap();
    });
    for key in [
        "qwen4exp.block_count",
        "qwen4exp.hyper_connection.count",
        "qwen4exp.embedding_length",
        "qwen4exp.rope.freq_base",
    ] {
        let n = found
            .iter()
            .filter(|p| p.contains(&format!("{key:?}:")))
            .count();
        assert_eq!(n, 1, "{key} in {found:#?}");
    }
}

#[test]
fn impossible_configurations_are_refused() {
    let n = SmallModel::default().n_expert as u32;
    let cases: [(&str, Value, &str); 8] = [
        ("expert_used_count", (n + 1).into(), "of only"),
        ("expert_used_count", 0u32.into(), "above 0"),
        ("expert_count", 4096u32.into(), "at most 1024"),
        ("full_attention_interval", 0u32.into(), "above 0"),
        ("ssm.inner_size", 7u32.into(), "expected heads x size"),
        ("block_count", 100_000u32.into(), "blocks"),
        ("rope.dimension_count", 1_000_000u32.into(), "at most"),
        (
            "attention.layer_norm_rms_epsilon",
            f32::NAN.into(),
            "finite and above 0",
        ),
    ];
    for (key, value, reason) in cases {
        let found = reasons(|d| {
            let interval = "qwen4exp.attention.recurrent_layers";
            d.metadata.remove(interval);
            set(d, key, value.clone());
        });
        assert!(
            found.iter().any(|p| p.contains(key) && p.contains(reason)),
            "{key} = {value:?}: {found:#?}"
        );
    }
}

#[test]
fn short_arrays_of_the_ngram_table_are_refused() {
    let found = reasons(|d| set(d, "ple.head_offsets", vec![0u64; 2]));
    assert!(
        found
            .iter()
            .any(|p| p.contains("ple.head_offsets") && p.contains("found 2"))
    );
    let found = reasons(|d| {
        let n = d
            .metadata
            .u64_array("qwen4exp.ple.head_vocab_sizes")
            .unwrap()
            .len();
        set(d, "ple.head_vocab_sizes", vec![0u64; n]);
    });
    assert!(
        found.iter().any(|p| p.contains("ple.head_vocab_sizes")),
        "{found:#?}"
    );
    // A table with fewer rows than the hash can name.
    let found = reasons(|d| {
        let n = d
            .metadata
            .u64_array("qwen4exp.ple.head_vocab_sizes")
            .unwrap()
            .len();
        set(d, "ple.head_vocab_sizes", vec![1u64 << 30; n]);
        set(d, "ple.head_offsets", vec![0u64; n]);
    });
    assert!(
        found
            .iter()
            .any(|p| p.contains("per_layer_token_embd.weight")),
        "{found:#?}"
    );
}

#[test]
fn values_that_are_not_finite_are_named_with_their_place() {
    for (tensor, index) in [
        ("blk.1.attn_qkv.weight", 77),
        ("blk.0.hc_attn_norm.weight", 3),
    ] {
        let e = bound(&SmallModel::default(), |d| {
            d.tensor_mut(tensor).unwrap().poison(index).unwrap();
        });
        match e.map(|_| ()) {
            Err(Error::NotFinite {
                tensor: found,
                index: at,
            }) => {
                assert_eq!((found.as_str(), at), (tensor, index as u64));
            }
            other => panic!("{tensor}: {other:?}"),
        }
    }
}

#[test]
fn another_architecture_is_refused_by_name() {
    let e = bound(&SmallModel::default(), |d| {
        d.metadata.set("general.architecture", "qwen99").unwrap();
    });
    let text = e.map(|_| ()).unwrap_err().to_string();
    assert_eq!(
        text,
        "architecture \"qwen99\" is not supported (supported: qwen4exp)"
    );
}

#[test]
fn more_mtp_blocks_than_blocks_are_refused() {
    let found = reasons(|d| set(d, "nextn_predict_layers", 100u32));
    assert_eq!(
        found,
        ["metadata \"qwen4exp.block_count\": 4 blocks of which 100 are MTP blocks"]
    );
}

#[test]
fn an_mtp_block_at_the_end_is_ignored() {
    let small = SmallModel {
        mtp: true,
        ..SmallModel::default()
    };
    let model = bound(&small, |_| {}).unwrap();
    assert_eq!(model.spec().n_layer, small.n_layer);
}

//! Small models as files: what `thalweg-gguf` reads back of them.

use std::path::Path;

use thalweg_gguf::{Gguf, TensorType, Value};
use thalweg_testkit::goldens::Small;
use thalweg_testkit::{Draft, DraftTensor, Error, SmallModel, SmallNgram, SmallTypes};

#[test]
fn a_written_model_reads_back_as_drafted() {
    with_folder(|folder| {
        let path = folder.join("small.gguf");
        let draft = SmallModel::default().draft().unwrap();
        draft.write(&path).unwrap();
        let file = Gguf::open(&path).unwrap();
        assert_eq!(file.tensors().len(), draft.tensors.len());
        for tensor in &draft.tensors {
            let info = file.tensor(&tensor.name).unwrap();
            assert_eq!(
                (info.ty, info.shape()),
                (tensor.ty, &tensor.shape[..]),
                "{}",
                info.name
            );
            assert_eq!(
                file.read_tensor(info).unwrap(),
                tensor.bytes,
                "{}",
                info.name
            );
        }
        assert_eq!(file.metadata().len(), draft.metadata.len());
        for (key, value) in draft.metadata.iter() {
            assert_eq!(file.metadata().get(key), Some(value), "{key}");
        }
    });
}

#[test]
fn a_seed_gives_the_weights_that_the_golden_is_of() {
    let draft = SmallModel::default().draft().unwrap();
    let bytes = draft.tensors.iter().flat_map(|tensor| &tensor.bytes);
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    assert_eq!(hash, Small::read().unwrap().weights_fnv1a);
}

#[test]
fn other_layers_keep_their_weights_when_one_is_added() {
    let small = SmallModel::default().draft().unwrap();
    let large = SmallModel {
        n_layer: 5,
        ..SmallModel::default()
    }
    .draft()
    .unwrap();
    for tensor in &small.tensors {
        assert_eq!(large.tensor(&tensor.name).unwrap(), tensor);
    }
    assert!(large.tensor("blk.4.ssm_a").is_ok());
}

#[test]
fn values_have_the_signs_and_sizes_that_the_architecture_needs() {
    let draft = SmallModel::default().draft().unwrap();
    for tensor in &draft.tensors {
        let values = tensor.values().unwrap();
        assert!(values.iter().all(|v| v.is_finite()), "{}", tensor.name);
        if tensor.name.ends_with(".ssm_a") {
            assert!(values.iter().all(|v| *v < 0.0), "{}", tensor.name);
        }
        if tensor.name.ends_with("_norm.weight") || tensor.name.contains("ple_norm_") {
            assert!(
                values.iter().all(|v| (0.2..1.8).contains(v)),
                "{}",
                tensor.name
            );
        }
    }
}

#[test]
fn a_fused_tensor_holds_the_rows_of_gate_and_up_by_expert() {
    let apart = SmallModel::default();
    let fused = SmallModel {
        fused_gate_up: true,
        ..apart.clone()
    }
    .draft()
    .unwrap();
    let apart = apart.draft().unwrap();
    let values = |draft: &Draft, name: &str| draft.tensor(name).unwrap().values().unwrap();
    let gate = values(&apart, "blk.0.ffn_gate_exps.weight");
    let up = values(&apart, "blk.0.ffn_up_exps.weight");
    let both = values(&fused, "blk.0.ffn_gate_up_exps.weight");
    let part = 128 * 64;
    let expert = 5;
    assert_eq!(
        both[2 * expert * part..][..part],
        gate[expert * part..][..part]
    );
    assert_eq!(
        both[(2 * expert + 1) * part..][..part],
        up[expert * part..][..part]
    );
    assert!(fused.tensor("blk.0.ffn_gate_exps.weight").is_err());
    assert_eq!(
        fused.tensor("blk.0.ffn_gate_up_exps.weight").unwrap().shape,
        [128, 128, 16]
    );
}

#[test]
fn options_add_and_drop_what_they_say() {
    let base = SmallModel::default().draft().unwrap();
    let tied = SmallModel {
        tied: true,
        ..SmallModel::default()
    }
    .draft()
    .unwrap();
    assert_eq!(tied.tensors.len(), base.tensors.len() - 1);
    assert!(tied.tensor("output.weight").is_err());

    let plain = SmallModel {
        ngram: None,
        ..SmallModel::default()
    }
    .draft()
    .unwrap();
    assert!(
        plain
            .tensors
            .iter()
            .all(|t| !t.name.contains("ple") && !t.name.contains("per_layer"))
    );
    assert!(plain.metadata.iter().all(|(key, _)| !key.contains("ple.")));

    let mtp = SmallModel {
        mtp: true,
        ..SmallModel::default()
    }
    .draft()
    .unwrap();
    assert_eq!(mtp.metadata.u32("qwen4exp.block_count").unwrap(), 5);
    assert_eq!(
        mtp.metadata.u32("qwen4exp.nextn_predict_layers").unwrap(),
        1
    );
    assert_eq!(
        mtp.tensor("blk.4.nextn.eh_proj.weight").unwrap().shape,
        [256, 128]
    );

    let dense = SmallModel {
        block_tokens: 0,
        ..SmallModel::default()
    }
    .draft()
    .unwrap();
    assert_eq!(
        dense
            .metadata
            .i32_array("qwen4exp.attention.compress_ratios")
            .unwrap(),
        [0; 4]
    );

    let recurrent_layers = Some(vec![true, true, false, false]);
    let pattern = SmallModel {
        recurrent_layers,
        ..SmallModel::default()
    }
    .draft()
    .unwrap();
    assert!(pattern.tensor("blk.2.attn_q.weight").is_ok());
    let key = "qwen4exp.attention.recurrent_layers";
    let expected = Value::from(vec![true, true, false, false]);
    assert_eq!(pattern.metadata.get(key), Some(&expected));
}

#[test]
fn the_table_has_a_row_for_every_hash() {
    let ngram = SmallNgram {
        size: 4,
        heads_per_size: 1,
        ..SmallNgram::default()
    };
    let model = SmallModel {
        n_embd: 96,
        ngram: Some(ngram),
        ..SmallModel::default()
    };
    let draft = model.draft().unwrap();
    let of = |key: &str| {
        draft
            .metadata
            .u64_array(&format!("qwen4exp.ple.{key}"))
            .unwrap()
    };
    let (offsets, moduli) = (of("head_offsets"), of("head_vocab_sizes"));
    assert_eq!(moduli, [67, 71, 73]);
    assert_eq!(offsets, [0, 67, 138]);
    let table = draft.tensor("per_layer_token_embd.weight").unwrap();
    assert_eq!(table.shape, [32, offsets[2] + moduli[2]]);
    assert_eq!(of("layer_multipliers").len(), 4);
}

#[test]
fn rows_that_are_no_whole_blocks_fall_back_to_smaller_ones() {
    let model = SmallModel {
        types: SmallTypes::all(TensorType::Q2_0),
        ..SmallModel::default()
    };
    let draft = model.draft().unwrap();
    let ty = |name: &str| draft.tensor(name).unwrap().ty;
    assert_eq!(ty("blk.0.ffn_down_exps.weight"), TensorType::Q2_0);
    // Rows of 32 and of 16.
    assert_eq!(ty("per_layer_token_embd.weight"), TensorType::Q8_0);
    assert_eq!(ty("blk.0.hc_attn_up.weight"), TensorType::F16);
    assert_eq!(ty("blk.0.ffn_gate_inp.weight"), TensorType::F32);
    assert_eq!(ty("blk.1.ple_norm_key.weight"), TensorType::F32);
}

#[test]
fn a_type_without_quantizer_is_an_error_that_names_the_tensor() {
    // Rows of 256, which IQ3_S has as its blocks.
    let model = SmallModel {
        n_embd: 256,
        types: SmallTypes::experts(TensorType::IQ3_S),
        ..SmallModel::default()
    };
    let error = model.draft().unwrap_err().to_string();
    assert!(
        error.contains("blk.0.ffn_gate_exps.weight") && error.contains("IQ3_S"),
        "{error}"
    );
}

#[test]
fn split_files_hold_the_same_model() {
    with_folder(|folder| {
        let draft = SmallModel::default().draft().unwrap();
        let paths = draft.write_split(folder, "small", 3).unwrap();
        assert_eq!(paths[2], folder.join("small-00003-of-00003.gguf"));
        let file = Gguf::open(&paths[0]).unwrap();
        assert_eq!(file.n_shards(), 3);
        for tensor in &draft.tensors {
            let info = file.tensor(&tensor.name).unwrap();
            assert_eq!(
                file.read_tensor(info).unwrap(),
                tensor.bytes,
                "{}",
                info.name
            );
        }
        assert!(matches!(
            draft.write_split(folder, "x", 0),
            Err(Error::Setting { .. })
        ));
    });
}

#[test]
fn edits_reach_the_file() {
    with_folder(|folder| {
        let path = folder.join("small.gguf");
        let edit = |draft: &mut Draft| {
            draft.metadata.set("qwen4exp.expert_used_count", "four")?;
            draft.remove("blk.0.ssm_a")?;
            draft.tensor_mut("blk.1.ssm_a")?.name = "blk.1.ssm_b".to_owned();
            draft.tensor_mut("blk.2.ffn_gate_inp.weight")?.poison(3)
        };
        SmallModel::default().write_with(&path, edit).unwrap();
        let file = Gguf::open(&path).unwrap();
        assert!(file.metadata().u32("qwen4exp.expert_used_count").is_err());
        assert!(file.tensor("blk.0.ssm_a").is_none() && file.tensor("blk.1.ssm_b").is_some());
        let router = file.tensor("blk.2.ffn_gate_inp.weight").unwrap();
        let bytes = file.read_tensor(router).unwrap();
        assert!(f32::from_le_bytes(bytes[12..16].try_into().unwrap()).is_nan());
        assert!(f32::from_le_bytes(bytes[16..20].try_into().unwrap()).is_finite());
    });
}

#[test]
fn poison_makes_a_block_of_any_type_not_finite() {
    let values: Vec<f32> = (0..=u8::MAX).map(|i| f32::from(i) - 100.0).collect();
    for ty in [
        TensorType::F32,
        TensorType::F16,
        TensorType::BF16,
        TensorType::Q8_0,
        TensorType::Q4_0,
        TensorType::Q2_0,
    ] {
        let mut tensor = DraftTensor::new("t", ty, &[256], &values).unwrap();
        tensor.poison(130).unwrap();
        let values = tensor.values().unwrap();
        let is_bad = |i: usize| !values[i].is_finite();
        assert!(is_bad(130), "{ty}");
        assert!(!is_bad(63) && !is_bad(255), "{ty}");
        assert!(
            matches!(
                tensor.poison(256),
                Err(Error::Element {
                    n_elements: 256,
                    ..
                })
            ),
            "{ty}"
        );
    }
}

fn with_folder(test: impl FnOnce(&Path)) {
    let folder = tempfile::tempdir().unwrap();
    test(folder.path());
}

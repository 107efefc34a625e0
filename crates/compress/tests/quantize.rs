//! A requantized model: what changes, what doesn't, and what is refused.

use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;

use thalweg_compress::{
    Error, Exponents, Fit, InputMoments, Quantized, Recipe, Rewrite, Rule, verify,
};
use thalweg_gguf::{Gguf, TensorSpec, TensorType};
use thalweg_quant::QuantType;
use thalweg_quant::encode::{self, importance};
use thalweg_testkit::SmallModel;

struct Fixture {
    folder: tempfile::TempDir,
    file: Gguf,
}

impl Fixture {
    fn new(model: &SmallModel) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        model.write(&path).unwrap();
        let file = Gguf::open(path).unwrap();
        Self { folder, file }
    }

    fn out(&self) -> PathBuf {
        self.folder.path().join("out.gguf")
    }

    fn write(&self, recipe: &Recipe<'_>) -> (Gguf, Quantized) {
        let mut progress = |_, _| ControlFlow::Continue(());
        let made = recipe
            .write(&self.file, &self.out(), &mut progress)
            .unwrap();
        verify(&self.out(), &made.written, &mut progress).unwrap();
        (Gguf::open(self.out()).unwrap(), made)
    }

    fn refused(&self, recipe: &Recipe<'_>) -> Error {
        let result = recipe.write(&self.file, &self.out(), &mut |_, _| {
            ControlFlow::Continue(())
        });
        let error = result.expect_err("refused");
        let left: Vec<_> = fs::read_dir(self.folder.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "only the source is there: {left:?}");
        error
    }
}

fn experts(ty: QuantType) -> Recipe<'static> {
    Recipe {
        experts: Some(ty),
        ..Recipe::default()
    }
}

fn values(file: &Gguf, name: &str) -> Vec<f32> {
    let tensor = file.tensor(name).unwrap();
    let ty = QuantType::from_ggml(tensor.ty.id()).unwrap();
    let mut values = vec![0.0; tensor.n_elements() as usize];
    let bytes = file.read_tensor(tensor).unwrap();
    ty.decode_row(&bytes, &mut values).unwrap();
    values
}

fn squared_difference(a: &[f32], b: &[f32]) -> f64 {
    let terms = a.iter().zip(b);
    terms
        .map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2))
        .sum()
}

#[test]
fn experts_are_encoded_row_by_row_and_all_else_keeps_its_bytes() {
    let source = Fixture::new(&SmallModel::default());
    let (file, made) = source.write(&experts(QuantType::Q2_0));
    for (old, new) in source.file.tensors().iter().zip(file.tensors()) {
        assert_eq!((&old.name, old.shape()), (&new.name, new.shape()));
        let bytes = file.read_tensor(new).unwrap();
        if !old.name.contains("_exps") {
            assert_eq!(old.ty, new.ty, "{}", old.name);
            assert_eq!(source.file.read_tensor(old).unwrap(), bytes, "{}", old.name);
            continue;
        }
        assert_eq!(new.ty, TensorType::Q2_0);
        let mut expected = vec![0; bytes.len()];
        let row = old.ne[0] as usize;
        let weights = values(&source.file, &old.name);
        for (values, out) in weights.chunks(row).zip(expected.chunks_mut(row / 64 * 18)) {
            encode::encode_row(QuantType::Q2_0, values, None, out).unwrap();
        }
        assert_eq!(bytes, expected, "{}", old.name);
        let told = made.changed.iter().find(|t| t.name == old.name).unwrap();
        let error = squared_difference(&weights, &values(&file, &old.name));
        assert!((told.squared_error / error - 1.0).abs() < 1e-9);
        // What is left of the energy of values that are nearly normal.
        assert!((0.05..0.2).contains(&told.relative_error()), "{told:?}");
    }
    assert_eq!(made.changed.len(), 4 * 3);
    let said = file.metadata().str("thalweg.quantize.experts").unwrap();
    assert_eq!(said, "Q2_0");
    assert!(file.metadata().get("general.file_type").is_none());
}

#[test]
fn threads_do_not_change_a_byte() {
    let source = Fixture::new(&SmallModel::default());
    let hashes = [1, 3].map(|n| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n).build();
        pool.unwrap()
            .install(|| source.write(&experts(QuantType::IQ4_NL)).1.written)
    });
    assert_eq!(hashes[0], hashes[1]);
}

#[test]
fn the_reference_is_worse_than_the_exact_fit() {
    let source = Fixture::new(&SmallModel::default());
    let total = |fit| {
        let recipe = Recipe {
            fit,
            ..experts(QuantType::Q2_0)
        };
        let made = source.write(&recipe).1;
        made.changed.iter().map(|t| t.squared_error).sum::<f64>()
    };
    assert!(total(Fit::Exact) < 0.3 * total(Fit::Reference));
}

#[test]
fn rules_go_before_kinds_and_rows_that_are_no_whole_blocks_are_kept() {
    let source = Fixture::new(&SmallModel::default());
    let to = |recipe: &Recipe<'_>, name: &str| {
        let plan = recipe.plan(&source.file).unwrap();
        plan.tensors.into_iter().find(|t| t.name == name).unwrap()
    };
    let plain = Recipe {
        experts: Some(QuantType::Q4_0),
        dense: Some(QuantType::Q8_0),
        ..Recipe::default()
    };
    let ruled = Recipe {
        rules: vec![
            Rule::new("*", QuantType::F16),
            Rule::new("blk.*.ffn_gate_inp.weight", QuantType::F32),
            Rule::new("output.weight", QuantType::Q4_0),
        ],
        ..plain.clone()
    };
    assert_eq!(to(&ruled, "output.weight").to, TensorType::Q4_0);
    assert_eq!(to(&ruled, "token_embd.weight").to, TensorType::F16);
    assert_eq!(to(&ruled, "blk.0.ffn_gate_inp.weight").to, TensorType::F32);

    assert_eq!(to(&plain, "blk.0.ffn_up_exps.weight").to, TensorType::Q4_0);
    assert_eq!(to(&plain, "blk.0.ffn_up_shexp.weight").to, TensorType::Q8_0);
    assert_eq!(to(&plain, "blk.0.ffn_gate_inp.weight").to, TensorType::F32);
    // The low rank is no whole block.
    let low = to(&plain, "blk.0.hc_ffn_up.weight");
    assert!(
        low.to == TensorType::F32 && low.kept_because.is_some(),
        "{low:?}"
    );

    for rule in [
        Rule::new("no.such", QuantType::F16),
        Rule::new("blk.0.hc_ffn_up.weight", QuantType::Q8_0),
        Rule::new("output.weight", QuantType::IQ2_S),
    ] {
        let recipe = Recipe {
            rules: vec![rule.clone()],
            ..Recipe::default()
        };
        assert!(recipe.plan(&source.file).is_err(), "{rule:?}");
    }
}

#[test]
fn moments_weigh_gate_and_up_by_the_input_and_down_by_each_experts_own_hidden_vector() {
    for fused_gate_up in [false, true] {
        let model = SmallModel {
            fused_gate_up,
            ..SmallModel::default()
        };
        let (n_embd, n_ff) = (model.n_embd, model.n_ff);
        let source = Fixture::new(&model);
        // Some inputs matter a lot.
        let moment = |d| if d % 17 == 3 { 900.0 } else { 1.0 };
        let layer: Vec<f64> = (0..n_embd).map(moment).collect();
        let moments = vec![layer.clone(); model.n_layer];
        let moments = InputMoments::new("m", "00", 9, moments).unwrap();
        let recipe = Recipe {
            moments: Some(&moments),
            ..experts(QuantType::Q2_0)
        };
        let (file, made) = source.write(&recipe);
        assert!(made.changed.iter().all(|t| t.is_weighted));

        let name = |kind: &str| format!("blk.1.ffn_{kind}_exps.weight");
        let rows = |kind: &str| values(&source.file, &name(kind));
        let expert = 5;
        let part = |all: &[f32], height: usize, width: usize, first: usize, n: usize| {
            let start = (expert * height + first) * width;
            all[start..start + n * width].to_vec()
        };
        let (gate_name, height) = match fused_gate_up {
            true => ("gate_up", 2 * n_ff),
            false => ("gate", n_ff),
        };
        let gate = part(&rows(gate_name), height, n_embd, 0, n_ff);
        let up = match fused_gate_up {
            true => part(&rows(gate_name), height, n_embd, n_ff, n_ff),
            false => part(&rows("up"), n_ff, n_embd, 0, n_ff),
        };
        let weights = |moments: &[f64], power: f64| {
            let mut tempered = moments.to_vec();
            importance::temper(&mut tempered, power).unwrap();
            let mut weights = vec![0.0; moments.len()];
            importance::normalize(&tempered, &mut weights).unwrap();
            weights
        };
        let mut hidden = vec![0.0; n_ff];
        importance::hidden_moments(&gate, &up, &layer, &mut hidden).unwrap();
        let check = |kind: &str, row: usize, values: &[f32], weights: &[f32]| {
            let tensor = file.tensor(&name(kind)).unwrap();
            let mut expected = vec![0; tensor.row_bytes() as usize];
            encode::encode_row(QuantType::Q2_0, values, Some(weights), &mut expected).unwrap();
            let mut found = expected.clone();
            let at = (row * expected.len()) as u64;
            file.read_tensor_range(tensor, at, &mut found).unwrap();
            assert_eq!(found, expected, "{kind}");
        };
        let down = part(&rows("down"), n_embd, n_ff, 7, 1);
        let by_hidden = weights(&hidden, 0.25);
        check("down", expert * n_embd + 7, &down, &by_hidden);
        let by_input = weights(&layer, 0.5);
        check(gate_name, expert * height, &gate[..n_embd], &by_input);

        // No power, no weighing.
        let exponents = Exponents {
            input: 0.0,
            hidden: 0.0,
        };
        let unweighted = Recipe {
            exponents,
            ..recipe.clone()
        };
        let plain = source.write(&experts(QuantType::Q2_0)).1.written;
        assert_eq!(source.write(&unweighted).1.written.tensors, plain.tensors);
    }
}

#[test]
fn moments_of_another_shape_are_refused() {
    let source = Fixture::new(&SmallModel::default());
    let moments = InputMoments::new("m", "00", 9, vec![vec![1.0; 128]; 3]).unwrap();
    let recipe = Recipe {
        moments: Some(&moments),
        ..experts(QuantType::Q2_0)
    };
    let said = source.refused(&recipe).to_string();
    let expected = "3 layers of 128, expected 4 layers of 128";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn a_weight_that_is_not_finite_is_named_and_nothing_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let name = "blk.2.ffn_up_exps.weight";
    let index = 100_123;
    SmallModel::default()
        .write_with(&path, |draft| {
            let bytes = &mut draft.tensor_mut(name)?.bytes;
            bytes[4 * index..4 * index + 4].copy_from_slice(&f32::NAN.to_le_bytes());
            Ok(())
        })
        .unwrap();
    let file = Gguf::open(path).unwrap();
    let source = Fixture { folder, file };
    for fit in [Fit::Exact, Fit::Reference] {
        let recipe = Recipe {
            fit,
            ..experts(QuantType::Q2_0)
        };
        match source.refused(&recipe) {
            Error::NotFinite {
                tensor,
                index: found,
                value,
            } => {
                assert_eq!((&*tensor, found), (name, index as u64));
                assert!(value.is_nan());
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_stopped_rewrite_leaves_nothing_and_a_changed_byte_is_seen() {
    let source = Fixture::new(&SmallModel::default());
    let recipe = experts(QuantType::Q2_0);
    let mut calls = 0;
    let stopped = recipe.write(&source.file, &source.out(), &mut |_, _| {
        calls += 1;
        match calls > 20 {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    assert!(
        matches!(stopped, Err(Error::Stopped { done_bytes, total_bytes })
            if 0 < done_bytes && done_bytes < total_bytes)
    );
    assert!(!source.out().exists());

    let mut last = (0, 0);
    let mut progress = |done, total| {
        assert!(done >= last.0);
        last = (done, total);
        ControlFlow::Continue(())
    };
    let made = recipe.write(&source.file, &source.out(), &mut progress);
    let made = made.unwrap();
    assert_eq!(last.0, last.1);
    let mut bytes = fs::read(source.out()).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(source.out(), bytes).unwrap();
    let seen = verify(&source.out(), &made.written, &mut |_, _| {
        ControlFlow::Continue(())
    });
    assert!(matches!(seen, Err(Error::Verify { what, .. }) if what.contains("data of tensor")));
}

#[test]
fn a_replacement_must_name_a_tensor_and_write_all_of_it() {
    let source = Fixture::new(&SmallModel::default());
    let mut rewrite = Rewrite::new(&source.file);
    let spec = TensorSpec::new("no.such", TensorType::F32, &[4]).unwrap();
    let missing = rewrite.replace(spec, |_| Ok(()));
    assert!(matches!(missing, Err(Error::NoTensor { .. })));
    let spec = TensorSpec::new("output.weight", TensorType::F32, &[4]).unwrap();
    rewrite.replace(spec, |out| out.write(&[0; 12])).unwrap();
    let short = rewrite.write(&source.out(), &mut |_, _| ControlFlow::Continue(()));
    assert!(short.is_err() && !source.out().exists());
}

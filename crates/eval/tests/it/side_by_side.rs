//! Two engines on small models, held to what each of them says alone.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use thalweg_eval::base_logits::{BaseHeader, BaseReader, BaseWriter};
use thalweg_eval::metrics::WindowSums;
use thalweg_eval::side_by_side::{Progress, SideBySide, against_base};
use thalweg_eval::{Error, WindowSet};
use thalweg_runtime::{Bias, CpuBackend, CpuOptions, Engine, EngineOptions, Moce, Observer};
use thalweg_testkit::SmallModel;

const N_VOCAB: usize = 288;

fn model(seed: u64) -> SmallModel {
    SmallModel {
        n_vocab: N_VOCAB,
        seed,
        ..SmallModel::default()
    }
}

fn file(folder: &Path, name: &str, model: &SmallModel) -> PathBuf {
    let path = folder.join(name);
    model.write(&path).expect("writable");
    path
}

fn options() -> EngineOptions {
    EngineOptions {
        n_ctx: 64,
        budget_bytes: Some(64 << 20),
        ..EngineOptions::default()
    }
}

fn engine(path: &Path, options: EngineOptions) -> Engine {
    let backend = CpuBackend::new(CpuOptions { n_threads: 1 }).expect("a processor");
    Engine::open(path, backend, options).expect("fits")
}

/// Three windows in two domains; one begins to be scored at its second token.
fn windows() -> WindowSet {
    let tokens = |seed: u32| (0..40u32).map(|i| (i * i * 7 + seed * i) % 250).collect();
    let mut set = WindowSet::new();
    set.add_window("en", tokens(3), 20..40).expect("valid");
    set.add_window("ja", tokens(5), 1..12).expect("valid");
    set.add_window("en", tokens(11), 30..33).expect("valid");
    set
}

fn run(
    reference: &mut Engine,
    test: &mut Engine,
    set: &WindowSet,
    bytes: usize,
) -> Vec<WindowSums> {
    let mut pair = SideBySide::new(reference, test, bytes).expect("one vocabulary");
    assert!(pair.logits_bytes() <= bytes.max(4 * N_VOCAB));
    pair.run(set, &mut |_| ControlFlow::Continue(()))
        .expect("finite")
}

/// All logits of a sequence.
#[derive(Default)]
struct All(Vec<Vec<f32>>);

impl Observer for All {
    fn wants_logits(&self, _: usize) -> bool {
        true
    }

    fn on_logits(&mut self, _: usize, logits: &[f32]) {
        self.0.push(logits.to_vec());
    }
}

fn log_probabilities(engine: &mut Engine, tokens: &[u32]) -> Vec<Vec<f64>> {
    let mut session = engine.session().expect("fits");
    let mut all = All::default();
    engine
        .prefill(&mut session, tokens, &mut all)
        .expect("taken in");
    let normalized = all.0.iter().map(|row| {
        let total: f64 = row.iter().map(|z| f64::from(*z).exp()).sum();
        row.iter().map(|z| f64::from(*z) - total.ln()).collect()
    });
    normalized.collect()
}

#[test]
fn the_sums_are_those_of_whole_sequences_however_they_are_streamed() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let paths = [1, 2].map(|seed| file(folder.path(), &seed.to_string(), &model(seed)));
    let set = windows();
    let mut reference = engine(&paths[0], options());
    let mut test = engine(&paths[1], options());
    let found = run(&mut reference, &mut test, &set, 7 * 4 * N_VOCAB);

    for (window, sums) in set.windows().iter().zip(&found) {
        let p = log_probabilities(&mut reference, window.tokens());
        let q = log_probabilities(&mut test, window.tokens());
        let (mut kld, mut reference_nll, mut test_nll, mut same) = (0.0, 0.0, 0.0, 0);
        for i in window.scored() {
            let (p, q) = (&p[i - 1], &q[i - 1]);
            kld += p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
            let token = window.tokens()[i] as usize;
            reference_nll -= p[token];
            test_nll -= q[token];
            let best = |row: &[f64]| (0..N_VOCAB).max_by(|a, b| row[*a].total_cmp(&row[*b]));
            same += u64::from(best(p) == best(q));
        }
        assert_eq!(sums.n_tokens, window.scored().len() as u64);
        assert!((sums.kld - kld).abs() < 1e-9, "{} for {kld}", sums.kld);
        assert!(sums.kld > 0.01 * sums.n_tokens as f64, "models differ");
        assert!((sums.reference_nll - reference_nll).abs() < 1e-9);
        assert!((sums.test_nll - test_nll).abs() < 1e-9);
        assert_eq!(sums.n_same_top1, same);
    }
    let domains: Vec<_> = found.iter().map(|sums| sums.domain).collect();
    assert_eq!(domains, [0, 1, 0]);

    // Bit for bit, with few slots, other chunks, and one position at a time.
    let tight = EngineOptions {
        slots_per_layer: Some(4),
        chunk_tokens: Some(5),
        ..options()
    };
    let mut tight = engine(&paths[1], tight);
    for bytes in [0, 3 * 4 * N_VOCAB, 1 << 24] {
        assert_eq!(run(&mut reference, &mut tight, &set, bytes), found);
    }
}

#[test]
fn a_model_diverges_from_itself_by_exactly_nothing() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = file(folder.path(), "m", &model(1));
    let few = EngineOptions {
        slots_per_layer: Some(4),
        chunk_tokens: Some(3),
        ..options()
    };
    let (mut reference, mut test) = (engine(&path, options()), engine(&path, few));
    for sums in run(&mut reference, &mut test, &windows(), 1 << 16) {
        assert_eq!((sums.kld.to_bits(), sums.max_kld.to_bits()), (0, 0));
        assert_eq!(sums.n_same_top1, sums.n_tokens);
        assert_eq!(sums.reference_nll.to_bits(), sums.test_nll.to_bits());
    }
}

#[test]
fn biased_routing_is_judged_as_it_generates() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = file(folder.path(), "m", &model(1));
    let set = windows();
    let biased = |nats| EngineOptions {
        slots_per_layer: Some(6),
        moce: Moce::new(Bias::Absolute { nats }).with_protected(1),
        ..options()
    };
    let mut reference = engine(&path, options());
    let mut test = engine(&path, biased(3.0));
    let found = run(&mut reference, &mut test, &set, 5 * 4 * N_VOCAB);
    assert!(found.iter().map(|s| s.kld).sum::<f64>() > 0.0);
    let stats = test.stats();
    assert!(stats.biased_picks > 0);
    // All but each window's first scored token follow a decode step.
    let n_steps = set.n_scored() - set.windows().len();
    assert_eq!(stats.decode_tokens, n_steps as u64);
    assert_eq!(stats.prefill_tokens, (set.n_fed() - n_steps) as u64);

    // The first scored token follows an exact prompt.
    let mut first = WindowSet::new();
    let tokens = set.windows()[0].tokens().to_vec();
    first.add_window("en", tokens, 20..21).expect("valid");
    let found = run(&mut reference, &mut test, &first, 0);
    assert_eq!(found[0].kld.to_bits(), 0);

    // Whoever steps is compared with whoever does not, and a bias of nothing changes nothing.
    let mut test = engine(&path, biased(0.0));
    for sums in run(&mut reference, &mut test, &set, 5 * 4 * N_VOCAB) {
        assert_eq!(sums.kld.to_bits(), 0);
    }
}

#[test]
fn other_vocabularies_and_windows_beyond_the_context_are_refused() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = file(folder.path(), "m", &model(1));
    let other = SmallModel {
        n_vocab: 300,
        ..model(1)
    };
    let other = file(folder.path(), "other", &other);
    let mut reference = engine(&path, options());
    let mut test = engine(&other, options());
    let error = SideBySide::new(&mut reference, &mut test, 0).expect_err("refused");
    let said = error.to_string();
    assert!(said.contains("288") && said.contains("300"), "{said}");

    let mut test = engine(&path, options());
    let mut long = WindowSet::new();
    long.add_window("en", vec![1; 66], 50..66).expect("valid");
    let mut pair = SideBySide::new(&mut reference, &mut test, 0).expect("one vocabulary");
    let error = pair.run(&long, &mut |_| ControlFlow::Continue(()));
    assert!(matches!(error, Err(Error::Runtime(_))), "{error:?}");
    let mut beyond = WindowSet::new();
    beyond
        .add_window("en", vec![1, 288, 1], 2..3)
        .expect("valid");
    let error = pair.run(&beyond, &mut |_| ControlFlow::Continue(()));
    assert!(matches!(error, Err(Error::Runtime(_))), "{error:?}");
}

#[test]
fn progress_ascends_to_the_whole_and_can_end_it() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = file(folder.path(), "m", &model(1));
    let (mut reference, mut test) = (engine(&path, options()), engine(&path, options()));
    let set = windows();
    let mut pair = SideBySide::new(&mut reference, &mut test, 8 * 4 * N_VOCAB).expect("pair");
    let mut told: Vec<Progress> = Vec::new();
    let mut keep = |p: Progress| {
        told.push(p);
        ControlFlow::Continue(())
    };
    pair.run(&set, &mut keep).expect("finite");
    assert!(told.windows(2).all(|p| p[0].n_done < p[1].n_done));
    let (first, last) = (told[0], told[told.len() - 1]);
    assert_eq!((last.n_done, last.n_total), (set.n_fed(), set.n_fed()));
    assert_eq!(last.n_scored, set.n_scored() as u64);
    assert_eq!((first.kld, last.kld), (None, Some(0.0)));

    let stopped = pair.run(&set, &mut |p| match p.n_done >= 30 {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    });
    assert!(
        matches!(stopped, Err(Error::Interrupted { n_done: 30..40, .. })),
        "{stopped:?}"
    );
    // The next run begins anew.
    pair.run(&set, &mut |_| ControlFlow::Continue(()))
        .expect("finite");
}

#[test]
fn what_is_wrong_with_a_row_names_window_and_position() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = file(folder.path(), "m", &model(1));
    // The head's weights become infinite, so every logit does or is no number.
    let mut bytes = std::fs::read(&path).expect("readable");
    let head = head_bytes(&path);
    for value in bytes[head.0..head.1].chunks_exact_mut(4) {
        value.copy_from_slice(&f32::MAX.to_le_bytes());
    }
    let broken = folder.path().join("broken");
    std::fs::write(&broken, bytes).expect("writable");
    let (mut reference, mut test) = (engine(&path, options()), engine(&broken, options()));
    let mut pair = SideBySide::new(&mut reference, &mut test, 0).expect("one vocabulary");
    let error = pair.run(&windows(), &mut |_| ControlFlow::Continue(()));
    let Err(Error::AtToken {
        window: 0,
        position: 20,
        domain,
        source,
    }) = error
    else {
        panic!("{error:?}")
    };
    assert_eq!(domain, "en");
    assert!(
        matches!(*source, Error::BadLogit { who: "test", .. }),
        "{source}"
    );
}

/// Where a model file has its head's weights.
fn head_bytes(path: &Path) -> (usize, usize) {
    let engine = engine(path, options());
    let head = engine.file().tensor("output.weight").expect("not tied");
    let place = |n: u64| usize::try_from(n).expect("small");
    (place(head.offset_bytes), place(head.end_bytes()))
}

#[test]
fn a_reference_in_a_file_says_what_the_model_says() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let paths = [1, 2].map(|seed| file(folder.path(), &seed.to_string(), &model(seed)));
    let tokens = (0..96u32).map(|i| (i * i * 7 + 3 * i) % 250).collect();
    let header = BaseHeader::new(32, N_VOCAB, tokens).expect("whole chunks");
    let set = header.windows("base").expect("valid");
    let (mut reference, mut test) = (engine(&paths[0], options()), engine(&paths[1], options()));
    let mut writer = BaseWriter::new(header, Vec::new()).expect("in memory");
    let mut go_on = |_: Progress| ControlFlow::Continue(());
    let exact = SideBySide::new(&mut reference, &mut test, 5 * 4 * N_VOCAB)
        .expect("one vocabulary")
        .run_with(&set, &mut go_on, &mut |row| writer.push(row))
        .expect("finite");
    let bytes = writer.finish().expect("complete");

    let mut compare = |test: &mut Engine| {
        let mut base = BaseReader::new(&bytes[..], bytes.len() as u64).expect("own file");
        against_base(&mut base, test, &set, &mut go_on).expect("finite")
    };
    let found = compare(&mut test);
    for (found, exact) in found.iter().zip(&exact) {
        assert_eq!(found.n_tokens, exact.n_tokens);
        assert!((found.kld / exact.kld - 1.0).abs() < 0.01, "{found:?}");
        assert!((found.reference_nll - exact.reference_nll).abs() < 2e-4 * 16.0);
        assert!((found.test_nll - exact.test_nll).abs() < 1e-9);
    }
    // The model of the file is as near as 16 bits are.
    for sums in compare(&mut reference) {
        assert!(sums.kld.abs() < 1e-4 && sums.n_same_top1 + 1 >= sums.n_tokens);
    }
    let other = SmallModel {
        n_vocab: 300,
        ..model(1)
    };
    let mut other = engine(&file(folder.path(), "other", &other), options());
    let mut base = BaseReader::new(&bytes[..], bytes.len() as u64).expect("own file");
    let refused = against_base(&mut base, &mut other, &set, &mut go_on);
    assert!(matches!(
        refused,
        Err(Error::Vocabulary {
            reference: 288,
            test: 300
        })
    ));
}

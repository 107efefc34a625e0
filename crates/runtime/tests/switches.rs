//! The standing exactness test: no switch, and no pair of switches, changes a bit.
//!
//! One line of values a switch; every pair of values of every two switches is run, the other
//! switches rotating through theirs, on a prompt of several chunks and the steps behind it.

mod common;

use std::path::{Path, PathBuf};

use common::{N_CTX, bits, cpu, demo, one_by_one, small, tokens};
use thalweg_gguf::Gguf;
use thalweg_runtime::{Engine, EngineOptions, PolicyKind, ReadAhead, ReaderKind, Silent};
use thalweg_store::io::fault::{Fault, FaultBackend, FaultPlan};
use thalweg_store::io::{PoolBackend, ReadBackend};

/// A setting of every switch, by number; each taken modulo the number of its values.
type Setting = [usize; SWITCHES.len()];

const SWITCHES: [(&str, usize); 12] = [
    ("policy", 4),
    ("slots", 4),
    ("chunk", 3),
    ("threads", 3),
    ("reader", 3),
    ("reads under way", 2),
    ("read-ahead", 4),
    ("expert split and overlap", 4),
    ("transit slots", 3),
    ("sidecar", 2),
    ("router copies and audit", 3),
    ("prewarm", 2),
];

struct Model {
    path: PathBuf,
    sidecar: PathBuf,
    k: usize,
    all: usize,
}

impl Model {
    fn options(&self, setting: Setting) -> (EngineOptions, usize) {
        let at = |i: usize| setting[i] % SWITCHES[i].1;
        let policies = [
            PolicyKind::Lru,
            PolicyKind::NearPickEma,
            PolicyKind::InverseRouterEma,
            PolicyKind::Random,
        ];
        let slots = [self.k, self.k + 1, 2 * self.k, self.all][at(1)];
        let readers = [ReaderKind::Pool, ReaderKind::Pread, self.ring()];
        let next = [0, 2, 1, 3][at(6)];
        let options = EngineOptions {
            budget_bytes: Some(1 << 30),
            n_ctx: N_CTX,
            chunk_tokens: Some([1, 9, 64][at(2)]),
            slots_per_layer: Some(slots),
            transit_slots: [None, Some(1), Some(5)][at(8)],
            policy: policies[at(0)],
            reader: readers[at(4)],
            reads_under_way: Some([1, 4][at(5)]),
            sidecar: (at(9) == 1).then(|| self.sidecar.clone()),
            read_ahead: ReadAhead {
                next,
                second: next / 2,
                prompt: at(6) & 1 == 0,
                q8_routers: at(10) > 0,
                may_pause: false,
            },
            expert_split: at(7) & 1 == 0,
            shared_overlap: at(7) & 2 == 0,
            audit_routers: at(10) == 2,
            prewarm: at(11) == 1,
            ..EngineOptions::default()
        };
        (options, [1, 2, 3][at(3)])
    }

    /// The ring, or where the system has none the pool: the switch then has two values.
    fn ring(&self) -> ReaderKind {
        let file = Gguf::open(&self.path).unwrap();
        let options = EngineOptions {
            reader: ReaderKind::Uring,
            n_ctx: 8,
            ..EngineOptions::default()
        };
        match Engine::from_file(file, cpu(1), options) {
            Ok(_) => ReaderKind::Uring,
            Err(_) => ReaderKind::Pool,
        }
    }

    /// Bits after a prompt of `tokens` but the last four, and after each of these.
    fn run(&self, setting: Setting, tokens: &[u32]) -> (Vec<Vec<u32>>, thalweg_runtime::Stats) {
        let (options, n_threads) = self.options(setting);
        let mut engine = Engine::open(&self.path, cpu(n_threads), options).unwrap();
        let mut session = engine.session().unwrap();
        let (prompt, steps) = tokens.split_at(tokens.len() - 4);
        engine.prefill(&mut session, prompt, &mut Silent).unwrap();
        let mut found = vec![bits(session.logits())];
        for token in steps {
            engine.decode(&mut session, *token).unwrap();
            found.push(bits(session.logits()));
        }
        (found, engine.stats())
    }
}

/// Settings that together hold every pair of values of every two switches.
fn pairs() -> Vec<Setting> {
    let mut settings: Vec<Setting> = Vec::new();
    let mut turn = 0;
    for a in 0..SWITCHES.len() {
        for b in a + 1..SWITCHES.len() {
            for (x, y) in (0..SWITCHES[a].1).flat_map(|x| (0..SWITCHES[b].1).map(move |y| (x, y))) {
                let has = |s: &Setting| s[a] % SWITCHES[a].1 == x && s[b] % SWITCHES[b].1 == y;
                if settings.iter().any(has) {
                    continue;
                }
                // The others differ from setting to setting, each at its own pace.
                let mut setting: Setting =
                    std::array::from_fn(|i| (turn * (i + 1) + i) % SWITCHES[i].1);
                (setting[a], setting[b]) = (x, y);
                settings.push(setting);
                turn += 1;
            }
        }
    }
    settings
}

fn described(setting: &Setting) -> String {
    let parts = SWITCHES.iter().zip(setting);
    let parts = parts.map(|((name, n), value)| format!("{name} {}", value % n));
    parts.collect::<Vec<_>>().join(", ")
}

fn pack(path: &Path, dir: &Path) -> PathBuf {
    let sidecar = dir.join("model.experts");
    let file = Gguf::open(path).unwrap();
    thalweg_runtime::pack_sidecar(&file, &sidecar, &mut |_, _| {
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    sidecar
}

fn all_pairs_agree(model: &Model, tokens: &[u32]) {
    let expected = &one_by_one(&model.path, tokens)[tokens.len() - 5..];
    let settings = pairs();
    assert!(settings.len() >= 16, "{} settings", settings.len());
    let (mut guessed, mut streamed) = (0, 0);
    for setting in &settings {
        let (found, stats) = model.run(*setting, tokens);
        assert_eq!(found, expected, "{}", described(setting));
        guessed += stats.guessed_hits;
        streamed += stats.misses;
    }
    // Switches that do nothing would prove nothing.
    assert!(guessed > 0, "no guess was ever of use");
    assert!(streamed > 0);
}

#[test]
fn all_pairs_of_switches_give_the_bits_of_the_resident_model() {
    let (dir, path, shape) = small();
    let model = Model {
        sidecar: pack(&path, dir.path()),
        path,
        k: shape.n_expert_used,
        all: shape.n_expert,
    };
    all_pairs_agree(&model, &tokens(44, shape.n_vocab));
}

#[test]
fn all_pairs_of_switches_give_the_bits_of_the_resident_trained_model() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model {
        path: demo(),
        sidecar: pack(&demo(), dir.path()),
        k: 6,
        all: 64,
    };
    all_pairs_agree(&model, &tokens(24, 8192));
}

#[test]
fn all_pairs_are_among_the_settings() {
    let settings = pairs();
    for a in 0..SWITCHES.len() {
        for b in a + 1..SWITCHES.len() {
            for (x, y) in (0..SWITCHES[a].1).flat_map(|x| (0..SWITCHES[b].1).map(move |y| (x, y))) {
                let has = |s: &Setting| s[a] == x && s[b] == y;
                assert!(settings.iter().any(has), "{a} {x}, {b} {y}");
            }
        }
    }
}

#[test]
fn a_faulty_drive_changes_timing_or_raises_errors_and_never_output() {
    let (_dir, path, shape) = small();
    let tokens = tokens(40, shape.n_vocab);
    let expected = one_by_one(&path, &tokens);
    let mut n_failed = 0;
    for seed in 0..8 {
        let file = Gguf::open(&path).unwrap();
        let options = EngineOptions {
            budget_bytes: Some(1 << 30),
            n_ctx: N_CTX,
            chunk_tokens: Some(16),
            slots_per_layer: Some(shape.n_expert_used),
            read_ahead: ReadAhead {
                next: 2,
                second: 1,
                prompt: true,
                may_pause: false,
                ..ReadAhead::default()
            },
            ..EngineOptions::default()
        };
        let mut engine = Engine::with_reader(file, cpu(2), options, |files| {
            let four = std::num::NonZeroUsize::new(4).unwrap();
            let pool = PoolBackend::new(files.clone(), four)?;
            let plan = FaultPlan::new()
                .with_random(seed, 0.02, Fault::Fail(std::io::ErrorKind::Other))
                .with_reordering(seed);
            let faulty = FaultBackend::new(pool, files.clone(), plan);
            Ok(Box::new(faulty) as Box<dyn ReadBackend>)
        })
        .unwrap();
        let mut session = engine.session().unwrap();
        while session.tokens().len() < 32 {
            let done = session.tokens().len();
            let taken = engine.prefill(&mut session, &tokens[done..32], &mut Silent);
            n_failed += u32::from(taken.is_err());
        }
        assert_eq!(bits(session.logits()), expected[31], "prompt, seed {seed}");
        for (i, token) in tokens.iter().enumerate().skip(32) {
            while engine.decode(&mut session, *token).is_err() {
                n_failed += 1;
            }
            assert_eq!(bits(session.logits()), expected[i], "step {i}, seed {seed}");
        }
    }
    assert!(n_failed > 0, "no fault was met");
}

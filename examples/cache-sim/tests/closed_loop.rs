//! The closed loop with frozen hidden states against the engine that really routes with a bias.

use std::path::Path;

use thalweg::{CpuBackend, CpuOptions, Engine, EngineOptions, Text};
use thalweg_cache::sim::{self, Scope, SimConfig};
use thalweg_cache::{Bias, KeySpace, Moce, PolicyKind};
use thalweg_runtime::{TraceLogits, TraceRecorder};
use thalweg_trace::TraceFile;

const N_TOKENS: usize = 256;
const SLOTS: usize = 24;

const TEXT: &str = "The current page number is displayed in this field of the status bar. A click \
    opens a window, with which you can go to another page. To install the package, run the command \
    as root; the daemon reads its configuration again when it receives a hangup signal. Each line \
    of the table holds a name, a number and a date. ";

fn engine(moce: Moce) -> Engine {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo.gguf");
    let backend = CpuBackend::new(CpuOptions { n_threads: 2 }).expect("threads");
    let options = EngineOptions {
        n_ctx: N_TOKENS,
        budget_bytes: Some(1 << 30),
        slots_per_layer: Some(SLOTS),
        policy: PolicyKind::Lru,
        moce,
        ..EngineOptions::default()
    };
    Engine::open(model, backend, options).expect("the embedded model")
}

#[test]
fn frozen_hidden_states_predict_the_misses_of_the_biased_engine_within_five_percent() {
    let folder = tempfile::tempdir().expect("writable");
    let path = folder.path().join("t.motr");
    let mut plain = engine(Moce::default());
    let text = Text::from_file(plain.file()).expect("a tokenizer");
    let mut tokens = text.raw(&TEXT.repeat(6));
    tokens.truncate(N_TOKENS);
    assert_eq!(tokens.len(), N_TOKENS);

    let mut session = plain.session().expect("memory");
    let mut recorder = TraceRecorder::create(&path, plain.spec(), TraceLogits::FullF32, [0; 32])
        .expect("a uniform model");
    recorder.start_document(0, 0);
    recorder.feed(&tokens);
    for &token in &tokens {
        let step = plain.decode_observed(&mut session, token, &mut recorder);
        step.expect("runs");
    }
    recorder.end_document(N_TOKENS).expect("recorded");
    recorder.finish().expect("written");
    let file = TraceFile::open(&path).expect("just written");
    let trace = file.trace();

    let space = KeySpace::new(12, 64);
    let config = SimConfig::new(PolicyKind::Lru, space, SLOTS as u32, 6);
    let config = config.with_scope(Scope::PerLayer);
    let mut unbiased = None;
    for bias in ["off", "rel:0.09", "rel:0.2", "abs:0.5"] {
        let bias: Bias = bias.parse().expect("valid");
        let moce = Moce::new(bias);
        let row = |token, layer: u16, out: &mut [f32]| {
            let choice = trace.token(token).and_then(|t| t.layer(layer.into()));
            choice.expect("in the trace").read_logits(out);
        };
        let simulated = sim::route(N_TOKENS as u64, &config, &moce, row).expect("valid");
        let simulated = simulated.cache.total.n_misses as f64;

        let mut biased = engine(moce);
        let mut session = biased.session().expect("memory");
        for &token in &tokens {
            biased.decode(&mut session, token).expect("runs");
        }
        let counted = biased.stats().misses as f64;
        let off_by = simulated / counted - 1.0;
        println!("{bias}: simulated {simulated}, counted {counted}, off by {off_by:+.4}");
        assert!(off_by.abs() < 0.05, "{bias}: {simulated} against {counted}");
        match unbiased {
            None => {
                // Without a bias nothing is frozen: the same to the last miss.
                assert!(off_by.abs() < 1e-12, "{simulated} against {counted}");
                unbiased = Some(counted);
            }
            Some(unbiased) => assert!(counted < 0.95 * unbiased, "{bias} does something"),
        }
    }
}

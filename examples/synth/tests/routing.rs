//! What the routers of synthetic models do in the engine: how unevenly they pick, how often they
//! repeat a pick, and whether activations stay as large as meant. `--nocapture` prints the figures
//! that the README has.

use std::collections::BTreeSet;

use tempfile::TempDir;
use thalweg::{CpuBackend, CpuOptions, Engine, EngineOptions, Observer, Routing};
use thalweg_gguf::TensorType;
use thalweg_testkit::SyntheticModel;

/// 6 layers, 256 wide, 64 experts of which a token uses 4.
fn small() -> SyntheticModel {
    SyntheticModel {
        n_layer: 6,
        n_expert: 64,
        n_expert_used: 4,
        n_vocab: 2048,
        ngram_rows: Some(500),
        ..SyntheticModel::of_width(256)
    }
}

/// The engine, and the folder that its file lies in.
fn engine(model: &SyntheticModel, n_ctx: usize) -> (Engine, TempDir) {
    let folder = tempfile::tempdir().expect("writable");
    let path = folder.path().join("m.gguf");
    let go_on = |_, _| std::ops::ControlFlow::Continue(());
    model.write(&path, go_on).expect("written");
    let backend = CpuBackend::new(CpuOptions { n_threads: 2 }).expect("two threads");
    let options = EngineOptions {
        n_ctx,
        ..EngineOptions::default()
    };
    let engine = Engine::open(&path, backend, options).expect("a complete model");
    (engine, folder)
}

/// Tokens in no order, markers left out.
fn tokens(model: &SyntheticModel, n: usize) -> Vec<u32> {
    let n_words = model.n_vocab as u64 - 5;
    let id = |i: u64| 5 + (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) % n_words;
    (1..=n as u64)
        .map(|i| u32::try_from(id(i)).expect("below the vocabulary"))
        .collect()
}

/// What a run showed, by layer.
#[derive(Default)]
struct Seen {
    /// `[n_layer][n_tokens]`: the experts of a token.
    picks: Vec<Vec<BTreeSet<usize>>>,
    /// Mean square of the residual after each layer, summed up over chunks.
    squares: Vec<(f64, usize)>,
    /// Choices that hung on two equal logits.
    n_ties: usize,
}

impl Observer for Seen {
    fn on_routes(&mut self, layer: usize, _first_position: usize, routing: &Routing) {
        if self.picks.len() <= layer {
            self.picks.resize(layer + 1, Vec::new());
        }
        for token in 0..routing.n_tokens() {
            let ids = routing.ids(token).iter().map(|id| usize::from(*id));
            self.picks[layer].push(ids.collect());
            // A tie matters between the last one chosen and the first one left out.
            let mut logits = routing.logits(token).to_vec();
            logits.sort_unstable_by(|a, b| b.total_cmp(a));
            let (last, next) = (logits[routing.k() - 1], logits[routing.k()]);
            self.n_ties += usize::from(last <= next);
        }
    }

    fn wants_residual(&self) -> bool {
        true
    }

    fn on_residual(&mut self, layer: usize, _first_position: usize, residual: &[f32]) {
        if self.squares.len() <= layer {
            self.squares.resize(layer + 1, (0.0, 0));
        }
        let (sum, n) = &mut self.squares[layer];
        *sum += residual.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
        *n += residual.len();
    }
}

/// Figures of a run.
#[derive(Debug)]
struct Measured {
    /// The exponent of the power law that shares follow.
    skew: f64,
    /// Share of tokens that pick a layer's favorite, and what was meant.
    favorite: (f64, f64),
    /// Share of repeated picks beyond those that the shares alone give.
    correlation: f64,
    /// Repeated picks, all of them.
    repeated: f64,
    /// Mean square of the residual after each layer.
    squares: Vec<f64>,
    n_ties: usize,
}

fn run(model: &SyntheticModel, n_tokens: usize) -> Seen {
    let (mut engine, _folder) = engine(model, n_tokens);
    let mut session = engine.session().expect("fits");
    let mut seen = Seen::default();
    let ids = tokens(model, n_tokens);
    engine
        .prefill(&mut session, &ids, &mut seen)
        .expect("finite");
    assert!(session.logits().iter().all(|v| v.is_finite()));
    seen
}

fn measure(model: &SyntheticModel, n_tokens: usize) -> Measured {
    let seen = run(model, n_tokens);
    let (n, k) = (n_tokens as f64, model.n_expert_used as f64);
    let n_layer = model.n_layer as f64;
    // By rank, over all layers: shares of a single layer would follow its slow changes.
    let mut by_rank = vec![0.0; model.n_expert];
    let mut repeated = 0.0;
    for (layer, picks) in seen.picks.iter().enumerate() {
        let mut counts = vec![0.0; model.n_expert];
        for expert in picks.iter().flatten() {
            counts[*expert] += 1.0;
        }
        for (rank, expert) in model.ranking(layer).into_iter().enumerate() {
            by_rank[rank] += counts[expert] / n / n_layer;
        }
        let both = picks.windows(2).map(|w| w[0].intersection(&w[1]).count());
        repeated += both.sum::<usize>() as f64 / (n - 1.0) / k / n_layer;
    }
    let by_chance = by_rank.iter().map(|share| share * share).sum::<f64>() / k;
    let squares = seen.squares.iter().map(|(sum, n)| sum / *n as f64);
    Measured {
        skew: exponent(&by_rank, &model.pick_shares()),
        favorite: (by_rank[0], model.pick_shares()[0]),
        correlation: (repeated - by_chance) / (1.0 - by_chance),
        repeated,
        squares: squares.collect(),
        n_ties: seen.n_ties,
    }
}

/// Least squares through the logarithms of mean rank and mean share in bins of ranks that double;
/// ranks whose share had to be capped are left out.
fn exponent(by_rank: &[f64], meant: &[f64]) -> f64 {
    let mut points = Vec::new();
    let mut start = meant.iter().filter(|share| **share > 0.94).count();
    while start < by_rank.len() {
        let end = (start + (start / 2).max(1)).min(by_rank.len());
        let n = (end - start) as f64;
        let x = (start..end).map(|r| (r as f64 + 1.0).ln()).sum::<f64>() / n;
        let y = by_rank[start..end].iter().sum::<f64>() / n;
        points.push((x, y.max(1e-9).ln()));
        start = end;
    }
    let n = points.len() as f64;
    let (x_mean, y_mean) = points
        .iter()
        .fold((0.0, 0.0), |(x, y), p| (x + p.0 / n, y + p.1 / n));
    let covariance: f64 = points.iter().map(|p| (p.0 - x_mean) * (p.1 - y_mean)).sum();
    let variance: f64 = points.iter().map(|p| (p.0 - x_mean).powi(2)).sum();
    -covariance / variance
}

fn check_skew(dense_type: TensorType, skew: f64, n_tokens: usize) {
    let model = SyntheticModel {
        skew,
        dense_type,
        ..small()
    };
    let found = measure(&model, n_tokens);
    println!(
        "{dense_type} skew {skew}: measured {:.2}, favorite {:.3} of {:.3}, repeated {:.3}",
        found.skew, found.favorite.0, found.favorite.1, found.repeated
    );
    let margin = (0.25 * skew).max(0.1);
    assert!((found.skew - skew).abs() < margin, "{skew}: {found:?}");
    let (share, meant) = found.favorite;
    assert!((share / meant - 1.0).abs() < 0.2, "{skew}: {found:?}");
    assert!(found.correlation.abs() < 0.05, "{skew}: {found:?}");
}

fn check_correlations(skew: f64, correlations: &[f64], n_tokens: usize) {
    let mut last = -1.0;
    for correlation in correlations.iter().copied() {
        let model = SyntheticModel {
            skew,
            correlation,
            ..small()
        };
        let found = measure(&model, n_tokens);
        println!(
            "skew {skew} correlation {correlation}: measured {:.2}, skew {:.2}, repeated {:.3}",
            found.correlation, found.skew, found.repeated
        );
        assert!(found.correlation > last + 0.05, "{correlation}: {found:?}");
        let off = (found.correlation - correlation).abs();
        assert!(off < 0.12, "{correlation}: {found:?}");
        last = found.correlation;
    }
}

#[test]
fn picks_fall_with_the_rank_as_asked() {
    for skew in [0.0, 0.5, 1.0] {
        check_skew(TensorType::Q4_0, skew, 300);
    }
    check_skew(TensorType::Q2_0, 1.0, 300);
}

#[test]
fn picks_are_repeated_as_asked() {
    check_correlations(1.0, &[0.0, 0.4, 0.8], 300);
}

#[test]
#[ignore = "all of the README's table: a minute"]
fn the_table_of_the_readme_holds() {
    for skew in [0.0, 0.5, 1.0, 1.5, 2.0] {
        check_skew(TensorType::Q4_0, skew, 1000);
    }
    for skew in [0.0, 1.0] {
        check_correlations(skew, &[0.0, 0.2, 0.4, 0.6, 0.8], 1000);
    }
}

#[test]
fn activations_stay_near_unit_size_and_no_two_experts_tie() {
    let deep = SyntheticModel {
        n_layer: 48,
        ..small()
    };
    for correlation in [0.0, 0.5] {
        let model = SyntheticModel {
            correlation,
            ..deep
        };
        let found = measure(&model, 64);
        println!("mean squares: {:.2?}", found.squares);
        assert_eq!(found.squares.len(), 48);
        assert!(found.squares.iter().all(|s| (0.7..1.4).contains(s)));
        assert_eq!(found.n_ties, 0, "{found:?}");
    }
}

#[test]
#[ignore = "a model as wide as the published one: minutes, even in release mode"]
fn a_wide_model_picks_as_asked() {
    let wide = SyntheticModel {
        n_layer: 8,
        n_expert: 256,
        n_ff: 64,
        n_ff_shared: 64,
        ..SyntheticModel::default()
    };
    for (skew, correlation) in [(0.0, 0.0), (1.0, 0.0), (1.0, 0.5)] {
        let model = SyntheticModel {
            skew,
            correlation,
            ..wide
        };
        let found = measure(&model, 300);
        println!(
            "wide, skew {skew} correlation {correlation}: measured {:.2} and {:.2}, favorite {:.3} \
             of {:.3}, repeated {:.3}",
            found.skew, found.correlation, found.favorite.0, found.favorite.1, found.repeated
        );
        assert!(
            (found.skew - skew).abs() < (0.25 * skew).max(0.1),
            "{found:?}"
        );
        assert!((found.correlation - correlation).abs() < 0.1, "{found:?}");
        assert!(found.squares.iter().all(|s| (0.7..1.4).contains(s)));
        assert_eq!(found.n_ties, 0, "{found:?}");
    }
}

#[test]
fn greedy_text_does_not_run_in_circles() {
    for correlation in [0.0, 0.5] {
        let model = SyntheticModel {
            n_vocab: 8192,
            correlation,
            ..small()
        };
        let (mut engine, _folder) = engine(&model, 256);
        let mut session = engine.session().expect("fits");
        let prompt = tokens(&model, 8);
        engine
            .prefill(&mut session, &prompt, &mut Seen::default())
            .expect("finite");
        let (mut said, mut seen) = (Vec::new(), Seen::default());
        for _ in 0..128 {
            let logits = session.logits().iter().zip(0_u32..);
            let (_, best) = logits.max_by(|a, b| a.0.total_cmp(b.0)).expect("tokens");
            said.push(best);
            engine
                .decode_observed(&mut session, best, &mut seen)
                .expect("finite");
        }
        let different: BTreeSet<u32> = said.iter().copied().collect();
        let used: BTreeSet<(usize, usize)> = seen
            .picks
            .iter()
            .enumerate()
            .flat_map(|(layer, picks)| picks.iter().flatten().map(move |e| (layer, *e)))
            .collect();
        println!(
            "correlation {correlation}: {} different tokens of 128, {} experts of 384",
            different.len(),
            used.len()
        );
        // No marker ends the text.
        assert!(said.iter().all(|id| *id >= 5), "{said:?}");
        assert!(different.len() > 64, "{said:?}");
        assert!(used.len() > 250, "{used:?}");
    }
}

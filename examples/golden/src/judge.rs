//! One prompt through the engine, and how far it is from its golden.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use thalweg::{Backend, Engine, Observer, Routing, Session};

use crate::folder::{Folder, Prompt};

/// A choice whose margin in the reference is smaller may fall either way.
const GAP: f64 = 1e-5;

/// Differences from the golden.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) max_abs: f64,
    pub(crate) mean_abs: f64,
    pub(crate) max_nll_diff: f64,
    pub(crate) greedy_mismatches: usize,
    pub(crate) route_mismatches: usize,
    n_logits: usize,
    n_greedy: usize,
    n_routes: usize,
    /// Places that differ where a margin is too small to tell.
    undecided: Vec<String>,
}

impl Verdict {
    pub(crate) fn json(&self, name: &str, passed: bool) -> Value {
        json!({
            "prompt": name,
            "passed": passed,
            "max_abs": self.max_abs,
            "mean_abs": self.mean_abs,
            "max_nll_diff": self.max_nll_diff,
            "greedy_mismatches": self.greedy_mismatches,
            "route_mismatches": self.route_mismatches,
            "compared": {
                "logits": self.n_logits,
                "greedy": self.n_greedy,
                "routes": self.n_routes,
            },
            "undecided": self.undecided,
        })
    }
}

/// Runs the prompt and its continuation and compares.
pub(crate) fn judge<B: Backend>(
    engine: &mut Engine<B>,
    session: &mut Session<B>,
    folder: &Folder,
    prompt: &Prompt,
) -> Result<Verdict> {
    let n_vocab = engine.spec().n_vocab;
    let stored = folder.logits(prompt)?;
    ensure!(
        stored.len() == prompt.logits_positions.len() * n_vocab,
        "the golden was made for another vocabulary than the model's {n_vocab}"
    );
    let experts = &engine.spec().experts;
    // The last token of a short prompt may hold the routes of the continuation as well.
    let fits = |token: &Vec<Vec<u16>>| {
        token.len() >= experts.len() && token.iter().zip(experts).all(|(r, e)| r.len() == e.k)
    };
    ensure!(
        prompt.routes.iter().all(fits),
        "routes were stored for other layers or another number of experts than the model's"
    );
    let mut compare = Compare {
        prompt,
        stored: &stored,
        verdict: Verdict::default(),
        sum: 0.0,
    };
    engine.prefill(session, &prompt.tokens, &mut compare)?;
    let Compare {
        mut verdict, sum, ..
    } = compare;
    verdict.mean_abs = sum / verdict.n_logits.max(1) as f64;

    for (i, (&expected, &gap)) in prompt
        .greedy
        .iter()
        .zip(&prompt.greedy_top1_minus_top2)
        .enumerate()
    {
        let best = argmax(session.logits());
        verdict.n_greedy += 1;
        if best != expected && gap < GAP {
            verdict.undecided.push(format!(
                "greedy token {i}: {best} for {expected}, gap {gap:e}"
            ));
        } else if best != expected {
            verdict.greedy_mismatches += 1;
        }
        // The continuation goes on from the reference's tokens.
        if i + 1 < prompt.greedy.len() {
            engine.decode(session, expected)?;
        }
    }
    Ok(verdict)
}

/// Looks at a prefill as it happens.
struct Compare<'a> {
    prompt: &'a Prompt,
    stored: &'a [f32],
    verdict: Verdict,
    sum: f64,
}

impl Observer for Compare<'_> {
    fn on_routes(&mut self, layer: usize, first_position: usize, routing: &Routing) {
        for t in 0..routing.n_tokens() {
            let position = first_position + t;
            let Some(expected) = self.prompt.routes.get(position).and_then(|r| r.get(layer)) else {
                continue;
            };
            self.verdict.n_routes += 1;
            if routing.ids(t) == expected.as_slice() {
                continue;
            }
            let gap = smallest_gap(routing.logits(t), routing.ids(t));
            let place = format!("route of token {position} in layer {layer}, gap {gap:e}");
            match gap < GAP {
                true => self.verdict.undecided.push(place),
                false => self.verdict.route_mismatches += 1,
            }
        }
    }

    fn wants_logits(&self, _: usize) -> bool {
        true
    }

    fn on_logits(&mut self, position: usize, logits: &[f32]) {
        if let Some(&next) = self.prompt.tokens.get(position + 1) {
            let difference = (nll(logits, next) - self.prompt.nll[position]).abs();
            self.verdict.max_nll_diff = worse(self.verdict.max_nll_diff, difference);
        }
        if let Ok(row) = self.prompt.logits_positions.binary_search(&position) {
            let stored = &self.stored[row * logits.len()..(row + 1) * logits.len()];
            for (ours, theirs) in logits.iter().zip(stored) {
                let difference = (f64::from(*ours) - f64::from(*theirs)).abs();
                self.verdict.max_abs = worse(self.verdict.max_abs, difference);
                self.sum += difference;
            }
            self.verdict.n_logits += logits.len();
        }
    }
}

/// The larger of two differences, and not a number if either is: that is the worst of all.
pub(crate) fn worse(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else {
        a.max(b)
    }
}

/// Margin of the least certain of a token's choices, as a difference of router logits.
fn smallest_gap(logits: &[f32], ids: &[u16]) -> f64 {
    let chosen = |id: usize| ids.iter().any(|i| usize::from(*i) == id);
    let best_left = logits.iter().enumerate().filter(|(id, _)| !chosen(*id));
    let best_left = best_left
        .map(|(_, z)| f64::from(*z))
        .fold(f64::NEG_INFINITY, f64::max);
    let ranked = ids.iter().map(|id| f64::from(logits[usize::from(*id)]));
    let ranked: Vec<f64> = ranked.chain([best_left]).collect();
    ranked
        .windows(2)
        .map(|w| w[0] - w[1])
        .fold(f64::INFINITY, f64::min)
}

/// Negative log-likelihood of `token`, in nats.
fn nll(logits: &[f32], token: u32) -> f64 {
    log_total(logits) - f64::from(logits[token as usize])
}

/// The logarithm of the sum of the logits' exponentials.
pub(crate) fn log_total(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let max = f64::from(max);
    let total: f64 = logits.iter().map(|z| (f64::from(*z) - max).exp()).sum();
    max + total.ln()
}

/// Index of the largest logit, the lower one of equals.
pub(crate) fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, z) in logits.iter().enumerate() {
        if *z > logits[best] {
            best = id;
        }
    }
    u32::try_from(best).unwrap_or(u32::MAX)
}

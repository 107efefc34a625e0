//! One prompt through the engine, and how far it is from its golden.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use thalweg::{Engine, Observer, Routing, Session};

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
    /// Divergence of the stored positions' distributions from the golden's, in nats, summed.
    pub(crate) kld_sum: f64,
    /// Stored positions whose likeliest token is the golden's.
    pub(crate) n_same_top1: usize,
    pub(crate) n_positions: usize,
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
            "mean_kld": self.mean_kld(),
            "top1_agreement": self.top1_agreement(),
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

impl Verdict {
    /// Mean divergence of a position, in nats.
    pub(crate) fn mean_kld(&self) -> f64 {
        self.kld_sum / self.n_positions.max(1) as f64
    }

    /// Share of positions whose likeliest token is the golden's.
    pub(crate) fn top1_agreement(&self) -> f64 {
        self.n_same_top1 as f64 / self.n_positions.max(1) as f64
    }
}

/// Runs the prompt and its continuation and compares.
pub(crate) fn judge(
    engine: &mut Engine,
    session: &mut Session,
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
            self.verdict.kld_sum += kld(stored, logits);
            self.verdict.n_same_top1 += usize::from(argmax(stored) == argmax(logits));
            self.verdict.n_positions += 1;
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
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|z| f64::from(z - max).exp()).sum();
    total.ln() - f64::from(logits[token as usize] - max)
}

/// Divergence of the distribution of `test` from that of `reference`, `KL(reference || test)` in
/// nats; not a number if a logit is none.
fn kld(reference: &[f32], test: &[f32]) -> f64 {
    let log_total = |logits: &[f32]| {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f64 = logits.iter().map(|z| f64::from(z - max).exp()).sum();
        f64::from(max) + total.ln()
    };
    let (reference_total, test_total) = (log_total(reference), log_total(test));
    let terms = reference.iter().zip(test).map(|(r, t)| {
        let (log_p, log_q) = (f64::from(*r) - reference_total, f64::from(*t) - test_total);
        log_p.exp() * (log_p - log_q)
    });
    terms.sum()
}

/// Index of the largest logit, the lower one of equals.
fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, z) in logits.iter().enumerate() {
        if *z > logits[best] {
            best = id;
        }
    }
    u32::try_from(best).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_is_that_of_the_definition() {
        // Probabilities 1/4, 3/4 against 1/2, 1/2, whatever is added to all logits.
        let reference = [1.0, 1.0 + 3.0_f32.ln()];
        let expected = 0.25 * 0.5_f64.ln() + 0.75 * 1.5_f64.ln();
        assert!((kld(&reference, &[7.0, 7.0]) - expected).abs() < 1e-7);
        assert_eq!(kld(&reference, &reference), 0.0);
        assert!(kld(&reference, &[f32::NAN, 0.0]).is_nan());
    }
}

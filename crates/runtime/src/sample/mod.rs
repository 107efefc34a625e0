//! Choosing the next token from a row of logits.
//!
//! Owns the options, the chain of steps, the random generator and the scratch. Does not own the
//! history: the caller passes it with every call, so a restored session samples like the original.
//! Memory: one row of `n_vocab` f32 and as many 8-byte candidates, kept from the first call on.
//! Invariants: 1. a masked token, a NaN and a negative infinity are never chosen. 2. Equal logits
//! rank by lower id. 3. A token takes one random number, a greedy token none. 4. Results depend
//! on options, seed and calls alone; only IEEE operations with one possible result decide them.
//! Cost: O(`n_vocab`) a token, plus a sort of what `top_k` or `top_p` keeps; no allocation after
//! the first call with the largest `n_vocab`.
//!
//! ```
//! use thalweg_runtime::sample::{Sampler, SamplerOptions};
//!
//! let options = SamplerOptions { temperature: 0.8, top_k: 40, seed: 7, ..Default::default() };
//! let mut sampler = Sampler::new(options)?;
//! sampler.mask(&[3]);
//! let token = sampler.sample(&[0.1, 2.0, -1.0, 9.0], &[1, 1, 2])?;
//! assert_ne!(token, 3);
//! # Ok::<(), thalweg_runtime::sample::SampleError>(())
//! ```

mod candidates;
mod error;
mod exp;
mod greedy;
mod mask;
mod options;
mod penalty;
mod rng;
mod step;
#[cfg(test)]
mod tests;
mod truncate;

pub use candidates::{Candidate, Candidates};
pub use error::SampleError;
pub use options::SamplerOptions;
pub use step::SamplerStep;

use mask::Mask;
use rng::SplitMix64;

/// Chooses tokens; one for each sequence.
///
/// Order: mask, repetition penalty, [pushed steps](Self::push_step), temperature, top-k, top-p,
/// min-p, draw. Every truncation keeps the best candidate and counts probabilities over what the
/// one before it left.
///
/// Unusual logits: NaN and negative infinity are never chosen; if any logit is positive infinity,
/// only such tokens are candidates, with equal probability.
#[derive(Debug)]
pub struct Sampler {
    options: SamplerOptions,
    rng: SplitMix64,
    mask: Mask,
    steps: Vec<Box<dyn SamplerStep>>,
    /// Working copy of the logits, `[n_vocab]`.
    row: Vec<f32>,
    candidates: Candidates,
}

impl Sampler {
    /// A sampler with nothing masked and its generator at `options.seed`.
    ///
    /// # Errors
    /// What [`SamplerOptions::validate`] returns.
    pub fn new(options: SamplerOptions) -> Result<Self, SampleError> {
        options.validate()?;
        Ok(Self {
            rng: SplitMix64::new(options.seed),
            mask: Mask::default(),
            steps: step::chain(&options),
            row: Vec::new(),
            candidates: Candidates::new(),
            options,
        })
    }

    /// The options that the sampler was made with.
    pub fn options(&self) -> &SamplerOptions {
        &self.options
    }

    /// Names of the steps that run, in order, without the mask and the final choice.
    ///
    /// An option that is off, or that greedy sampling leaves without effect, has no step here.
    pub fn step_names(&self) -> impl Iterator<Item = &'static str> {
        self.steps.iter().map(|step| step.name())
    }

    /// Adds a step of the caller's after the built-in ones.
    ///
    /// Its `adjust` runs after the repetition penalty, its `truncate` after min-p. Greedy sampling
    /// runs no `truncate`: the best candidate survives them all.
    pub fn push_step(&mut self, step: Box<dyn SamplerStep>) {
        self.steps.push(step);
    }

    /// Forbids tokens from now on, in addition to those masked before.
    ///
    /// An id outside of a row of logits has no effect on that row.
    pub fn mask(&mut self, ids: &[u32]) {
        self.mask.insert(ids);
    }

    /// Allows all tokens again.
    pub fn clear_mask(&mut self) {
        self.mask.clear();
    }

    /// Puts the generator where a new sampler with this seed starts.
    pub fn reset_seed(&mut self, seed: u64) {
        self.rng = SplitMix64::new(seed);
    }

    /// Position of the generator: [`reset_seed`](Self::reset_seed) with it continues from here.
    ///
    /// This number and the options are all the state that a saved session needs.
    pub fn rng_state(&self) -> u64 {
        self.rng.state()
    }

    /// Chooses the token that follows `history`.
    ///
    /// `logits` is `[n_vocab]`, indexed by token id. `history` holds the tokens of the sequence,
    /// prompt included, oldest first; ids outside of the vocabulary are ignored.
    ///
    /// # Errors
    /// [`SampleError::NoCandidate`] if every logit is masked, NaN or negative infinity, or there
    /// is none. The generator has not moved then.
    ///
    /// # Cost
    /// O(`n_vocab` + `repetition_window`) and a sort of what `top_k` or `top_p` keeps.
    pub fn sample(&mut self, logits: &[f32], history: &[u32]) -> Result<u32, SampleError> {
        self.adjust(logits, history);
        if self.options.is_greedy() {
            return greedy::best(&self.row).ok_or_else(|| self.no_candidate());
        }
        self.candidates.collect(&self.row, self.options.temperature);
        if self.candidates.is_empty() {
            return Err(self.no_candidate());
        }
        for step in &mut self.steps {
            step.truncate(&mut self.candidates);
        }
        let unit = self.rng.next_unit();
        self.candidates
            .at_quantile(unit)
            .ok_or_else(|| self.no_candidate())
    }

    /// The `n` most probable tokens with their natural log probabilities, best first.
    ///
    /// Probabilities are normalized over all usable tokens after everything that changes logits:
    /// mask, penalty, pushed steps, temperature (greedy options count as temperature 1 here). What
    /// only removes candidates (top-k, top-p, min-p) is left out. No value is above zero. The
    /// generator does not move.
    ///
    /// # Errors
    /// As [`sample`](Self::sample).
    ///
    /// # Cost
    /// O(`n_vocab`), a sort of `n` candidates, and the returned vector.
    pub fn top_log_probs(
        &mut self,
        logits: &[f32],
        history: &[u32],
        n: usize,
    ) -> Result<Vec<(u32, f32)>, SampleError> {
        self.adjust(logits, history);
        let temperature = if self.options.is_greedy() {
            1.0
        } else {
            self.options.temperature
        };
        self.candidates.collect(&self.row, temperature);
        if self.candidates.is_empty() {
            return Err(self.no_candidate());
        }
        Ok(self.candidates.log_probs(n))
    }

    /// Fills the row with logits that the mask and every step have changed.
    fn adjust(&mut self, logits: &[f32], history: &[u32]) {
        self.row.clear();
        self.row.extend_from_slice(logits);
        self.mask.apply(&mut self.row);
        for step in &mut self.steps {
            step.adjust(&mut self.row, history);
        }
        // A step that writes absolute values must not bring a masked token back.
        self.mask.apply(&mut self.row);
    }

    fn no_candidate(&self) -> SampleError {
        SampleError::NoCandidate {
            n_logits: self.row.len(),
            n_masked: self.mask.count_below(self.row.len()),
        }
    }
}

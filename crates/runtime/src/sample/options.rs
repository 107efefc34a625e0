//! Options of a sampler and their ranges.

use super::SampleError;

/// How tokens are chosen. The default is greedy: always the best token, nothing else changed.
///
/// With greedy options (see [`is_greedy`](Self::is_greedy)) the fields `top_k`, `top_p`, `min_p`
/// and `seed` have no effect; the repetition penalty has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplerOptions {
    /// Divides the logits: below 1 sharpens, above 1 flattens. 0 chooses the best token. Default 0.
    pub temperature: f32,
    /// Keeps this many best candidates. 0 is off, 1 chooses the best token. Default 0.
    pub top_k: usize,
    /// Keeps the smallest set of best candidates whose probabilities add up to this. 1 is off, 0
    /// chooses the best token. Default 1.
    pub top_p: f32,
    /// Keeps candidates with at least this share of the best one's probability. 0 is off.
    /// Default 0.
    pub min_p: f32,
    /// Weakens tokens that occur in the window, once for each token however often it occurs: a
    /// logit above zero is divided by this, any other multiplied. 1 is off, below 1 favors
    /// repetition. Default 1.
    pub repetition_penalty: f32,
    /// Last tokens of the history that the penalty looks at. 0 is off, `usize::MAX` is the whole
    /// history. Default `usize::MAX`.
    pub repetition_window: usize,
    /// Start of the random generator. Default 0.
    pub seed: u64,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            repetition_window: usize::MAX,
            seed: 0,
        }
    }
}

impl SamplerOptions {
    /// Checks every field.
    ///
    /// # Errors
    /// [`SampleError::Option`] with the first field that is NaN or out of range: `temperature`
    /// finite and at least 0, `top_p` and `min_p` from 0 to 1, `repetition_penalty` finite and
    /// above 0.
    pub fn validate(&self) -> Result<(), SampleError> {
        let unit = |value: f32| (0.0..=1.0).contains(&value);
        let checks = [
            (
                "temperature",
                self.temperature,
                self.temperature.is_finite() && self.temperature >= 0.0,
                "finite and at least 0",
            ),
            ("top_p", self.top_p, unit(self.top_p), "from 0 to 1"),
            ("min_p", self.min_p, unit(self.min_p), "from 0 to 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0,
                "finite and above 0",
            ),
        ];
        match checks.into_iter().find(|&(_, _, usable, _)| !usable) {
            Some((option, found, _, expected)) => Err(SampleError::Option {
                option,
                expected,
                found,
            }),
            None => Ok(()),
        }
    }

    /// Whether the best token is chosen without a random number: `temperature` 0, `top_k` 1 or
    /// `top_p` 0.
    pub fn is_greedy(&self) -> bool {
        self.temperature <= 0.0 || self.top_k == 1 || self.top_p <= 0.0
    }
}

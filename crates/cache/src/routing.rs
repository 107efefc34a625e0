//! Settings of cache-aware routing, and the bias they amount to.
//!
//! Owns the kinds of bias, their text form, and the running mean of logit ranges that scales a
//! relative one. Does not choose experts (`Router` does), nor know residency or the phase of the
//! model. Invariants: 1. a bias is finite and at least 0; 2. a mean changes only by decisions that
//! the bias applies to. Cost: O(n_expert) for a relative bias. Method: the "cache prior" of Skliar
//! et al., arXiv 2412.00099.

use alloc::string::String;
use core::fmt;
use core::str::FromStr;

use crate::Error;
use crate::math::ln;

/// How strongly resident experts are preferred.
///
/// In text: `off`, `rel:0.09`, `abs:0.85`. The bias is added to logits, before any softmax; a bias
/// on probabilities is another method in other units.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
#[non_exhaustive]
pub enum Bias {
    /// Not at all: the model's own routing.
    #[default]
    Off,
    /// By `lambda` times the layer's mean logit range: 0 is off, near 1 prefers any resident expert
    /// to any other.
    Relative {
        /// Share of the mean range, 0 to 1.
        lambda: f32,
        /// How the mean is taken.
        avg: RangeAvg,
    },
    /// By a constant.
    Absolute {
        /// Added to the logits of resident experts, in nats; at least 0.
        nats: f32,
    },
}

/// How the mean of a layer's logit ranges is taken.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
#[non_exhaustive]
pub enum RangeAvg {
    /// Over all decisions so far, the current one included.
    #[default]
    Cumulative,
    /// Exponentially, with weight `rho` on the newest; starts at the first range.
    Ema {
        /// Weight of the newest range, above 0, at most 1.
        rho: f32,
    },
}

/// From which logits the mixture weights of the chosen experts are computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Weights {
    /// From the model's own logits: only the choice is disturbed.
    #[default]
    Unbiased,
    /// From the logits with the bias added.
    Biased,
}

/// Which experts count as resident.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum ResidentView {
    /// Those whose bytes are complete.
    #[default]
    ArenaOnly,
    /// Those being loaded as well.
    ArenaAndInFlight,
}

/// Settings of cache-aware routing. Lossy unless the bias is off.
///
/// With it on, a model's output depends on what is resident, hence on history: two runs agree only
/// if they start from the same residency and the same [`RangeMean`]s.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct Moce {
    /// How strongly resident experts are preferred.
    pub bias: Bias,
    /// So many of the best experts are chosen whatever is resident. Default 3.
    pub protect_top_j: u8,
    /// Where the mixture weights come from.
    pub weights: Weights,
    /// Whether prompt tokens are biased too, not only generated ones; the caller applies it.
    /// Default false: the state after a prompt is that of the exact model.
    pub prefill: bool,
    /// Which experts count as resident; the caller applies it.
    pub resident: ResidentView,
    /// Never choose an expert in place of one that is more than so many times as probable; `None`
    /// for no such limit.
    ///
    /// An expert loses its place only to a resident one within the bias, so this is the same as a
    /// bias of at most `ln(max_regret)` nats, and is applied that way.
    pub max_regret: Option<f32>,
}

impl Default for Moce {
    fn default() -> Self {
        Self {
            bias: Bias::Off,
            protect_top_j: 3,
            weights: Weights::Unbiased,
            prefill: false,
            resident: ResidentView::ArenaOnly,
            max_regret: None,
        }
    }
}

impl Moce {
    /// The defaults with a bias.
    #[must_use]
    pub fn new(bias: Bias) -> Self {
        Self {
            bias,
            ..Self::default()
        }
    }

    /// The same with another number of protected experts.
    #[must_use]
    pub const fn with_protected(mut self, top_j: u8) -> Self {
        self.protect_top_j = top_j;
        self
    }

    /// The same with a limit on the probability given up.
    #[must_use]
    pub const fn with_max_regret(mut self, factor: f32) -> Self {
        self.max_regret = Some(factor);
        self
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// [`Error::BadTuning`] names the setting that is out of range.
    pub fn check(&self) -> Result<(), Error> {
        match self.bias {
            Bias::Off => {}
            Bias::Relative { lambda, avg } => {
                check_range("lambda", lambda, 0.0, 1.0)?;
                if let RangeAvg::Ema { rho } = avg {
                    check_range("rho", rho, f32::MIN_POSITIVE, 1.0)?;
                }
            }
            Bias::Absolute { nats } => check_range("nats", nats, 0.0, f32::MAX)?,
        }
        match self.max_regret {
            Some(factor) => check_range("max_regret", factor, 1.0, f32::MAX),
            None => Ok(()),
        }
    }

    /// The bias in nats for one decision; a relative one updates the layer's mean first.
    ///
    /// Call it once for each decision that the bias applies to, in order. Rows without two finite
    /// logits leave the mean as it is.
    pub fn beta(&self, mean: &mut RangeMean, logits: &[f32]) -> f64 {
        let beta = match self.bias {
            Bias::Off => 0.0,
            Bias::Absolute { nats } => f64::from(nats),
            Bias::Relative { lambda, avg } => f64::from(lambda) * mean.update(logits, avg),
        };
        match self.max_regret {
            Some(factor) => beta.min(ln(f64::from(factor))),
            None => beta,
        }
    }
}

/// The running mean of one layer's logit ranges: part of a session's state.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct RangeMean {
    /// The mean, in nats.
    pub mean: f64,
    /// Decisions seen.
    pub n: u64,
}

impl RangeMean {
    /// A mean as saved before.
    #[must_use]
    pub const fn new(mean: f64, n: u64) -> Self {
        Self { mean, n }
    }

    fn update(&mut self, logits: &[f32], avg: RangeAvg) -> f64 {
        let (mut least, mut greatest) = (f64::INFINITY, f64::NEG_INFINITY);
        for z in logits.iter().filter(|z| z.is_finite()) {
            least = least.min(f64::from(*z));
            greatest = greatest.max(f64::from(*z));
        }
        if least < greatest || (self.n == 0 && least <= greatest) {
            let range = greatest - least;
            self.n += 1;
            let rate = match avg {
                // Counts stay below 2^53.
                RangeAvg::Cumulative => 1.0 / self.n as f64,
                RangeAvg::Ema { .. } if self.n == 1 => 1.0,
                RangeAvg::Ema { rho } => f64::from(rho),
            };
            self.mean += (range - self.mean) * rate;
        }
        self.mean
    }
}

impl fmt::Display for Bias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.pad("off"),
            Self::Relative { lambda, .. } => write!(f, "rel:{lambda}"),
            Self::Absolute { nats } => write!(f, "abs:{nats}"),
        }
    }
}

impl FromStr for Bias {
    type Err = Error;

    /// Reads `off`, `rel:<lambda>` (cumulative mean) or `abs:<nats>`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let number = |digits: &str| digits.parse::<f32>().ok();
        let bias = if text == "off" {
            Some(Self::Off)
        } else if let Some(digits) = text.strip_prefix("rel:") {
            number(digits).map(|lambda| Self::Relative {
                lambda,
                avg: RangeAvg::Cumulative,
            })
        } else if let Some(digits) = text.strip_prefix("abs:") {
            number(digits).map(|nats| Self::Absolute { nats })
        } else {
            None
        };
        bias.filter(|&bias| Moce::new(bias).check().is_ok())
            .ok_or_else(|| Error::BadBias {
                text: String::from(text),
            })
    }
}

fn check_range(name: &'static str, found: f32, min: f32, max: f32) -> Result<(), Error> {
    if (min..=max).contains(&found) {
        return Ok(());
    }
    Err(Error::BadTuning {
        name,
        found: f64::from(found),
        min: f64::from(min),
        max: f64::from(max),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    /// Equality of figures given to six decimals.
    fn same(found: impl Into<f64>, expected: f64) {
        let found = found.into();
        assert!((found - expected).abs() < 6e-7, "{found} is not {expected}");
    }

    #[test]
    fn the_mean_of_ranges_is_updated_before_use() {
        let bias = "rel:1".parse().expect("valid");
        let mut mean = RangeMean::default();
        for (range, expected) in [(4.0, 4.0), (6.0, 5.0), (5.0, 5.0)] {
            same(Moce::new(bias).beta(&mut mean, &[0.0, range]), expected);
        }
        let ema = Moce::new(Bias::Relative {
            lambda: 1.0,
            avg: RangeAvg::Ema { rho: 0.25 },
        });
        let mut mean = RangeMean::default();
        for (range, expected) in [(4.0, 4.0), (6.0, 4.5), (0.5, 3.5)] {
            same(ema.beta(&mut mean, &[0.0, range]), expected);
        }
        // A row without finite logits says nothing about the range.
        same(ema.beta(&mut mean, &[f32::NAN, f32::NEG_INFINITY]), 3.5);
        assert_eq!(mean.n, 3);
    }

    #[test]
    fn a_bias_reads_back_from_its_text_and_nonsense_is_refused() {
        for text in ["off", "rel:0.09", "abs:0.85"] {
            let bias: Bias = text.parse().expect("valid");
            assert_eq!(bias.to_string(), text);
        }
        for text in [
            "", "on", "rel:", "rel:2", "rel:-1", "rel:NaN", "abs:-1", "abs:inf",
        ] {
            assert!(text.parse::<Bias>().is_err(), "{text}");
        }
    }
}

//! From sums of windows to figures: by domain, pooled over tokens, and the mean of domains.
//!
//! Owns what the figures mean and how sure they are; the formulas are `statistics`. Memory: the
//! figures. Invariants: 1. every figure is finite; 2. where nothing can be said of an error or an
//! interval, there is none.

use serde::{Deserialize, Serialize};

use crate::metrics::WindowSums;
use crate::statistics::{Bootstrap, Interval, Sum, macro_error, pooled_error};
use crate::{Error, Result};

/// Figures of one or more windows.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Figures {
    /// Windows.
    pub n_windows: usize,
    /// Scored tokens.
    pub n_tokens: u64,
    /// Mean divergence of a token, `KL(reference || test)` in nats.
    pub kld: f64,
    /// Standard error of `kld`, windows being the units; none for a single window.
    pub kld_error: Option<f64>,
    /// Standard error of `kld` if all tokens were independent, which flatters; none for a single
    /// token and for the mean of domains with one.
    pub kld_error_by_token: Option<f64>,
    /// Interval of `kld`.
    pub kld_interval: Option<Interval>,
    /// Share of tokens at which both models have the same likeliest token.
    pub top1: f64,
    /// Interval of `top1`.
    pub top1_interval: Option<Interval>,
    /// Mean negative log-likelihood of the reference, in nats.
    pub reference_nll: f64,
    /// The same of the test.
    pub test_nll: f64,
    /// Interval of `test_nll - reference_nll`, from the same windows for both.
    pub nll_change_interval: Option<Interval>,
    /// Perplexity of the reference: the exponential of its `nll`.
    pub reference_ppl: f64,
    /// The same of the test.
    pub test_ppl: f64,
}

/// Figures of a comparison.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Summary {
    /// By domain, with its name.
    pub domains: Vec<DomainFigures>,
    /// All tokens alike.
    pub pooled: Figures,
    /// All domains alike: means of the domains' means. Its perplexities are exponentials of the mean
    /// likelihoods, hence geometric means. Its interval draws windows within each domain.
    #[serde(rename = "macro")]
    pub macro_mean: Figures,
}

/// Figures of one domain.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DomainFigures {
    /// Its name.
    pub name: String,
    /// Its figures.
    #[serde(flatten)]
    pub figures: Figures,
}

impl Summary {
    /// Figures of these windows, whose domains are numbers into `domains`.
    ///
    /// # Errors
    /// [`Error::WrongCount`] for a domain without a scored token (a mean of domains would be one of
    /// fewer), [`Error::NoSuch`] for a window of no domain, [`Error::OutOfRange`] for unusable
    /// settings of `bootstrap` or sums that are not finite.
    ///
    /// # Cost
    /// Resamples times windows, three times over.
    pub fn of(domains: &[String], windows: &[WindowSums], bootstrap: &Bootstrap) -> Result<Self> {
        let mut by_domain: Vec<Vec<WindowSums>> = vec![Vec::new(); domains.len()];
        for window in windows {
            let place = by_domain.get_mut(window.domain).ok_or(Error::NoSuch {
                what: "domain",
                found: window.domain as u64,
                limit: domains.len() as u64,
            })?;
            place.push(*window);
        }
        let is_empty = |windows: &Vec<WindowSums>| windows.iter().all(|w| w.n_tokens == 0);
        if domains.is_empty() || by_domain.iter().any(is_empty) {
            return Err(Error::WrongCount {
                what: "domains with scored tokens",
                expected: domains.len().max(1),
                found: by_domain.iter().filter(|w| !is_empty(w)).count(),
            });
        }
        let named = domains.iter().zip(&by_domain);
        let figures = named.map(|(name, windows)| {
            Ok(DomainFigures {
                name: name.clone(),
                figures: pooled(windows, bootstrap)?,
            })
        });
        let figures: Vec<_> = figures.collect::<Result<_>>()?;
        Ok(Self {
            pooled: pooled(windows, bootstrap)?,
            macro_mean: macro_mean(&figures, &by_domain, bootstrap)?,
            domains: figures,
        })
    }
}

/// Divergence, change of likelihood and agreement of some windows, pooled.
fn means(windows: &[WindowSums], drawn: impl Iterator<Item = usize>) -> [f64; 3] {
    let (mut kld, mut change, mut same, mut n) = (0.0, 0.0, 0, 0);
    for i in drawn {
        let window = &windows[i];
        kld += window.kld;
        change += window.test_nll - window.reference_nll;
        same += window.n_same_top1;
        n += window.n_tokens;
    }
    let n = n as f64;
    [kld / n, change / n, same as f64 / n]
}

fn pooled(windows: &[WindowSums], bootstrap: &Bootstrap) -> Result<Figures> {
    let intervals = bootstrap.intervals(&[windows.len()], |drawn| {
        means(windows, drawn.iter().copied())
    })?;
    let n_tokens: u64 = windows.iter().map(|w| w.n_tokens).sum();
    let n = n_tokens as f64;
    let mean = |of: fn(&WindowSums) -> f64| windows.iter().map(of).sum::<f64>() / n;
    let kld = mean(|w| w.kld);
    let variance = (mean(|w| w.kld_squares) - kld * kld).max(0.0);
    let units: Vec<Sum> = windows.iter().map(|w| (w.kld, w.n_tokens)).collect();
    let figures = Figures {
        n_windows: windows.len(),
        n_tokens,
        kld,
        kld_error: pooled_error(&units),
        kld_error_by_token: (n_tokens > 1).then(|| (variance / (n - 1.0)).sqrt()),
        top1: mean(|w| w.n_same_top1 as f64),
        reference_nll: mean(|w| w.reference_nll),
        test_nll: mean(|w| w.test_nll),
        ..Figures::without_intervals()
    };
    figures.completed(intervals)
}

fn macro_mean(
    domains: &[DomainFigures],
    windows: &[Vec<WindowSums>],
    bootstrap: &Bootstrap,
) -> Result<Figures> {
    let strata: Vec<usize> = windows.iter().map(Vec::len).collect();
    let all = windows.concat();
    let n_domains = strata.len() as f64;
    let intervals = bootstrap.intervals(&strata, |drawn| {
        let mut total = [0.0; 3];
        let mut first = 0;
        for &n in &strata {
            let domain = means(&all, drawn[first..first + n].iter().copied());
            first += n;
            for (total, value) in total.iter_mut().zip(domain) {
                *total += value / n_domains;
            }
        }
        total
    })?;
    let mean =
        |of: fn(&Figures) -> f64| domains.iter().map(|d| of(&d.figures)).sum::<f64>() / n_domains;
    let error = |of: fn(&Figures) -> Option<f64>| {
        let errors: Option<Vec<f64>> = domains.iter().map(|d| of(&d.figures)).collect();
        errors.and_then(|errors| macro_error(&errors))
    };
    let figures = Figures {
        n_windows: all.len(),
        n_tokens: all.iter().map(|w| w.n_tokens).sum(),
        kld: mean(|f| f.kld),
        kld_error: error(|f| f.kld_error),
        kld_error_by_token: error(|f| f.kld_error_by_token),
        top1: mean(|f| f.top1),
        reference_nll: mean(|f| f.reference_nll),
        test_nll: mean(|f| f.test_nll),
        ..Figures::without_intervals()
    };
    figures.completed(intervals)
}

impl Figures {
    /// What is filled in by [`completed`](Self::completed).
    fn without_intervals() -> Self {
        Self {
            n_windows: 0,
            n_tokens: 0,
            kld: 0.0,
            kld_error: None,
            kld_error_by_token: None,
            kld_interval: None,
            top1: 0.0,
            top1_interval: None,
            reference_nll: 0.0,
            test_nll: 0.0,
            nll_change_interval: None,
            reference_ppl: 1.0,
            test_ppl: 1.0,
        }
    }

    /// Adds intervals in the order of [`means`] and what follows from the likelihoods.
    fn completed(mut self, intervals: Option<[Interval; 3]>) -> Result<Self> {
        if let Some([kld, change, top1]) = intervals {
            self.kld_interval = Some(kld);
            self.nll_change_interval = Some(change);
            self.top1_interval = Some(top1);
        }
        self.reference_ppl = self.reference_nll.exp();
        self.test_ppl = self.test_nll.exp();
        for (field, found) in [
            ("kld", self.kld),
            ("kld_error", self.kld_error.unwrap_or(0.0)),
            ("reference_ppl", self.reference_ppl),
            ("test_ppl", self.test_ppl),
        ] {
            if !found.is_finite() {
                return Err(Error::OutOfRange {
                    field,
                    index: None,
                    found,
                    expected: "a finite number",
                });
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(domain: usize, n_tokens: u64, kld: f64, nll: [f64; 2], same: u64) -> WindowSums {
        let mut sums = WindowSums::new(domain);
        sums.n_tokens = n_tokens;
        sums.kld = kld * n_tokens as f64;
        sums.kld_squares = kld * kld * n_tokens as f64;
        [sums.reference_nll, sums.test_nll] = nll.map(|nll| nll * n_tokens as f64);
        sums.n_same_top1 = same;
        sums
    }

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-12, "{found} for {expected}");
    }

    fn names(n: usize) -> Vec<String> {
        ["en", "ja", "ops"][..n]
            .iter()
            .map(|s| (*s).to_owned())
            .collect()
    }

    #[test]
    fn pooled_weighs_tokens_and_macro_weighs_domains() {
        let windows = [
            window(0, 10, 0.1, [2.0, 2.5], 9),
            window(1, 30, 0.3, [1.0, 1.0], 15),
            window(0, 10, 0.2, [2.0, 2.1], 7),
            window(1, 10, 0.3, [1.0, 1.4], 5),
        ];
        let found = Summary::of(&names(2), &windows, &Bootstrap::default()).unwrap();
        let [en, ja] = &found.domains[..] else {
            panic!("two domains")
        };
        near(en.figures.kld, 0.15);
        near(ja.figures.kld, 0.3);
        near(found.pooled.kld, 15.0 / 60.0);
        near(found.macro_mean.kld, 0.225);
        near(en.figures.top1, 0.8);
        near(found.macro_mean.top1, 0.65);
        near(found.pooled.test_ppl, 1.5f64.exp());
        near(found.macro_mean.reference_ppl, 1.5f64.exp());
        // Two windows of one size: half their difference.
        near(en.figures.kld_error.unwrap(), 0.05);
        near(ja.figures.kld_error.unwrap(), 0.0);
        near(found.macro_mean.kld_error.unwrap(), 0.025);
        // Ten tokens of 0.1 and ten of 0.2.
        near(en.figures.kld_error_by_token.unwrap(), 0.05 / 19f64.sqrt());

        // A domain's windows never stand for another's: its draws give 0.1 to 0.2, the other's 0.3.
        let interval = found.macro_mean.kld_interval.unwrap();
        near(interval.low, 0.2);
        near(interval.high, 0.25);
        let interval = en.figures.nll_change_interval.unwrap();
        near(interval.low, 0.1);
        near(interval.high, 0.5);
        let pooled = found.pooled.kld_interval.unwrap();
        assert!(pooled.low < interval.low + 0.1 && pooled.high > 0.28);
    }

    #[test]
    fn a_single_window_has_figures_and_no_interval() {
        let windows = [
            window(0, 10, 0.1, [2.0, 2.0], 10),
            window(0, 10, 0.2, [2.0, 2.0], 10),
            window(1, 10, 0.4, [2.0, 2.0], 10),
        ];
        let found = Summary::of(&names(2), &windows, &Bootstrap::default()).unwrap();
        let ja = &found.domains[1].figures;
        near(ja.kld, 0.4);
        assert_eq!((ja.kld_interval, ja.kld_error), (None, None));
        assert_eq!(ja.top1_interval, None);
        // The mean of domains is as unsure as the least sure of them.
        assert_eq!(found.macro_mean.kld_interval, None);
        assert_eq!(found.macro_mean.kld_error, None);
        assert!(found.domains[0].figures.kld_interval.is_some());
        assert!(found.pooled.kld_interval.is_some());
    }

    #[test]
    fn domains_without_tokens_and_windows_without_a_domain_are_refused() {
        let one = window(0, 10, 0.1, [2.0, 2.0], 10);
        let message = |n, windows: &[WindowSums]| {
            let found = Summary::of(&names(n), windows, &Bootstrap::default());
            found.unwrap_err().to_string()
        };
        assert!(message(2, &[one]).contains("1 given, expected 2"));
        assert!(message(0, &[]).contains("0 given, expected 1"));
        assert!(message(1, &[one, window(1, 1, 0.0, [1.0, 1.0], 1)]).contains("domain 1 of 1"));
        let huge = window(0, 1, 0.1, [800.0, 1.0], 1);
        assert!(message(1, &[huge]).contains("reference_ppl is inf"));
    }

    #[test]
    fn json_has_the_names_that_people_expect() {
        let windows = [
            window(0, 4, 0.0, [1.0, 1.0], 4),
            window(0, 4, 0.0, [1.0, 1.0], 4),
        ];
        let found = Summary::of(&names(1), &windows, &Bootstrap::default()).unwrap();
        let value = serde_json::to_value(&found).unwrap();
        assert_eq!(value["macro"]["kld"], 0.0);
        assert_eq!(
            value["pooled"]["kld_interval"],
            serde_json::json!([0.0, 0.0])
        );
        assert_eq!(value["domains"][0]["name"], "en");
        assert_eq!(value["domains"][0]["top1"], 1.0);
        assert_eq!(serde_json::from_value::<Summary>(value).unwrap(), found);
    }
}

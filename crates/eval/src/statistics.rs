//! What can be said about a difference: intervals by resampling, z tests, Fisher's exact test.
//!
//! Owns the formulas. Knows nothing of models: units are numbers, and a caller says which of them
//! belong together. Memory: the resampled statistics. Invariants: 1. the same seed gives the same
//! interval on every machine; 2. nothing is claimed of fewer than two units.

use std::f64::consts::{FRAC_2_SQRT_PI, PI, SQRT_2};

use thalweg_cache::SplitMix64;

use crate::{Error, Result};

/// A range that holds a statistic with the probability of its [`Bootstrap`].
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(into = "[f64; 2]", from = "[f64; 2]")]
#[non_exhaustive]
pub struct Interval {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Interval {
    /// The two ends.
    #[must_use]
    pub const fn new(low: f64, high: f64) -> Self {
        Self { low, high }
    }
}

impl From<Interval> for [f64; 2] {
    fn from(interval: Interval) -> Self {
        [interval.low, interval.high]
    }
}

impl From<[f64; 2]> for Interval {
    fn from([low, high]: [f64; 2]) -> Self {
        Self { low, high }
    }
}

/// Percentile bootstrap: how a statistic varies when its units are drawn again, with replacement
/// (Efron 1979).
///
/// ```
/// use thalweg_eval::statistics::Bootstrap;
/// let heights = [1.0, 2.0, 3.0, 4.0];
/// let mean = |drawn: &[usize]| [drawn.iter().map(|&i| heights[i]).sum::<f64>() / 4.0];
/// let [interval] = Bootstrap::default().intervals(&[4], mean)?.expect("more than one unit");
/// assert!(1.0 < interval.low && interval.low < 2.5 && 2.5 < interval.high);
/// # Ok::<(), thalweg_eval::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
#[expect(
    clippy::exhaustive_structs,
    reason = "callers write `Bootstrap { field, ..default }`"
)]
pub struct Bootstrap {
    /// How often the units are drawn again; at least 1.
    pub n_resamples: u32,
    /// Seed of the draws.
    pub seed: u64,
    /// Probability that the interval shall hold, between 0 and 1.
    pub level: f64,
}

impl Default for Bootstrap {
    /// 10,000 resamples, 95 %.
    fn default() -> Self {
        Self {
            n_resamples: 10_000,
            seed: 1,
            level: 0.95,
        }
    }
}

impl Bootstrap {
    /// Intervals of `N` statistics that are computed from the same draws. Units are numbered from
    /// zero, stratum after stratum; `strata` has their numbers, and each stratum is drawn from by
    /// itself, so that its size stays. `statistic` gets the numbers that were drawn.
    ///
    /// `None` if a stratum has fewer than two units: drawing one unit again shows no variation,
    /// which is not the same as there being none. Statistics that are paired draw their pairs:
    /// a unit is then a pair.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for no resamples, a level outside 0 to 1, and a statistic that is not
    /// finite.
    ///
    /// # Cost
    /// `n_resamples` calls of `statistic`, and a sort.
    pub fn intervals<const N: usize>(
        &self,
        strata: &[usize],
        mut statistic: impl FnMut(&[usize]) -> [f64; N],
    ) -> Result<Option<[Interval; N]>> {
        let out_of_range = |field, found, expected| Error::OutOfRange {
            field,
            index: None,
            found,
            expected,
        };
        if self.n_resamples == 0 {
            return Err(out_of_range("n_resamples", 0.0, "at least 1"));
        }
        if !(self.level > 0.0 && self.level < 1.0) {
            let expected = "a number between 0 and 1";
            return Err(out_of_range("level", self.level, expected));
        }
        if strata.is_empty() || strata.iter().any(|n| *n < 2) {
            return Ok(None);
        }
        let mut random = SplitMix64::new(self.seed);
        let mut drawn = vec![0; strata.iter().sum()];
        let mut values: [Vec<f64>; N] = std::array::from_fn(|_| Vec::new());
        for _ in 0..self.n_resamples {
            let mut first = 0;
            for &n in strata {
                for place in &mut drawn[first..first + n] {
                    // Below n, which is a usize.
                    *place = first + random.below(n as u64) as usize;
                }
                first += n;
            }
            for (values, value) in values.iter_mut().zip(statistic(&drawn)) {
                if !value.is_finite() {
                    return Err(out_of_range("a resampled statistic", value, "finite"));
                }
                values.push(value);
            }
        }
        let tail = (1.0 - self.level) / 2.0;
        Ok(Some(values.map(|mut values| {
            values.sort_by(f64::total_cmp);
            Interval {
                low: percentile(&values, tail),
                high: percentile(&values, 1.0 - tail),
            }
        })))
    }
}

/// The value below which a share `q` of ascending values lies, between neighbors on a straight line
/// (the definition that NumPy and R take by default); not a number for no values.
#[must_use]
pub fn percentile(ascending: &[f64], q: f64) -> f64 {
    let Some(last) = ascending.len().checked_sub(1) else {
        return f64::NAN;
    };
    let place = q.clamp(0.0, 1.0) * last as f64;
    // At most `last`.
    let below = place.floor() as usize;
    let above = (below + 1).min(last);
    let part = place - below as f64;
    ascending[below] + part * (ascending[above] - ascending[below])
}

/// Sum of a unit (a window) and how many things it is a sum of (scored tokens).
pub type Sum = (f64, u64);

/// Change of a pooled mean from `a` to `b` relative to `a`, over the pairs with these numbers:
/// `sum(b) / sum(a) - 1` where both have the same counts. Not finite if `a` sums to zero.
#[must_use]
pub fn relative_change(a: &[Sum], b: &[Sum], drawn: &[usize]) -> f64 {
    pooled_mean(b, drawn) / pooled_mean(a, drawn) - 1.0
}

/// Sum over count of the units with these numbers.
#[must_use]
pub fn pooled_mean(units: &[Sum], drawn: &[usize]) -> f64 {
    let (mut sum, mut count) = (0.0, 0);
    for &i in drawn {
        sum += units[i].0;
        count += units[i].1;
    }
    sum / count as f64
}

/// A difference in units of its standard error.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct ZTest {
    /// The difference: first minus second.
    pub difference: f64,
    /// Its standard error.
    pub standard_error: f64,
    /// Their quotient; the sign is the difference's.
    pub z: f64,
    /// Degrees of freedom of the standard error, where it was estimated from few units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub degrees_of_freedom: Option<u32>,
    /// Probability of a quotient at least as far from zero if there were no difference: by Student's
    /// distribution with these degrees of freedom, by the normal one without.
    pub p_two_sided: f64,
}

impl ZTest {
    fn new(difference: f64, standard_error: f64, degrees_of_freedom: Option<u32>) -> Option<Self> {
        let z = difference / standard_error;
        let is_usable = z.is_finite() && standard_error > 0.0 && degrees_of_freedom != Some(0);
        is_usable.then(|| Self {
            difference,
            standard_error,
            z,
            degrees_of_freedom,
            p_two_sided: match degrees_of_freedom {
                Some(degrees) => student_two_sided(z, degrees),
                None => erfc(z.abs() / SQRT_2).min(1.0),
            },
        })
    }
}

/// Two means that were measured on different units: `(m1 - m2) / sqrt(se1^2 + se2^2)`. `None` where
/// the standard error is zero or something is not finite.
#[must_use]
pub fn unpaired_z(first: (f64, f64), second: (f64, f64)) -> Option<ZTest> {
    ZTest::new(first.0 - second.0, first.1.hypot(second.1), None)
}

/// Two means that were measured on the same units, from the differences of each: their mean over
/// its standard error. `None` for fewer than two and where all are equal.
#[must_use]
pub fn paired_z(differences: &[f64]) -> Option<ZTest> {
    let (mean, error) = mean_and_error(differences)?;
    let degrees = u32::try_from(differences.len() - 1).unwrap_or(u32::MAX);
    ZTest::new(mean, error, Some(degrees))
}

/// The mean of several groups' paired differences, groups weighing alike: its error is
/// [`macro_error`], its degrees of freedom are those of Welch and Satterthwaite, rounded down. `None`
/// if a group has fewer than two differences, and where nothing varies.
#[must_use]
pub fn macro_paired_z(groups: &[Vec<f64>]) -> Option<ZTest> {
    let found: Option<Vec<(f64, f64)>> = groups.iter().map(|g| mean_and_error(g)).collect();
    let (means, errors): (Vec<f64>, Vec<f64>) = found?.into_iter().unzip();
    let mean = means.iter().sum::<f64>() / means.len() as f64;
    let squares: f64 = errors.iter().map(|e| e * e).sum();
    let parts = errors.iter().zip(groups);
    let parts: f64 = parts
        .map(|(e, group)| e.powi(4) / (group.len() as f64 - 1.0))
        .sum();
    // At least 1 where anything varies; far fewer than a u32 holds.
    let degrees = (squares * squares / parts).max(1.0) as u32;
    ZTest::new(mean, macro_error(&errors)?, Some(degrees))
}

/// Mean of values and its standard error, with the variance over n - 1; `None` for fewer than two.
#[must_use]
pub fn mean_and_error(values: &[f64]) -> Option<(f64, f64)> {
    if values.len() < 2 {
        return None;
    }
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    Some((mean, (squares / (n - 1.0) / n).sqrt()))
}

/// Standard error of a pooled mean whose units vary as wholes: tokens of one window resemble one
/// another, windows do less. First-order expansion of the quotient of two sums (Cochran 1977,
/// 2.11). `None` for fewer than two units or no counts.
#[must_use]
pub fn pooled_error(units: &[Sum]) -> Option<f64> {
    let n = units.len() as f64;
    let count: u64 = units.iter().map(|u| u.1).sum();
    if units.len() < 2 || count == 0 {
        return None;
    }
    let mean = units.iter().map(|u| u.0).sum::<f64>() / count as f64;
    let squares: f64 = units
        .iter()
        .map(|(sum, count)| (sum - mean * *count as f64).powi(2))
        .sum();
    Some((n / (n - 1.0) * squares).sqrt() / count as f64)
}

/// Standard error of a mean of independent means: `sqrt(sum of squares) / their number`; `None` if
/// there are none.
#[must_use]
pub fn macro_error(errors: &[f64]) -> Option<f64> {
    let squares: f64 = errors.iter().map(|e| e * e).sum();
    (!errors.is_empty()).then(|| squares.sqrt() / errors.len() as f64)
}

/// Fisher's exact test of two rates.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Fisher {
    /// Probability of tables that are no likelier than the one seen.
    pub p_two_sided: f64,
    /// Probability of at most the first group's successes.
    pub p_less: f64,
    /// Probability of at least the first group's successes.
    pub p_greater: f64,
}

/// Successes of so many tries in two groups: how likely such a table is if both have one rate and
/// the margins are given.
///
/// ```
/// use thalweg_eval::statistics::fisher_exact;
/// let test = fisher_exact((17, 20), (20, 20))?;
/// assert_eq!(format!("{:.6} {:.6}", test.p_two_sided, test.p_less), "0.230769 0.115385");
/// # Ok::<(), thalweg_eval::Error>(())
/// ```
///
/// # Errors
/// [`Error::OutOfRange`] for more successes than tries.
///
/// # Cost
/// One step for each table with these margins.
pub fn fisher_exact(first: (u32, u32), second: (u32, u32)) -> Result<Fisher> {
    for (index, (successes, tries)) in [first, second].into_iter().enumerate() {
        if successes > tries {
            return Err(Error::OutOfRange {
                field: "successes",
                index: Some(index),
                found: f64::from(successes),
                expected: "at most the tries",
            });
        }
    }
    let [a, n1, b, n2] = [first.0, first.1, second.0, second.1].map(u64::from);
    let hits = a + b;
    let least = hits.saturating_sub(n2);
    let most = hits.min(n1);
    // Weight of a table relative to the likeliest one, by the quotient of neighbors: no factorial is
    // taken, so nothing overflows, and what underflows is too small to count.
    let likeliest = ((hits + 1) * (n1 + 1) / (n1 + n2 + 2)).clamp(least, most);
    let ratio = |k: u64| {
        // From k to k + 1 successes of the first group.
        let up = (n1 - k) as f64 * (hits - k) as f64;
        up / ((k + 1) as f64 * (n2 + k + 1 - hits) as f64)
    };
    let rising = (likeliest..most).scan(1.0, |weight, k| {
        *weight *= ratio(k);
        Some((k + 1, *weight))
    });
    let falling = (least..likeliest).rev().scan(1.0, |weight, k| {
        *weight /= ratio(k);
        Some((k, *weight))
    });
    let mut tables: Vec<(u64, f64)> = falling.collect();
    tables.reverse();
    tables.push((likeliest, 1.0));
    tables.extend(rising);
    let seen = tables.iter().find(|(k, _)| *k == a).map_or(0.0, |t| t.1);
    let share = |wanted: &dyn Fn(u64, f64) -> bool| {
        let part: f64 = tables
            .iter()
            .filter(|(k, w)| wanted(*k, *w))
            .map(|t| t.1)
            .sum();
        let all: f64 = tables.iter().map(|t| t.1).sum();
        (part / all).min(1.0)
    };
    // Tables that are equally likely may differ in their last bits.
    Ok(Fisher {
        p_two_sided: share(&|_, w| w <= seen * (1.0 + 1e-9)),
        p_less: share(&|k, _| k <= a),
        p_greater: share(&|k, _| k >= a),
    })
}

/// Probability of a value at least as far from zero under Student's distribution (Abramowitz and
/// Stegun 26.7.3 and 26.7.4: finite sums). From 1000 degrees on the normal one is taken. Off by about
/// 1e-15, so that smaller results are 0.
fn student_two_sided(t: f64, degrees: u32) -> f64 {
    if degrees >= 1000 {
        return erfc(t.abs() / SQRT_2).min(1.0);
    }
    let angle = (t.abs() / f64::from(degrees).sqrt()).atan();
    let (sin, cos) = angle.sin_cos();
    let is_odd = degrees % 2 == 1;
    // Terms cos, 2/3 cos^3, ... or 1, 1/2 cos^2, ...
    let (mut term, mut k) = if is_odd { (cos, 1) } else { (1.0, 0) };
    let mut sum = 0.0;
    while k + 2 <= degrees {
        sum += term;
        k += 2;
        term *= cos * cos * f64::from(k - 1) / f64::from(k);
    }
    let within = if is_odd {
        (angle + sin * sum) * 2.0 / PI
    } else {
        sin * sum
    };
    (1.0 - within).clamp(0.0, 1.0)
}

/// The complementary error function: twice the upper tail of a normal distribution with variance
/// one half. Relative error below 1e-13.
///
/// Near zero by the series of erf (Abramowitz and Stegun 7.1.6), farther out by the continued
/// fraction (7.1.14), from its end.
#[must_use]
pub fn erfc(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x < 0.0 {
        return 2.0 - erfc(-x);
    }
    if x < 2.0 {
        // erf x = 2/sqrt(pi) exp(-x^2) (x + 2 x^3/3 + 4 x^5/15 + ...), all terms positive.
        let (mut term, mut sum, mut n) = (x, x, 0.0);
        while term > sum * 1e-17 {
            n += 1.0;
            term *= 2.0 * x * x / (2.0 * n + 1.0);
            sum += term;
        }
        return 1.0 - FRAC_2_SQRT_PI * (-x * x).exp() * sum;
    }
    let fraction = (1..=80).rev().fold(x, |f, k| x + f64::from(k) / 2.0 / f);
    (-x * x).exp() / (PI.sqrt() * fraction)
}

#[cfg(test)]
mod tests;

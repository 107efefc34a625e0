//! Constants of the models from rows of a table.
//!
//! Owns least squares fits of two constants, and the exact set of constants that reproduce every
//! row to the digits printed. Does not judge whether a model is right; residuals and an empty set
//! say that it is not. Invariants: 1. residuals are model minus row, in the rows' order; 2. every
//! point of a feasible set reproduces all rows. Cost: O(rows^2).

use std::str::FromStr;

use serde::Serialize;

pub use super::strips::Interval;

use super::decode::{bytes_of_an_expert, ms_to_read};
use super::strips::{Strip, project};
use super::{PrefillModel, TableModel};
use crate::error::{not_negative, positive};
use crate::{Error, Result};

/// A positive figure of which only so many digits are known.
///
/// ```
/// use thalweg_eval::latency::fit::Rounded;
/// let rate: Rounded = "32.10".parse()?;
/// assert_eq!((rate.value(), rate.half_unit()), (32.1, 0.005));
/// # Ok::<(), thalweg_eval::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Rounded {
    value: f64,
    half_unit: f64,
}

impl Rounded {
    /// A figure that stands for everything within `half_unit` of it; 0 for an exact one.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] unless the whole range is positive.
    pub fn new(value: f64, half_unit: f64) -> Result<Self> {
        positive("rounded value", None, value)?;
        not_negative("half unit", None, half_unit)?;
        positive("least value that rounds to it", None, value - half_unit)?;
        Ok(Self { value, half_unit })
    }

    /// A figure printed with so many decimals.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn printed(value: f64, decimals: u32) -> Result<Self> {
        Self::new(value, 0.5 / 10f64.powi(decimals.min(300).cast_signed()))
    }

    /// The figure.
    #[must_use]
    pub const fn value(&self) -> f64 {
        self.value
    }

    /// Half a unit of its last digit.
    #[must_use]
    pub const fn half_unit(&self) -> f64 {
        self.half_unit
    }

    /// What rounds to it.
    #[must_use]
    pub fn range(&self) -> Interval {
        Interval {
            low: self.value - self.half_unit,
            high: self.value + self.half_unit,
        }
    }
}

impl FromStr for Rounded {
    type Err = Error;

    /// Reads digits with at most one point; the digits after it count as printed.
    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::NotPrinted { found: text.into() };
        if !text.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
            return Err(bad());
        }
        let value: f64 = text.parse().map_err(|_| bad())?;
        let decimals = text.split_once('.').map_or(0, |(_, after)| after.len());
        Self::printed(value, u32::try_from(decimals).unwrap_or(u32::MAX)).map_err(|_| bad())
    }
}

/// A row of a decode table.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DecodeRow {
    /// Misses a token, taken as exact.
    pub misses_per_token: f64,
    /// Tokens a second.
    pub tokens_per_s: Rounded,
}

/// Floor and bandwidth from a decode table; see [`fit`].
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct DecodeFit {
    /// The least squares fit of time over misses.
    pub model: TableModel,
    /// The model's tokens a second minus the row's.
    pub residuals_tokens_per_s: Vec<f64>,
    /// Constants that reproduce every row to its digits; `None` if none do.
    pub feasible: Option<FeasibleDecode>,
}

/// The extent of the set of constants that reproduce a decode table.
///
/// The set is a polygon, so not every pair of values from the two ranges lies in it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct FeasibleDecode {
    /// Floors for which some bandwidth exists.
    pub floor_ms: Interval,
    /// Bandwidths for which some floor exists.
    pub gb_per_s: Interval,
}

/// Fits `t(m) = floor + m * b / BW` to a table.
///
/// ```
/// use thalweg_eval::latency::fit::{DecodeRow, fit};
/// let rows = [(53.95, "32.1"), (56.29, "31.3"), (44.65, "35.9")];
/// let rows = rows
///     .map(|(misses_per_token, rate)| {
///         rate.parse().map(|tokens_per_s| DecodeRow { misses_per_token, tokens_per_s })
///     })
///     .into_iter()
///     .collect::<Result<Vec<_>, _>>()?;
/// let fit = fit(&rows, 1_382_400)?;
/// assert_eq!(format!("{:.3}", fit.model.floor_ms()), "12.119");
/// assert!(fit.feasible.is_some_and(|set| set.gb_per_s.contains(3.9)));
/// # Ok::<(), thalweg_eval::Error>(())
/// ```
///
/// # Errors
/// [`Error::Underdetermined`] unless two rows differ in misses; [`Error::Unphysical`] if the best
/// constants are not positive; [`Error::OutOfRange`] for misses that are negative or infinite or an
/// expert of no bytes.
pub fn fit(rows: &[DecodeRow], expert_bytes: u64) -> Result<DecodeFit> {
    let bytes = bytes_of_an_expert(expert_bytes)? as f64;
    for (i, row) in rows.iter().enumerate() {
        not_negative("misses_per_token", Some(i), row.misses_per_token)?;
    }
    let points = rows
        .iter()
        .map(|row| ([1.0, row.misses_per_token], 1e3 / row.tokens_per_s.value));
    let [floor_ms, ms_per_miss] = least_squares(points)?;
    let gb_per_s = bytes / ms_per_miss / 1e6;
    let model =
        TableModel::new(floor_ms, expert_bytes, gb_per_s).map_err(|_| Error::Unphysical {
            first_name: "floor_ms",
            first: floor_ms,
            second_name: "ms_per_miss",
            second: ms_per_miss,
        })?;
    let residuals_tokens_per_s = rows
        .iter()
        .map(|row| Ok(model.tokens_per_s(row.misses_per_token)? - row.tokens_per_s.value))
        .collect::<Result<_>>()?;
    let strips: Vec<_> = rows
        .iter()
        .map(|row| {
            let ms = row.tokens_per_s.range().inverse(1e3);
            Strip {
                a: 1.0,
                b: row.misses_per_token,
                low: ms.low,
                high: ms.high,
            }
        })
        .collect();
    let feasible = project_both(&strips).map(|[floor_ms, ms_per_miss]| FeasibleDecode {
        floor_ms,
        gb_per_s: ms_per_miss.inverse(bytes / 1e6),
    });
    Ok(DecodeFit {
        model,
        residuals_tokens_per_s,
        feasible,
    })
}

/// A row of a decode table whose bandwidth is known.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FloorRow {
    /// Misses a token, taken as exact.
    pub misses_per_token: f64,
    /// Bandwidth under which the row was made, taken as exact.
    pub gb_per_s: f64,
    /// Tokens a second.
    pub tokens_per_s: Rounded,
}

/// A floor common to rows of known bandwidths; see [`fit_floor`].
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct FloorFit {
    /// The middle of the feasible range, or the mean over the rows if that is empty.
    pub floor_ms: f64,
    /// The model's tokens a second minus the row's.
    pub residuals_tokens_per_s: Vec<f64>,
    /// Floors that reproduce every row to its digits; `None` if none do.
    pub feasible: Option<Interval>,
}

/// Fits the floor alone.
///
/// # Errors
/// [`Error::Underdetermined`] without rows; [`Error::OutOfRange`] for a floor that is not positive
/// (reads alone take longer than the rows say) and for unusable figures.
pub fn fit_floor(rows: &[FloorRow], expert_bytes: u64) -> Result<FloorFit> {
    bytes_of_an_expert(expert_bytes)?;
    if rows.is_empty() {
        return Err(Error::Underdetermined {
            n_rows: 0,
            n_constants: 1,
        });
    }
    let mut range = Interval {
        low: 0.0,
        high: f64::INFINITY,
    };
    let mut sum = 0.0;
    for (i, row) in rows.iter().enumerate() {
        not_negative("misses_per_token", Some(i), row.misses_per_token)?;
        positive("gb_per_s", Some(i), row.gb_per_s)?;
        let io_ms = ms_to_read(row.misses_per_token * expert_bytes as f64, row.gb_per_s);
        let total_ms = row.tokens_per_s.range().inverse(1e3);
        range.low = range.low.max(total_ms.low - io_ms);
        range.high = range.high.min(total_ms.high - io_ms);
        sum += 1e3 / row.tokens_per_s.value - io_ms;
    }
    let feasible = (range.low <= range.high).then_some(range);
    let floor_ms = feasible.map_or(sum / rows.len() as f64, |range| range.middle());
    let residuals_tokens_per_s = rows
        .iter()
        .map(|row| {
            let model = TableModel::new(floor_ms, expert_bytes, row.gb_per_s)?;
            Ok(model.tokens_per_s(row.misses_per_token)? - row.tokens_per_s.value)
        })
        .collect::<Result<_>>()?;
    Ok(FloorFit {
        floor_ms,
        residuals_tokens_per_s,
        feasible,
    })
}

/// Misses a token that explain rates printed for several bandwidths; `None` if no number of misses
/// explains all of them.
///
/// # Errors
/// [`Error::Underdetermined`] without rates; [`Error::OutOfRange`] for unusable constants.
pub fn implied_misses(
    rates: &[(f64, Rounded)],
    floor_ms: f64,
    expert_bytes: u64,
) -> Result<Option<Interval>> {
    if rates.is_empty() {
        return Err(Error::Underdetermined {
            n_rows: 0,
            n_constants: 1,
        });
    }
    let mut range = Interval {
        low: 0.0,
        high: f64::INFINITY,
    };
    for &(gb_per_s, rate) in rates {
        let model = TableModel::new(floor_ms, expert_bytes, gb_per_s)?;
        let ms = rate.range().inverse(1e3);
        range.low = range.low.max((ms.low - floor_ms) / model.ms_per_miss());
        range.high = range.high.min((ms.high - floor_ms) / model.ms_per_miss());
    }
    Ok((range.low <= range.high).then_some(range))
}

/// A row of a prefill table.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PrefillRow {
    /// Tokens of the prompt.
    pub n_tokens: u64,
    /// Bytes of experts read, taken as exact.
    pub read_bytes: f64,
    /// What was printed.
    pub speed: PrefillSpeed,
}

/// Time or rate of a prompt.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum PrefillSpeed {
    /// Tokens a second.
    TokensPerS(Rounded),
    /// Seconds for the whole prompt.
    Seconds(Rounded),
}

impl PrefillRow {
    /// The time it was printed as, and the times that would be printed so.
    fn seconds(&self) -> (f64, Interval) {
        match self.speed {
            PrefillSpeed::Seconds(time) => (time.value, time.range()),
            PrefillSpeed::TokensPerS(rate) => {
                let n = self.n_tokens as f64;
                (n / rate.value, rate.range().inverse(n))
            }
        }
    }
}

/// Ceiling and bandwidth from a prefill table; see [`fit_prefill`].
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct PrefillFit {
    /// The least squares fit of time over tokens and bytes.
    pub model: PrefillModel,
    /// The model's seconds minus the row's.
    pub residuals_s: Vec<f64>,
    /// Constants that reproduce every row to its digits; `None` if none do.
    pub feasible: Option<FeasiblePrefill>,
}

/// The extent of the set of constants that reproduce a prefill table; a polygon in the inverses.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct FeasiblePrefill {
    /// Ceilings for which some bandwidth exists.
    pub ceiling_tokens_per_s: Interval,
    /// Bandwidths for which some ceiling exists.
    pub gb_per_s: Interval,
}

/// Fits `T = n / C + R / BW`, without overlap, to a table.
///
/// # Errors
/// [`Error::Underdetermined`] unless two rows differ in bytes a token; [`Error::Unphysical`] if the
/// best constants are not positive; [`Error::OutOfRange`] for a prompt of no tokens or bytes that
/// are negative or infinite.
pub fn fit_prefill(rows: &[PrefillRow]) -> Result<PrefillFit> {
    for (i, row) in rows.iter().enumerate() {
        positive("n_tokens", Some(i), row.n_tokens as f64)?;
        not_negative("read_bytes", Some(i), row.read_bytes)?;
    }
    let gb = |row: &PrefillRow| row.read_bytes / 1e9;
    let points = rows
        .iter()
        .map(|row| ([row.n_tokens as f64, gb(row)], row.seconds().0));
    let [s_per_token, s_per_gb] = least_squares(points)?;
    let model = PrefillModel::new(1.0 / s_per_token, 1.0 / s_per_gb, 0.0).map_err(|_| {
        Error::Unphysical {
            first_name: "seconds_per_token",
            first: s_per_token,
            second_name: "seconds_per_gb",
            second: s_per_gb,
        }
    })?;
    let residuals_s = rows
        .iter()
        .map(|row| Ok(model.predict(row.n_tokens, row.read_bytes)?.total_s - row.seconds().0))
        .collect::<Result<_>>()?;
    let strips: Vec<_> = rows
        .iter()
        .map(|row| {
            let Interval { low, high } = row.seconds().1;
            Strip {
                a: row.n_tokens as f64,
                b: gb(row),
                low,
                high,
            }
        })
        .collect();
    let feasible = project_both(&strips).map(|[per_token, per_gb]| FeasiblePrefill {
        ceiling_tokens_per_s: per_token.inverse(1.0),
        gb_per_s: per_gb.inverse(1.0),
    });
    Ok(PrefillFit {
        model,
        residuals_s,
        feasible,
    })
}

/// The extents of a set of strips along both axes.
fn project_both(strips: &[Strip]) -> Option<[Interval; 2]> {
    let swapped: Vec<_> = strips.iter().map(|&strip| strip.swapped()).collect();
    Some([project(strips)?, project(&swapped)?])
}

/// `[p, q]` that minimize the sum of `(p u + q v - t)^2` over points `([u, v], t)`.
fn least_squares(points: impl Iterator<Item = ([f64; 2], f64)> + Clone) -> Result<[f64; 2]> {
    // Columns scaled to a mean square of one, so that the determinant measures their angle.
    let n_rows = points.clone().count();
    let underdetermined = Error::Underdetermined {
        n_rows,
        n_constants: 2,
    };
    let square = |column: usize| {
        points
            .clone()
            .map(|(u, _)| u[column] * u[column])
            .sum::<f64>()
    };
    let (uu, vv) = (square(0), square(1));
    if !(uu > 0.0 && vv > 0.0 && uu.is_finite() && vv.is_finite()) {
        return Err(underdetermined);
    }
    let scale = [uu.sqrt(), vv.sqrt()];
    let (mut cross, mut right) = (0.0, [0.0; 2]);
    for (u, t) in points {
        let u = [u[0] / scale[0], u[1] / scale[1]];
        cross += u[0] * u[1];
        right = [right[0] + u[0] * t, right[1] + u[1] * t];
    }
    let determinant = 1.0 - cross * cross;
    // Columns that are parallel up to rounding.
    if determinant <= 1e-12 {
        return Err(underdetermined);
    }
    Ok([
        (right[0] - cross * right[1]) / determinant / scale[0],
        (right[1] - cross * right[0]) / determinant / scale[1],
    ])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::latency::reference::{
        DECODE_TABLE, EXPERT_BYTES, HIGH_GB_PER_S, LOW_GB_PER_S, NON_RESIDENT_TABLE, PREFILL_TABLE,
        PrefillFigure,
    };

    /// The published rows with misses, at the low and the high end.
    fn published() -> [Vec<DecodeRow>; 2] {
        let rows = |rate: fn(&crate::latency::reference::DecodeFigures) -> f64| {
            DECODE_TABLE
                .iter()
                .filter_map(|row| {
                    Some(DecodeRow {
                        misses_per_token: row.misses_per_token?,
                        tokens_per_s: Rounded::printed(rate(row), 1).expect("positive"),
                    })
                })
                .collect()
        };
        [rows(|r| r.low_tokens_per_s), rows(|r| r.high_tokens_per_s)]
    }

    #[test]
    fn the_published_decode_table_gives_a_floor_and_two_bandwidths() {
        let [low, high] = published();
        let digits = |rows: &[DecodeRow]| {
            let fit = fit(rows, EXPERT_BYTES).expect("determined");
            let m = fit.model;
            format!(
                "{:.3} {:.5} {:.3}",
                m.floor_ms(),
                m.ms_per_miss(),
                m.gb_per_s()
            )
        };
        assert_eq!(digits(&low), "12.119 0.35251 3.922");
        assert_eq!(digits(&high), "12.144 0.20060 6.891");
        for (rows, bw) in [(low, LOW_GB_PER_S), (high, HIGH_GB_PER_S)] {
            let fit = fit(&rows, EXPERT_BYTES).expect("determined");
            let set = fit.feasible.expect("the table follows the model");
            assert!(set.floor_ms.contains(12.0) && set.gb_per_s.contains(bw));
            assert!(fit.residuals_tokens_per_s.iter().all(|r| r.abs() < 0.05));
        }
    }

    #[test]
    fn the_published_floor_is_known_to_five_microseconds() {
        let [low, high] = published();
        let rows: Vec<_> = [(low, LOW_GB_PER_S), (high, HIGH_GB_PER_S)]
            .into_iter()
            .flat_map(|(rows, gb_per_s)| {
                rows.into_iter().map(move |row| FloorRow {
                    misses_per_token: row.misses_per_token,
                    gb_per_s,
                    tokens_per_s: row.tokens_per_s,
                })
            })
            .collect();
        let fit = fit_floor(&rows, EXPERT_BYTES).expect("usable");
        let range = fit.feasible.expect("not empty");
        assert_eq!(
            format!("{:.4} {:.4} {:.3}", range.low, range.high, fit.floor_ms),
            "11.9977 12.0032 12.000"
        );
        let residuals: Vec<_> = fit
            .residuals_tokens_per_s
            .iter()
            .map(|r| format!("{r:+.3}"))
            .collect();
        assert_eq!(
            residuals,
            ["+0.030", "-0.004", "+0.036", "+0.038", "-0.045", "+0.044"]
        );
        let unrounded: Vec<_> = rows
            .iter()
            .map(|row| {
                let model = TableModel::new(fit.floor_ms, EXPERT_BYTES, row.gb_per_s);
                let rate = model.and_then(|m| m.tokens_per_s(row.misses_per_token));
                format!("{:.3}", rate.expect("usable"))
            })
            .collect();
        assert_eq!(
            unrounded,
            ["32.130", "31.296", "35.936", "43.538", "42.655", "47.444"]
        );
    }

    #[test]
    fn the_row_without_misses_implies_them() {
        let row = DECODE_TABLE
            .iter()
            .find(|row| row.misses_per_token.is_none())
            .expect("a row without misses");
        let rates = [
            (LOW_GB_PER_S, row.low_tokens_per_s),
            (HIGH_GB_PER_S, row.high_tokens_per_s),
        ]
        .map(|(bw, rate)| (bw, Rounded::printed(rate, 1).expect("positive")));
        let range = implied_misses(&rates, 12.0, EXPERT_BYTES)
            .expect("usable")
            .expect("not empty");
        assert_eq!(format!("{:.2} {:.2}", range.low, range.high), "37.33 37.48");
        // Both ends of the range give the printed rates.
        for misses in [range.low + 1e-9, range.high - 1e-9] {
            for (bw, rate) in rates {
                let found = TableModel::new(12.0, EXPERT_BYTES, bw)
                    .and_then(|model| model.tokens_per_s(misses))
                    .expect("usable");
                assert!(rate.range().contains(found));
            }
        }
    }

    #[test]
    fn the_published_prefill_table_gives_its_ceiling_and_bandwidth() {
        let rows: Vec<_> = PREFILL_TABLE
            .iter()
            .map(|row| {
                let gb = NON_RESIDENT_TABLE
                    .iter()
                    .find(|size| size.0 == row.n_expert)
                    .expect("a row of the table")
                    .1;
                let printed =
                    |value, decimals| Rounded::printed(value, decimals).expect("positive");
                PrefillRow {
                    n_tokens: row.n_tokens,
                    read_bytes: gb * 1e9,
                    speed: match row.figure {
                        PrefillFigure::TokensPerS(x) => PrefillSpeed::TokensPerS(printed(x, 1)),
                        PrefillFigure::Seconds(x) => PrefillSpeed::Seconds(printed(x, 2)),
                    },
                }
            })
            .collect();
        let fit = fit_prefill(&rows).expect("determined");
        let set = fit.feasible.expect("the table follows the model");
        // A search in steps of 0.05 and 0.005 meets 355.95 to 356.05 and 6.800 to 6.810; the set
        // has sharp corners, so its exact ends lie further out. A finer search comes near them.
        let reproduces = |ceiling: f64, bw: f64| {
            rows.iter().all(|row| {
                let seconds = row.n_tokens as f64 / ceiling + row.read_bytes / 1e9 / bw;
                row.seconds().1.contains(seconds)
            })
        };
        let met: Vec<_> = (0..=130)
            .flat_map(|i| (0..=250).map(move |j| (i, j)))
            .map(|(i, j)| (355.875 + f64::from(i) * 0.002, 6.79 + f64::from(j) * 0.0001))
            .filter(|&(ceiling, bw)| reproduces(ceiling, bw))
            .collect();
        let ends = |values: &mut dyn Iterator<Item = f64>| {
            values.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], x| {
                [low.min(x), high.max(x)]
            })
        };
        for (found, searched, step) in [
            (
                set.ceiling_tokens_per_s,
                ends(&mut met.iter().map(|p| p.0)),
                0.01,
            ),
            (set.gb_per_s, ends(&mut met.iter().map(|p| p.1)), 0.001),
        ] {
            assert!(
                found.low <= searched[0] && searched[0] < found.low + step,
                "{met:?}"
            );
            assert!(
                found.high >= searched[1] && searched[1] > found.high - step,
                "{met:?}"
            );
        }
        let digits = |range: Interval| format!("{:.3} {:.3}", range.low, range.high);
        assert_eq!(digits(set.ceiling_tokens_per_s), "355.890 356.091");
        assert_eq!(digits(set.gb_per_s), "6.798 6.812");
        assert!((fit.model.ceiling_tokens_per_s() - 356.0).abs() < 0.2);
        assert!((fit.model.gb_per_s() - 6.8).abs() < 0.05);
        assert!(fit.residuals_s.iter().all(|r| r.abs() < 0.005));
    }

    #[test]
    fn printed_numbers_keep_their_digits() {
        let parse = |text: &str| text.parse::<Rounded>();
        let rate = parse("302.9").expect("a number");
        assert!((rate.half_unit() - 0.05).abs() < 1e-15);
        assert!((parse("47").expect("a number").half_unit() - 0.5).abs() < 1e-15);
        for bad in [
            "", ".", "-1.0", "1e3", "NaN", "inf", "1.2.3", "0.0", " 1", "0.4x",
        ] {
            assert!(matches!(parse(bad), Err(Error::NotPrinted { .. })), "{bad}");
        }
        // More digits than any f64 has are no reason to fail.
        assert!(parse(&format!("1.{}", "0".repeat(1000))).is_ok());
        assert!(Rounded::new(1.0, 1.0).is_err());
    }

    #[test]
    fn rows_that_determine_nothing_are_refused() {
        let row = |misses_per_token, rate| DecodeRow {
            misses_per_token,
            tokens_per_s: Rounded::new(rate, 0.05).expect("positive"),
        };
        let undetermined = |rows: &[DecodeRow]| {
            matches!(
                fit(rows, EXPERT_BYTES),
                Err(Error::Underdetermined { n_constants: 2, .. })
            )
        };
        assert!(undetermined(&[]));
        assert!(undetermined(&[row(50.0, 30.0)]));
        assert!(undetermined(&[row(50.0, 30.0), row(50.0, 31.0)]));
        assert!(undetermined(&[row(0.0, 30.0), row(0.0, 31.0)]));
        // More misses, more speed: no drive does that.
        let error = fit(&[row(10.0, 30.0), row(50.0, 31.0)], EXPERT_BYTES).expect_err("absurd");
        assert!(matches!(error, Error::Unphysical { .. }));
        assert!(fit(&[row(f64::NAN, 30.0), row(50.0, 31.0)], EXPERT_BYTES).is_err());
        assert!(fit(&[row(10.0, 31.0), row(50.0, 30.0)], 0).is_err());
        assert!(fit_floor(&[], 1).is_err());
        assert!(implied_misses(&[], 12.0, 1).is_err());
        assert!(fit_prefill(&[]).is_err());
    }

    #[test]
    fn rows_that_no_constants_explain_have_an_empty_set() {
        let row = |misses_per_token, rate: &str| DecodeRow {
            misses_per_token,
            tokens_per_s: rate.parse().expect("a number"),
        };
        let bent = [row(10.0, "50.0"), row(20.0, "30.0"), row(30.0, "29.0")];
        let fit = fit(&bent, EXPERT_BYTES).expect("determined");
        assert_eq!(fit.feasible, None);
        assert!(fit.residuals_tokens_per_s.iter().any(|r| r.abs() > 1.0));
    }

    proptest! {
        #[test]
        fn constants_behind_a_table_are_found_again(
            floor in 1.0f64..50.0,
            bw in 0.5f64..12.0,
            misses in proptest::collection::btree_set(0u32..400, 3..8),
        ) {
            let model = TableModel::new(floor, EXPERT_BYTES, bw).expect("usable");
            let exact: Vec<_> = misses
                .iter()
                .map(|&m| (f64::from(m), model.tokens_per_s(f64::from(m)).expect("usable")))
                .collect();
            let rows = |digits: f64| -> Vec<_> {
                exact
                    .iter()
                    .map(|&(misses_per_token, rate)| DecodeRow {
                        misses_per_token,
                        tokens_per_s: Rounded::new((rate * digits).round() / digits, 0.5 / digits)
                            .expect("positive"),
                    })
                    .collect()
            };
            let set = fit(&rows(1e3), EXPERT_BYTES)
                .ok()
                .and_then(|fit| fit.feasible);
            if let Some(set) = set {
                prop_assert!(set.floor_ms.low <= floor * (1.0 + 1e-9));
                prop_assert!(set.floor_ms.high >= floor * (1.0 - 1e-9));
                prop_assert!(set.gb_per_s.low <= bw * (1.0 + 1e-9));
                prop_assert!(set.gb_per_s.high >= bw * (1.0 - 1e-9));
            } else {
                prop_assert!(false, "the constants themselves are feasible");
            }
            let fine = fit(&rows(1e12), EXPERT_BYTES).expect("determined").model;
            prop_assert!((fine.floor_ms() - floor).abs() < 1e-4 * floor);
            prop_assert!((fine.gb_per_s() - bw).abs() < 1e-4 * bw);
        }
    }
}

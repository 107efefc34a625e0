//! `BandwidthCurve`: bandwidth of a drive over the reads under way.
//!
//! Owns the measured points. Invariants: 1. there is at least one; 2. depths ascend strictly and
//! are positive; 3. rates are positive. Cost: O(log points) a look-up.

use serde::Serialize;

use crate::error::positive;
use crate::{Error, Result};

/// Bandwidth over reads under way: measured points, straight lines between them, constant beyond
/// both ends. Nothing is extrapolated.
///
/// ```
/// use thalweg_eval::latency::BandwidthCurve;
/// let curve = BandwidthCurve::new(&[(1.0, 2.0), (4.0, 8.0)])?;
/// assert_eq!(curve.gb_per_s(2.0)?, 4.0);
/// assert_eq!(curve.gb_per_s(64.0)?, 8.0);
/// # Ok::<(), thalweg_eval::Error>(())
/// ```
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(transparent)]
pub struct BandwidthCurve {
    points: Vec<(f64, f64)>,
}

impl BandwidthCurve {
    /// A curve through `(reads under way, GB/s)`.
    ///
    /// # Errors
    /// [`Error::WrongCount`] without points, [`Error::OutOfRange`] for a depth that does not
    /// ascend or a figure that is not positive.
    pub fn new(points: &[(f64, f64)]) -> Result<Self> {
        if points.is_empty() {
            return Err(Error::WrongCount {
                what: "points of a bandwidth curve",
                expected: 1,
                found: 0,
            });
        }
        let mut before = 0.0;
        for (i, &(depth, rate)) in points.iter().enumerate() {
            positive("queue depth", Some(i), depth)?;
            positive("gb_per_s", Some(i), rate)?;
            if depth <= before {
                return Err(Error::OutOfRange {
                    field: "queue depth",
                    index: Some(i),
                    found: depth,
                    expected: "more than the one before",
                });
            }
            before = depth;
        }
        Ok(Self {
            points: points.to_vec(),
        })
    }

    /// The same bandwidth at every depth.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] unless it is positive.
    pub fn constant(gb_per_s: f64) -> Result<Self> {
        Self::new(&[(1.0, gb_per_s)])
    }

    /// Bandwidth with so many reads under way; it need not be a whole number, as a mean is not.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] unless the depth is positive.
    pub fn gb_per_s(&self, queue_depth: f64) -> Result<f64> {
        positive("queue depth", None, queue_depth)?;
        let above = self
            .points
            .partition_point(|&(depth, _)| depth < queue_depth);
        let (first, last) = (self.points[0], self.points[self.points.len() - 1]);
        if above == 0 {
            return Ok(first.1);
        }
        let Some(&(d1, r1)) = self.points.get(above) else {
            return Ok(last.1);
        };
        let (d0, r0) = self.points[above - 1];
        let t = (queue_depth - d0) / (d1 - d0);
        // This form stays within the two rates whatever the rounding.
        Ok((r0 * (1.0 - t) + r1 * t).clamp(r0.min(r1), r0.max(r1)))
    }

    /// The points.
    #[must_use]
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn points_are_met_and_the_ends_are_held() {
        let points = [(1.0, 2.41), (2.0, 3.9), (8.0, 6.8)];
        let curve = BandwidthCurve::new(&points).expect("usable");
        for (depth, rate) in points {
            assert!((curve.gb_per_s(depth).expect("positive") - rate).abs() < 1e-12);
        }
        let at = |depth| curve.gb_per_s(depth).expect("positive");
        assert!((at(0.25) - 2.41).abs() < 1e-12);
        assert!((at(1e9) - 6.8).abs() < 1e-12);
        assert!((at(5.0) - 5.35).abs() < 1e-12);
    }

    #[test]
    fn unusable_points_are_refused_with_their_place() {
        let nan = f64::NAN;
        for (points, place) in [
            (vec![(0.0, 1.0)], 0),
            (vec![(1.0, 0.0)], 0),
            (vec![(1.0, 1.0), (1.0, 2.0)], 1),
            (vec![(2.0, 1.0), (1.0, 2.0)], 1),
            (vec![(1.0, 1.0), (nan, 2.0)], 1),
            (vec![(1.0, 1.0), (2.0, nan)], 1),
        ] {
            let error = BandwidthCurve::new(&points).expect_err("unusable");
            assert!(matches!(error, Error::OutOfRange { index: Some(i), .. } if i == place));
        }
        assert!(matches!(
            BandwidthCurve::new(&[]),
            Err(Error::WrongCount { .. })
        ));
        let curve = BandwidthCurve::constant(1.0).expect("usable");
        for depth in [0.0, -1.0, nan, f64::INFINITY] {
            assert!(curve.gb_per_s(depth).is_err());
        }
    }

    proptest! {
        #[test]
        fn every_value_lies_between_its_neighbors(
            rates in proptest::collection::vec(0.01f64..100.0, 1..8),
            depth in 0.01f64..20.0,
        ) {
            let points: Vec<_> = (1..).map(f64::from).zip(rates).collect();
            let curve = BandwidthCurve::new(&points).expect("usable");
            let rate = curve.gb_per_s(depth).expect("positive");
            let near: Vec<f64> = points
                .iter()
                .filter(|p| (p.0 - depth).abs() <= 1.0)
                .map(|p| p.1)
                .collect();
            let last = points[points.len() - 1];
            if near.is_empty() {
                prop_assert!(rate.total_cmp(&last.1).is_eq());
            } else {
                prop_assert!(near.iter().any(|&r| r <= rate));
                prop_assert!(near.iter().any(|&r| r >= rate));
            }
        }
    }
}

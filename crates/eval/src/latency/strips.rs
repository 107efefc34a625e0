//! Which `(x, y)` of the quadrant `x, y >= 0` satisfy `low <= a x + b y <= high` for every strip.
//!
//! Owns the projection of that polygon onto one axis. Invariant: the result is exact (each pair of
//! a lower and an upper bound of `y` gives one bound of `x`, and there are no others). Cost:
//! O(strips^2), no memory.

use serde::Serialize;

/// A closed range of numbers; `high` may be infinite.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Interval {
    /// The least.
    pub low: f64,
    /// The greatest.
    pub high: f64,
}

impl Interval {
    /// Whether a value lies within.
    #[must_use]
    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// The value between its ends.
    #[must_use]
    pub const fn middle(&self) -> f64 {
        self.low.midpoint(self.high)
    }

    /// The range of the values' inverses times `scale`.
    pub(super) fn inverse(self, scale: f64) -> Self {
        Self {
            low: scale / self.high,
            high: scale / self.low,
        }
    }
}

/// `low <= a x + b y <= high` with `a, b >= 0`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strip {
    pub(super) a: f64,
    pub(super) b: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Strip {
    /// The same with `x` and `y` exchanged.
    pub(super) const fn swapped(self) -> Self {
        Self {
            a: self.b,
            b: self.a,
            ..self
        }
    }
}

/// The `x` for which some `y` exists; `None` if there are none.
pub(super) fn project(strips: &[Strip]) -> Option<Interval> {
    let mut range = Interval {
        low: 0.0,
        high: f64::INFINITY,
    };
    for upper in strips {
        // y >= 0 and this strip's upper bound of y (or of x, where b is 0).
        at_most(&mut range, upper.a, upper.high);
        for lower in strips {
            if lower.b <= 0.0 {
                at_most(&mut range, -lower.a, -lower.low);
            } else if upper.b > 0.0 {
                // (low - a x) / b of one is at most (high - a x) / b of the other.
                at_most(
                    &mut range,
                    upper.a * lower.b - lower.a * upper.b,
                    upper.high * lower.b - lower.low * upper.b,
                );
            }
        }
    }
    (range.low <= range.high).then_some(range)
}

/// Narrows `range` to the `x` with `slope * x <= limit`.
fn at_most(range: &mut Interval, slope: f64, limit: f64) {
    if slope > 0.0 {
        range.high = range.high.min(limit / slope);
    } else if slope < 0.0 {
        range.low = range.low.max(limit / slope);
    } else if limit < 0.0 {
        // Nothing satisfies it.
        range.high = f64::NEG_INFINITY;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_parallelogram_is_projected_to_its_corners() {
        // 1 <= x + y <= 2 and 3 <= x + 3 y <= 4: corners of x at (1 - 3 y'), solved by hand.
        let strips = [
            Strip {
                a: 1.0,
                b: 1.0,
                low: 1.0,
                high: 2.0,
            },
            Strip {
                a: 1.0,
                b: 3.0,
                low: 3.0,
                high: 4.0,
            },
        ];
        let x = project(&strips).expect("not empty");
        assert!(x.low.abs() < 1e-12 && (x.high - 1.5).abs() < 1e-12);
        let y = project(&strips.map(Strip::swapped)).expect("not empty");
        assert!((y.low - 0.5).abs() < 1e-12 && (y.high - 4.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn strips_that_contradict_have_no_solution() {
        let strip = |low, high| Strip {
            a: 1.0,
            b: 2.0,
            low,
            high,
        };
        assert_eq!(project(&[strip(0.0, 1.0), strip(1.1, 2.0)]), None);
        // A strip along y bounds x alone.
        let along = |low, high| Strip {
            a: 2.0,
            b: 0.0,
            low,
            high,
        };
        assert_eq!(
            project(&[along(1.0, 3.0)]),
            Some(Interval {
                low: 0.5,
                high: 1.5
            })
        );
        assert_eq!(project(&[along(1.0, 3.0), along(4.0, 5.0)]), None);
    }

    proptest! {
        #[test]
        fn the_range_is_that_of_a_fine_search(
            rows in proptest::collection::vec((0.0f64..3.0, 0.0f64..3.0, -0.3f64..0.3), 1..5),
        ) {
            // Strips around the point (1, 1), moved a little, so some sets are empty.
            let strips: Vec<_> = rows
                .iter()
                .map(|&(a, b, d)| Strip { a, b, low: a + b + d - 0.2, high: a + b + d + 0.2 })
                .collect();
            let found = project(&strips);
            let fits = |x: f64| {
                let mut y = (0.0f64, f64::INFINITY);
                for s in &strips {
                    if s.b > 0.0 {
                        y.0 = y.0.max((s.low - s.a * x) / s.b);
                        y.1 = y.1.min((s.high - s.a * x) / s.b);
                    } else if s.a * x < s.low || s.a * x > s.high {
                        return false;
                    }
                }
                y.0 <= y.1
            };
            for i in 0..600 {
                let x = f64::from(i) * 0.005;
                let near_an_end = found.is_some_and(|r| {
                    (x - r.low).abs() < 1e-9 || (x - r.high).abs() < 1e-9
                });
                if !near_an_end {
                    prop_assert_eq!(fits(x), found.is_some_and(|r| r.contains(x)), "x = {}", x);
                }
            }
        }
    }
}

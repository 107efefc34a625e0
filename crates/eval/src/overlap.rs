//! Whether what a model is judged on was in what it was adjusted to: n-grams of tokens that occur in
//! both.
//!
//! Owns the search and its report. Does not decide what to do about it, beyond
//! [`OverlapReport::require_disjoint`]. Memory: one entry for each n-gram of the windows, which
//! borrows its tokens; calibration texts pass through. Invariant: n-grams are compared token by
//! token, so a report has no false finds.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::{Error, Result, WindowSet};

/// Tokens of an n-gram that hardly occurs twice by chance.
pub const DEFAULT_N: usize = 16;

/// A search for n-grams of windows in other texts.
///
/// ```
/// use thalweg_eval::WindowSet;
/// use thalweg_eval::overlap::OverlapAudit;
/// let mut windows = WindowSet::new();
/// windows.add_window("en", vec![1, 2, 3, 4, 5], 3..5)?;
/// let mut audit = OverlapAudit::new(&windows, 3)?;
/// audit.scan("calibration.txt", &[9, 2, 3, 4, 9]);
/// let report = audit.finish();
/// assert_eq!(report.overlaps[0].n_scored, 1);
/// assert!(report.require_disjoint().is_err());
/// # Ok::<(), thalweg_eval::Error>(())
/// ```
#[derive(Debug)]
pub struct OverlapAudit<'a> {
    n: usize,
    windows: &'a WindowSet,
    /// By n-gram, the first text that has it.
    found: HashMap<&'a [u32], Option<usize>>,
    texts: Vec<String>,
    n_scanned: u64,
}

impl<'a> OverlapAudit<'a> {
    /// Collects the n-grams of all windows, context included.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for `n` of 0.
    pub fn new(windows: &'a WindowSet, n: usize) -> Result<Self> {
        if n == 0 {
            return Err(Error::OutOfRange {
                field: "n",
                index: None,
                found: 0.0,
                expected: "at least 1 token",
            });
        }
        let grams = windows.windows().iter().flat_map(|w| w.tokens().windows(n));
        Ok(Self {
            n,
            windows,
            found: grams.map(|gram| (gram, None)).collect(),
            texts: Vec::new(),
            n_scanned: 0,
        })
    }

    /// Looks through a text. N-grams do not reach from one text into the next.
    ///
    /// # Cost
    /// One look-up a token.
    pub fn scan(&mut self, name: &str, tokens: &[u32]) {
        let text = self.texts.len();
        self.texts.push(name.to_owned());
        for gram in tokens.windows(self.n) {
            self.n_scanned += 1;
            if let Some(first) = self.found.get_mut(gram) {
                first.get_or_insert(text);
            }
        }
    }

    /// What was found.
    #[must_use]
    pub fn finish(self) -> OverlapReport {
        let mut overlaps = Vec::new();
        let mut n_unchecked = 0;
        for (index, window) in self.windows.windows().iter().enumerate() {
            n_unchecked += usize::from(window.tokens().len() < self.n);
            let mut overlap: Option<WindowOverlap> = None;
            for (start, gram) in window.tokens().windows(self.n).enumerate() {
                let Some(&Some(text)) = self.found.get(gram) else {
                    continue;
                };
                let overlap = overlap.get_or_insert_with(|| WindowOverlap {
                    window: index,
                    domain: self.windows.domains()[window.domain()].clone(),
                    n_scored: 0,
                    n_context: 0,
                    first_position: start,
                    text: self.texts[text].clone(),
                });
                // Its last token is predicted from the others.
                match window.scored().contains(&(start + self.n - 1)) {
                    true => overlap.n_scored += 1,
                    false => overlap.n_context += 1,
                }
            }
            overlaps.extend(overlap);
        }
        OverlapReport {
            n: self.n,
            n_windows: self.windows.windows().len(),
            n_unchecked,
            n_scanned: self.n_scanned,
            overlaps,
        }
    }
}

/// N-grams that windows share with other texts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OverlapReport {
    /// Tokens of an n-gram.
    pub n: usize,
    /// Windows looked at.
    pub n_windows: usize,
    /// Windows of fewer than `n` tokens, of which nothing can be said.
    pub n_unchecked: usize,
    /// N-grams of the other texts.
    pub n_scanned: u64,
    /// The windows that share any.
    pub overlaps: Vec<WindowOverlap>,
}

/// What one window shares with other texts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WindowOverlap {
    /// Number of the window.
    pub window: usize,
    /// Its domain.
    pub domain: String,
    /// Shared n-grams whose last token is scored: the model may know by heart what it is asked.
    pub n_scored: usize,
    /// Shared n-grams that end in the context alone.
    pub n_context: usize,
    /// Position in the window at which the first of them begins.
    pub first_position: usize,
    /// A text that has it.
    pub text: String,
}

impl OverlapReport {
    /// Windows that share nothing and could be checked.
    #[must_use]
    pub fn n_clean(&self) -> usize {
        self.n_windows - self.n_unchecked - self.overlaps.len()
    }

    /// Shared n-grams whose last token is scored.
    #[must_use]
    pub fn n_scored(&self) -> usize {
        self.overlaps.iter().map(|o| o.n_scored).sum()
    }

    /// Nothing if no scored token ends a shared n-gram; context may be shared.
    ///
    /// # Errors
    /// [`Error::Overlap`] with the counts and the first place.
    pub fn require_disjoint(&self) -> Result<()> {
        let Some(first) = self.overlaps.iter().find(|o| o.n_scored > 0) else {
            return Ok(());
        };
        Err(Error::Overlap {
            n: self.n,
            n_shared: self.n_scored(),
            n_windows: self.overlaps.iter().filter(|o| o.n_scored > 0).count(),
            n_all_windows: self.n_windows,
            window: first.window,
            domain: first.domain.clone(),
            text: first.text.clone(),
        })
    }
}

/// Share of a text's n-grams that occurred before in it: 0 for one without repetition. `None` for
/// `n` of 0 and for texts of fewer than `n` tokens.
#[must_use]
pub fn repeated_rate(tokens: &[u32], n: usize) -> Option<f64> {
    if n == 0 || tokens.len() < n {
        return None;
    }
    let mut distinct = std::collections::HashSet::new();
    let n_grams = tokens.len() + 1 - n;
    let n_repeats = tokens.windows(n).filter(|g| !distinct.insert(*g)).count();
    Some(n_repeats as f64 / n_grams as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Windows of 20 tokens, the last 10 scored, all tokens distinct.
    fn windows() -> WindowSet {
        let mut set = WindowSet::new();
        for (domain, first) in [("en", 0), ("ja", 100), ("en", 200)] {
            set.add_window(domain, (first..first + 20).collect(), 10..20)
                .unwrap();
        }
        set
    }

    fn audit(n: usize, texts: &[(&str, Vec<u32>)]) -> OverlapReport {
        let set = windows();
        let mut audit = OverlapAudit::new(&set, n).unwrap();
        for (name, tokens) in texts {
            audit.scan(name, tokens);
        }
        audit.finish()
    }

    #[test]
    fn a_planted_overlap_is_found_with_its_place() {
        // Eight tokens of the second window's end, behind others.
        let mut planted: Vec<u32> = (500..530).collect();
        planted.extend(112..120);
        let report = audit(4, &[("clean", (300..340).collect()), ("planted", planted)]);
        assert_eq!((report.n_clean(), report.n_scored()), (2, 5));
        let [overlap] = &report.overlaps[..] else {
            panic!("one window")
        };
        assert_eq!((overlap.window, overlap.first_position), (1, 12));
        assert_eq!(
            (overlap.domain.as_str(), overlap.text.as_str()),
            ("ja", "planted")
        );
        let said = report.require_disjoint().unwrap_err().to_string();
        for part in ["5 4-grams", "1 of 3 windows", "window 1 (ja)", "planted"] {
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn shared_context_is_counted_and_allowed() {
        // Positions 4 to 9 of the third window: all before its span.
        let report = audit(3, &[("t", (204..210).collect())]);
        let [overlap] = &report.overlaps[..] else {
            panic!("one window")
        };
        assert_eq!(
            (overlap.window, overlap.n_context, overlap.n_scored),
            (2, 4, 0)
        );
        assert_eq!(report.n_clean(), 2);
        report.require_disjoint().unwrap();
        // One token farther the last n-gram ends in the span.
        let report = audit(3, &[("t", (204..211).collect())]);
        assert_eq!(report.n_scored(), 1);
        assert!(report.require_disjoint().is_err());
    }

    #[test]
    fn only_whole_n_grams_of_one_text_count() {
        let apart = [("a", (110..113).collect()), ("b", (113..116).collect())];
        assert_eq!(audit(4, &apart).overlaps, []);
        assert_eq!(audit(4, &apart).n_scanned, 0);
        assert_eq!(audit(3, &apart).n_scored(), 2);
        let report = audit(21, &[("a", (100..120).collect())]);
        assert_eq!((report.n_unchecked, report.n_clean()), (3, 0));
        assert!(OverlapAudit::new(&windows(), 0).is_err());
    }

    #[test]
    fn repetition_is_the_share_of_n_grams_seen_before() {
        // 128 tokens have 125 4-grams; the end repeats the beginning so that four of them recur.
        let mut tokens: Vec<u32> = (0..121).collect();
        tokens.extend(0..7);
        let rate = repeated_rate(&tokens, 4).unwrap();
        assert!((rate - 0.032).abs() < 1e-12, "{rate}");
        assert_eq!(repeated_rate(&[1, 1], 0), None);
        assert_eq!(repeated_rate(&[1, 1], 3), None);
        assert_eq!(repeated_rate(&[1, 1, 1], 1), Some(2.0 / 3.0));
    }
}

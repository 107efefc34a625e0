//! `WindowSet`: texts as token ids, cut into windows, with the span of each that is scored.
//!
//! Owns how texts are cut and named. Does not encode text, nor run models. Memory: the tokens, once.
//! Invariants: 1. a span is not empty and lies in its window; 2. it does not begin at 0, since the
//! first token has no prediction; 3. every window belongs to a domain of the set.

use std::ops::Range;

use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::{Error, Result};

/// Tokens that are taken in together, and those of them whose prediction counts.
///
/// Token `i` is scored with the logits after token `i - 1`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Window {
    domain: usize,
    tokens: Vec<u32>,
    scored: Range<usize>,
}

impl Window {
    /// A window of the domain with this number.
    ///
    /// # Errors
    /// [`Error::SpanAtStart`] for a span that begins at 0, [`Error::Span`] for one that is empty or
    /// goes beyond the tokens.
    pub fn new(domain: usize, tokens: Vec<u32>, scored: Range<usize>) -> Result<Self> {
        if scored.start == 0 {
            return Err(Error::SpanAtStart { end: scored.end });
        }
        if scored.is_empty() || scored.end > tokens.len() {
            return Err(Error::Span {
                start: scored.start,
                end: scored.end,
                n_tokens: tokens.len(),
            });
        }
        Ok(Self {
            domain,
            tokens,
            scored,
        })
    }

    /// Number of its domain.
    #[must_use]
    pub fn domain(&self) -> usize {
        self.domain
    }

    /// All its tokens.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Positions of the tokens that are scored.
    #[must_use]
    pub fn scored(&self) -> Range<usize> {
        self.scored.clone()
    }

    /// Tokens that a model has to take in: what follows the last scored one, and that one itself,
    /// predict nothing that counts.
    #[must_use]
    pub fn fed(&self) -> &[u32] {
        &self.tokens[..self.scored.end - 1]
    }
}

/// How a text is cut into windows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(
    clippy::exhaustive_structs,
    reason = "callers write `Cut { field, ..default }`"
)]
pub struct Cut {
    /// Tokens of a window.
    pub n_window: usize,
    /// Tokens at its beginning that are not scored; at least 1.
    pub n_context: usize,
    /// Most windows of a text; `None` takes all of it.
    pub max_windows: Option<usize>,
}

impl Default for Cut {
    /// 512 tokens, the last 255 of which are scored: what llama.cpp's `perplexity` does.
    fn default() -> Self {
        Self {
            n_window: 512,
            n_context: 257,
            max_windows: None,
        }
    }
}

/// Windows of one or more domains.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WindowSet {
    domains: Vec<String>,
    windows: Vec<Window>,
}

impl WindowSet {
    /// A set without windows.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a text's windows, one after the other without overlap. What is left at its end becomes a
    /// window too if at least one token of it would be scored. Texts of one domain add up.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a cut without context or without a scored token;
    /// [`Error::TextTooShort`] for a text that has no window.
    pub fn add(&mut self, domain: &str, tokens: &[u32], cut: Cut) -> Result<()> {
        let out_of_range = |field, found: usize, expected| Error::OutOfRange {
            field,
            index: None,
            found: found as f64,
            expected,
        };
        if cut.n_context == 0 {
            let expected = "at least 1: the first token of a window has no prediction";
            return Err(out_of_range("n_context", 0, expected));
        }
        if cut.n_window <= cut.n_context {
            let expected = "more than n_context";
            return Err(out_of_range("n_window", cut.n_window, expected));
        }
        if cut.max_windows == Some(0) {
            return Err(out_of_range("max_windows", 0, "at least 1"));
        }
        if tokens.len() <= cut.n_context {
            return Err(Error::TextTooShort {
                domain: domain.to_owned(),
                n_tokens: tokens.len(),
                needed: cut.n_context + 1,
            });
        }
        let domain = self.domain(domain);
        let pieces = tokens
            .chunks(cut.n_window)
            .filter(|piece| piece.len() > cut.n_context)
            .take(cut.max_windows.unwrap_or(usize::MAX));
        for piece in pieces {
            let scored = cut.n_context..piece.len();
            self.windows
                .push(Window::new(domain, piece.to_vec(), scored)?);
        }
        Ok(())
    }

    /// Adds one window whose span the caller chose.
    ///
    /// # Errors
    /// As [`Window::new`].
    pub fn add_window(
        &mut self,
        domain: &str,
        tokens: Vec<u32>,
        scored: Range<usize>,
    ) -> Result<()> {
        let window = Window::new(0, tokens, scored)?;
        let domain = self.domain(domain);
        self.windows.push(Window { domain, ..window });
        Ok(())
    }

    /// Adds windows whose spans a file states, one JSON object a line (`docs/formats/spans.md`); empty
    /// lines are skipped. `encode` gets a text and whether it begins a window.
    ///
    /// # Errors
    /// [`Error::InLine`] around [`Error::Json`], [`Error::SpanForm`] for a line that states tokens in
    /// neither of the two ways, and what [`Window::new`] refuses, such as an empty context. Nothing
    /// is added then.
    pub fn add_lines(&mut self, text: &str, encode: impl Fn(&str, bool) -> Vec<u32>) -> Result<()> {
        let window = |line: &str| {
            let line: SpanLine = serde_json::from_str(line).map_err(|source| Error::Json {
                what: "a window with its span",
                source,
            })?;
            let (tokens, scored) = match (line.context, line.continuation, line.tokens, line.scored)
            {
                (Some(context), Some(continuation), None, None) => {
                    let mut tokens = encode(&context, true);
                    let start = tokens.len();
                    tokens.extend(encode(&continuation, false));
                    let end = tokens.len();
                    (tokens, start..end)
                }
                (None, None, Some(tokens), Some([start, end])) => (tokens, start..end),
                _ => return Err(Error::SpanForm),
            };
            Ok((line.domain, Window::new(0, tokens, scored)?))
        };
        let numbered = text.lines().enumerate();
        let filled = numbered.filter(|(_, line)| !line.trim().is_empty());
        let windows = filled.map(|(i, line)| {
            window(line).map_err(|source| Error::InLine {
                line: i + 1,
                source: Box::new(source),
            })
        });
        let windows: Vec<(String, Window)> = windows.collect::<Result<_>>()?;
        for (domain, window) in windows {
            let domain = self.domain(&domain);
            self.windows.push(Window { domain, ..window });
        }
        Ok(())
    }

    /// The number of a domain, which is made if it is new.
    fn domain(&mut self, name: &str) -> usize {
        let known = self.domains.iter().position(|d| d == name);
        known.unwrap_or_else(|| {
            self.domains.push(name.to_owned());
            self.domains.len() - 1
        })
    }

    /// Names of the domains, in the order of their first text.
    #[must_use]
    pub fn domains(&self) -> &[String] {
        &self.domains
    }

    /// The windows, in the order in which they were added.
    #[must_use]
    pub fn windows(&self) -> &[Window] {
        &self.windows
    }

    /// Tokens of the longest window that a model has to take in.
    #[must_use]
    pub fn n_ctx(&self) -> usize {
        let fed = self.windows.iter().map(|w| w.fed().len());
        fed.max().unwrap_or(0)
    }

    /// Tokens of all windows.
    #[must_use]
    pub fn n_tokens(&self) -> usize {
        self.windows.iter().map(|w| w.tokens.len()).sum()
    }

    /// Tokens that a model has to take in.
    #[must_use]
    pub fn n_fed(&self) -> usize {
        self.windows.iter().map(|w| w.fed().len()).sum()
    }

    /// Tokens that are scored.
    #[must_use]
    pub fn n_scored(&self) -> usize {
        self.windows.iter().map(|w| w.scored.len()).sum()
    }

    /// SHA-256 over domains, tokens and spans: results of the same windows can be compared unit by
    /// unit, others cannot.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        let mut number = |n: usize| hash.update((n as u64).to_le_bytes());
        for window in &self.windows {
            number(window.scored.start);
            number(window.scored.end);
            number(window.tokens.len());
            number(window.domain);
        }
        number(self.domains.len());
        for domain in &self.domains {
            hash.update((domain.len() as u64).to_le_bytes());
            hash.update(domain.as_bytes());
        }
        for token in self.windows.iter().flat_map(|w| &w.tokens) {
            hash.update(token.to_le_bytes());
        }
        hash.finalize().into()
    }
}

/// A line of a file of spans.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SpanLine {
    domain: String,
    context: Option<String>,
    continuation: Option<String>,
    tokens: Option<Vec<u32>>,
    scored: Option<[usize; 2]>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUT: Cut = Cut {
        n_window: 6,
        n_context: 2,
        max_windows: None,
    };

    fn set(n_tokens: u32, cut: Cut) -> Result<WindowSet> {
        let mut set = WindowSet::new();
        set.add("en", &(0..n_tokens).collect::<Vec<_>>(), cut)?;
        Ok(set)
    }

    #[test]
    fn a_text_is_cut_without_overlap_and_its_rest_counts_if_it_can() {
        let found = set(15, CUT).unwrap();
        let windows: Vec<_> = found
            .windows()
            .iter()
            .map(|w| (w.tokens()[0], w.scored(), w.fed().len()))
            .collect();
        assert_eq!(windows, [(0, 2..6, 5), (6, 2..6, 5), (12, 2..3, 2)]);
        assert_eq!((found.n_ctx(), found.n_fed(), found.n_scored()), (5, 12, 9));
        // Two tokens are context alone.
        assert_eq!(set(14, CUT).unwrap().windows().len(), 2);
        let first = Cut {
            max_windows: Some(1),
            ..CUT
        };
        assert_eq!(set(15, first).unwrap().windows().len(), 1);
    }

    #[test]
    fn the_default_scores_what_llama_cpp_scores() {
        // Of 512 tokens it takes the logits from position 256 up to, not including, the last.
        let cut = Cut::default();
        let positions = cut.n_context - 1..cut.n_window - 1;
        assert_eq!(positions, 256..511);
    }

    #[test]
    fn texts_of_one_domain_add_up() {
        let mut found = set(6, CUT).unwrap();
        found.add("ja", &[9; 6], CUT).unwrap();
        found.add("en", &[7; 6], CUT).unwrap();
        assert_eq!(found.domains(), ["en", "ja"]);
        let domains: Vec<_> = found.windows().iter().map(Window::domain).collect();
        assert_eq!(domains, [0, 1, 0]);
    }

    #[test]
    fn spans_without_a_prediction_are_refused() {
        let message = |scored: Range<usize>| {
            let window = Window::new(0, vec![1, 2, 3], scored);
            window.unwrap_err().to_string()
        };
        assert!(message(0..2).contains("begins at 0"), "{}", message(0..2));
        assert!(message(1..4).contains("1..4"), "{}", message(1..4));
        assert!(message(2..2).contains("2..2"));
        assert_eq!(Window::new(0, vec![1, 2], 1..2).unwrap().fed(), [1]);
    }

    #[test]
    fn cuts_and_texts_that_score_nothing_are_refused() {
        let message = |n_tokens, n_window, n_context| {
            let cut = Cut {
                n_window,
                n_context,
                ..CUT
            };
            set(n_tokens, cut).unwrap_err().to_string()
        };
        assert!(message(9, 6, 0).contains("n_context"));
        assert!(message(9, 6, 6).contains("n_window is 6"));
        let short = message(2, 6, 2);
        assert!(short.contains("\"en\" has 2 tokens") && short.contains('3'));
        let none = Cut {
            max_windows: Some(0),
            ..CUT
        };
        assert!(set(9, none).is_err());
    }

    #[test]
    fn the_fingerprint_tells_windows_apart() {
        let one = set(15, CUT).unwrap();
        assert_eq!(one.fingerprint(), set(15, CUT).unwrap().fingerprint());
        let mut others = vec![set(14, CUT).unwrap()];
        for (domain, tokens, scored) in [
            ("en", vec![0, 1, 2], 1..3),
            ("en", vec![0, 1, 2], 2..3),
            ("en", vec![0, 1, 3], 2..3),
            ("ja", vec![0, 1, 3], 2..3),
        ] {
            let mut other = WindowSet::new();
            other.add_window(domain, tokens, scored).unwrap();
            others.push(other);
        }
        let mut seen: Vec<_> = others.iter().map(WindowSet::fingerprint).collect();
        seen.push(one.fingerprint());
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 6);
    }

    #[test]
    fn a_file_states_spans_as_texts_or_as_tokens() {
        // A letter is a token; a window begins with 7.
        let encode = |text: &str, is_start: bool| {
            let start = is_start.then_some(7);
            start
                .into_iter()
                .chain(text.bytes().map(u32::from))
                .collect()
        };
        let mut set = WindowSet::new();
        let lines = r#"
            {"domain": "chat", "context": "ab", "continuation": "cd"}

            {"domain": "ops", "tokens": [5, 6, 8, 9], "scored": [1, 3]}
        "#;
        set.add_lines(lines, encode).unwrap();
        assert_eq!(set.domains(), ["chat", "ops"]);
        let [first, second] = set.windows() else {
            panic!("two windows")
        };
        assert_eq!(
            (first.tokens(), first.scored()),
            (&[7, 97, 98, 99, 100][..], 3..5)
        );
        assert_eq!((second.fed(), second.scored()), (&[5, 6][..], 1..3));

        let before = set.clone();
        let plain = |text: &str, _: bool| text.bytes().map(u32::from).collect();
        for (line, expected) in [
            (
                r#"{"domain": "a", "context": "", "continuation": "x"}"#,
                "begins at 0",
            ),
            (
                r#"{"domain": "a", "context": "x", "continuation": ""}"#,
                "1..1",
            ),
            (
                r#"{"domain": "a", "tokens": [1, 2], "scored": [0, 2]}"#,
                "begins at 0",
            ),
            (
                r#"{"domain": "a", "tokens": [1, 2], "scored": [1, 3]}"#,
                "1..3",
            ),
            (
                r#"{"domain": "a", "tokens": [1, 2]}"#,
                "or tokens and scored",
            ),
            (
                r#"{"domain": "a", "context": "x", "scored": [1, 2]}"#,
                "or tokens and scored",
            ),
            (r#"{"context": "x", "continuation": "y"}"#, "usable JSON"),
            (r#"{"domain": "a", "span": 1}"#, "usable JSON"),
        ] {
            let error = set.add_lines(&format!("\n{line}"), plain).unwrap_err();
            let cause = std::error::Error::source(&error).expect("a cause");
            let said = format!("{error}: {cause}");
            assert!(said.contains("line 2") && said.contains(expected), "{said}");
        }
        assert_eq!(set, before);
    }
}

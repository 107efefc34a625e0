//! Stop strings in streamed text.
//!
//! Owns: the search across pieces and the text that is held back meanwhile. Does not own: stop
//! tokens. Memory: less text than the longest stop string.
//! Invariants: 1. what was given out contains no part of a stop string that is found later;
//! 2. the outcome does not depend on how the text was cut into pieces; 3. text is only cut at
//! character boundaries. Cost: (held + pushed text) x (number of stop strings) a push.

use crate::error::{Error, Result};

/// Watches streamed text for strings that end it.
///
/// The first string to be *completed* wins; of several that are completed by the same character,
/// the longest. Text that may turn out to be the beginning of a stop string is held back until that
/// is decided.
///
/// ```
/// use thalweg_text::StopStrings;
///
/// let mut stop = StopStrings::new(["\nUser:"])?;
/// assert_eq!(stop.push("Hello\nUs").text, "Hello");
/// let last = stop.push("er: hi");
/// assert_eq!((last.text.as_str(), last.stopped_by), ("", Some(0)));
/// # Ok::<(), thalweg_text::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct StopStrings {
    strings: Vec<String>,
    held: String,
    stopped_by: Option<usize>,
}

/// What a push into [`StopStrings`] gives out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StopOutput {
    /// Text that is certainly not part of a stop string; it may be empty.
    pub text: String,
    /// Index of the stop string that ended the text. It is never part of the text itself.
    pub stopped_by: Option<usize>,
}

impl StopStrings {
    /// Watches for `strings`; none at all is allowed and lets all text through.
    ///
    /// # Errors
    /// [`Error::EmptyStopString`].
    pub fn new(strings: impl IntoIterator<Item = impl Into<String>>) -> Result<Self> {
        let strings: Vec<String> = strings.into_iter().map(Into::into).collect();
        if let Some(index) = strings.iter().position(String::is_empty) {
            return Err(Error::EmptyStopString { index });
        }
        Ok(Self {
            strings,
            held: String::new(),
            stopped_by: None,
        })
    }

    /// Takes the next piece of text. After a stop string was found all further text is dropped.
    pub fn push(&mut self, text: &str) -> StopOutput {
        if self.stopped_by.is_some() {
            return StopOutput {
                text: String::new(),
                stopped_by: self.stopped_by,
            };
        }
        self.held.push_str(text);
        let (give, stopped_by) = match self.find() {
            Some((start, index)) => (start, Some(index)),
            None => (self.held.len() - self.undecided_bytes(), None),
        };
        let rest = self.held.split_off(give);
        let text = std::mem::replace(&mut self.held, rest);
        self.stopped_by = stopped_by;
        if stopped_by.is_some() {
            self.held = String::new();
        }
        StopOutput { text, stopped_by }
    }

    /// Ends the text and returns what was held back: it was no stop string after all.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Start and index of the stop string that is completed first.
    fn find(&self) -> Option<(usize, usize)> {
        let matches = self
            .strings
            .iter()
            .enumerate()
            .filter_map(|(index, string)| {
                let start = self.held.find(string.as_str())?;
                Some((start + string.len(), start, index))
            });
        matches.min().map(|(_, start, index)| (start, index))
    }

    /// The length of the longest end of the held text that begins a stop string.
    fn undecided_bytes(&self) -> usize {
        let longest = self.strings.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest);
        self.held
            .char_indices()
            .map(|(start, _)| start)
            .filter(|&start| start >= from)
            .find(|&start| {
                self.strings
                    .iter()
                    .any(|s| s.starts_with(&self.held[start..]))
            })
            .map_or(0, |start| self.held.len() - start)
    }
}

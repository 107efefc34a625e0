//! Finding markers (control and user-defined tokens) in text.
//!
//! Owns: the table of markers and the search. Does not own: what a match means.
//! Invariants: 1. entries are sorted by text and distinct; 2. no entry is empty; 3. a match starts
//! and ends at a character boundary, because entries are whole UTF-8 strings.
//! Cost: one table look-up a byte; at a byte that begins some marker, one binary search for each
//! distinct length of the markers that begin with it.

use std::ops::Range;

/// One token that is recognized by its literal text.
#[derive(Clone, Debug)]
pub(crate) struct Marker {
    pub(crate) text: Box<str>,
    pub(crate) id: u32,
    pub(crate) control: bool,
}

/// Which markers a search takes notice of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    All,
    Control,
    UserDefined,
}

/// A marker found in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) range: Range<usize>,
    pub(crate) id: u32,
    pub(crate) control: bool,
}

/// All markers of a vocabulary.
#[derive(Debug)]
pub(crate) struct Markers {
    entries: Vec<Marker>,
    /// By first byte: the lengths of the markers that begin with it, longest first.
    lengths: Vec<Box<[usize]>>,
}

impl Markers {
    /// Builds the table. Empty texts are ignored; the caller refuses them earlier.
    pub(crate) fn new(mut entries: Vec<Marker>) -> Self {
        entries.retain(|marker| !marker.text.is_empty());
        entries.sort_unstable_by(|a, b| a.text.cmp(&b.text));
        let mut lengths = vec![Vec::new(); 256];
        for marker in &entries {
            lengths[usize::from(marker.text.as_bytes()[0])].push(marker.text.len());
        }
        let lengths = lengths
            .into_iter()
            .map(|mut lengths: Vec<usize>| {
                lengths.sort_unstable_by(|a, b| b.cmp(a));
                lengths.dedup();
                lengths.into_boxed_slice()
            })
            .collect();
        Self { entries, lengths }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Marker> {
        self.entries.iter()
    }

    pub(crate) fn id_of(&self, text: &str) -> Option<u32> {
        let index = self
            .entries
            .binary_search_by(|marker| (*marker.text).cmp(text))
            .ok()?;
        Some(self.entries[index].id)
    }

    /// The leftmost match at or behind byte `from`, the longest of several there.
    pub(crate) fn find(&self, text: &str, from: usize, which: Which) -> Option<Found> {
        let bytes = text.as_bytes();
        (from..bytes.len()).find_map(|start| self.at(bytes, start, which))
    }

    /// The leftmost matches of `text`, the longest at each place, without overlap.
    pub(crate) fn matches<'a>(
        &'a self,
        text: &'a str,
        which: Which,
    ) -> impl Iterator<Item = Found> + 'a {
        let mut from = 0;
        std::iter::from_fn(move || {
            let found = self.find(text, from, which)?;
            from = found.range.end;
            Some(found)
        })
    }

    fn at(&self, bytes: &[u8], start: usize, which: Which) -> Option<Found> {
        self.lengths[usize::from(bytes[start])]
            .iter()
            .find_map(|&length| {
                let candidate = bytes.get(start..start + length)?;
                let index = self
                    .entries
                    .binary_search_by(|m| m.text.as_bytes().cmp(candidate))
                    .ok()?;
                let marker = &self.entries[index];
                let wanted = match which {
                    Which::All => true,
                    Which::Control => marker.control,
                    Which::UserDefined => !marker.control,
                };
                wanted.then(|| Found {
                    range: start..start + length,
                    id: marker.id,
                    control: marker.control,
                })
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn markers() -> Markers {
        let entry = |text: &str, id, control| Marker {
            text: text.into(),
            id,
            control,
        };
        Markers::new(vec![
            entry("<|a|>", 1, true),
            entry("<|a|>b", 2, false),
            entry("<t>", 3, false),
            entry("é!", 4, true),
        ])
    }

    fn ids(text: &str, which: Which) -> Vec<(u32, usize)> {
        markers()
            .matches(text, which)
            .map(|found| (found.id, found.range.start))
            .collect()
    }

    #[test]
    fn the_leftmost_and_then_the_longest_match_wins() {
        assert_eq!(
            ids("x<|a|>b<|a|>c<t>", Which::All),
            [(2, 1), (1, 7), (3, 13)]
        );
    }

    #[test]
    fn control_markers_are_invisible_when_not_asked_for() {
        assert_eq!(
            ids("<|a|><t>é!<|a|>b", Which::UserDefined),
            [(3, 5), (2, 11)]
        );
    }

    #[test]
    fn cut_markers_and_shared_lead_bytes_do_not_match() {
        assert_eq!(ids("<|a|é<", Which::All), []);
        assert_eq!(ids("é!è", Which::All), [(4, 0)]);
        assert_eq!(ids("", Which::All), []);
    }
}

//! Pre-tokenizers: how text is cut into the pieces that merges never cross.
//!
//! Owns: the list of known pre-tokenizers and the cutting. Does not own: merges, markers, NFC.
//! Invariants: 1. the pieces cover the text in order without overlap; 2. no piece is empty.
//! Cost: linear in the text. The published patterns end in `\s+(?!\S)|\s+`, whose look-ahead needs
//! a backtracking engine; that engine gives up silently after a million steps, so that a long run
//! of spaces would swallow the rest of the text. Here the pattern ends in plain `\s+`, which runs
//! in linear time, and the look-ahead is done by hand.

use tokenizers::utils::SysRegex;

use crate::error::{Error, Result};

/// The known pre-tokenizers: the name in `tokenizer.ggml.pre` and the pattern in front of
/// `\s+(?!\S)|\s+`.
const KNOWN: &[(&str, &str)] = &[(
    "qwen35",
    concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
        r"|\p{N}",
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
        r"|\s*[\r\n]+",
    ),
)];

/// A compiled pre-tokenizer.
#[derive(Debug)]
pub(crate) struct Splitter {
    regex: SysRegex,
}

impl Splitter {
    /// The pre-tokenizer that llama.cpp calls `pre`.
    pub(crate) fn new(pre: &str) -> Result<Self> {
        let Some(&(name, pattern)) = KNOWN.iter().find(|(name, _)| *name == pre) else {
            let known = KNOWN.iter().map(|(name, _)| *name).collect();
            return Err(Error::UnknownPre {
                found: pre.to_owned(),
                known,
            });
        };
        let regex = SysRegex::new(&format!(r"{pattern}|\s+"))
            .map_err(|source| Error::Pattern { pre: name, source })?;
        Ok(Self { regex })
    }

    /// Calls `piece` with every piece of `text` in order.
    pub(crate) fn split<'t>(&self, text: &'t str, mut piece: impl FnMut(&'t str)) {
        let mut done = 0;
        while done < text.len() {
            // The patterns look at nothing before a match, so a search may begin anywhere.
            let rest = &text[done..];
            let mut end = 0;
            for (start, match_end) in self.regex.find_iter(rest) {
                if start > end {
                    piece(&rest[end..start]);
                }
                let matched = &rest[start..match_end];
                let kept = blanks_before_a_word(matched, &rest[match_end..]);
                piece(&matched[..kept]);
                end = start + kept;
                if end < match_end {
                    break;
                }
            }
            if end == 0 {
                // No match at all: the rest is one piece.
                piece(rest);
                end = rest.len();
            }
            done += end;
        }
    }
}

/// How many bytes of `matched` stay when it is a run of blanks: all but its last character if a
/// word follows, because that character belongs to the word (`\s+(?!\S)`).
fn blanks_before_a_word(matched: &str, after: &str) -> usize {
    let mut chars = matched.chars();
    let last = chars.next_back();
    match last {
        // A run that ends in a line break was matched by `\s*[\r\n]+`, which looks at nothing.
        Some('\r' | '\n') | None => matched.len(),
        Some(last) => {
            let shortened = matched.len() - last.len_utf8();
            let blank = matched.chars().all(char::is_whitespace);
            if blank && shortened > 0 && !after.is_empty() {
                shortened
            } else {
                matched.len()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &str) -> Vec<&str> {
        let mut pieces = Vec::new();
        Splitter::new("qwen35")
            .expect("known")
            .split(text, |piece| pieces.push(piece));
        pieces
    }

    #[test]
    fn the_last_blank_of_a_run_goes_to_the_word() {
        assert_eq!(pieces("a   b"), ["a", "  ", " b"]);
        assert_eq!(pieces("a   "), ["a", "   "]);
        assert_eq!(pieces("a  1"), ["a", " ", " ", "1"]);
        assert_eq!(pieces("\u{3000}\u{3000}x"), ["\u{3000}", "\u{3000}x"]);
        assert_eq!(pieces(" \n  x"), [" \n", " ", " x"]);
        assert_eq!(pieces("  \n \n"), ["  \n \n"]);
    }

    #[test]
    fn words_take_marks_and_one_leading_sign() {
        assert_eq!(pieces("e\u{301}t\u{e9} (x"), ["e\u{301}t\u{e9}", " (", "x"]);
        assert_eq!(
            pieces("don't I'LL 12"),
            ["don", "'t", " I", "'LL", " ", "1", "2"]
        );
        assert_eq!(pieces("a...\r\n\r\nb"), ["a", "...\r\n\r\n", "b"]);
    }

    #[test]
    fn a_run_of_a_million_blanks_does_not_swallow_the_text() {
        let text = format!("{}x", " ".repeat(1 << 21));
        let found = pieces(&text);
        assert_eq!(
            found.iter().map(|piece| piece.len()).collect::<Vec<_>>(),
            [(1 << 21) - 1, 2]
        );
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let error = Splitter::new("llama-bpe").expect_err("unknown");
        assert_eq!(
            error.to_string(),
            r#"pre-tokenizer "llama-bpe" is not supported; known: qwen35"#
        );
    }
}

//! Text from tokens while they arrive.
//!
//! Owns: [`Utf8Stream`], which turns any split of bytes into text, and [`Detokenizer`], which feeds
//! it with the bytes of tokens. Does not own: stop strings. Memory: at most three held bytes.
//! Invariants: 1. after a push the held bytes are a proper prefix of at least one character;
//! 2. the concatenated output equals `String::from_utf8_lossy` of the concatenated bytes, however
//! these were split. Cost: a few instructions a byte; no allocation beyond the output.

use crate::error::Result;
use crate::tokenizer::Tokenizer;

/// Decodes UTF-8 that arrives in arbitrary pieces, without error and without delay.
///
/// A character is given out when its last byte arrives. Bytes that can't belong to a character
/// become U+FFFD at once, one for each maximal prefix of a character, which is what the Unicode
/// Standard recommends (section 3.9, "U+FFFD Substitution of Maximal Subparts") and what
/// `String::from_utf8_lossy` does.
///
/// ```
/// use thalweg_text::Utf8Stream;
///
/// let (mut utf8, mut text) = (Utf8Stream::new(), String::new());
/// utf8.push(b"ok \xF0\x9F", &mut text);
/// assert_eq!(text, "ok ");
/// utf8.push(b"\x98\x80", &mut text);
/// assert_eq!(text, "ok \u{1F600}");
/// utf8.push(b"\xE2", &mut text);
/// utf8.finish(&mut text);
/// assert_eq!(text, "ok \u{1F600}\u{FFFD}");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Utf8Stream {
    held: [u8; 4],
    n_held: usize,
}

impl Utf8Stream {
    /// A stream that holds nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes bytes and appends to `text` what is certain now.
    pub fn push(&mut self, bytes: &[u8], text: &mut String) {
        let mut rest = bytes;
        while self.n_held > 0
            && let Some((&byte, after)) = rest.split_first()
        {
            if self.take_continuation(byte, text) {
                rest = after;
            } else {
                text.push(char::REPLACEMENT_CHARACTER);
                self.n_held = 0;
            }
        }
        // Nothing is held, unless the bytes are used up.
        let mut n_left = rest.len();
        for chunk in rest.utf8_chunks() {
            let (valid, invalid) = (chunk.valid(), chunk.invalid());
            text.push_str(valid);
            n_left -= valid.len() + invalid.len();
            if n_left == 0 && is_incomplete(invalid) {
                self.hold(invalid);
            } else if !invalid.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
    }

    /// Ends the stream: appends one U+FFFD if it ended within a character. The stream is then as
    /// new.
    pub fn finish(&mut self, text: &mut String) {
        if self.n_held > 0 {
            text.push(char::REPLACEMENT_CHARACTER);
            self.n_held = 0;
        }
    }

    /// How many bytes wait for the rest of their character: 0 to 3.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.n_held
    }

    /// Adds a byte to the held ones if together they can still become a character.
    fn take_continuation(&mut self, byte: u8, text: &mut String) -> bool {
        let mut grown = self.held;
        grown[self.n_held] = byte;
        let grown = &grown[..=self.n_held];
        match std::str::from_utf8(grown) {
            Ok(character) => {
                text.push_str(character);
                self.n_held = 0;
                true
            }
            Err(_) if is_incomplete(grown) => {
                self.held[self.n_held] = byte;
                self.n_held += 1;
                true
            }
            Err(_) => false,
        }
    }

    fn hold(&mut self, prefix: &[u8]) {
        self.held[..prefix.len()].copy_from_slice(prefix);
        self.n_held = prefix.len();
    }
}

/// Whether the bytes begin exactly one character and lack its end.
fn is_incomplete(bytes: &[u8]) -> bool {
    let error = std::str::from_utf8(bytes).err();
    error.is_some_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}

/// Turns a stream of token ids into text, one piece a token.
///
/// The pieces are whole characters; joined, they are what [`Tokenizer::decode`] gives for all ids
/// together.
///
/// ```
/// # let spec = thalweg_text::TokenizerSpec::bytes_only(["<|im_end|>"]);
/// # let tokenizer = thalweg_text::Tokenizer::new(spec)?;
/// use thalweg_text::SpecialTokens;
///
/// let ids = tokenizer.encode("grün", SpecialTokens::AsText);
/// let mut stream = tokenizer.detokenizer(true);
/// let mut text = String::new();
/// for &id in &ids {
///     text.push_str(stream.push(id)?);
/// }
/// text.push_str(stream.finish());
/// assert_eq!(text, "grün");
/// # Ok::<(), thalweg_text::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Detokenizer<'t> {
    tokenizer: &'t Tokenizer,
    skip_control: bool,
    utf8: Utf8Stream,
    text: String,
}

impl<'t> Detokenizer<'t> {
    /// A detokenizer at the start of a stream. With `skip_control`, control and unused tokens yield
    /// no text.
    #[must_use]
    pub fn new(tokenizer: &'t Tokenizer, skip_control: bool) -> Self {
        Self {
            tokenizer,
            skip_control,
            utf8: Utf8Stream::new(),
            text: String::new(),
        }
    }

    /// Takes the next id and returns the text that is complete now; it may be empty.
    ///
    /// # Errors
    /// [`Error::TokenOutOfRange`](crate::Error::TokenOutOfRange); the stream is as before.
    pub fn push(&mut self, id: u32) -> Result<&str> {
        let bytes = self.tokenizer.shown_bytes(id, self.skip_control)?;
        self.text.clear();
        self.utf8.push(bytes, &mut self.text);
        Ok(&self.text)
    }

    /// Ends the stream and returns the rest: one U+FFFD if it ended within a character, else
    /// nothing. The detokenizer can then be used for another stream.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        self.utf8.finish(&mut self.text);
        &self.text
    }
}

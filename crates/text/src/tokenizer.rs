//! The tokenizer: text to ids and back.
//!
//! Owns: the vocabulary in two forms, spellings for merging (in the model) and bytes for decoding.
//! Does not own: templates, streaming. Memory: about 260 bytes a token; `encode` needs a small
//! multiple of its text (seventeen times when the text is not ASCII, for NFC).
//! Invariants: 1. the model holds ordinary tokens alone, so merging can yield no control, unused
//! or user-defined id, whatever the text; 2. every byte has an ordinary token, so encoding loses
//! nothing; 3. the bytes of token `i` are `bytes[ends[i - 1]..ends[i]]`.
//! Cost: O(n log n) in the length of a word, linear in the number of words.

use std::borrow::Cow;
use std::collections::HashMap;

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::{Model as _, NormalizedString};

use crate::bytes::{byte_of, char_of};
use crate::error::{Error, Result};
use crate::markers::{Marker, Markers, Which};
use crate::spec::TokenizerSpec;
use crate::split::Splitter;
use crate::stream::{Detokenizer, Utf8Stream};

const KNOWN_MODELS: &[&str] = &["gpt2"];

/// What `encode` does with the text of a control token (`<|im_start|>` and its like).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpecialTokens {
    /// It is ordinary text. For everything that comes from outside: nobody can forge a turn.
    AsText,
    /// It becomes the control token. For text that the application or a template wrote.
    Parse,
}

/// The kind of a token, as GGUF numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TokenKind {
    /// 1: made by merges; spelled in the byte alphabet.
    Normal,
    /// 2: stands for what could not be encoded; never needed by a byte-level vocabulary.
    Unknown,
    /// 3: steers the model; recognized in text only on request.
    Control,
    /// 4: recognized in all text.
    UserDefined,
    /// 5: a filler that was never trained; `encode` never yields it.
    Unused,
    /// 6: one raw byte, spelled `<0xHH>`; `encode` never yields it.
    Byte,
}

/// A byte-level BPE tokenizer.
#[derive(Debug)]
pub struct Tokenizer {
    model: BPE,
    splitter: Splitter,
    markers: Markers,
    /// Ids by spelling, of the tokens that are neither in the model nor markers.
    other: HashMap<Box<str>, u32>,
    kinds: Box<[TokenKind]>,
    bytes: Vec<u8>,
    ends: Vec<u32>,
    bos_id: Option<u32>,
    eos_id: Option<u32>,
    padding_id: Option<u32>,
    add_bos: bool,
    eos_ids: Vec<u32>,
}

impl Tokenizer {
    /// Checks a specification and builds the tokenizer from it.
    ///
    /// # Errors
    /// One variant of [`Error`] for each thing that can be wrong with a vocabulary: see the
    /// variants from [`Error::UnknownModel`] to [`Error::Model`].
    ///
    /// # Cost
    /// Linear in the vocabulary; its strings are moved, and held once more for looking up an id's
    /// spelling.
    pub fn new(spec: TokenizerSpec) -> Result<Self> {
        let TokenizerSpec {
            model,
            pre,
            tokens,
            token_types,
            merges,
            ..
        } = spec;
        let (bos_id, eos_id, padding_id) = (spec.bos_id, spec.eos_id, spec.padding_id);

        if !KNOWN_MODELS.contains(&model.as_str()) {
            return Err(Error::UnknownModel {
                found: model,
                known: KNOWN_MODELS,
            });
        }
        let splitter = Splitter::new(&pre)?;
        let kinds = kinds_of(&tokens, &token_types)?;
        let n_vocab = tokens.len();
        for (name, id) in [("bos", bos_id), ("eos", eos_id), ("padding", padding_id)] {
            if let Some(id) = id.filter(|&id| index(id) >= n_vocab) {
                return Err(Error::SpecialIdOutOfRange { name, id, n_vocab });
            }
        }
        if spec.add_bos && bos_id.is_none() {
            return Err(Error::MissingBos);
        }

        let (bytes, ends) = bytes_of(&tokens, &kinds)?;
        let Sorted {
            vocab,
            markers,
            other,
        } = sort(tokens, &kinds)?;
        check_alphabet(&vocab)?;
        let merges = split_merges(&merges, &vocab)?;
        let model = BPE::builder()
            .vocab_and_merges(vocab, merges)
            // The library's cache is kept per thread and outlives the tokenizer.
            .cache_capacity(0)
            .build()
            .map_err(|source| Error::Model { source })?;

        let mut tokenizer = Self {
            model,
            splitter,
            markers: Markers::new(markers),
            other,
            kinds,
            bytes,
            ends,
            bos_id,
            eos_id,
            padding_id,
            add_bos: spec.add_bos,
            eos_ids: Vec::new(),
        };
        tokenizer.eos_ids = tokenizer.find_eos_ids();
        Ok(tokenizer)
    }

    /// The ids of `text`.
    ///
    /// The text is brought to NFC first, as the model's own tokenizer does; user-defined tokens are
    /// always recognized, control tokens as `special` says. Nothing is put in front or behind,
    /// except for the `bos` token if the vocabulary asks for it.
    ///
    /// ```
    /// # let spec = thalweg_text::TokenizerSpec::bytes_only(["<|im_end|>"]);
    /// # let tokenizer = thalweg_text::Tokenizer::new(spec)?;
    /// use thalweg_text::SpecialTokens;
    ///
    /// let end = tokenizer.id_of("<|im_end|>").expect("in this vocabulary");
    /// assert_eq!(tokenizer.encode("<|im_end|>", SpecialTokens::Parse), [end]);
    /// assert!(!tokenizer.encode("<|im_end|>", SpecialTokens::AsText).contains(&end));
    /// # Ok::<(), thalweg_text::Error>(())
    /// ```
    #[must_use]
    pub fn encode(&self, text: &str, special: SpecialTokens) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 1);
        if self.add_bos {
            ids.extend(self.bos_id);
        }
        let which = match special {
            SpecialTokens::AsText => Which::UserDefined,
            SpecialTokens::Parse => Which::All,
        };
        self.encode_into(text, which, &mut ids);
        ids
    }

    /// The text of `ids`: the bytes of all tokens, joined, as UTF-8.
    ///
    /// With `skip_control`, control and unused tokens are left out. Bytes that are not UTF-8 become
    /// U+FFFD as [`Utf8Stream`] describes; they are no error.
    ///
    /// # Errors
    /// [`Error::TokenOutOfRange`] for an id beyond the vocabulary.
    pub fn decode(&self, ids: &[u32], skip_control: bool) -> Result<String> {
        let mut text = String::with_capacity(ids.len() * 4);
        let mut utf8 = Utf8Stream::new();
        for &id in ids {
            utf8.push(self.shown_bytes(id, skip_control)?, &mut text);
        }
        utf8.finish(&mut text);
        Ok(text)
    }

    /// A detokenizer for one stream of ids; see [`Detokenizer`].
    #[must_use]
    pub fn detokenizer(&self, skip_control: bool) -> Detokenizer<'_> {
        Detokenizer::new(self, skip_control)
    }

    /// The number of ids; every id is below it.
    #[must_use]
    pub fn n_vocab(&self) -> usize {
        self.kinds.len()
    }

    /// The bytes that a token stands for. For a control, user-defined, unknown or unused token they
    /// are its literal text. They need not be UTF-8: a character may be spread over several tokens.
    ///
    /// # Errors
    /// [`Error::TokenOutOfRange`].
    pub fn token_bytes(&self, id: u32) -> Result<&[u8]> {
        let at = self.checked(id)?;
        let begin = if at == 0 { 0 } else { index(self.ends[at - 1]) };
        Ok(&self.bytes[begin..index(self.ends[at])])
    }

    /// The kind of a token.
    ///
    /// # Errors
    /// [`Error::TokenOutOfRange`].
    pub fn kind(&self, id: u32) -> Result<TokenKind> {
        Ok(self.kinds[self.checked(id)?])
    }

    /// Whether `id` is a control token; false beyond the vocabulary.
    #[must_use]
    pub fn is_control(&self, id: u32) -> bool {
        self.kind(id).is_ok_and(|kind| kind == TokenKind::Control)
    }

    /// Whether `id` is a filler that was never trained, so that sampling should not choose it;
    /// false beyond the vocabulary.
    #[must_use]
    pub fn is_unused(&self, id: u32) -> bool {
        self.kind(id).is_ok_and(|kind| kind == TokenKind::Unused)
    }

    /// The id of the token that the vocabulary spells `token`. Ordinary tokens are spelled in the
    /// byte alphabet, so " the" is `Ġthe`.
    #[must_use]
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.model
            .token_to_id(token)
            .or_else(|| self.markers.id_of(token))
            .or_else(|| self.other.get(token).copied())
    }

    /// The ids that end a turn, ascending: the vocabulary's `eos` and, where they exist,
    /// `<|endoftext|>` and `<|im_end|>`.
    #[must_use]
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    /// The vocabulary's `bos` id.
    #[must_use]
    pub fn bos_id(&self) -> Option<u32> {
        self.bos_id
    }

    /// The vocabulary's `eos` id.
    #[must_use]
    pub fn eos_id(&self) -> Option<u32> {
        self.eos_id
    }

    /// The vocabulary's `padding` id.
    #[must_use]
    pub fn padding_id(&self) -> Option<u32> {
        self.padding_id
    }

    /// Whether `encode` puts the `bos` token in front.
    #[must_use]
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// The literal text of `id`, which must be a token without raw bytes; empty if there is none.
    pub(crate) fn literal(&self, id: Option<u32>) -> Cow<'_, str> {
        id.and_then(|id| self.token_bytes(id).ok())
            .map_or(Cow::Borrowed(""), String::from_utf8_lossy)
    }

    pub(crate) fn markers(&self) -> &Markers {
        &self.markers
    }

    /// The bytes that decoding shows for `id`.
    pub(crate) fn shown_bytes(&self, id: u32, skip_control: bool) -> Result<&[u8]> {
        let hidden = matches!(self.kind(id)?, TokenKind::Control | TokenKind::Unused);
        if skip_control && hidden {
            Ok(&[])
        } else {
            self.token_bytes(id)
        }
    }

    /// Appends the ids of `text`, recognizing the markers of `which`.
    pub(crate) fn encode_into(&self, text: &str, which: Which, ids: &mut Vec<u32>) {
        let mut done = 0;
        for found in self.markers.matches(text, which) {
            self.encode_plain(&text[done..found.range.start], ids);
            ids.push(found.id);
            done = found.range.end;
        }
        self.encode_plain(&text[done..], ids);
    }

    /// Appends the ids of a text without markers.
    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let mut spelled = String::new();
        self.splitter.split(&to_nfc(text), |piece| {
            spelled.clear();
            spelled.extend(piece.bytes().map(char_of));
            let tokens = self
                .model
                .tokenize(&spelled)
                .expect("a model without dropout and unknown token never fails");
            ids.extend(tokens.iter().map(|token| token.id));
        });
    }

    fn find_eos_ids(&self) -> Vec<u32> {
        let by_text = ["<|endoftext|>", "<|im_end|>"].map(|text| self.markers.id_of(text));
        let mut ids: Vec<u32> = by_text.into_iter().chain([self.eos_id]).flatten().collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    fn checked(&self, id: u32) -> Result<usize> {
        let n_vocab = self.n_vocab();
        if index(id) < n_vocab {
            Ok(index(id))
        } else {
            Err(Error::TokenOutOfRange { id, n_vocab })
        }
    }
}

/// An id as an index. Saturation only matters where `usize` is narrower than 32 bits, and there no
/// vocabulary is that large.
fn index(id: u32) -> usize {
    usize::try_from(id).unwrap_or(usize::MAX)
}

fn kinds_of(tokens: &[String], types: &[i32]) -> Result<Box<[TokenKind]>> {
    // One below the largest `u32`, because some files write that one for "no token".
    let max = usize::try_from(u32::MAX - 1).unwrap_or(usize::MAX);
    if tokens.is_empty() || tokens.len() > max {
        return Err(Error::VocabularySize {
            n_tokens: tokens.len(),
            max,
        });
    }
    if tokens.len() != types.len() {
        return Err(Error::TypeCount {
            n_tokens: tokens.len(),
            n_types: types.len(),
        });
    }
    (0..)
        .zip(types)
        .map(|(id, &found)| match found {
            1 => Ok(TokenKind::Normal),
            2 => Ok(TokenKind::Unknown),
            3 => Ok(TokenKind::Control),
            4 => Ok(TokenKind::UserDefined),
            5 => Ok(TokenKind::Unused),
            6 => Ok(TokenKind::Byte),
            _ => Err(Error::UnknownType { id, found }),
        })
        .collect()
}

/// The bytes of all tokens, joined, and where each ends.
fn bytes_of(tokens: &[String], kinds: &[TokenKind]) -> Result<(Vec<u8>, Vec<u32>)> {
    let mut bytes = Vec::with_capacity(tokens.iter().map(String::len).sum());
    let mut ends = Vec::with_capacity(tokens.len());
    for ((id, token), kind) in (0..).zip(tokens).zip(kinds) {
        match kind {
            TokenKind::Normal => spelled_bytes(token, &mut bytes),
            TokenKind::Byte => bytes.push(raw_byte(id, token)?),
            _ => bytes.extend_from_slice(token.as_bytes()),
        }
        let end = u32::try_from(bytes.len()).map_err(|_| Error::VocabularySize {
            n_tokens: tokens.len(),
            // More than 4 GiB of spellings: the tokens so far are what fits.
            max: ends.len(),
        })?;
        ends.push(end);
    }
    bytes.shrink_to_fit();
    Ok((bytes, ends))
}

/// Appends what an ordinary token stands for. A character outside the byte alphabet, which merges
/// never produce but which some files contain, stands for itself.
fn spelled_bytes(token: &str, bytes: &mut Vec<u8>) {
    for c in token.chars() {
        match byte_of(c) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

fn raw_byte(id: u32, token: &str) -> Result<u8> {
    token
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'))
        .filter(|digits| digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
        .and_then(|digits| u8::from_str_radix(digits, 16).ok())
        .ok_or_else(|| Error::MalformedByteToken {
            id,
            token: token.to_owned(),
        })
}

/// A vocabulary by what a token is found by.
struct Sorted {
    /// Ordinary tokens: found by merging.
    vocab: Vocab,
    /// Control and user-defined tokens: found by their text.
    markers: Vec<Marker>,
    /// All others: never found.
    other: HashMap<Box<str>, u32>,
}

fn sort(tokens: Vec<String>, kinds: &[TokenKind]) -> Result<Sorted> {
    let mut seen = Vocab::default();
    let mut markers = Vec::new();
    let mut other = HashMap::new();
    let duplicate = |token, first, second| {
        Err(Error::DuplicateToken {
            token,
            first,
            second,
        })
    };
    // Markers and fillers are few, but duplicates must be found across all kinds; so they all go
    // through the map that the ordinary tokens need anyway, and are taken out again.
    let mut taken_out = Vec::new();
    for ((id, token), &kind) in (0..).zip(tokens).zip(kinds) {
        let control = kind == TokenKind::Control;
        if control || kind == TokenKind::UserDefined {
            if token.is_empty() {
                return Err(Error::EmptyMarker { id });
            }
            markers.push(Marker {
                text: token.as_str().into(),
                id,
                control,
            });
            taken_out.push(token.clone());
        } else if kind != TokenKind::Normal {
            other.insert(token.as_str().into(), id);
            taken_out.push(token.clone());
        }
        if let Some(&first) = seen.get(&token) {
            return duplicate(token, first, id);
        }
        seen.insert(token, id);
    }
    for token in &taken_out {
        seen.remove(token);
    }
    Ok(Sorted {
        vocab: seen,
        markers,
        other,
    })
}

fn check_alphabet(vocab: &Vocab) -> Result<()> {
    for byte in 0..=u8::MAX {
        let expected = char_of(byte);
        if !vocab.contains_key(expected.encode_utf8(&mut [0; 4])) {
            return Err(Error::MissingByte { byte, expected });
        }
    }
    Ok(())
}

/// Splits merges at the first space that is not their first byte.
fn split_merges(merges: &[String], vocab: &Vocab) -> Result<Vec<(String, String)>> {
    let mut first_of = HashMap::with_capacity(merges.len());
    let mut joined = String::new();
    let mut pairs = Vec::with_capacity(merges.len());
    for (index, merge) in merges.iter().enumerate() {
        let space = merge
            .bytes()
            .skip(1)
            .position(|byte| byte == b' ')
            .map(|at| at + 1);
        let parts = space.map(|at| (&merge[..at], &merge[at + 1..]));
        let Some((left, right)) = parts.filter(|(_, right)| !right.is_empty()) else {
            return Err(Error::MalformedMerge {
                index,
                merge: merge.clone(),
            });
        };
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        for token in [left, right, &joined] {
            if !vocab.contains_key(token) {
                return Err(Error::MergeUnknownToken {
                    index,
                    token: token.to_owned(),
                });
            }
        }
        if let Some(first) = first_of.insert(merge.as_str(), index) {
            return Err(Error::DuplicateMerge {
                merge: merge.clone(),
                first,
                second: index,
            });
        }
        pairs.push((left.to_owned(), right.to_owned()));
    }
    Ok(pairs)
}

fn to_nfc(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return Cow::Borrowed(text);
    }
    let mut normalized = NormalizedString::from(text);
    normalized.nfc();
    Cow::Owned(normalized.get().to_owned())
}

//! Reading: `Trace` over bytes, `TraceFile` that owns them.
//!
//! Owns the check of a whole file; after it, nothing in a trace can be out of range. Does not copy:
//! tokens and layers are views, so the bytes may be a memory map. Invariants, all checked by
//! `parse`: (1) the length is what the header says; (2) the checksum fits; (3) documents ascend
//! within the tokens; (4) experts are distinct and in range; (5) weights and logits are usable,
//! top-m lists descend. Cost: `parse` reads the file once for the checksum and once for the
//! records, with 8 bytes an expert of memory; iteration allocates nothing.

use std::fs;
use std::path::Path;

use crate::crc::Crc32c;
use crate::half::f32_from_f16;
use crate::header::{DOCUMENT_BYTES, HEADER_BYTES, TOKEN_ID_BYTES, TRAILER_BYTES, TRAILER_MAGIC};
use crate::record::{Marks, is_logit};
use crate::{Error, Header, Logits, Shape};

/// A document: tokens that belong together, the first of them a prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Document {
    /// Position of its first token.
    pub first_token: u64,
    /// Tokens of the prompt, at most its length.
    pub n_prompt_tokens: u32,
    /// Its domain; the provenance may name it.
    pub domain: u32,
}

impl Document {
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.first_token.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.n_prompt_tokens.to_le_bytes());
        bytes[12..].copy_from_slice(&self.domain.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; 16]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *bytes;
        Self {
            first_token: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            n_prompt_tokens: u32::from_le_bytes([i, j, k, l]),
            domain: u32::from_le_bytes([m, n, o, p]),
        }
    }
}

/// A checked trace over borrowed bytes.
#[derive(Clone, Copy, Debug)]
pub struct Trace<'a> {
    header: Header,
    documents: &'a [[u8; 16]],
    provenance: &'a str,
    records: &'a [u8],
}

impl<'a> Trace<'a> {
    /// Checks a whole file.
    ///
    /// # Errors
    /// The first thing found wrong: structure, then checksum, then contents.
    ///
    /// # Cost
    /// Two passes over the bytes.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let trace = Self::split(bytes)?;
        let (body, trailer) = bytes.split_at(bytes.len() - TRAILER_BYTES as usize);
        let found = u32_at(trailer, 0);
        let mut crc = Crc32c::new();
        crc.update(body);
        if crc.value() != found {
            return Err(Error::BadChecksum {
                expected: crc.value(),
                found,
            });
        }
        check_documents(trace.documents(), trace.header.n_tokens)?;
        let mut marks = Marks::new(trace.shape().n_expert);
        for (position, token) in (0..).zip(trace.tokens()) {
            for layer in token.layers() {
                layer.check(position, &mut marks)?;
            }
        }
        Ok(trace)
    }

    /// The header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// What a record holds.
    #[must_use]
    pub const fn shape(&self) -> &Shape {
        &self.header.shape
    }

    /// Number of tokens.
    #[must_use]
    pub const fn n_tokens(&self) -> u64 {
        self.header.n_tokens
    }

    /// The documents, in order.
    pub fn documents(&self) -> impl ExactSizeIterator<Item = Document> + use<'a> {
        self.documents.iter().map(Document::from_bytes)
    }

    /// The provenance: by convention JSON, here only known to be UTF-8.
    #[must_use]
    pub const fn provenance(&self) -> &'a str {
        self.provenance
    }

    /// The token at a position.
    #[must_use]
    pub fn token(&self, position: u64) -> Option<Token<'a>> {
        if position >= self.header.n_tokens {
            return None;
        }
        // All records lie in a slice, so their size and offsets fit in usize.
        let record_bytes = self.header.shape.record_bytes() as usize;
        let start = position as usize * record_bytes;
        Some(Token {
            shape: self.header.shape,
            bytes: self.records.get(start..start + record_bytes)?,
        })
    }

    /// The tokens in order.
    pub fn tokens(&self) -> impl Iterator<Item = Token<'a>> + use<'a> {
        let trace = *self;
        (0..self.header.n_tokens).filter_map(move |position| trace.token(position))
    }

    /// Layers whose stored logits rank other experts first than those that were chosen.
    ///
    /// The stored experts are what the model did; half-precision logits may tie or lie. 0 without
    /// logits. O(file).
    #[must_use]
    pub fn rank_conflicts(&self) -> u64 {
        self.tokens()
            .flat_map(|token| token.layers())
            .map(|layer| u64::from(layer.rank_conflict()))
            .sum()
    }

    /// Checks that the logits kept decide every choice under a bias of up to `beta` nats for some
    /// experts: with top-m logits, none that was left out could reach the k best. O(tokens x
    /// layers).
    ///
    /// # Errors
    /// [`Error::NoLogits`]; [`Error::BiasTooStrong`] at the first layer that fails (also for a
    /// `beta` that is not a number).
    pub fn check_beta(&self, beta: f32) -> Result<(), Error> {
        if self.shape().logits == Logits::None {
            return Err(Error::NoLogits);
        }
        for (position, token) in (0..).zip(self.tokens()) {
            for layer in token.layers() {
                let limit = layer.beta_limit();
                // Written so that a NaN fails; the limit itself is excluded.
                if !(beta < limit || limit == f32::INFINITY && !beta.is_nan()) {
                    return Err(Error::BiasTooStrong {
                        token: position,
                        layer: layer.index,
                        beta,
                        limit,
                    });
                }
            }
        }
        Ok(())
    }

    /// Checks the structure, not the contents.
    fn split(bytes: &'a [u8]) -> Result<Self, Error> {
        let found_bytes = bytes.len() as u64;
        let too_short = |needed_bytes| Error::TooShort {
            needed_bytes,
            found_bytes,
        };
        let least = HEADER_BYTES + 4 + TRAILER_BYTES;
        let (head, rest) = bytes
            .split_first_chunk::<64>()
            .ok_or_else(|| too_short(least))?;
        let header = Header::from_bytes(head)?;
        // n_docs is a u32, so this and the sums below stay far from u64's end until the records.
        let docs_bytes = u64::from(header.n_docs) * DOCUMENT_BYTES;
        let text_at = HEADER_BYTES + docs_bytes;
        if found_bytes < text_at + 4 + TRAILER_BYTES {
            return Err(too_short(text_at + 4 + TRAILER_BYTES));
        }
        // Below the length of a slice, hence within usize, as are the sizes after it.
        let (documents, rest) = rest.split_at(docs_bytes as usize);
        let text_bytes = u64::from(u32_at(rest, 0));
        let fixed_bytes = text_at + 4 + text_bytes + TRAILER_BYTES;
        if found_bytes < fixed_bytes {
            return Err(too_short(fixed_bytes));
        }
        let record_bytes = header.shape.record_bytes();
        let expected = header
            .n_tokens
            .checked_mul(record_bytes)
            .and_then(|records| records.checked_add(fixed_bytes));
        if expected != Some(found_bytes) {
            return Err(Error::WrongLength {
                expected_bytes: expected.unwrap_or(u64::MAX),
                found_bytes,
            });
        }
        let (text, rest) = rest[4..].split_at(text_bytes as usize);
        let (records, trailer) = rest.split_at(rest.len() - TRAILER_BYTES as usize);
        let magic = [trailer[4], trailer[5], trailer[6], trailer[7]];
        if magic != TRAILER_MAGIC {
            return Err(Error::BadMagic {
                offset_bytes: found_bytes - 4,
                expected: TRAILER_MAGIC,
                found: magic,
            });
        }
        let provenance = std::str::from_utf8(text).map_err(|e| Error::BadText {
            offset_bytes: text_at + 4 + e.valid_up_to() as u64,
        })?;
        Ok(Self {
            header,
            documents: documents.as_chunks().0,
            provenance,
            records,
        })
    }
}

/// A trace read from a file into memory.
#[derive(Debug)]
pub struct TraceFile {
    bytes: Vec<u8>,
}

impl TraceFile {
    /// Reads and checks a file. Memory: its size. For a memory map use [`Trace::parse`].
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::NotAFile`], and what [`Trace::parse`] finds.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        check_regular(path)?;
        let bytes = fs::read(path).map_err(|source| Error::Io {
            path: Some(path.to_path_buf()),
            action: "reading",
            source,
        })?;
        Trace::parse(&bytes)?;
        Ok(Self { bytes })
    }

    /// The trace.
    ///
    /// # Panics
    /// Never: `open` has split the same bytes.
    #[must_use]
    pub fn trace(&self) -> Trace<'_> {
        Trace::split(&self.bytes).expect("`open` checked these bytes and nothing changes them")
    }
}

/// Asked before opening, because opening a pipe waits for its other end.
fn check_regular(path: &Path) -> Result<(), Error> {
    let metadata = fs::metadata(path).map_err(|source| Error::Io {
        path: Some(path.to_path_buf()),
        action: "reading",
        source,
    })?;
    match metadata.is_file() {
        true => Ok(()),
        false => Err(Error::NotAFile {
            path: path.to_path_buf(),
        }),
    }
}

/// One token of a trace.
#[derive(Clone, Copy, Debug)]
pub struct Token<'a> {
    shape: Shape,
    bytes: &'a [u8],
}

impl<'a> Token<'a> {
    /// The token's id in the model's vocabulary.
    #[must_use]
    pub fn id(&self) -> u32 {
        u32_at(self.bytes, 0)
    }

    /// What a layer chose.
    #[must_use]
    pub fn layer(&self, index: u32) -> Option<Layer<'a>> {
        if index >= self.shape.n_layer {
            return None;
        }
        // Within the record, hence within usize.
        let layer_bytes = self.shape.layer_bytes() as usize;
        let start = TOKEN_ID_BYTES as usize + index as usize * layer_bytes;
        let bytes = self.bytes.get(start..start + layer_bytes)?;
        let k = usize::from(self.shape.k);
        let (experts, rest) = bytes.split_at(2 * k);
        let (weights, logits) = rest.split_at(if self.shape.weights { 2 * k } else { 0 });
        Some(Layer {
            shape: self.shape,
            index,
            experts,
            weights,
            logits,
        })
    }

    /// The layers in order.
    pub fn layers(&self) -> impl Iterator<Item = Layer<'a>> + use<'a> {
        let token = *self;
        (0..self.shape.n_layer).filter_map(move |index| token.layer(index))
    }
}

/// What one layer chose for a token.
#[derive(Clone, Copy, Debug)]
pub struct Layer<'a> {
    shape: Shape,
    index: u32,
    experts: &'a [u8],
    weights: &'a [u8],
    logits: &'a [u8],
}

impl<'a> Layer<'a> {
    /// Which layer.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// The experts chosen, heaviest first, `[k]`.
    pub fn experts(&self) -> impl ExactSizeIterator<Item = u16> + use<'a> {
        u16s(self.experts)
    }

    /// Their mixture weights, `[k]`; empty if none were kept.
    pub fn weights(&self) -> impl ExactSizeIterator<Item = f32> + use<'a> {
        u16s(self.weights).map(f32_from_f16)
    }

    /// The logits kept, with their experts: all in order of the experts, or the top m descending;
    /// empty if none were kept.
    pub fn logits(&self) -> impl Iterator<Item = (u16, f32)> + use<'a> {
        let layer = *self;
        (0..layer.n_logits()).filter_map(move |i| layer.logit(i))
    }

    /// Writes the logits of all experts, `[n_expert]`; whether there were any.
    ///
    /// With top-m logits, those left out are given the least logit: the range is right, and within
    /// [`Trace::check_beta`] none of them can be chosen. Expects a row of `n_expert` values; of a
    /// shorter one only so many are written.
    pub fn read_logits(&self, row: &mut [f32]) -> bool {
        if let Some(least) = self.least_logit() {
            row.fill(least);
        }
        for (expert, logit) in self.logits() {
            if let Some(value) = row.get_mut(usize::from(expert)) {
                *value = logit;
            }
        }
        self.n_logits() > 0
    }

    /// Whether the logits kept rank other experts first than those chosen, or rank them otherwise;
    /// equal logits rank by the lower id. False without logits. O(k + n_expert), or O(k m).
    #[must_use]
    pub fn rank_conflict(&self) -> bool {
        if self.n_logits() == 0 {
            return false;
        }
        let before = |(a, x): (u16, f32), (b, y): (u16, f32)| x > y || (x >= y && a < b);
        let mut last: Option<(u16, f32)> = None;
        for expert in self.experts() {
            let Some(logit) = self.logit_of(expert) else {
                return true;
            };
            if last.is_some_and(|last| !before(last, (expert, logit))) {
                return true;
            }
            last = Some((expert, logit));
        }
        // The picks are in order. No other expert ranks before the last of them if exactly k - 1
        // do.
        last.is_some_and(|last| {
            let n_before = self.logits().filter(|&other| before(other, last)).count();
            n_before + 1 != usize::from(self.shape.k)
        })
    }

    /// A bias must stay below this for the logits kept to decide the choice: infinite if all were
    /// kept, minus infinity if none.
    #[must_use]
    pub fn beta_limit(&self) -> f32 {
        match self.shape.logits {
            Logits::None => f32::NEG_INFINITY,
            Logits::FullF16 | Logits::FullF32 => f32::INFINITY,
            Logits::Top { m } if u32::from(m) == self.shape.n_expert => f32::INFINITY,
            Logits::Top { m } => {
                let logit = |rank: u16| {
                    let found = self.logit(u32::from(rank) - 1);
                    found.map_or(f32::NEG_INFINITY, |(_, logit)| logit)
                };
                let (kth, last) = (logit(self.shape.k), logit(m));
                // Both masked: an expert left out is as good as the k-th.
                if last == f32::NEG_INFINITY {
                    if kth > last { f32::INFINITY } else { 0.0 }
                } else {
                    kth - last
                }
            }
        }
    }

    fn n_logits(&self) -> u32 {
        match self.shape.logits {
            Logits::None => 0,
            Logits::FullF16 | Logits::FullF32 => self.shape.n_expert,
            Logits::Top { m } => u32::from(m),
        }
    }

    /// The logit at a position of the list.
    fn logit(&self, position: u32) -> Option<(u16, f32)> {
        let at = position as usize;
        match self.shape.logits {
            Logits::None => None,
            Logits::FullF16 => {
                let half = u16_at(self.logits.get(2 * at..)?)?;
                Some((u16::try_from(position).ok()?, f32_from_f16(half)))
            }
            Logits::FullF32 => {
                let bytes = self.logits.get(4 * at..)?.first_chunk()?;
                Some((u16::try_from(position).ok()?, f32::from_le_bytes(*bytes)))
            }
            Logits::Top { .. } => {
                let pair = self.logits.get(4 * at..)?;
                Some((u16_at(pair)?, f32_from_f16(u16_at(pair.get(2..)?)?)))
            }
        }
    }

    fn logit_of(&self, expert: u16) -> Option<f32> {
        match self.shape.logits {
            Logits::None => None,
            Logits::FullF16 | Logits::FullF32 => {
                self.logit(u32::from(expert)).map(|(_, logit)| logit)
            }
            Logits::Top { .. } => self
                .logits()
                .find(|&(other, _)| other == expert)
                .map(|(_, logit)| logit),
        }
    }

    /// The least of all logits, kept with a top-m list.
    fn least_logit(&self) -> Option<f32> {
        match self.shape.logits {
            Logits::Top { .. } => self.logits.last_chunk().map(|b| f32::from_le_bytes(*b)),
            _ => None,
        }
    }

    /// Invariants 4 and 5.
    fn check(&self, token: u64, marks: &mut Marks) -> Result<(), Error> {
        let layer = self.index;
        marks.start();
        for expert in self.experts() {
            marks.mark(expert, token, layer)?;
        }
        let bad = |field, index, found| Error::BadValue {
            token,
            layer,
            field,
            index,
            found,
        };
        for (index, weight) in (0..).zip(self.weights()) {
            if !weight.is_finite() {
                return Err(bad("weight", index, weight));
            }
        }
        marks.start();
        let is_top = matches!(self.shape.logits, Logits::Top { .. });
        let mut last = f32::INFINITY;
        for (index, (expert, logit)) in (0..).zip(self.logits()) {
            if !is_logit(logit) || (is_top && logit > last) {
                return Err(bad("logit", index, logit));
            }
            marks.mark(expert, token, layer)?;
            last = logit;
        }
        match self.least_logit() {
            Some(least) if !is_logit(least) => Err(bad("least logit", 0, least)),
            _ => Ok(()),
        }
    }
}

/// Documents must not be empty, must ascend, and must hold their prompts.
pub(crate) fn check_documents(
    documents: impl Iterator<Item = Document>,
    n_tokens: u64,
) -> Result<(), Error> {
    let mut documents = (0u32..).zip(documents).peekable();
    let mut least = 0;
    while let Some((index, document)) = documents.next() {
        let end = documents
            .peek()
            .map_or(n_tokens, |(_, next)| next.first_token);
        let bad = |field, found, min, max| Error::BadDocument {
            index,
            field,
            found,
            min,
            max,
        };
        let first = document.first_token;
        if first < least || first >= n_tokens {
            return Err(bad("first token", first, least, n_tokens.saturating_sub(1)));
        }
        // If the next one starts too early, that is reported as its fault.
        let len = end.saturating_sub(first);
        let n_prompt = u64::from(document.n_prompt_tokens);
        if len > 0 && n_prompt > len {
            return Err(bad("prompt length", n_prompt, 0, len));
        }
        least = first + 1;
    }
    Ok(())
}

fn u16s(bytes: &[u8]) -> impl ExactSizeIterator<Item = u16> + '_ {
    bytes.as_chunks().0.iter().map(|b| u16::from_le_bytes(*b))
}

fn u16_at(bytes: &[u8]) -> Option<u16> {
    bytes.first_chunk().map(|b| u16::from_le_bytes(*b))
}

/// Four bytes that the caller knows are there; zero otherwise.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |b| u32::from_le_bytes(*b))
}

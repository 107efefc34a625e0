//! Files of log-probabilities as llama.cpp's `perplexity` writes and reads them (`_logits_`): a
//! reference that was run elsewhere, or shall be compared elsewhere.
//!
//! Owns the layout (`docs/formats/base-logits.md`). For interchange: probabilities are rounded to 16
//! bits, and what lies 16 nats below the likeliest token is lost, so a divergence of 1e-3 is off in
//! its second digit. Memory: the tokens and one row. Invariants: 1. the length of a file is checked
//! before anything is allocated; 2. a row that was read holds finite numbers.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::Path;

use crate::metrics::{LogSumExp, TokenScore};
use crate::{Error, Result, WindowSet};

/// The first bytes of a file.
pub const MAGIC: &[u8; 8] = b"_logits_";
/// Nats below the likeliest token that a row can tell apart.
pub const DEPTH: f32 = 16.0;

const HEADER_BYTES: u64 = 8 + 3 * 4;
/// Codes that hold scale and least log-probability, as two f32.
const SCALE_CODES: usize = 4;
/// A probability above one by more than this is no rounding.
const MAX_LOG_PROB: f32 = 0.01;

/// What a file begins with: the tokens of its chunks, and so the number and size of its rows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BaseHeader {
    n_ctx: usize,
    n_vocab: usize,
    tokens: Vec<u32>,
}

impl BaseHeader {
    /// A header for chunks of `n_ctx` tokens, one after the other.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for fewer than 3 tokens a chunk (there would be no row), tokens that are
    /// not whole chunks, a token beyond the vocabulary, and sizes beyond 31 bits.
    pub fn new(n_ctx: usize, n_vocab: usize, tokens: Vec<u32>) -> Result<Self> {
        let out_of_range = |field, index, found: f64, expected| Error::OutOfRange {
            field,
            index,
            found,
            expected,
        };
        let most = i32::MAX as usize;
        if !(3..=most).contains(&n_ctx) {
            let expected = "from 3 to 2^31 - 1";
            return Err(out_of_range("n_ctx", None, n_ctx as f64, expected));
        }
        if !(1..=most).contains(&n_vocab) {
            let expected = "from 1 to 2^31 - 1";
            return Err(out_of_range("n_vocab", None, n_vocab as f64, expected));
        }
        if tokens.is_empty() || !tokens.len().is_multiple_of(n_ctx) || tokens.len() / n_ctx > most {
            let expected = "one or more whole chunks";
            return Err(out_of_range(
                "n_tokens",
                None,
                tokens.len() as f64,
                expected,
            ));
        }
        let bad = tokens.iter().position(|id| *id as usize >= n_vocab);
        if let Some(at) = bad {
            let found = f64::from(tokens[at]);
            return Err(out_of_range("token", Some(at), found, "below n_vocab"));
        }
        Ok(Self {
            n_ctx,
            n_vocab,
            tokens,
        })
    }

    /// Tokens of a chunk.
    #[must_use]
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// Tokens of the vocabulary.
    #[must_use]
    pub fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// Chunks.
    #[must_use]
    pub fn n_chunks(&self) -> usize {
        self.tokens.len() / self.n_ctx
    }

    /// Tokens of all chunks.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Positions of a chunk that have a row: from its middle up to, not including, the last. The row
    /// of a position predicts the token behind it.
    #[must_use]
    pub fn rows(&self) -> std::ops::Range<usize> {
        self.n_ctx / 2..self.n_ctx - 1
    }

    /// Bytes of a row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        2 * (2 * self.n_vocab.div_ceil(2) + SCALE_CODES)
    }

    /// Length of a whole file.
    ///
    /// # Errors
    /// [`Error::TooLarge`] where it exceeds 64 bits.
    pub fn file_bytes(&self) -> Result<u64> {
        file_bytes(
            self.n_ctx as u64,
            self.n_vocab as u64,
            self.n_chunks() as u64,
        )
        .ok_or(Error::TooLarge {
            what: "the file of log-probabilities",
        })
    }

    /// The chunks as windows of one domain.
    ///
    /// # Errors
    /// None that a header allows.
    pub fn windows(&self, domain: &str) -> Result<WindowSet> {
        let mut set = WindowSet::new();
        let rows = self.rows();
        for chunk in self.tokens.chunks(self.n_ctx) {
            set.add_window(domain, chunk.to_vec(), rows.start + 1..rows.end + 1)?;
        }
        Ok(set)
    }

    fn to_bytes(&self) -> Vec<u8> {
        // All three fit: see `new`.
        let sizes = [self.n_ctx, self.n_vocab, self.n_chunks()].map(|n| n as u32);
        let mut bytes = MAGIC.to_vec();
        for number in sizes.iter().chain(&self.tokens) {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes
    }
}

fn file_bytes(n_ctx: u64, n_vocab: u64, n_chunks: u64) -> Option<u64> {
    let row = 2 * (n_vocab.div_ceil(2).checked_mul(2)? + SCALE_CODES as u64);
    let rows = row.checked_mul(n_ctx.checked_sub(1)? - n_ctx / 2)?;
    let chunk = rows.checked_add(4 * n_ctx)?;
    n_chunks.checked_mul(chunk)?.checked_add(HEADER_BYTES)
}

/// Reads rows one after the other.
#[derive(Debug)]
pub struct BaseReader<R> {
    header: BaseHeader,
    input: R,
    n_read: usize,
    bytes: Vec<u8>,
    codes: Vec<u16>,
}

impl BaseReader<BufReader<File>> {
    /// Opens a file.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::NotAFile`], and [`Error::InFile`] around what
    /// [`new`](BaseReader::new) finds.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let fail = |source| Error::Io {
            path: path.to_path_buf(),
            action: "open",
            source,
        };
        // Opening a pipe would wait for its other end.
        let metadata = std::fs::metadata(path).map_err(fail)?;
        if !metadata.is_file() {
            return Err(Error::NotAFile {
                path: path.to_path_buf(),
            });
        }
        let file = File::open(path).map_err(fail)?;
        Self::new(BufReader::new(file), metadata.len()).map_err(|source| Error::InFile {
            path: path.to_path_buf(),
            source: Box::new(source),
        })
    }
}

impl<R: Read> BaseReader<R> {
    /// Reads the header of an input of `len_bytes` bytes.
    ///
    /// # Errors
    /// [`Error::UnknownFormat`], [`Error::FileLength`], [`Error::OutOfRange`] as
    /// [`BaseHeader::new`], [`Error::Stream`].
    pub fn new(mut input: R, len_bytes: u64) -> Result<Self> {
        let mut head = [0; HEADER_BYTES as usize];
        if len_bytes < HEADER_BYTES {
            return Err(Error::FileLength {
                expected: HEADER_BYTES,
                found: len_bytes,
            });
        }
        read(&mut input, &mut head)?;
        let (magic, sizes) = head.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(Error::UnknownFormat {
                expected: "_logits_",
                found: String::from_utf8_lossy(magic).into_owned(),
            });
        }
        let mut fields = [0; 3];
        for ((field, bytes), name) in fields
            .iter_mut()
            .zip(sizes.chunks_exact(4))
            .zip(["n_ctx", "n_vocab", "n_chunk"])
        {
            let value = i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            *field = u64::try_from(value).ok().filter(|n| *n > 0).ok_or({
                Error::OutOfRange {
                    field: name,
                    index: None,
                    found: f64::from(value),
                    expected: "above 0",
                }
            })?;
        }
        let [n_ctx, n_vocab, n_chunks] = fields;
        let expected = file_bytes(n_ctx, n_vocab, n_chunks).ok_or(Error::TooLarge {
            what: "the file of log-probabilities",
        })?;
        if expected != len_bytes {
            return Err(Error::FileLength {
                expected,
                found: len_bytes,
            });
        }
        // No longer than the file, which is there.
        let n_tokens = usize::try_from(n_ctx * n_chunks).map_err(|_| Error::TooLarge {
            what: "the list of tokens",
        })?;
        let mut bytes = vec![0; 4 * n_tokens];
        read(&mut input, &mut bytes)?;
        let tokens = bytes.chunks_exact(4);
        let tokens = tokens.map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        // Both came from 31 bits.
        let header = BaseHeader::new(n_ctx as usize, n_vocab as usize, tokens.collect())?;
        let bytes = vec![0; header.row_bytes()];
        Ok(Self {
            codes: vec![0; header.n_vocab],
            header,
            input,
            n_read: 0,
            bytes,
        })
    }

    /// What the file begins with.
    pub fn header(&self) -> &BaseHeader {
        &self.header
    }

    /// The next row; none after the last.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] with the row for a scale or a log-probability that cannot be;
    /// [`Error::Stream`].
    pub fn next_row(&mut self) -> Result<Option<BaseRow<'_>>> {
        let per_chunk = self.header.rows().len();
        let row = self.n_read;
        if row >= per_chunk * self.header.n_chunks() {
            return Ok(None);
        }
        read(&mut self.input, &mut self.bytes)?;
        self.n_read += 1;
        let number = |at: usize| {
            let b = &self.bytes[at..at + 4];
            f32::from_le_bytes([b[0], b[1], b[2], b[3]])
        };
        let (scale, least) = (number(0), number(4));
        let top = scale * f32::from(u16::MAX) + least;
        let usable = scale >= 0.0 && scale.is_finite() && least.is_finite() && top <= MAX_LOG_PROB;
        if !usable {
            return Err(Error::OutOfRange {
                field: "greatest log-probability of a row",
                index: Some(row),
                found: f64::from(top),
                expected: "finite and at most 0",
            });
        }
        let codes = self.bytes[2 * SCALE_CODES..].chunks_exact(2);
        for (code, bytes) in self.codes.iter_mut().zip(codes) {
            *code = u16::from_le_bytes([bytes[0], bytes[1]]);
        }
        Ok(Some(BaseRow {
            chunk: row / per_chunk,
            position: self.header.rows().start + row % per_chunk,
            scale,
            least,
            codes: &self.codes,
        }))
    }
}

fn read(input: &mut impl Read, bytes: &mut [u8]) -> Result<()> {
    input.read_exact(bytes).map_err(|source| Error::Stream {
        action: "read",
        source,
    })
}

/// Log-probabilities after one position.
#[derive(Clone, Copy, Debug)]
pub struct BaseRow<'a> {
    /// Number of the chunk.
    pub chunk: usize,
    /// Position in it.
    pub position: usize,
    scale: f32,
    least: f32,
    codes: &'a [u16],
}

impl BaseRow<'_> {
    /// Logarithm of a token's probability; what was too far below the likeliest has that of the
    /// least that could be kept. None beyond the vocabulary.
    #[must_use]
    pub fn log_prob(&self, token: u32) -> Option<f32> {
        // A usize has at least 32 bits wherever a model fits.
        let code = self.codes.get(token as usize)?;
        Some(self.scale * f32::from(*code) + self.least)
    }

    /// How a test model predicts the token that came, `test` being its logits, `[n_vocab]`.
    ///
    /// As llama.cpp does it, tokens whose log-probability is at most -16 count for nothing in the
    /// divergence, and the others are not normalized anew.
    ///
    /// # Errors
    /// [`Error::Vocabulary`] for a row of another length, [`Error::BadLogit`],
    /// [`Error::EmptyRow`], [`Error::NoSuch`] for a token beyond the vocabulary.
    pub fn score(&self, test: &[f32], actual: u32) -> Result<TokenScore> {
        if test.len() != self.codes.len() {
            return Err(Error::Vocabulary {
                reference: self.codes.len(),
                test: test.len(),
            });
        }
        let bad = test.iter().position(|z| z.is_nan() || *z == f32::INFINITY);
        if let Some(token) = bad {
            return Err(Error::BadLogit {
                who: "test",
                token,
                value: test[token],
            });
        }
        let mut total = LogSumExp::default();
        total.push(test);
        let total = total.value();
        if total == f64::NEG_INFINITY {
            return Err(Error::EmptyRow { who: "test" });
        }
        let reference_log_prob = self.log_prob(actual).ok_or(Error::NoSuch {
            what: "token",
            found: u64::from(actual),
            limit: self.codes.len() as u64,
        })?;
        let mut kld = 0.0;
        let (mut reference_best, mut test_best) = (0, 0);
        for (i, (code, z)) in self.codes.iter().zip(test).enumerate() {
            let log_p = self.scale * f32::from(*code) + self.least;
            if log_p > -DEPTH {
                let log_p = f64::from(log_p);
                kld += log_p.exp() * (log_p - (f64::from(*z) - total));
            }
            if *code > self.codes[reference_best] {
                reference_best = i;
            }
            if *z > test[test_best] {
                test_best = i;
            }
        }
        Ok(TokenScore {
            kld,
            reference_nll: -f64::from(reference_log_prob),
            test_nll: total - f64::from(test[actual as usize]),
            same_top1: reference_best == test_best,
        })
    }
}

/// Writes rows one after the other. Whoever owns the output makes it appear whole.
#[derive(Debug)]
pub struct BaseWriter<W> {
    header: BaseHeader,
    output: W,
    n_written: usize,
    bytes: Vec<u8>,
}

impl<W: Write> BaseWriter<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// [`Error::Stream`].
    pub fn new(header: BaseHeader, mut output: W) -> Result<Self> {
        write(&mut output, &header.to_bytes())?;
        let bytes = Vec::with_capacity(header.row_bytes());
        Ok(Self {
            header,
            output,
            n_written: 0,
            bytes,
        })
    }

    /// Writes the row of the next position, from its logits, `[n_vocab]`.
    ///
    /// # Errors
    /// [`Error::WrongCount`] for a row of another length or one too many; [`Error::BadLogit`];
    /// [`Error::Stream`].
    pub fn push(&mut self, logits: &[f32]) -> Result<()> {
        let n_rows = self.n_rows();
        for (what, expected, found, is_wrong) in [
            (
                "logits of a row",
                self.header.n_vocab,
                logits.len(),
                logits.len() != self.header.n_vocab,
            ),
            (
                "rows of logits",
                n_rows,
                self.n_written + 1,
                self.n_written >= n_rows,
            ),
        ] {
            if is_wrong {
                return Err(Error::WrongCount {
                    what,
                    expected,
                    found,
                });
            }
        }
        encode(logits, &mut self.bytes)?;
        self.bytes.resize(self.header.row_bytes(), 0);
        write(&mut self.output, &self.bytes)?;
        self.n_written += 1;
        Ok(())
    }

    /// The output, complete.
    ///
    /// # Errors
    /// [`Error::WrongCount`] for rows that are missing; [`Error::Stream`].
    pub fn finish(mut self) -> Result<W> {
        if self.n_written != self.n_rows() {
            return Err(Error::WrongCount {
                what: "rows of logits",
                expected: self.n_rows(),
                found: self.n_written,
            });
        }
        self.output.flush().map_err(|source| Error::Stream {
            action: "write",
            source,
        })?;
        Ok(self.output)
    }

    fn n_rows(&self) -> usize {
        self.header.rows().len() * self.header.n_chunks()
    }
}

fn write(output: &mut impl Write, bytes: &[u8]) -> Result<()> {
    output.write_all(bytes).map_err(|source| Error::Stream {
        action: "write",
        source,
    })
}

/// A row without what fills it up: scale, least log-probability, codes.
fn encode(logits: &[f32], bytes: &mut Vec<u8>) -> Result<()> {
    for (token, &value) in logits.iter().enumerate() {
        if value.is_nan() || value == f32::INFINITY {
            let who = "reference";
            return Err(Error::BadLogit { who, token, value });
        }
    }
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return Err(Error::EmptyRow { who: "reference" });
    }
    let least = logits.iter().copied().fold(max, f32::min).max(max - DEPTH);
    let mut total = LogSumExp::default();
    total.push(logits);
    // Above the largest logit; in f64, where llama.cpp rounds to f32 on its way.
    let above = total.value() - f64::from(max);
    let least_log_prob = (f64::from(least) - f64::from(max) - above) as f32;
    let scale = (max - least) / f32::from(u16::MAX);
    bytes.clear();
    bytes.extend_from_slice(&scale.to_le_bytes());
    bytes.extend_from_slice(&least_log_prob.to_le_bytes());
    for &z in logits {
        let code = if z > least && scale > 0.0 {
            // From 0 to 65535, up to the rounding of the division.
            ((z - least) / scale).round_ties_even().min(65_535.0) as u16
        } else {
            0
        };
        bytes.extend_from_slice(&code.to_le_bytes());
    }
    Ok(())
}

#[cfg(test)]
mod tests;

//! The choice of an instruction set, and matrix products on rows in their stored format.
//!
//! Owns [`Kernels`]. Does not own the arithmetic (`scalar`, `x86`) nor threads: a call runs where
//! it is made.
//! Memory: the caller's slices and 24 KiB of stack; nothing is allocated.
//! Invariants: (1) every choice gives the bits of `scalar`, NaN payloads aside; (2) the result for
//! one row and one token does not depend on what shares the call; (3) lengths are checked before
//! anything is written.

use std::ops::Range;

use super::q8::{self, BlockStep, Q8Vectors, Step};
use super::scalar::{self, CHUNK_LEN, Lanes, TILE_ROWS};
#[cfg(target_arch = "x86_64")]
use super::x86::{Avx2, Avx512, Vnni};
use crate::{Error, QuantType, Result};

/// Tokens that share one decoding of a row.
const TILE_TOKENS: usize = 64;

/// Tokens for which a smaller set of sums is kept.
const FEW_TOKENS: usize = 8;

/// An instruction set that this machine has, and the kernels written for it.
///
/// Every value gives the same bits; they differ in speed. A copy costs nothing.
///
/// ```
/// use thalweg_quant::{Kernels, QuantType};
///
/// let kernels = Kernels::best();
/// // Two rows of 64 weights, 0.5 each: the scale 0.5 as a half, then the code 2 (which is +1).
/// let mut row = vec![0x00, 0x38];
/// row.resize(18, 0b10_10_10_10);
/// let rows = [row.clone(), row].concat();
/// let mut out = [0.0; 2];
/// kernels.matmul(QuantType::Q2_0, &rows, &[1.0; 64], 1, &mut out)?;
/// assert_eq!(out, [32.0, 32.0]);
/// # Ok::<(), thalweg_quant::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernels(Set);

/// Plain loops for [`Kernels::run`].
pub trait Loops {
    /// What they give.
    type Output;

    /// Runs them. Mark it, and what it calls, `#[inline(always)]`: only what is inlined is compiled
    /// for the instruction set.
    fn run(self) -> Self::Output;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Set {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Kernels {
    /// The fastest that this machine has.
    ///
    /// # Platform
    /// On x86-64 AVX-512 or AVX2 where the processor has them; elsewhere plain Rust.
    ///
    /// # Cost
    /// The answer of the processor is remembered by the standard library: a few loads.
    #[inline]
    #[must_use]
    pub fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(set) = Avx512::new() {
                return Self(Set::Avx512(set));
            }
            if let Some(set) = Avx2::new() {
                return Self(Set::Avx2(set));
            }
        }
        Self::scalar()
    }

    /// Plain Rust: the reference.
    #[must_use]
    pub const fn scalar() -> Self {
        Self(Set::Scalar)
    }

    /// All that this machine has, the reference first.
    pub fn available() -> impl Iterator<Item = Self> {
        let sets = [
            Some(Set::Scalar),
            #[cfg(target_arch = "x86_64")]
            Avx2::new().map(Set::Avx2),
            #[cfg(target_arch = "x86_64")]
            Avx512::new().map(Set::Avx512),
        ];
        sets.into_iter().flatten().map(Self)
    }

    /// `"scalar"`, `"avx2"` or `"avx512"`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.0 {
            Set::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512(_) => "avx512",
        }
    }

    /// Runs `f` compiled for the instruction set, as far as `f` is inlined; its results keep their
    /// bits. For plain loops that the compiler vectorizes.
    #[inline]
    pub fn vectorize<R>(self, f: impl FnOnce() -> R) -> R {
        match self.0 {
            Set::Scalar => f(),
            #[cfg(target_arch = "x86_64")]
            Set::Avx2(set) => set.vectorize(f),
            #[cfg(target_arch = "x86_64")]
            Set::Avx512(set) => set.vectorize(f),
        }
    }

    /// As [`vectorize`](Self::vectorize), for loops that are too large for the compiler to inline
    /// of its own accord: it leaves a large closure a function of its own, compiled for no
    /// instruction set in particular.
    #[inline]
    pub fn run<L: Loops>(self, loops: L) -> L::Output {
        match self.0 {
            Set::Scalar => loops.run(),
            #[cfg(target_arch = "x86_64")]
            Set::Avx2(set) => set.run(loops),
            #[cfg(target_arch = "x86_64")]
            Set::Avx512(set) => set.run(loops),
        }
    }

    /// Dot product in the order of [`scalar::dot_f32`].
    #[inline]
    #[must_use]
    pub fn dot_f32(self, a: &[f32], b: &[f32]) -> f32 {
        match self.0 {
            Set::Scalar => scalar::dot_f32(a, b),
            #[cfg(target_arch = "x86_64")]
            Set::Avx2(set) => set.dot_f32(a, b),
            #[cfg(target_arch = "x86_64")]
            Set::Avx512(set) => set.dot_f32(a, b),
        }
    }

    /// Decodes a row; see [`QuantType::decode_row`].
    ///
    /// # Errors
    /// As [`QuantType::decode_row`].
    ///
    /// # Cost
    /// No allocation; one pass over `src` and `out`.
    pub fn decode_row(self, format: QuantType, src: &[u8], out: &mut [f32]) -> Result<()> {
        format.check_row(src.len(), out.len())?;
        let done = match self.0 {
            Set::Scalar => false,
            #[cfg(target_arch = "x86_64")]
            Set::Avx2(set) => set.decode_row(format, src, out),
            #[cfg(target_arch = "x86_64")]
            Set::Avx512(set) => set.decode_row(format, src, out),
        };
        if done {
            Ok(())
        } else {
            format.decode_reference(src, out)
        }
    }

    /// Dot product of a row with `x`; see [`QuantType::dot_row`].
    ///
    /// # Errors
    /// As [`QuantType::dot_row`].
    ///
    /// # Cost
    /// As [`Kernels::matmul`] of one row and one token.
    pub fn dot_row(self, format: QuantType, src: &[u8], x: &[f32]) -> Result<f32> {
        let mut out = [0.0];
        self.matmul(format, src, x, 1, &mut out)?;
        Ok(out[0])
    }

    /// `out[r, t] = row r . x[t]`: `rows` holds whole rows one after the other, `x` is
    /// `[n_tokens, n]`, `out` is `[rows, n_tokens]`.
    ///
    /// Each element has the bits of [`scalar::dot_f32`] of the decoded row and the token's vector.
    ///
    /// # Errors
    /// [`Error::ElementCount`] if `n_tokens` divides `x` or `out` with a
    /// remainder; as [`QuantType::row_bytes`]; [`Error::ByteLength`] if
    /// `rows` is not so many rows.
    ///
    /// # Cost
    /// No allocation. One token: weights are unpacked in registers, four rows at a time. More: rows
    /// are decoded 512 weights at a time, four rows at once, for up to 64 tokens.
    pub fn matmul(
        self,
        format: QuantType,
        rows: &[u8],
        x: &[f32],
        n_tokens: usize,
        out: &mut [f32],
    ) -> Result<()> {
        let (n_in, n_rows) = (per_token(x.len(), n_tokens), per_token(out.len(), n_tokens));
        format.check_elements(n_in.saturating_mul(n_tokens), x.len())?;
        format.check_elements(n_rows.saturating_mul(n_tokens), out.len())?;
        format.check_rows(rows.len(), n_in, n_rows)?;
        if n_in == 0 {
            out.fill(0.0);
            return Ok(());
        }
        let done = n_tokens == 1
            && match self.0 {
                Set::Scalar => false,
                #[cfg(target_arch = "x86_64")]
                Set::Avx2(set) => set.dot_rows(format, rows, x, out),
                #[cfg(target_arch = "x86_64")]
                Set::Avx512(set) => set.dot_rows(format, rows, x, out),
            };
        if done || out.is_empty() {
            return Ok(());
        }
        // Few tokens do not clear what many need.
        if n_tokens <= FEW_TOKENS {
            self.decode_then_multiply::<FEW_TOKENS>(format, rows, n_in, x, n_tokens, out)
        } else {
            self.decode_then_multiply::<TILE_TOKENS>(format, rows, n_in, x, n_tokens, out)
        }
    }

    /// [`Kernels::matmul`] of checked operands, with sums for `TOKENS` tokens on the stack.
    fn decode_then_multiply<const TOKENS: usize>(
        self,
        format: QuantType,
        rows: &[u8],
        n_in: usize,
        x: &[f32],
        n_tokens: usize,
        out: &mut [f32],
    ) -> Result<()> {
        let row_bytes = format.row_bytes(n_in)?;
        let mut decoded = [[0.0; CHUNK_LEN]; TILE_ROWS];
        let mut lanes = [[Lanes::default(); TILE_ROWS]; TOKENS];
        let groups = rows.chunks(TILE_ROWS * row_bytes);
        for (rows, out) in groups.zip(out.chunks_mut(TILE_ROWS * n_tokens)) {
            for first in (0..n_tokens).step_by(TOKENS) {
                let n = TOKENS.min(n_tokens - first);
                let lanes = &mut lanes[..n];
                lanes.fill([Lanes::default(); TILE_ROWS]);
                for at in (0..n_in).step_by(CHUNK_LEN) {
                    let len = CHUNK_LEN.min(n_in - at);
                    // Whole blocks: every block length divides CHUNK_LEN, and n_in is whole blocks.
                    let bytes = format.row_bytes(at)?..format.row_bytes(at + len)?;
                    // A last group of fewer rows multiplies what an earlier one left here, and
                    // drops the result.
                    for (decoded, row) in decoded.iter_mut().zip(rows.chunks_exact(row_bytes)) {
                        self.decode_row(format, &row[bytes.clone()], &mut decoded[..len])?;
                    }
                    let [a, b, c, d] = &decoded;
                    let decoded = [&a[..len], &b[..len], &c[..len], &d[..len]];
                    self.add_tiles(decoded, &x[first * n_in + at..], n_in, lanes);
                }
                for (r, out) in out.chunks_exact_mut(n_tokens).enumerate() {
                    self.sum_tiles(lanes, r, &mut out[first..first + n]);
                }
            }
        }
        Ok(())
    }

    /// The sums of row `r` for each token.
    fn sum_tiles(self, lanes: &[[Lanes; TILE_ROWS]], r: usize, out: &mut [f32]) {
        match self.0 {
            Set::Scalar => {
                for (out, lanes) in out.iter_mut().zip(lanes) {
                    *out = lanes[r].sum();
                }
            }
            #[cfg(target_arch = "x86_64")]
            Set::Avx2(set) => set.sum_tiles(lanes, r, out),
            #[cfg(target_arch = "x86_64")]
            Set::Avx512(set) => set.sum_tiles(lanes, r, out),
        }
    }

    /// `out[r, t] = row r . x[t]` for the vectors `tokens` of `x`: [`Kernels::matmul`] with vectors
    /// of eight bits. `out` is `[rows, tokens]`.
    ///
    /// Every instruction set gives the same bits, which differ from those of `matmul` by the
    /// rounding of the vectors: at most 0.4 % of the largest of the 4, 8 or 32 elements that share a
    /// scale.
    ///
    /// # Errors
    /// [`Error::Q8Vectors`] if `x` was quantized for another kind of format or has fewer vectors;
    /// [`Error::ElementCount`] and [`Error::ByteLength`] as `matmul`.
    ///
    /// # Cost
    /// No allocation; weights are unpacked once for every four vectors.
    pub fn matmul_q8(
        self,
        format: QuantType,
        rows: &[u8],
        x: &Q8Vectors,
        tokens: Range<usize>,
        out: &mut [f32],
    ) -> Result<()> {
        let n_rows = per_token(out.len(), tokens.len());
        if !x.fits(format) || tokens.end > x.n_tokens() {
            return Err(Error::Q8Vectors {
                format: format.name(),
                n_elements: per_token(rows.len() / format.block_bytes(), n_rows)
                    * format.block_len(),
                found: x.n_in(),
            });
        }
        format.check_elements(n_rows.saturating_mul(tokens.len()), out.len())?;
        format.check_rows(rows.len(), x.n_in(), n_rows)?;
        if out.is_empty() || x.n_in() == 0 {
            out.fill(0.0);
            return Ok(());
        }
        let (first, n) = (tokens.start, tokens.len());
        let done = match self.0 {
            Set::Scalar => false,
            #[cfg(target_arch = "x86_64")]
            Set::Avx2(set) => set.dot_rows_q8(format, rows, x, first, n, out),
            #[cfg(target_arch = "x86_64")]
            Set::Avx512(set) => match (Vnni::new(set), Avx2::new()) {
                (Some(set), _) => set.dot_rows_q8(format, rows, x, first, n, out),
                (None, Some(set)) => set.dot_rows_q8(format, rows, x, first, n, out),
                (None, None) => false,
            },
        };
        if !done {
            q8::dot_rows(format, rows, x, first, n, out);
        }
        Ok(())
    }

    /// The AVX2 that is in use or contained in what is.
    #[cfg(target_arch = "x86_64")]
    fn avx2(self) -> Option<Avx2> {
        match self.0 {
            Set::Scalar => None,
            Set::Avx2(set) => Some(set),
            Set::Avx512(_) => Avx2::new(),
        }
    }

    /// As [`q8::quantize_single`].
    pub(crate) fn quantize_single(self, x: &[[f32; 32]], offset: i32, steps: &mut [Step<1>]) {
        #[cfg(target_arch = "x86_64")]
        if let Some(set) = self.avx2() {
            return set.quantize_single(x, offset, steps);
        }
        q8::quantize_single(x, offset, steps);
    }

    /// As [`q8::quantize_double`].
    pub(crate) fn quantize_double(self, x: &[[f32; 64]], offset: i32, steps: &mut [Step<2>]) {
        #[cfg(target_arch = "x86_64")]
        if let Some(set) = self.avx2() {
            return set.quantize_double(x, offset, steps);
        }
        q8::quantize_double(x, offset, steps);
    }

    /// As [`q8::quantize_blocks`].
    pub(crate) fn quantize_blocks(self, x: &[[f32; 256]], steps: &mut [BlockStep]) {
        #[cfg(target_arch = "x86_64")]
        if let Some(set) = self.avx2() {
            return set.quantize_blocks(x, steps);
        }
        q8::quantize_blocks(x, steps);
    }

    fn add_tiles(
        self,
        rows: [&[f32]; TILE_ROWS],
        x: &[f32],
        stride: usize,
        lanes: &mut [[Lanes; TILE_ROWS]],
    ) {
        match self.0 {
            Set::Scalar => scalar::add_tiles(rows, x, stride, lanes),
            #[cfg(target_arch = "x86_64")]
            Set::Avx2(set) => set.add_tiles(rows, x, stride, lanes),
            #[cfg(target_arch = "x86_64")]
            Set::Avx512(set) => set.add_tiles(rows, x, stride, lanes),
        }
    }
}

/// Elements of one token among `n_tokens`; none if there are no tokens.
fn per_token(len: usize, n_tokens: usize) -> usize {
    len.checked_div(n_tokens).unwrap_or(0)
}

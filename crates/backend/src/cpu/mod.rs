//! The CPU reference: f32 arithmetic on dequantized rows, in one fixed order of additions.
//!
//! Owns the thread pool and the order of every sum; does not own speed (faster kernels are proven
//! against this one). Memory: matrices stay in their stored format; temporary space is what each
//! file says, a few rows per thread where it says nothing.
//! Invariants: (1) no result depends on the number of tokens in a call or on the number of threads,
//! because every output element is computed by one thread in an order that depends on nothing else;
//! (2) operands are checked before any output is touched, with products that cannot overflow.
//! Cost: no operation is split over threads unless it touches more than [`SERIAL_LEN`] elements.

mod attention;
mod delta;
mod elementwise;
mod experts;
mod matmul;
mod norm;
#[cfg(test)]
mod tests;

use std::ops::Range;

use rayon::prelude::*;

use crate::contract::{
    AttentionCache, AttentionInput, AttentionShape, Backend, ConvShape, DeltaInput, DeltaShape,
    ExpertJob, HeadLayout, MoeShape, NormShape, Rope, StreamShape, volume,
};
use crate::{Error, MatData, MatView, Result, Routing};

/// Options of the CPU backend.
#[derive(Debug, Clone, Copy)]
pub struct CpuOptions {
    /// Compute threads; at least 1. The result does not depend on it.
    pub n_threads: usize,
}

/// The CPU backend.
#[derive(Debug)]
pub struct CpuBackend {
    team: Team,
}

/// f32 elements in host memory.
#[derive(Debug)]
pub struct CpuBuffer(Vec<f32>);

/// A matrix in host memory, in its stored format.
#[derive(Debug)]
pub struct CpuMatrix(MatData);

impl CpuBackend {
    /// Starts the compute threads.
    ///
    /// # Errors
    /// [`Error::Threads`] if the operating system refuses them or `n_threads` is 0.
    pub fn new(options: CpuOptions) -> Result<Self> {
        Ok(Self {
            team: Team::new(options.n_threads)?,
        })
    }

    /// Compute threads in use.
    pub fn n_threads(&self) -> usize {
        self.team.n_threads
    }
}

impl CpuMatrix {
    /// The matrix in its stored format.
    pub fn view(&self) -> MatView<'_> {
        self.0.view()
    }
}

/// Elements below which an operation is not worth a second thread.
const SERIAL_LEN: usize = 128 * 1024;

/// Most threads that may be asked for: a mistyped number must not bring a machine down.
const MAX_THREADS: usize = 256;

/// Memory of a further thread: its stack as far as it is used, its allocator's arena, a few rows
/// of temporary values.
const THREAD_BYTES: u64 = 512 << 10;

/// Splits rows over threads.
#[derive(Debug)]
struct Team {
    n_threads: usize,
    pool: Option<rayon::ThreadPool>,
}

impl Team {
    fn new(n_threads: usize) -> Result<Self> {
        let build = || {
            if n_threads == 0 {
                return Err("at least one thread is needed".into());
            }
            if n_threads > MAX_THREADS {
                return Err(format!("at most {MAX_THREADS} are of use").into());
            }
            rayon::ThreadPoolBuilder::new()
                .num_threads(n_threads)
                .thread_name(|i| format!("thalweg-compute-{i}"))
                .build()
                .map_err(|e| -> Box<dyn std::error::Error + Send + Sync> { e.into() })
        };
        let pool = match n_threads {
            1 => None,
            _ => Some(build().map_err(|source| Error::Threads { n_threads, source })?),
        };
        Ok(Self { n_threads, pool })
    }

    /// Calls `f(row, out_row)` for each row of `row_len` elements of `out`.
    ///
    /// `work` estimates the elements touched per row and decides whether threads pay.
    fn rows<T: Send>(
        &self,
        out: &mut [T],
        row_len: usize,
        work: usize,
        f: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let each = |first: usize, out: &mut [T]| {
            for (i, row) in out.chunks_exact_mut(row_len).enumerate() {
                f(first + i, row);
            }
            Ok(())
        };
        // The closure cannot fail.
        let _: Result<()> = self.blocks(out, row_len, work, each);
    }

    /// Calls `f(row, row_of_x, row_of_y)` for the rows that two outputs have in common.
    ///
    /// An output is its elements and its row length; neither length is zero unless `y` is empty.
    fn pairs(
        &self,
        (x, x_len): (&mut [f32], usize),
        (y, y_len): (&mut [f32], usize),
        work: usize,
        f: impl Fn(usize, &mut [f32], &mut [f32]) + Sync,
    ) {
        if y.is_empty() {
            return;
        }
        match &self.pool {
            Some(pool) if volume([x.len() / x_len, work]) > SERIAL_LEN => pool.install(|| {
                let rows = x
                    .par_chunks_exact_mut(x_len)
                    .zip(y.par_chunks_exact_mut(y_len));
                rows.enumerate().for_each(|(row, (x, y))| f(row, x, y));
            }),
            _ => {
                let rows = x.chunks_exact_mut(x_len).zip(y.chunks_exact_mut(y_len));
                rows.enumerate().for_each(|(row, (x, y))| f(row, x, y));
            }
        }
    }

    /// Calls `f(first_row, out_rows)` for blocks of whole rows that together cover `out`.
    fn blocks<T: Send>(
        &self,
        out: &mut [T],
        row_len: usize,
        work: usize,
        f: impl Fn(usize, &mut [T]) -> Result<()> + Sync,
    ) -> Result<()> {
        let n_rows = out.len().checked_div(row_len).unwrap_or(0);
        match &self.pool {
            Some(pool) if n_rows > 1 && n_rows.saturating_mul(work) > SERIAL_LEN => {
                // A task outlasts its hand-over, and there are a few for each thread.
                let rows = (SERIAL_LEN / 4).div_ceil(work.max(1));
                let rows = rows.clamp(1, n_rows.div_ceil(self.n_threads));
                pool.install(|| {
                    let blocks = out.par_chunks_mut(row_len * rows).enumerate();
                    blocks.try_for_each(|(b, block)| f(b * rows, block))
                })
            }
            _ if n_rows > 0 => f(0, out),
            _ => Ok(()),
        }
    }
}

/// The elements of an operand of shape `dims`.
fn take<'a, const N: usize>(
    op: &'static str,
    what: &'static str,
    x: &'a CpuBuffer,
    dims: [usize; N],
) -> Result<&'a [f32]> {
    let (expected, found) = (volume(dims), x.0.len());
    x.0.get(..expected).ok_or(Error::Shape {
        op,
        what,
        expected,
        found,
    })
}

/// The elements of an output of shape `dims`.
fn take_mut<'a, const N: usize>(
    op: &'static str,
    what: &'static str,
    x: &'a mut CpuBuffer,
    dims: [usize; N],
) -> Result<&'a mut [f32]> {
    let (expected, found) = (volume(dims), x.0.len());
    x.0.get_mut(..expected).ok_or(Error::Shape {
        op,
        what,
        expected,
        found,
    })
}

/// The `len` elements of `buffer` from `at` on.
fn range(
    op: &'static str,
    what: &'static str,
    buffer: &CpuBuffer,
    at: usize,
    len: usize,
) -> Result<Range<usize>> {
    let (expected, found) = (at.saturating_add(len), buffer.0.len());
    if expected > found {
        return Err(Error::Shape {
            op,
            what,
            expected,
            found,
        });
    }
    Ok(at..expected)
}

/// Fails unless a size satisfies its rule.
fn require(
    holds: bool,
    op: &'static str,
    what: &'static str,
    found: usize,
    rule: &'static str,
) -> Result<()> {
    if holds {
        Ok(())
    } else {
        Err(Error::Argument {
            op,
            what,
            found,
            rule,
        })
    }
}

/// `1 / (1 + e^-x)`.
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `x sigmoid(x)`.
fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

impl Backend for CpuBackend {
    type Buffer = CpuBuffer;
    type Matrix = CpuMatrix;
    /// Operations run at once; nothing is recorded.
    type Recorder = ();

    fn name(&self) -> &'static str {
        "cpu"
    }

    fn overhead_bytes(&self) -> u64 {
        (self.team.n_threads as u64 - 1) * THREAD_BYTES
    }

    fn recorder(&self) {}

    fn alloc(&self, len: usize) -> Result<CpuBuffer> {
        let bytes = len.saturating_mul(size_of::<f32>());
        let mut v = Vec::new();
        v.try_reserve_exact(len)
            .map_err(|_| Error::OutOfMemory { bytes })?;
        v.resize(len, 0.0);
        Ok(CpuBuffer(v))
    }

    fn len(&self, buffer: &CpuBuffer) -> usize {
        buffer.0.len()
    }

    fn load(&self, matrix: MatData) -> Result<CpuMatrix> {
        Ok(CpuMatrix(matrix))
    }

    fn write(&self, _: &mut (), buffer: &mut CpuBuffer, at: usize, values: &[f32]) -> Result<()> {
        let range = range("write", "buffer", buffer, at, values.len())?;
        buffer.0[range].copy_from_slice(values);
        Ok(())
    }

    fn read(&self, _: &mut (), buffer: &CpuBuffer, at: usize, out: &mut [f32]) -> Result<()> {
        let range = range("read", "buffer", buffer, at, out.len())?;
        out.copy_from_slice(&buffer.0[range]);
        Ok(())
    }

    fn copy(
        &self,
        _: &mut (),
        (from, from_at): (&CpuBuffer, usize),
        (to, to_at): (&mut CpuBuffer, usize),
        len: usize,
    ) -> Result<()> {
        let from_range = range("copy", "source", from, from_at, len)?;
        let to_range = range("copy", "target", to, to_at, len)?;
        to.0[to_range].copy_from_slice(&from.0[from_range]);
        Ok(())
    }

    fn zero(&self, _: &mut (), buffer: &mut CpuBuffer) -> Result<()> {
        buffer.0.fill(0.0);
        Ok(())
    }

    fn embed(
        &self,
        _: &mut (),
        table: &CpuMatrix,
        ids: &[u32],
        copies: usize,
        out: &mut CpuBuffer,
    ) -> Result<()> {
        matmul::embed(&self.team, table.view(), ids, copies, out)
    }

    fn matmul(
        &self,
        _: &mut (),
        w: &CpuMatrix,
        x: &CpuBuffer,
        n_tokens: usize,
        y: &mut CpuBuffer,
    ) -> Result<()> {
        let w = w.view();
        let x = take("matmul", "x", x, [n_tokens, w.n_in()])?;
        let y = take_mut("matmul", "y", y, [n_tokens, w.n_out()])?;
        matmul::matmul(&self.team, w, x, n_tokens, y)
    }

    fn rms_norm(
        &self,
        _: &mut (),
        shape: NormShape,
        x: &CpuBuffer,
        gamma: &CpuBuffer,
        out: &mut CpuBuffer,
    ) -> Result<()> {
        norm::rms_norm(&self.team, shape, x, gamma, out)
    }

    fn add(&self, _: &mut (), x: &mut CpuBuffer, y: &CpuBuffer, len: usize) -> Result<()> {
        elementwise::add(&self.team, x, y, len)
    }

    fn silu(&self, _: &mut (), x: &mut CpuBuffer, divisor: f32, len: usize) -> Result<()> {
        elementwise::silu_in_place(&self.team, x, divisor, len)
    }

    fn swiglu(&self, _: &mut (), gate: &mut CpuBuffer, up: &CpuBuffer, len: usize) -> Result<()> {
        elementwise::swiglu(&self.team, gate, up, len)
    }

    fn gate_streams(
        &self,
        _: &mut (),
        shape: StreamShape,
        g: &CpuBuffer,
        n: &CpuBuffer,
        out: &mut CpuBuffer,
    ) -> Result<()> {
        elementwise::gate_streams(&self.team, shape, g, n, out)
    }

    fn inject(
        &self,
        _: &mut (),
        shape: StreamShape,
        w: &CpuBuffer,
        y: &CpuBuffer,
        x: &mut CpuBuffer,
    ) -> Result<()> {
        elementwise::inject(&self.team, shape, w, y, x)
    }

    fn causal_conv(
        &self,
        _: &mut (),
        shape: ConvShape,
        x: &CpuBuffer,
        kernel: &CpuBuffer,
        past: &CpuBuffer,
        next: &mut CpuBuffer,
        out: &mut CpuBuffer,
    ) -> Result<()> {
        elementwise::causal_conv(&self.team, shape, x, kernel, past, next, out)
    }

    fn delta_rule(
        &self,
        _: &mut (),
        shape: DeltaShape,
        input: DeltaInput<'_, CpuBuffer>,
        past: &CpuBuffer,
        next: &mut CpuBuffer,
        out: &mut CpuBuffer,
    ) -> Result<()> {
        delta::delta_rule(&self.team, shape, &input, past, next, out)
    }

    fn norm_rope(
        &self,
        _: &mut (),
        from: HeadLayout,
        rope: Rope,
        n_tokens: usize,
        x: &CpuBuffer,
        gamma: &CpuBuffer,
        out: &mut CpuBuffer,
        first_row: usize,
    ) -> Result<()> {
        norm::norm_rope(&self.team, from, rope, n_tokens, x, gamma, out, first_row)
    }

    fn pool_keys(
        &self,
        _: &mut (),
        shape: AttentionShape,
        blocks: Range<usize>,
        raw: &CpuBuffer,
        gamma: &CpuBuffer,
        pooled: &mut CpuBuffer,
    ) -> Result<()> {
        attention::pool_keys(&self.team, shape, blocks, raw, gamma, pooled)
    }

    fn attention(
        &self,
        _: &mut (),
        shape: AttentionShape,
        input: AttentionInput<'_, CpuBuffer>,
        cache: AttentionCache<'_, CpuBuffer>,
        out: &mut CpuBuffer,
    ) -> Result<()> {
        attention::attention(&self.team, shape, &input, &cache, out)
    }

    fn route(&self, _: &mut (), logits: &CpuBuffer, routing: &mut Routing) -> Result<()> {
        let len = routing.logits_mut().len();
        routing
            .logits_mut()
            .copy_from_slice(take("route", "logits", logits, [len])?);
        routing.choose()
    }

    fn experts(
        &self,
        _: &mut (),
        jobs: &[ExpertJob<'_>],
        x: &CpuBuffer,
        partial: &mut CpuBuffer,
    ) -> Result<()> {
        experts::experts(&self.team, jobs, &x.0, &mut partial.0)
    }

    fn combine(
        &self,
        _: &mut (),
        shape: MoeShape,
        rows: &[u32],
        weights: &[f32],
        partial: &CpuBuffer,
        shared: &CpuBuffer,
        shared_gate: &CpuBuffer,
        out: &mut CpuBuffer,
    ) -> Result<()> {
        experts::combine(
            &self.team,
            shape,
            rows,
            weights,
            &partial.0,
            shared,
            shared_gate,
            out,
        )
    }

    fn ngram_gate(
        &self,
        _: &mut (),
        shape: StreamShape,
        eps: f32,
        key: (&CpuBuffer, &CpuBuffer),
        query: (&CpuBuffer, &CpuBuffer),
        value: &CpuBuffer,
        out: &mut CpuBuffer,
    ) -> Result<()> {
        norm::ngram_gate(&self.team, shape, eps, key, query, value, out)
    }
}

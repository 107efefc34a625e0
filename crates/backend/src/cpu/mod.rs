//! The CPU reference: f32 arithmetic on dequantized rows, in one fixed order of additions.
//!
//! Owns the order of every sum; does not own the arithmetic on stored weights (`thalweg-quant`,
//! whose kernels give one result on every instruction set) nor the threads (`team`).
//! Memory: matrices stay in their stored format; temporary space is what each file says, a few rows
//! per thread where it says nothing.
//! Invariants: (1) no result depends on the number of tokens in a call or on the number of threads,
//! because every output element is computed by one thread in an order that depends on nothing else;
//! (2) operands are checked before any output is touched, with products that cannot overflow.
//! Cost: an operation is split over threads where its work outlasts the hand-over; see `team`.

mod attention;
mod columns;
mod delta;
mod elementwise;
mod experts;
mod math;
mod matmul;
mod norm;
#[expect(
    unsafe_code,
    reason = "lending an operation to threads that outlive it"
)]
mod team;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::str::FromStr;

use thalweg_quant::Kernels;

use self::math::{sigmoid, silu};
use self::team::Team;
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

/// The precision in which tokens' vectors enter matrix products.
///
/// Both are exact in the sense of the contract: results depend on neither threads, nor chunk sizes,
/// nor what is resident. They differ from each other by rounding (an X1 option).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Activations {
    /// As they are: the reference.
    #[default]
    F32,
    /// Quantized to eight bits for formats that have integer kernels
    /// ([`Q8Vectors::supports`](thalweg_quant::Q8Vectors::supports)); f32 for the others. An
    /// element is off by at most `max|x| / 254` of those that share its scale: 4 for formats with
    /// blocks of 32, 8 for Q2_0, 32 for formats with blocks of 256.
    Q8,
}

impl Activations {
    /// All of them, the reference first.
    pub const ALL: [Self; 2] = [Self::F32, Self::Q8];

    /// `"f32"` or `"q8"`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Q8 => "q8",
        }
    }
}

impl FromStr for Activations {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|a| a.name() == text);
        found.ok_or_else(|| Error::UnknownActivations {
            found: text.to_owned(),
        })
    }
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
            team: Team::new(options.n_threads, Kernels::best())?,
        })
    }

    /// The same backend with another precision of vectors in matrix products; [`Activations::F32`]
    /// before.
    #[must_use]
    pub fn with_activations(mut self, activations: Activations) -> Self {
        self.team.set_activations(activations);
        self
    }

    /// The precision of vectors in matrix products.
    pub fn activations(&self) -> Activations {
        self.team.activations()
    }

    /// The name of the instruction set in use, for example `"avx2"`.
    pub fn kernels(&self) -> &'static str {
        self.team.kernels().name()
    }

    /// Compute threads in use.
    pub fn n_threads(&self) -> usize {
        self.team.n_threads()
    }
}

impl CpuMatrix {
    /// The matrix in its stored format.
    pub fn view(&self) -> MatView<'_> {
        self.0.view()
    }
}

/// Memory of a further thread: its stack as far as it is used, its allocator's arena, a few rows
/// of temporary values.
const THREAD_BYTES: u64 = 512 << 10;

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

impl Backend for CpuBackend {
    type Buffer = CpuBuffer;
    type Matrix = CpuMatrix;
    /// Operations run at once; nothing is recorded.
    type Recorder = ();

    fn name(&self) -> &'static str {
        "cpu"
    }

    fn overhead_bytes(&self) -> u64 {
        let n_threads = self.team.n_threads() as u64;
        let q8 = match self.team.activations() {
            Activations::F32 => 0,
            Activations::Q8 => n_threads * matmul::Q8_BYTES,
        };
        (n_threads - 1) * THREAD_BYTES + q8
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

//! The contract on a device: buffers, matrices, and the way of each operation to its kernels.
//!
//! Owns what is resident on the device; not the arithmetic (`shaders/`) nor the order of commands
//! (`recorder`). Memory: buffers and matrices in device memory, matrices in their stored format; a
//! matrix larger than a binding is in several buffers of whole rows.
//! Invariants: (1) operands are checked before anything is recorded; (2) nothing is recorded after
//! the device has failed.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::{cast_slice, cast_slice_mut};
use thalweg_backend::{
    AttentionCache, AttentionInput, AttentionShape, Backend, ConvShape, DeltaInput, DeltaShape,
    DeviceMemory, Error, ExpertJob, ExpertRoom, HeadLayout, HeldExpert, MatData, MoeShape,
    NormShape, Result, Rope, Routing, StreamShape,
};
use thalweg_quant::QuantType;

use crate::arena::Arena;
use crate::check::enough;
use crate::device::{AdapterSummary, Device, WgpuOptions};
use crate::ops::{attention, elementwise, experts, matmul, norm, sequence};
use crate::pipeline::Pipelines;
use crate::recorder::{self, WgpuRecorder};
use crate::staging;
use crate::{FORMATS, Features, NAME, Tuning};

/// Bytes of a matrix that are on their way to the device at once.
const LOAD_BYTES: usize = 32 << 20;

/// Experts in passing take at most one part in so many of a budget.
const PASSING_SHARE: u64 = 16;

/// The GPU backend. A clone is the same device.
#[derive(Debug, Clone)]
pub struct WgpuBackend {
    device: Arc<Device>,
    pipelines: Arc<Pipelines>,
    tuning: Tuning,
    memory_bytes: Option<u64>,
    passing_bytes: u64,
    iq3_s: Arc<[u32]>,
}

/// f32 elements in device memory.
#[derive(Debug)]
pub struct WgpuBuffer {
    raw: wgpu::Buffer,
    len: usize,
}

impl WgpuBuffer {
    pub(crate) fn new(raw: wgpu::Buffer, len: usize) -> Self {
        Self { raw, len }
    }

    pub(crate) fn raw(&self) -> &wgpu::Buffer {
        &self.raw
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first byte of `len` elements from `at` on.
    fn range(&self, op: &'static str, what: &'static str, at: usize, len: usize) -> Result<u64> {
        enough(op, what, self.len, at.saturating_add(len))?;
        Ok(4 * at as u64)
    }
}

/// A matrix in device memory, in its stored format.
#[derive(Debug)]
pub struct WgpuMatrix {
    pub(crate) ty: QuantType,
    pub(crate) n_in: usize,
    pub(crate) n_out: usize,
    pub(crate) row_bytes: usize,
    pub(crate) parts: Vec<Part>,
}

/// Consecutive rows of a matrix in a buffer of their own.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) bytes: wgpu::Buffer,
    pub(crate) first_row: usize,
    pub(crate) n_rows: usize,
}

impl WgpuBackend {
    /// Opens the device that the options ask for.
    ///
    /// # Errors
    /// [`NoAdapter`](crate::Error::NoAdapter) if there is none or none of that name;
    /// [`Limit`](crate::Error::Limit) or [`Open`](crate::Error::Open) if it cannot be used.
    pub fn new(options: &WgpuOptions) -> crate::Result<Self> {
        let device = Device::open(options)?;
        // A small budget shall not be spent on what is used once.
        let share = options
            .memory_bytes
            .map_or(u64::MAX, |all| all / PASSING_SHARE);
        let passing_bytes = options
            .passing_bytes
            .min(share)
            .min(device.limits.binding_bytes);
        Ok(Self {
            device: Arc::new(device),
            pipelines: Arc::new(Pipelines::new(options.tuning)),
            tuning: options.tuning,
            memory_bytes: options.memory_bytes,
            passing_bytes,
            iq3_s: codebook_iq3_s(),
        })
    }

    /// The adapter in use.
    #[must_use]
    pub fn adapter(&self) -> &AdapterSummary {
        &self.device.adapter
    }

    /// Destroys the device as an unplugged one would be, for tests: every later call fails.
    #[doc(hidden)]
    pub fn lose(&self) {
        self.device.device.destroy();
        // The loss is told when the device is next looked at.
        let _ = self.device.wait();
    }

    /// What is used of what the adapter has.
    #[must_use]
    pub fn features(&self) -> Features {
        self.device.features
    }

    /// The same device with kernels of other sizes. Buffers and matrices of either belong to both.
    ///
    /// # Errors
    /// [`Tuning`](crate::Error::Tuning) for sizes that cannot be, [`Limit`](crate::Error::Limit) for
    /// those that the device does not allow.
    pub fn with_tuning(&self, tuning: Tuning) -> crate::Result<Self> {
        self.device.allows(tuning)?;
        Ok(Self {
            pipelines: Arc::new(Pipelines::new(tuning)),
            tuning,
            ..self.clone()
        })
    }

    /// Sizes of the kernels of products.
    #[must_use]
    pub fn tuning(&self) -> Tuning {
        self.tuning
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn passing_bytes(&self) -> u64 {
        self.passing_bytes
    }

    pub(crate) fn iq3_s(&self) -> &[u32] {
        &self.iq3_s
    }

    /// Fails for a format without a decoder.
    pub(crate) fn supports(&self, ty: QuantType) -> Result<()> {
        match FORMATS.contains(&ty) {
            true => Ok(()),
            false => Err(Error::Format { backend: NAME, ty }),
        }
    }
}

/// The codebook of IQ3_S, an entry of four magnitudes a word, read off the format's own decoder:
/// blocks whose scale is one and whose indices count up.
fn codebook_iq3_s() -> Arc<[u32]> {
    let ty = QuantType::IQ3_S;
    let mut words = vec![];
    for first in (0..512_usize).step_by(64) {
        let mut block = vec![0; ty.block_bytes()];
        block[..2].copy_from_slice(&[0x00, 0x3c]);
        for i in 0..64 {
            block[2 + i] = (first + i) as u8;
        }
        // The ninth bits, the same for all of these entries.
        block[66..74].fill(if first < 256 { 0 } else { 0xff });
        let mut magnitudes = [0.0; 256];
        if ty.decode_row(&block, &mut magnitudes).is_ok() {
            let entries = magnitudes.as_chunks::<4>().0.iter();
            words.extend(entries.map(|entry| u32::from_le_bytes(entry.map(|m| m as u8))));
        }
    }
    words.into()
}

impl Backend for WgpuBackend {
    type Buffer = WgpuBuffer;
    type Matrix = WgpuMatrix;
    type Recorder = WgpuRecorder;

    fn name(&self) -> &'static str {
        NAME
    }

    fn overhead_bytes(&self) -> u64 {
        // On the host: what is on its way to the device.
        staging::BYTES as u64 + recorder::UPLOAD_BYTES
    }

    fn device_memory(&self) -> Option<DeviceMemory> {
        Some(DeviceMemory {
            budget_bytes: self.memory_bytes,
            expert_bytes: WgpuOptions::DEFAULT_EXPERT_BYTES,
            overhead_bytes: self.passing_bytes + recorder::UPLOAD_BYTES,
        })
    }

    fn recorder(&self) -> WgpuRecorder {
        WgpuRecorder::new(Arc::clone(&self.device), Arc::clone(&self.pipelines))
    }

    fn alloc(&self, len: usize) -> Result<WgpuBuffer> {
        use wgpu::BufferUsages as Use;
        let usage = Use::STORAGE | Use::COPY_SRC | Use::COPY_DST;
        let bytes = (len as u64).saturating_mul(4);
        Ok(WgpuBuffer::new(self.device.buffer(bytes, usage)?, len))
    }

    fn len(&self, buffer: &WgpuBuffer) -> usize {
        buffer.len
    }

    fn load(&self, matrix: MatData) -> Result<WgpuMatrix> {
        let view = matrix.view();
        self.supports(view.ty())?;
        let row_bytes = view.row_bytes();
        let most = self.device.limits.binding_bytes as usize / row_bytes.max(1);
        if most == 0 && view.n_out() > 0 {
            return Err(Error::OutOfMemory { bytes: row_bytes });
        }
        let mut parts = vec![];
        for first_row in (0..view.n_out()).step_by(most.max(1)) {
            let n_rows = most.min(view.n_out() - first_row);
            let rows = &view.bytes()[first_row * row_bytes..(first_row + n_rows) * row_bytes];
            let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
            let bytes = self.device.buffer(rows.len() as u64, usage)?;
            for (i, piece) in rows.chunks(LOAD_BYTES).enumerate() {
                let at = (i * LOAD_BYTES) as u64;
                self.device.write(&bytes, at, piece);
                self.device.queue.submit([]);
                if piece.len() == LOAD_BYTES {
                    // Or the whole model would wait in staging memory.
                    self.device.wait()?;
                }
            }
            parts.push(Part {
                bytes,
                first_row,
                n_rows,
            });
        }
        self.device.check()?;
        Ok(WgpuMatrix {
            ty: view.ty(),
            n_in: view.n_in(),
            n_out: view.n_out(),
            row_bytes,
            parts,
        })
    }

    fn write(
        &self,
        rec: &mut WgpuRecorder,
        buffer: &mut WgpuBuffer,
        at: usize,
        values: &[f32],
    ) -> Result<()> {
        let at = buffer.range("write", "buffer", at, values.len())?;
        rec.write(&buffer.raw, at, cast_slice(values))
    }

    fn read(
        &self,
        rec: &mut WgpuRecorder,
        buffer: &WgpuBuffer,
        at: usize,
        out: &mut [f32],
    ) -> Result<()> {
        let at = buffer.range("read", "buffer", at, out.len())?;
        rec.read(&buffer.raw, at, cast_slice_mut(out))
    }

    fn copy(
        &self,
        rec: &mut WgpuRecorder,
        (from, from_at): (&WgpuBuffer, usize),
        (to, to_at): (&mut WgpuBuffer, usize),
        len: usize,
    ) -> Result<()> {
        let from_at = from.range("copy", "source", from_at, len)?;
        let to_at = to.range("copy", "target", to_at, len)?;
        rec.copy((&from.raw, from_at), (&to.raw, to_at), 4 * len as u64)
    }

    fn zero(&self, rec: &mut WgpuRecorder, buffer: &mut WgpuBuffer) -> Result<()> {
        rec.zero(&buffer.raw)
    }

    fn embed(
        &self,
        rec: &mut WgpuRecorder,
        table: &WgpuMatrix,
        ids: &[u32],
        copies: usize,
        out: &mut WgpuBuffer,
    ) -> Result<()> {
        matmul::embed(self, rec, table, ids, copies, out)
    }

    fn matmul(
        &self,
        rec: &mut WgpuRecorder,
        w: &WgpuMatrix,
        x: &WgpuBuffer,
        n_tokens: usize,
        y: &mut WgpuBuffer,
    ) -> Result<()> {
        matmul::matmul(self, rec, w, x, n_tokens, y)
    }

    fn rms_norm(
        &self,
        rec: &mut WgpuRecorder,
        shape: NormShape,
        x: &WgpuBuffer,
        gamma: &WgpuBuffer,
        out: &mut WgpuBuffer,
    ) -> Result<()> {
        norm::rms_norm(rec, shape, x, gamma, out)
    }

    fn add(
        &self,
        rec: &mut WgpuRecorder,
        x: &mut WgpuBuffer,
        y: &WgpuBuffer,
        len: usize,
    ) -> Result<()> {
        elementwise::add(rec, x, y, len)
    }

    fn silu(
        &self,
        rec: &mut WgpuRecorder,
        x: &mut WgpuBuffer,
        divisor: f32,
        len: usize,
    ) -> Result<()> {
        elementwise::silu(rec, x, divisor, len)
    }

    fn swiglu(
        &self,
        rec: &mut WgpuRecorder,
        gate: &mut WgpuBuffer,
        up: &WgpuBuffer,
        len: usize,
    ) -> Result<()> {
        elementwise::swiglu(rec, gate, up, len)
    }

    fn gate_streams(
        &self,
        rec: &mut WgpuRecorder,
        shape: StreamShape,
        g: &WgpuBuffer,
        n: &WgpuBuffer,
        out: &mut WgpuBuffer,
    ) -> Result<()> {
        elementwise::gate_streams(rec, shape, g, n, out)
    }

    fn inject(
        &self,
        rec: &mut WgpuRecorder,
        shape: StreamShape,
        w: &WgpuBuffer,
        y: &WgpuBuffer,
        x: &mut WgpuBuffer,
    ) -> Result<()> {
        elementwise::inject(rec, shape, w, y, x)
    }

    fn causal_conv(
        &self,
        rec: &mut WgpuRecorder,
        shape: ConvShape,
        x: &WgpuBuffer,
        kernel: &WgpuBuffer,
        past: &WgpuBuffer,
        next: &mut WgpuBuffer,
        out: &mut WgpuBuffer,
    ) -> Result<()> {
        sequence::causal_conv(rec, shape, x, kernel, past, next, out)
    }

    fn delta_rule(
        &self,
        rec: &mut WgpuRecorder,
        shape: DeltaShape,
        input: DeltaInput<'_, WgpuBuffer>,
        past: &WgpuBuffer,
        next: &mut WgpuBuffer,
        out: &mut WgpuBuffer,
    ) -> Result<()> {
        sequence::delta_rule(rec, shape, &input, past, next, out)
    }

    fn norm_rope(
        &self,
        rec: &mut WgpuRecorder,
        from: HeadLayout,
        rope: Rope,
        n_tokens: usize,
        x: &WgpuBuffer,
        gamma: &WgpuBuffer,
        out: &mut WgpuBuffer,
        first_row: usize,
    ) -> Result<()> {
        norm::norm_rope(rec, from, rope, n_tokens, x, gamma, out, first_row)
    }

    fn pool_keys(
        &self,
        rec: &mut WgpuRecorder,
        shape: AttentionShape,
        blocks: Range<usize>,
        raw: &WgpuBuffer,
        gamma: &WgpuBuffer,
        pooled: &mut WgpuBuffer,
    ) -> Result<()> {
        attention::pool_keys(rec, shape, blocks, raw, gamma, pooled)
    }

    fn attention(
        &self,
        rec: &mut WgpuRecorder,
        shape: AttentionShape,
        input: AttentionInput<'_, WgpuBuffer>,
        cache: AttentionCache<'_, WgpuBuffer>,
        out: &mut WgpuBuffer,
    ) -> Result<()> {
        attention::attention(rec, shape, &input, &cache, out)
    }

    fn route(
        &self,
        rec: &mut WgpuRecorder,
        logits: &WgpuBuffer,
        routing: &mut Routing,
    ) -> Result<()> {
        let out = routing.logits_mut();
        enough("route", "logits", logits.len, out.len())?;
        rec.read(&logits.raw, 0, cast_slice_mut(out))?;
        routing.choose()
    }

    fn experts(
        &self,
        rec: &mut WgpuRecorder,
        jobs: &[ExpertJob<'_>],
        x: &WgpuBuffer,
        partial: &mut WgpuBuffer,
    ) -> Result<()> {
        experts::experts(self, rec, jobs, x, partial)
    }

    fn keep_experts(&self, rec: &mut WgpuRecorder, layers: &[ExpertRoom]) -> Result<()> {
        for matrix in layers.iter().flat_map(|room| room.parts) {
            self.supports(matrix.ty)?;
        }
        // The old copies go before there is room for others.
        *rec.arena() = Arena::default();
        *rec.arena() = Arena::new(&self.device, layers)?;
        Ok(())
    }

    fn holds(&self, rec: &WgpuRecorder, layer: usize, expert: u16) -> bool {
        rec.holds(layer, expert)
    }

    fn held_experts(
        &self,
        rec: &mut WgpuRecorder,
        layer: usize,
        jobs: &[HeldExpert<'_>],
        x: &WgpuBuffer,
        partial: &mut WgpuBuffer,
    ) -> Result<()> {
        experts::held(self, rec, layer, jobs, x, partial)
    }

    fn combine(
        &self,
        rec: &mut WgpuRecorder,
        shape: MoeShape,
        rows: &[u32],
        weights: &[f32],
        partial: &WgpuBuffer,
        shared: &WgpuBuffer,
        shared_gate: &WgpuBuffer,
        out: &mut WgpuBuffer,
    ) -> Result<()> {
        elementwise::combine(rec, shape, rows, weights, partial, shared, shared_gate, out)
    }

    fn ngram_gate(
        &self,
        rec: &mut WgpuRecorder,
        shape: StreamShape,
        eps: f32,
        key: (&WgpuBuffer, &WgpuBuffer),
        query: (&WgpuBuffer, &WgpuBuffer),
        value: &WgpuBuffer,
        out: &mut WgpuBuffer,
    ) -> Result<()> {
        norm::ngram_gate(rec, shape, eps, key, query, value, out)
    }
}

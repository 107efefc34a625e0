//! What operations are recorded into: commands that are submitted together, and the host's small
//! values that they read.
//!
//! Owns the order of commands and of uploads; not what a kernel computes. Memory: [`UPLOAD_BYTES`]
//! on the host and on the device, space to read results back, scratch buffers as large as the
//! largest operation needed, experts in passing, the staging, and the arena of experts that stay.
//! Invariants: (1) an upload is on the device before the command that reads it and stays until that
//! has run: the upload buffer is written once a submission, and the queue runs writes and
//! submissions in order; (2) nothing stays behind: a recorder that is dropped submits what it has.

use std::sync::Arc;
use std::sync::mpsc;

use thalweg_backend::Result;

use crate::Error;
use crate::arena::Arena;
use crate::device::Device;
use crate::pipeline::{Key, LANES, Pipelines};
use crate::staging::{CHUNK_BYTES, Staging};

/// Host values of the commands of one submission.
pub(crate) const UPLOAD_BYTES: u64 = 1 << 20;
/// Larger values are written on their own.
const LARGE_BYTES: u64 = UPLOAD_BYTES / 4;
/// Dispatches after which commands are submitted, so that the device does not wait for the host.
const MOST_DISPATCHES: usize = 128;

/// Records commands of a [`WgpuBackend`](crate::WgpuBackend).
#[derive(Debug)]
pub struct WgpuRecorder {
    device: Arc<Device>,
    pipelines: Arc<Pipelines>,
    encoder: Option<wgpu::CommandEncoder>,
    /// The open pass of the encoder; ended before anything else uses that.
    pass: Option<wgpu::ComputePass<'static>>,
    n_dispatches: usize,
    most_dispatches: usize,
    upload: Option<wgpu::Buffer>,
    values: Vec<u8>,
    download: Option<wgpu::Buffer>,
    scratch: [Option<wgpu::Buffer>; 3],
    staging: Staging,
    /// Experts that are used once.
    passing: Option<wgpu::Buffer>,
    arena: Arena,
}

/// An operand of a kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Arg<'a> {
    /// A whole buffer.
    Device(&'a wgpu::Buffer),
    /// Values of the host, copied at once.
    Host(&'a [u8]),
}

impl WgpuRecorder {
    pub(crate) fn new(device: Arc<Device>, pipelines: Arc<Pipelines>) -> Self {
        Self {
            device,
            pipelines,
            encoder: None,
            pass: None,
            n_dispatches: 0,
            most_dispatches: MOST_DISPATCHES,
            upload: None,
            values: vec![],
            download: None,
            scratch: [const { None }; 3],
            staging: Staging::default(),
            passing: None,
            arena: Arena::default(),
        }
    }

    /// Records a kernel over `n_groups` workgroups. `params` is binding 0, `args` are the others by
    /// their numbers.
    pub(crate) fn dispatch(
        &mut self,
        key: Key,
        params: &[u32],
        args: &[(u32, Arg<'_>)],
        n_groups: usize,
    ) -> Result<()> {
        self.device.check()?;
        let params = Arg::Host(bytemuck::cast_slice(params));
        let all = || std::iter::once((0, params)).chain(args.iter().copied());
        let size = |arg| match arg {
            Arg::Host(values) if values.len() as u64 <= LARGE_BYTES => {
                self.slot_bytes(values.len())
            }
            _ => 0,
        };
        // All of an operation's values or none: a submission in between would let go of them.
        let needed: u64 = all().map(|(_, arg)| size(arg)).sum();
        if self.values.len() as u64 + needed > UPLOAD_BYTES {
            self.submit();
        }
        let upload = self.upload_buffer()?;
        let mut large = vec![];
        let mut places = vec![];
        for (_, arg) in all() {
            places.push(match arg {
                Arg::Device(_) => 0..0,
                Arg::Host(values) if values.len() as u64 > LARGE_BYTES => {
                    large.push(self.new_upload(values)?);
                    0..0
                }
                Arg::Host(values) => self.stage(values),
            });
        }
        let mut large = large.iter();
        let entries: Vec<wgpu::BindGroupEntry<'_>> = all()
            .zip(&places)
            .filter_map(|((binding, arg), place)| {
                let resource = match arg {
                    Arg::Device(buffer) => buffer.as_entire_binding(),
                    Arg::Host(_) if place.is_empty() => large.next()?.as_entire_binding(),
                    Arg::Host(_) => wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                        buffer: &upload,
                        offset: place.start,
                        size: wgpu::BufferSize::new(place.end - place.start),
                    }),
                };
                Some(wgpu::BindGroupEntry { binding, resource })
            })
            .collect();
        let pipeline = self.pipelines.of(&self.device.device, key);
        let group = self
            .device
            .device
            .create_bind_group(&wgpu::BindGroupDescriptor {
                label: None,
                layout: &pipeline.get_bind_group_layout(0),
                entries: &entries,
            });
        let (columns, rows) = self.grid(n_groups);
        let pass = self.pass();
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(columns, rows, 1);
        self.n_dispatches += 1;
        if self.n_dispatches >= self.most_dispatches {
            self.submit();
        }
        Ok(())
    }

    /// Records a kernel with an invocation for each of `n` elements.
    pub(crate) fn each(
        &mut self,
        key: Key,
        params: &[u32],
        args: &[(u32, Arg<'_>)],
        n: usize,
    ) -> Result<()> {
        self.dispatch(key, params, args, n.div_ceil(LANES))
    }

    /// Records a write of values to `buffer` from byte `at` on.
    pub(crate) fn write(&mut self, buffer: &wgpu::Buffer, at: u64, values: &[u8]) -> Result<()> {
        self.device.check()?;
        if values.is_empty() {
            return Ok(());
        }
        if values.len() as u64 > LARGE_BYTES {
            self.submit();
            self.device.queue.write_buffer(buffer, at, values);
            return Ok(());
        }
        if self.values.len() as u64 + self.slot_bytes(values.len()) > UPLOAD_BYTES {
            self.submit();
        }
        let upload = self.upload_buffer()?;
        let place = self.stage(values);
        let len = values.len() as u64;
        self.encoder()
            .copy_buffer_to_buffer(&upload, place.start, buffer, at, len);
        Ok(())
    }

    /// Records a copy of bytes between two buffers.
    pub(crate) fn copy(
        &mut self,
        (from, from_at): (&wgpu::Buffer, u64),
        (to, to_at): (&wgpu::Buffer, u64),
        len: u64,
    ) -> Result<()> {
        self.device.check()?;
        if len > 0 {
            self.encoder()
                .copy_buffer_to_buffer(from, from_at, to, to_at, len);
        }
        Ok(())
    }

    /// Records zeros for a whole buffer.
    pub(crate) fn zero(&mut self, buffer: &wgpu::Buffer) -> Result<()> {
        self.device.check()?;
        self.encoder().clear_buffer(buffer, 0, None);
        Ok(())
    }

    /// Copies bytes from `at` on to the host, after everything recorded before.
    pub(crate) fn read(&mut self, buffer: &wgpu::Buffer, at: u64, out: &mut [u8]) -> Result<()> {
        self.device.check()?;
        let len = out.len() as u64;
        if len == 0 {
            self.submit();
            return Ok(());
        }
        let download = self.download_buffer(len)?;
        self.encoder()
            .copy_buffer_to_buffer(buffer, at, &download, 0, len);
        self.submit();
        let (tell, told) = mpsc::channel();
        download.map_async(wgpu::MapMode::Read, 0..len, move |mapped| {
            // Nobody listens when the wait below has failed.
            let _ = tell.send(mapped);
        });
        self.device.wait()?;
        let map = |source: Arc<dyn std::error::Error + Send + Sync>| Error::Map { source };
        told.recv()
            .map_err(|e| map(Arc::new(e)))?
            .map_err(|e| map(Arc::new(e)))?;
        let mapped = download.get_mapped_range(0..len);
        out.copy_from_slice(&mapped.map_err(|e| map(Arc::new(e)))?);
        download.unmap();
        Ok(())
    }

    /// Whether commands stay together until something needs them or their uploads are full. A device
    /// that is faster than the recording would wait in between.
    pub(crate) fn hold(&mut self, hold: bool) {
        self.most_dispatches = if hold { usize::MAX } else { MOST_DISPATCHES };
    }

    /// Records a timestamp, told when everything before it is done.
    pub(crate) fn stamp(&mut self, stamps: &wgpu::QuerySet, index: u32) -> Result<()> {
        self.device.check()?;
        self.encoder().write_timestamp(stamps, index);
        Ok(())
    }

    /// Copies the first timestamps to the host, in the device's ticks, after everything recorded.
    pub(crate) fn read_stamps(&mut self, stamps: &wgpu::QuerySet, out: &mut [u64]) -> Result<()> {
        use wgpu::BufferUsages as Use;
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(out);
        let usage = Use::QUERY_RESOLVE | Use::COPY_SRC;
        let resolved = self.device.buffer(bytes.len() as u64, usage)?;
        let n = (bytes.len() / 8) as u32;
        self.encoder().resolve_query_set(stamps, 0..n, &resolved, 0);
        self.read(&resolved, 0, bytes)
    }

    /// A buffer of at least `len` elements whose contents do not outlive the operation.
    pub(crate) fn scratch(&mut self, which: usize, len: usize) -> Result<wgpu::Buffer> {
        let bytes = 4 * len as u64;
        let have = &mut self.scratch[which];
        match have {
            Some(buffer) if buffer.size() >= bytes => Ok(buffer.clone()),
            _ => Ok(have
                .insert(self.device.buffer(bytes, wgpu::BufferUsages::STORAGE)?)
                .clone()),
        }
    }

    /// The buffer of experts that are used once, of at least `bytes`.
    pub(crate) fn passing_buffer(&mut self, bytes: u64) -> Result<wgpu::Buffer> {
        use wgpu::BufferUsages as Use;
        match &self.passing {
            Some(buffer) if buffer.size() >= bytes => Ok(buffer.clone()),
            _ => {
                // The old one goes before there is another.
                self.passing = None;
                let buffer = self.device.buffer(bytes, Use::STORAGE | Use::COPY_DST)?;
                Ok(self.passing.insert(buffer).clone())
            }
        }
    }

    /// The copies of experts that stay.
    pub(crate) fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }

    /// Whether there is a copy of an expert.
    pub(crate) fn holds(&self, layer: usize, expert: u16) -> bool {
        self.arena.holds(layer, expert)
    }

    /// Records the way of bytes to a buffer, whose contents commands recorded before still see. A
    /// length that is no multiple of four is filled up with zeros.
    pub(crate) fn upload(&mut self, buffer: &wgpu::Buffer, at: u64, bytes: &[u8]) -> Result<()> {
        self.device.check()?;
        let pieces = bytes.chunks(CHUNK_BYTES).enumerate();
        for (i, piece) in pieces {
            let (staged, from) = loop {
                if let Some(place) = self.staging.put(&self.device, piece)? {
                    break place;
                }
                self.submit();
                self.device.wait()?;
            };
            let to = at + (i * CHUNK_BYTES) as u64;
            let len = (piece.len() as u64).next_multiple_of(4);
            self.encoder()
                .copy_buffer_to_buffer(&staged, from, buffer, to, len);
        }
        Ok(())
    }

    /// Hands what was recorded to the device.
    pub(crate) fn submit(&mut self) {
        self.pass = None;
        self.n_dispatches = 0;
        if let (Some(upload), false) = (&self.upload, self.values.is_empty()) {
            self.device.queue.write_buffer(upload, 0, &self.values);
        }
        self.values.clear();
        self.staging.close();
        let commands = self.encoder.take().map(wgpu::CommandEncoder::finish);
        self.device.queue.submit(commands);
        self.staging.recall();
    }

    /// Bytes that a value takes of the upload buffer.
    fn slot_bytes(&self, len: usize) -> u64 {
        (len as u64)
            .max(16)
            .next_multiple_of(self.device.limits.alignment)
    }

    /// Appends values to the upload, and says where they are.
    fn stage(&mut self, values: &[u8]) -> std::ops::Range<u64> {
        let start = self.values.len() as u64;
        let end = self.values.len() + self.slot_bytes(values.len()) as usize;
        self.values.extend_from_slice(values);
        self.values.resize(end, 0);
        start..start + (values.len() as u64).max(16)
    }

    fn upload_buffer(&mut self) -> Result<wgpu::Buffer> {
        use wgpu::BufferUsages as Use;
        let usage = Use::UNIFORM | Use::STORAGE | Use::COPY_SRC | Use::COPY_DST;
        if let Some(upload) = &self.upload {
            return Ok(upload.clone());
        }
        let upload = self.device.buffer(UPLOAD_BYTES, usage)?;
        Ok(self.upload.insert(upload).clone())
    }

    /// A buffer of its own for a large value.
    fn new_upload(&self, values: &[u8]) -> Result<wgpu::Buffer> {
        use wgpu::BufferUsages as Use;
        let buffer = self
            .device
            .buffer(values.len() as u64, Use::STORAGE | Use::COPY_DST)?;
        self.device.queue.write_buffer(&buffer, 0, values);
        Ok(buffer)
    }

    fn download_buffer(&mut self, len: u64) -> Result<wgpu::Buffer> {
        use wgpu::BufferUsages as Use;
        match &self.download {
            Some(download) if download.size() >= len => Ok(download.clone()),
            _ => {
                let bytes = len
                    .next_power_of_two()
                    .min(self.device.limits.binding_bytes);
                let download = self
                    .device
                    .buffer(bytes.max(len), Use::MAP_READ | Use::COPY_DST)?;
                Ok(self.download.insert(download).clone())
            }
        }
    }

    /// The encoder, outside of a pass.
    fn encoder(&mut self) -> &mut wgpu::CommandEncoder {
        self.pass = None;
        let device = &self.device.device;
        self.encoder
            .get_or_insert_with(|| device.create_command_encoder(&Default::default()))
    }

    fn pass(&mut self) -> &mut wgpu::ComputePass<'static> {
        if self.pass.is_none() {
            let pass = self.encoder().begin_compute_pass(&Default::default());
            self.pass = Some(pass.forget_lifetime());
        }
        self.pass.as_mut().expect("just put there")
    }

    /// Columns and rows of a grid of at least `n` workgroups.
    fn grid(&self, n: usize) -> (u32, u32) {
        let most = self.device.limits.workgroups as usize;
        let columns = n.min(most);
        let rows = n.div_ceil(columns.max(1));
        (columns as u32, rows as u32)
    }
}

impl Drop for WgpuRecorder {
    fn drop(&mut self) {
        self.submit();
    }
}

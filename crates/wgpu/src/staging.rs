//! The way of large values to the device: written into mapped memory that the device copies from.
//!
//! Owns the staging buffers and when they may be written again; not where values go. Memory:
//! [`BYTES`] on the host at most, taken as needed. Invariant: a buffer is written only while it is
//! mapped, and it is mapped only when the device is done with its last contents.
//! Source: a copy of the host into mapped memory runs at twice the rate of the queue's own writes
//! on the cards that were measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thalweg_backend::Result;

use crate::Error;
use crate::device::Device;

/// Bytes of one buffer; longer values go in pieces.
pub(crate) const CHUNK_BYTES: usize = 4 << 20;
/// Bytes of all of them.
pub(crate) const BYTES: usize = 8 * CHUNK_BYTES;

/// Buffers of a recorder.
#[derive(Debug, Default)]
pub(crate) struct Staging(Vec<Chunk>);

#[derive(Debug)]
struct Chunk {
    buffer: wgpu::Buffer,
    used: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    /// May be written.
    Mapped,
    /// Read by commands that are not submitted yet.
    Recorded,
    /// Read by commands that were; true once it is mapped again.
    Submitted(Arc<AtomicBool>),
}

impl Staging {
    /// Puts at most [`CHUNK_BYTES`] where the device can copy them from, filled up with zeros to
    /// whole words; says where they are. `None` if all buffers are in use: then what was recorded
    /// must be submitted and waited for.
    pub(crate) fn put(
        &mut self,
        device: &Device,
        bytes: &[u8],
    ) -> Result<Option<(wgpu::Buffer, u64)>> {
        use wgpu::BufferUsages as Use;
        let size = (bytes.len() as u64).next_multiple_of(4);
        for chunk in &mut self.0 {
            if matches!(&chunk.state, State::Submitted(mapped) if mapped.load(Ordering::Acquire)) {
                (chunk.state, chunk.used) = (State::Mapped, 0);
            }
        }
        let has_room =
            |c: &Chunk| matches!(c.state, State::Mapped) && c.used + size <= CHUNK_BYTES as u64;
        let chunk = match self.0.iter().position(has_room) {
            Some(i) => &mut self.0[i],
            None if self.0.len() < BYTES / CHUNK_BYTES => {
                let usage = Use::MAP_WRITE | Use::COPY_SRC;
                let buffer = device.mapped_buffer(CHUNK_BYTES as u64, usage)?;
                self.0.push(Chunk {
                    buffer,
                    used: 0,
                    state: State::Mapped,
                });
                self.0.last_mut().expect("just pushed")
            }
            None => return Ok(None),
        };
        let at = chunk.used;
        let mut view = chunk
            .buffer
            .get_mapped_range_mut(at..at + size)
            .map_err(|e| Error::Map {
                source: Arc::new(e),
            })?;
        view.slice(..bytes.len()).copy_from_slice(bytes);
        let padding = size as usize - bytes.len();
        view.slice(bytes.len()..)
            .copy_from_slice(&[0; 4][..padding]);
        drop(view);
        chunk.used += size.next_multiple_of(wgpu::MAP_ALIGNMENT);
        Ok(Some((chunk.buffer.clone(), at)))
    }

    /// Hands what was put to the device; to be called before the commands that copy it are
    /// submitted.
    pub(crate) fn close(&mut self) {
        for chunk in &mut self.0 {
            if matches!(chunk.state, State::Mapped) && chunk.used > 0 {
                chunk.buffer.unmap();
                chunk.state = State::Recorded;
            }
        }
    }

    /// Asks for the buffers back; to be called after the submission.
    pub(crate) fn recall(&mut self) {
        for chunk in &mut self.0 {
            if matches!(chunk.state, State::Recorded) {
                let mapped = Arc::new(AtomicBool::new(false));
                chunk.state = State::Submitted(Arc::clone(&mapped));
                chunk
                    .buffer
                    .map_async(wgpu::MapMode::Write, .., move |result| {
                        // A buffer that cannot be mapped again stays in use; the device's own
                        // failure says why.
                        mapped.store(result.is_ok(), Ordering::Release);
                    });
            }
        }
    }
}

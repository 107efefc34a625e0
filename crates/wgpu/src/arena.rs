//! Copies of experts in device memory: which are there, and where.
//!
//! Owns the slots of each layer and the choice of who leaves (the least recently used); not the way
//! of bytes to them, nor what is computed. Memory: all slots of all layers, taken at once. A layer's
//! slots are in as few buffers as a binding allows, so that one dispatch reads what a token needs
//! of it and a slot is named by its buffer and a byte in that, whatever the size of the whole.
//! Invariant: a slot's bytes are overwritten by commands recorded after those that read them, on
//! one queue, hence after the device is done with them.

use std::fmt;

use thalweg_backend::{Error, ExpertRoom, MatShape, Result};
use thalweg_cache::{Access, Key, Policy, PolicyConfig, PolicyKind, Residency, ServeError, SlotId};

use crate::device::Device;

/// Alignment of a matrix in a slot: kernels may read four words at once.
const ALIGNMENT: u64 = 16;

/// The copies of a recorder's experts.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    layers: Vec<Option<Layer>>,
    clock: u64,
}

/// The slots of a layer.
pub(crate) struct Layer {
    parts: [MatShape; 3],
    spans: Spans,
    slots_per_buffer: usize,
    buffers: Vec<wgpu::Buffer>,
    residency: Residency,
    policy: Box<dyn Policy>,
}

impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layer")
            .field("parts", &self.parts)
            .field("n_slots", &self.residency.n_slots())
            .field("n_buffers", &self.buffers.len())
            .finish_non_exhaustive()
    }
}

/// Where the matrices of an expert are from its first byte on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spans {
    at: [u64; 3],
    len: u64,
}

/// Where an expert is.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) buffer: wgpu::Buffer,
    /// Which of its layer's or batch's buffers that is.
    pub(crate) buffer_index: usize,
    /// First bytes of gate, up and down.
    pub(crate) at: [u64; 3],
}

impl Spans {
    /// Those of matrices of so many bytes.
    pub(crate) fn new(bytes: [u64; 3]) -> Self {
        let mut end = 0_u64;
        let at = bytes.map(|n| {
            let at = end;
            end = (at + n).next_multiple_of(ALIGNMENT);
            at
        });
        Self { at, len: end }
    }

    /// Bytes of the whole expert.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// First bytes of an expert at `start`.
    pub(crate) fn from(&self, start: u64) -> [u64; 3] {
        self.at.map(|at| start + at)
    }
}

/// Bytes of a matrix.
fn bytes(m: MatShape) -> Result<u64> {
    Ok((m.ty.row_bytes(m.n_in)? as u64).saturating_mul(m.n_out as u64))
}

impl Arena {
    /// Empty slots for these layers.
    pub(crate) fn new(device: &Device, rooms: &[ExpertRoom]) -> Result<Self> {
        let layers = rooms.iter().map(|room| Layer::new(device, room));
        Ok(Self {
            layers: layers.collect::<Result<_>>()?,
            clock: 0,
        })
    }

    /// Whether an expert's copy is there.
    pub(crate) fn holds(&self, layer: usize, expert: u16) -> bool {
        self.layer(layer)
            .is_some_and(|l| l.residency.is_resident(key(expert)))
    }

    /// The slots of a layer, if it has any.
    pub(crate) fn layer(&self, layer: usize) -> Option<&Layer> {
        self.layers.get(layer).and_then(Option::as_ref)
    }

    /// Takes slots for experts of a layer, distinct ones and no more than it has slots: `upload` is
    /// called for those that are not there, with their place, or with `None` for one that
    /// `may_evict` does not let into another's slot. The experts of the call stay until the next.
    pub(crate) fn serve(
        &mut self,
        layer: usize,
        experts: &[u16],
        mut may_evict: impl FnMut(u16) -> bool,
        mut upload: impl FnMut(u16, Option<Place>) -> Result<()>,
    ) -> Result<()> {
        let Some(Some(l)) = self.layers.get_mut(layer) else {
            return experts.iter().try_for_each(|e| upload(*e, None));
        };
        self.clock += 1;
        let keys: Vec<Key> = experts.iter().map(|e| key(*e)).collect();
        let Layer {
            spans,
            slots_per_buffer,
            buffers,
            residency,
            policy,
            ..
        } = l;
        let expert = |key: Key| u16::try_from(key.id()).unwrap_or(u16::MAX);
        let served = thalweg_cache::serve_admitting(
            residency,
            &mut **policy,
            &Access::new(self.clock, &keys),
            |key| may_evict(expert(key)),
            |key, slot| {
                let place = slot.map(|slot| place(spans, *slots_per_buffer, buffers, slot));
                upload(expert(key), place)
            },
        );
        match served {
            Ok(_) => Ok(()),
            Err(ServeError::Load { source, .. }) => Err(source),
            Err(e) => Err(Error::Device {
                backend: crate::NAME,
                source: Box::new(e),
            }),
        }
    }

    /// Where an expert's copy is.
    pub(crate) fn place(&self, layer: usize, expert: u16) -> Option<Place> {
        let l = self.layer(layer)?;
        let slot = l.residency.slot(key(expert))?;
        Some(place(&l.spans, l.slots_per_buffer, &l.buffers, slot))
    }
}

impl Layer {
    fn new(device: &Device, room: &ExpertRoom) -> Result<Option<Self>> {
        let [gate, up, down] = room.parts;
        let spans = Spans::new([bytes(gate)?, bytes(up)?, bytes(down)?]);
        let slots_per_buffer = (device.limits.binding_bytes / spans.len().max(1)) as usize;
        if room.n_slots == 0 || spans.len() == 0 {
            return Ok(None);
        }
        if slots_per_buffer == 0 {
            return Err(Error::OutOfMemory {
                bytes: usize::try_from(spans.len()).unwrap_or(usize::MAX),
            });
        }
        let mut buffers = vec![];
        let mut left = room.n_slots;
        while left > 0 {
            use wgpu::BufferUsages as Use;
            let n = left.min(slots_per_buffer);
            let usage = Use::STORAGE | Use::COPY_DST;
            buffers.push(device.buffer(n as u64 * spans.len(), usage)?);
            left -= n;
        }
        let too_many = |source: thalweg_cache::Error| Error::Device {
            backend: crate::NAME,
            source: Box::new(source),
        };
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let (n_expert, n_slots) = (count(room.n_expert), count(room.n_slots));
        let config = PolicyConfig::new(n_expert, n_slots, 1);
        Ok(Some(Self {
            parts: room.parts,
            spans,
            slots_per_buffer,
            buffers,
            residency: Residency::new(n_expert, n_slots).map_err(too_many)?,
            policy: PolicyKind::Lru.build(&config).map_err(too_many)?,
        }))
    }

    /// Shapes of gate, up and down.
    pub(crate) fn parts(&self) -> [MatShape; 3] {
        self.parts
    }

    /// Slots of the layer.
    pub(crate) fn n_slots(&self) -> usize {
        self.residency.n_slots() as usize
    }
}

fn key(expert: u16) -> Key {
    Key::new(expert.into())
}

fn place(spans: &Spans, slots_per_buffer: usize, buffers: &[wgpu::Buffer], slot: SlotId) -> Place {
    let slot = slot.index();
    let buffer_index = slot / slots_per_buffer;
    Place {
        buffer: buffers[buffer_index].clone(),
        buffer_index,
        at: spans.from((slot % slots_per_buffer) as u64 * spans.len()),
    }
}

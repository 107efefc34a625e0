//! `BundleHeader`: the bytes before the first bundle, read and written.
//!
//! Owns the encoding of shape, fingerprint and checksums; not the bundles. Invariants: 1. what is
//! accepted is written back byte for byte: everything that follows from the shape is compared, not
//! believed; 2. sizes are checked before anything is allocated. Memory: 4 bytes an expert.
//! Cost: one pass over the header.

use super::shape::{PREFIX_BYTES, check_counts, header_bytes};
use super::{BUNDLE_ALIGNMENT_BYTES, BUNDLE_MAGIC, BundleFault, BundleLayer, BundleShape, bad};
use crate::Result;

const VERSION: u32 = 1;

type Checked<T> = std::result::Result<T, BundleFault>;

/// What a file of bundles says of itself.
///
/// ```
/// use thalweg_store::bundle::{BundleHeader, BundleLayer, BundleShape};
/// let layer = BundleLayer { types: [8, 8, 8], part_bytes: [340, 340, 408] };
/// let shape = BundleShape::new(2, vec![layer])?;
/// let header = BundleHeader::new(shape, [7; 32], vec![0xAB, 0xCD])?;
/// let bytes = header.to_bytes();
/// assert_eq!(bytes.len(), 16_384);
/// assert_eq!(header.offset_bytes(0, 1), Some(2 * 16_384));
/// assert_eq!(BundleHeader::parse(&bytes)?, header);
/// # Ok::<(), thalweg_store::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BundleHeader {
    shape: BundleShape,
    fingerprint: [u8; 32],
    /// By layer, then expert; zero in layers without.
    checksums: Vec<u32>,
}

impl BundleHeader {
    /// A header: `checksums` are the CRC-32C of each expert's bytes, by layer, then expert, as many
    /// in each layer; zero in layers without experts.
    ///
    /// # Errors
    /// [`Error::Bundle`](crate::Error::Bundle) for checksums of another number, or such without an
    /// expert.
    pub fn new(shape: BundleShape, fingerprint: [u8; 32], checksums: Vec<u32>) -> Result<Self> {
        let n_expert = shape.n_expert_max() as usize;
        let expected_bytes = 4 * (shape.n_layer() * n_expert) as u64;
        let found_bytes = 4 * checksums.len() as u64;
        if expected_bytes != found_bytes {
            return Err(bad(BundleFault::Length {
                expected_bytes,
                found_bytes,
            }));
        }
        for (i, &found) in checksums.iter().enumerate() {
            let (layer, expert) = (i / n_expert, i % n_expert);
            if shape.n_expert(layer) == 0 && found != 0 {
                return Err(bad(index(layer, expert, "checksum", 0, found.into())));
            }
        }
        Ok(Self {
            shape,
            fingerprint,
            checksums,
        })
    }

    /// Reads a header from the start of a file; what follows it is not looked at.
    ///
    /// # Errors
    /// [`Error::Bundle`](crate::Error::Bundle) with the first thing found wrong.
    ///
    /// # Cost
    /// Allocates less than there are bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        Self::decode(bytes).map_err(bad)
    }

    /// The bytes of the header, up to the first bundle.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let shape = &self.shape;
        // Layers and classes are at most 2^20, the alignment is 2^14.
        let word = |n: u64| u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes();
        let mut bytes = BUNDLE_MAGIC.to_vec();
        let n_layer = shape.n_layer() as u64;
        let fixed = [VERSION.into(), BUNDLE_ALIGNMENT_BYTES, n_layer];
        bytes.extend(fixed.into_iter().flat_map(word));
        bytes.extend(shape.n_expert_max().to_le_bytes());
        bytes.extend(word(shape.n_class() as u64));
        bytes.extend(self.fingerprint);
        for layer in shape.layers() {
            for field in layer.types.iter().chain(&layer.part_bytes) {
                bytes.extend(field.to_le_bytes());
            }
            bytes.extend(shape.class(layer).to_le_bytes());
            bytes.extend(word(layer.stride_bytes()));
        }
        let n_expert = shape.n_expert_max() as usize;
        for (i, checksum) in self.checksums.iter().enumerate() {
            let (layer, expert) = (i / n_expert, i % n_expert);
            // Zeros where the layer has no experts.
            let offset_bytes = self.offset_bytes(layer, expert).unwrap_or(0);
            bytes.extend(offset_bytes.to_le_bytes());
            bytes.extend(word(shape.layers()[layer].len_bytes()));
            bytes.extend(checksum.to_le_bytes());
        }
        let padded = bytes
            .len()
            .next_multiple_of(BUNDLE_ALIGNMENT_BYTES as usize);
        bytes.resize(padded, 0);
        bytes
    }

    /// The experts.
    #[must_use]
    pub const fn shape(&self) -> &BundleShape {
        &self.shape
    }

    /// Of the model file that the experts were copied from.
    #[must_use]
    pub const fn fingerprint(&self) -> &[u8; 32] {
        &self.fingerprint
    }

    /// Where an expert begins; `None` out of range.
    #[must_use]
    pub fn offset_bytes(&self, layer: usize, expert: usize) -> Option<u64> {
        if expert >= self.shape.n_expert(layer) {
            return None;
        }
        let stride_bytes = self.shape.layers()[layer].stride_bytes();
        Some(self.shape.layer_offset_bytes(layer) + expert as u64 * stride_bytes)
    }

    /// CRC-32C of an expert's bytes, without padding; `None` out of range.
    #[must_use]
    pub fn checksum(&self, layer: usize, expert: usize) -> Option<u32> {
        if expert >= self.shape.n_expert(layer) {
            return None;
        }
        let place = layer * self.shape.n_expert_max() as usize + expert;
        self.checksums.get(place).copied()
    }

    fn decode(bytes: &[u8]) -> Checked<Self> {
        let prefix = Prefix::decode(bytes)?;
        let found_bytes = bytes.len() as u64;
        let expected_bytes = prefix.header_bytes();
        if found_bytes < expected_bytes {
            return Err(BundleFault::Length {
                expected_bytes,
                found_bytes,
            });
        }
        // From here all sizes are those of a slice, hence within usize.
        let (n_layer, n_expert) = (prefix.n_layer as usize, prefix.n_expert as usize);
        let (bytes, _) = bytes.split_at(expected_bytes as usize);
        let (layers, rest) = bytes[PREFIX_BYTES..].split_at(32 * n_layer);
        let (entries, padding) = rest.split_at(16 * n_layer * n_expert);

        let fields = |entry: &[u8]| [0, 4, 8, 12, 16, 20, 24, 28].map(|at| u32_at(entry, at));
        let layers: Vec<_> = layers.chunks_exact(32).map(fields).collect();
        let of = |f: &[u32; 8]| BundleLayer {
            types: [f[0], f[1], f[2]],
            part_bytes: [f[3], f[4], f[5]],
        };
        let shape = BundleShape::check(prefix.n_expert, layers.iter().map(of).collect())?;
        let n_class = u32::try_from(shape.n_class()).unwrap_or(u32::MAX);
        compare(None, "the number of classes", n_class, prefix.n_class)?;
        for (l, (fields, layer)) in layers.iter().zip(shape.layers()).enumerate() {
            compare(Some(l), "class", shape.class(layer), fields[6])?;
            // Fits, by `check`.
            let stride = u32::try_from(layer.stride_bytes()).unwrap_or(u32::MAX);
            compare(Some(l), "stride", stride, fields[7])?;
        }
        let checksums = check_index(&shape, entries)?;
        if let Some(at) = padding.iter().position(|byte| *byte != 0) {
            let offset_bytes = expected_bytes - (padding.len() - at) as u64;
            return Err(BundleFault::Padding { offset_bytes });
        }
        Ok(Self {
            shape,
            fingerprint: prefix.fingerprint,
            checksums,
        })
    }
}

/// Compares an index with the layers; returns the checksums.
fn check_index(shape: &BundleShape, entries: &[u8]) -> Checked<Vec<u32>> {
    let n_expert = shape.n_expert_max() as usize;
    let mut checksums = Vec::with_capacity(entries.len() / 16);
    let mut next_bytes = shape.header_bytes();
    for (i, entry) in entries.chunks_exact(16).enumerate() {
        let (l, expert) = (i / n_expert, i % n_expert);
        let layer = &shape.layers()[l];
        let is_empty = shape.n_expert(l) == 0;
        let offset_bytes = u64::from(u32_at(entry, 0)) | u64::from(u32_at(entry, 4)) << 32;
        let (len, checksum) = (u32_at(entry, 8), u32_at(entry, 12));
        let at = if is_empty { 0 } else { next_bytes };
        for (field, expected, found) in [
            ("offset", at, offset_bytes),
            ("length", layer.len_bytes(), len.into()),
        ] {
            if expected != found {
                return Err(index(l, expert, field, expected, found));
            }
        }
        if is_empty && checksum != 0 {
            return Err(index(l, expert, "checksum", 0, checksum.into()));
        }
        next_bytes += layer.stride_bytes();
        checksums.push(checksum);
    }
    Ok(checksums)
}

/// What has to be known to know the length of the header.
pub(super) struct Prefix {
    n_layer: u32,
    n_expert: u32,
    n_class: u32,
    fingerprint: [u8; 32],
}

impl Prefix {
    pub(super) fn decode(bytes: &[u8]) -> Checked<Self> {
        let mut found = [0; 4];
        let n = bytes.len().min(4);
        found[..n].copy_from_slice(&bytes[..n]);
        // A beginning of the right bytes is a truncated file rather than something else.
        if found[..n] != BUNDLE_MAGIC[..n] {
            return Err(BundleFault::Magic { found });
        }
        let Some(prefix) = bytes.get(..PREFIX_BYTES) else {
            return Err(BundleFault::Length {
                expected_bytes: PREFIX_BYTES as u64,
                found_bytes: bytes.len() as u64,
            });
        };
        let [version, alignment, n_layer, n_expert, n_class] =
            [4, 8, 12, 16, 20].map(|at| u32_at(prefix, at));
        if version != VERSION {
            return Err(BundleFault::Version { found: version });
        }
        if u64::from(alignment) != BUNDLE_ALIGNMENT_BYTES {
            return Err(BundleFault::Alignment { found: alignment });
        }
        check_counts(n_layer, n_expert)?;
        let mut fingerprint = [0; 32];
        fingerprint.copy_from_slice(&prefix[24..]);
        Ok(Self {
            n_layer,
            n_expert,
            n_class,
            fingerprint,
        })
    }

    /// Length of the header, padding included: at most 48 MiB, by `check_counts`.
    pub(super) fn header_bytes(&self) -> u64 {
        header_bytes(self.n_layer.into(), self.n_expert.into())
    }
}

fn compare(layer: Option<usize>, field: &'static str, expected: u32, found: u32) -> Checked<()> {
    if expected == found {
        return Ok(());
    }
    Err(BundleFault::Layer {
        layer,
        field,
        expected,
        found,
    })
}

const fn index(
    layer: usize,
    expert: usize,
    field: &'static str,
    expected: u64,
    found: u64,
) -> BundleFault {
    BundleFault::Index {
        layer,
        expert,
        field,
        expected,
        found,
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

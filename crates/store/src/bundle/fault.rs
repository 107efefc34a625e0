//! `BundleFault`: what is wrong with a file of bundled experts, with the facts.
//!
//! Owns the messages. Owns no state.

use std::fmt;

/// What is wrong with a file of bundled experts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BundleFault {
    /// It does not begin with [`BUNDLE_MAGIC`](super::BUNDLE_MAGIC).
    Magic {
        /// The bytes there; fewer in a shorter file are filled up with zeros.
        found: [u8; 4],
    },
    /// A version other than 1.
    Version {
        /// The version.
        found: u32,
    },
    /// Bundles aligned otherwise than [`BUNDLE_ALIGNMENT_BYTES`](super::BUNDLE_ALIGNMENT_BYTES).
    Alignment {
        /// The alignment.
        found: u32,
    },
    /// No layers or experts, or too many.
    Shape {
        /// Layers.
        n_layer: u32,
        /// Experts a layer.
        n_expert: u32,
    },
    /// It has more or fewer bytes than its header says, or than a header has.
    Length {
        /// Bytes there should be.
        expected_bytes: u64,
        /// Bytes there are.
        found_bytes: u64,
    },
    /// A layer of which some parts have bytes and others none, or too many to have a length.
    Parts {
        /// The layer.
        layer: usize,
        /// Bytes of its gate, up and down.
        found_bytes: [u32; 3],
    },
    /// A field of a layer, or the number of classes, contradicts the lengths of the parts.
    Layer {
        /// The layer; `None` for the number of classes.
        layer: Option<usize>,
        /// The field.
        field: &'static str,
        /// What follows from the lengths.
        expected: u32,
        /// What it says.
        found: u32,
    },
    /// The index contradicts the layers: bundles follow each other, by layer, then expert.
    Index {
        /// The layer.
        layer: usize,
        /// The expert.
        expert: usize,
        /// The field.
        field: &'static str,
        /// What follows from the layers.
        expected: u64,
        /// What it says.
        found: u64,
    },
    /// Bytes that fill up to the next aligned place are not zero.
    Padding {
        /// Where.
        offset_bytes: u64,
    },
    /// It was made from another model file, or from this one before it changed.
    Stale {
        /// Fingerprint of the model file.
        expected: [u8; 32],
        /// Fingerprint that it was made from.
        found: [u8; 32],
    },
    /// It holds experts of another shape than the model.
    OtherModel {
        /// The layer; `None` for figures of the whole.
        layer: Option<usize>,
        /// The figure.
        what: &'static str,
        /// Of the model.
        expected: u64,
        /// Of the file.
        found: u64,
    },
    /// An expert's bytes do not have its checksum.
    Checksum {
        /// The layer.
        layer: usize,
        /// The expert.
        expert: usize,
        /// In the index.
        expected: u32,
        /// Of its bytes.
        found: u32,
    },
    /// An expert's bytes are not those of the model file.
    Differs {
        /// The layer.
        layer: usize,
        /// The expert.
        expert: usize,
        /// The part.
        part: usize,
        /// The first byte that differs, in the file of bundles.
        offset_bytes: u64,
    },
}

impl fmt::Display for BundleFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Magic { found } => write!(f, "they begin with {found:02x?}, expected \"MEXP\""),
            Self::Version { found } => write!(f, "version {found}, expected 1"),
            Self::Alignment { found } => write!(
                f,
                "aligned to {found}, expected {}",
                super::BUNDLE_ALIGNMENT_BYTES
            ),
            Self::Shape { n_layer, n_expert } => write!(
                f,
                "{n_layer} layers of {n_expert} experts, expected at least one of each and at most \
                 {} in all",
                super::MAX_BUNDLES
            ),
            Self::Length {
                expected_bytes,
                found_bytes,
            } => write!(f, "{found_bytes} bytes, expected {expected_bytes}"),
            Self::Parts { layer, found_bytes } => write!(
                f,
                "the experts of layer {layer} have parts of {found_bytes:?} bytes"
            ),
            Self::Layer {
                layer: Some(layer),
                field,
                expected,
                found,
            } => write!(
                f,
                "{field} of layer {layer} is {found}, expected {expected}"
            ),
            Self::Layer {
                layer: None,
                field,
                expected,
                found,
            } => write!(f, "{field} is {found}, expected {expected}"),
            Self::Index {
                layer,
                expert,
                field,
                expected,
                found,
            } => write!(
                f,
                "{field} of expert {expert} of layer {layer} is {found}, expected {expected}"
            ),
            Self::Padding { offset_bytes } => {
                write!(f, "the padding at {offset_bytes} is not zero")
            }
            Self::Stale { expected, found } => {
                f.write_str("they were made from a model file of fingerprint ")?;
                hex(f, &found)?;
                f.write_str(", the model file has ")?;
                hex(f, &expected)?;
                f.write_str("; pack them again")
            }
            Self::OtherModel {
                layer,
                what,
                expected,
                found,
            } => {
                f.write_str("they are of another model: ")?;
                match layer {
                    Some(layer) => write!(f, "{what} of layer {layer} is {found}")?,
                    None => write!(f, "{what} is {found}")?,
                }
                write!(f, ", expected {expected}")
            }
            Self::Checksum {
                layer,
                expert,
                expected,
                found,
            } => write!(
                f,
                "expert {expert} of layer {layer} has the checksum {found:#010x}, expected \
                 {expected:#010x}; pack them again"
            ),
            Self::Differs {
                layer,
                expert,
                part,
                offset_bytes,
            } => write!(
                f,
                "part {part} of expert {expert} of layer {layer} differs from the model file at \
                 {offset_bytes}; pack them again"
            ),
        }
    }
}

fn hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

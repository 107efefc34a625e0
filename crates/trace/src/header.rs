//! The header and what follows from it: the shape of a record and every size.
//!
//! Owns the first 64 bytes of a trace. Invariants: 1. `1 <= k <= n_expert <= 65536`, `n_layer >=
//! 1`;
//! 2. with top-m logits `k <= m <= n_expert`; 3. `record_bytes` fits in u64 and is what writer and
//! reader both use. Cost: arithmetic only.

use crate::Error;

/// First four bytes of a trace.
pub const MAGIC: [u8; 4] = *b"MOTR";
/// Last four bytes of a trace.
pub const TRAILER_MAGIC: [u8; 4] = *b"RTOM";
/// The version that this crate writes and reads.
pub const VERSION: u16 = 1;

pub(crate) const HEADER_BYTES: u64 = 64;
pub(crate) const DOCUMENT_BYTES: u64 = 16;
pub(crate) const TRAILER_BYTES: u64 = 8;
pub(crate) const TOKEN_ID_BYTES: u64 = 4;

const FLAG_WEIGHTS: u16 = 1;
const FLAG_LOGITS: u16 = 2;
const FLAG_FULL: u16 = 4;
const FLAG_F32: u16 = 8;

/// What is kept of the router logits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Logits {
    /// Nothing.
    None,
    /// All of them in half precision.
    FullF16,
    /// All of them as they are.
    FullF32,
    /// The `m` greatest in half precision, and the least of all.
    Top {
        /// How many, `k..=n_expert`.
        m: u16,
    },
}

/// What one token's record holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Layers, at least 1.
    pub n_layer: u32,
    /// Experts of a layer, at most 65536.
    pub n_expert: u32,
    /// Experts chosen in a layer, `1..=n_expert`.
    pub k: u16,
    /// Whether the mixture weights of the chosen experts are kept.
    pub weights: bool,
    /// What is kept of the logits.
    pub logits: Logits,
}

impl Shape {
    /// Chosen experts only.
    #[must_use]
    pub const fn new(n_layer: u32, n_expert: u32, k: u16) -> Self {
        Self {
            n_layer,
            n_expert,
            k,
            weights: false,
            logits: Logits::None,
        }
    }

    /// The same with mixture weights.
    #[must_use]
    pub const fn with_weights(mut self) -> Self {
        self.weights = true;
        self
    }

    /// The same with logits.
    #[must_use]
    pub const fn with_logits(mut self, logits: Logits) -> Self {
        self.logits = logits;
        self
    }

    /// Checks invariants 1 and 2, and that a record's size can be named.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] names the figure.
    pub fn check(&self) -> Result<(), Error> {
        let n_expert = u64::from(self.n_expert);
        in_range("n_layer", u64::from(self.n_layer), 1, u64::from(u32::MAX))?;
        in_range("n_expert", n_expert, 1, 1 << 16)?;
        in_range("k", u64::from(self.k), 1, n_expert)?;
        if let Logits::Top { m } = self.logits {
            in_range("m", u64::from(m), u64::from(self.k), n_expert)?;
        }
        Ok(())
    }

    /// Bytes of one layer in a record.
    #[must_use]
    pub fn layer_bytes(&self) -> u64 {
        let k = u64::from(self.k);
        let weights = if self.weights { 2 * k } else { 0 };
        2 * k + weights + self.logit_bytes()
    }

    /// Bytes of one token's record.
    #[must_use]
    pub fn record_bytes(&self) -> u64 {
        // At most 2^32 layers of less than 2^19 bytes.
        TOKEN_ID_BYTES + u64::from(self.n_layer) * self.layer_bytes()
    }

    fn logit_bytes(&self) -> u64 {
        match self.logits {
            Logits::None => 0,
            Logits::FullF16 => 2 * u64::from(self.n_expert),
            Logits::FullF32 => 4 * u64::from(self.n_expert),
            Logits::Top { m } => 4 * u64::from(m) + 4,
        }
    }

    fn flags(&self) -> u16 {
        let weights = if self.weights { FLAG_WEIGHTS } else { 0 };
        weights
            | match self.logits {
                Logits::None => 0,
                Logits::FullF16 => FLAG_LOGITS | FLAG_FULL,
                Logits::FullF32 => FLAG_LOGITS | FLAG_FULL | FLAG_F32,
                Logits::Top { .. } => FLAG_LOGITS,
            }
    }
}

/// The header of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What a record holds.
    pub shape: Shape,
    /// Records.
    pub n_tokens: u64,
    /// Documents.
    pub n_docs: u32,
    /// Identifies the model that the trace was recorded from; its meaning is the writer's.
    pub fingerprint: [u8; 32],
}

impl Header {
    /// The 64 bytes of the header.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 64] {
        let shape = &self.shape;
        let m = match shape.logits {
            Logits::Top { m } => m,
            _ => 0,
        };
        let mut bytes = [0; 64];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        put(&MAGIC);
        put(&VERSION.to_le_bytes());
        put(&shape.flags().to_le_bytes());
        put(&shape.n_layer.to_le_bytes());
        put(&shape.n_expert.to_le_bytes());
        put(&shape.k.to_le_bytes());
        put(&m.to_le_bytes());
        put(&self.n_tokens.to_le_bytes());
        put(&self.n_docs.to_le_bytes());
        put(&self.fingerprint);
        bytes
    }

    /// Reads and checks a header.
    ///
    /// # Errors
    /// [`Error::BadMagic`], [`Error::UnknownVersion`], [`Error::BadFlags`], and what
    /// [`Shape::check`] finds.
    pub fn from_bytes(bytes: &[u8; 64]) -> Result<Self, Error> {
        let mut rest = &bytes[..];
        let magic = take(&mut rest);
        if magic != MAGIC {
            return Err(Error::BadMagic {
                offset_bytes: 0,
                expected: MAGIC,
                found: magic,
            });
        }
        let version = u16::from_le_bytes(take(&mut rest));
        if version != VERSION {
            return Err(Error::UnknownVersion {
                expected: VERSION,
                found: version,
            });
        }
        let flags = u16::from_le_bytes(take(&mut rest));
        let n_layer = u32::from_le_bytes(take(&mut rest));
        let n_expert = u32::from_le_bytes(take(&mut rest));
        let k = u16::from_le_bytes(take(&mut rest));
        let m = u16::from_le_bytes(take(&mut rest));
        let shape = Shape {
            n_layer,
            n_expert,
            k,
            weights: flags & FLAG_WEIGHTS != 0,
            logits: logits_from_flags(flags, m)?,
        };
        shape.check()?;
        Ok(Self {
            shape,
            n_tokens: u64::from_le_bytes(take(&mut rest)),
            n_docs: u32::from_le_bytes(take(&mut rest)),
            fingerprint: take(&mut rest),
        })
    }
}

fn logits_from_flags(flags: u16, m: u16) -> Result<Logits, Error> {
    let bad = |reason| {
        Err(Error::BadFlags {
            found: flags,
            reason,
        })
    };
    if flags & !(FLAG_WEIGHTS | FLAG_LOGITS | FLAG_FULL | FLAG_F32) != 0 {
        return bad("unknown flag");
    }
    let has = |flag| flags & flag != 0;
    let logits = match (has(FLAG_LOGITS), has(FLAG_FULL), has(FLAG_F32)) {
        (false, false, false) => Logits::None,
        (true, true, false) => Logits::FullF16,
        (true, true, true) => Logits::FullF32,
        (true, false, false) => Logits::Top { m },
        (false, ..) => return bad("a kind of logits without logits"),
        (true, false, true) => return bad("f32 is for full logits only"),
    };
    if m != 0 && !matches!(logits, Logits::Top { .. }) {
        return bad("m is set although no top-m logits are kept");
    }
    Ok(logits)
}

/// Takes the next `N` bytes. Callers stay within 64 bytes; past the end it would give zeros.
fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    if let Some((head, tail)) = rest.split_first_chunk() {
        bytes = *head;
        *rest = tail;
    }
    bytes
}

fn in_range(field: &'static str, found: u64, min: u64, max: u64) -> Result<(), Error> {
    if (min..=max).contains(&found) {
        return Ok(());
    }
    Err(Error::OutOfRange {
        field,
        found,
        min,
        max,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_read_back() {
        for logits in [
            Logits::None,
            Logits::FullF16,
            Logits::FullF32,
            Logits::Top { m: 64 },
        ] {
            for weights in [false, true] {
                let header = Header {
                    shape: Shape {
                        weights,
                        ..Shape::new(48, 512, 10).with_logits(logits)
                    },
                    n_tokens: 1 << 40,
                    n_docs: 7,
                    fingerprint: [9; 32],
                };
                let read = Header::from_bytes(&header.to_bytes()).expect("valid");
                assert_eq!(read, header);
            }
        }
    }

    #[test]
    fn record_sizes_are_those_of_the_specification() {
        let shape = Shape::new(48, 512, 10);
        assert_eq!(shape.record_bytes(), 964);
        let top = shape.with_logits(Logits::Top { m: 64 });
        assert_eq!(top.record_bytes() - shape.record_bytes(), 48 * 260);
        let full = shape.with_logits(Logits::FullF16);
        assert_eq!(full.record_bytes() - shape.record_bytes(), 48 * 1024);
    }

    #[test]
    fn contradictions_in_a_header_are_refused() {
        let good = Header {
            shape: Shape::new(2, 8, 3),
            n_tokens: 1,
            n_docs: 0,
            fingerprint: [0; 32],
        }
        .to_bytes();
        let with = |at: usize, value: u8| {
            let mut bytes = good;
            bytes[at] = value;
            Header::from_bytes(&bytes).expect_err("contradiction")
        };
        assert!(matches!(with(0, b'X'), Error::BadMagic { .. }));
        assert!(matches!(with(4, 2), Error::UnknownVersion { found: 2, .. }));
        for flags in [4, 8, 12, 10, 16] {
            assert!(matches!(with(6, flags), Error::BadFlags { .. }), "{flags}");
        }
        assert!(matches!(with(18, 1), Error::BadFlags { .. }));
        assert!(matches!(
            with(8, 0),
            Error::OutOfRange {
                field: "n_layer",
                ..
            }
        ));
        assert!(matches!(with(16, 9), Error::OutOfRange { field: "k", .. }));
        assert!(matches!(with(16, 0), Error::OutOfRange { field: "k", .. }));
        // Top-m logits with m = 0.
        assert!(matches!(with(6, 2), Error::OutOfRange { field: "m", .. }));
        assert!(matches!(
            with(14, 2),
            Error::OutOfRange {
                field: "n_expert",
                ..
            }
        ));
    }
}

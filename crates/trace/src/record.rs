//! `RecordBuf`: one token's record under construction, layer by layer.
//!
//! Owns the bytes of one record and the scratch to find the greatest logits. Does not own the file.
//! Memory: `record_bytes` and 8 bytes an expert, allocated by `new`. Invariants: 1. a layer enters
//! whole or not at all; 2. what enters is what a reader accepts. Cost: O(k + n_expert) a layer,
//! plus sorting m; no allocation.

use std::cmp::Ordering;

use crate::half::{f16_from_f32, f32_from_f16};
use crate::{Error, Logits, Shape};

/// What one layer chose for a token.
#[derive(Clone, Copy, Debug)]
pub struct LayerChoice<'a> {
    /// The experts, heaviest first, `[k]`.
    pub experts: &'a [u16],
    /// Their mixture weights, `[k]`; needed if the shape keeps weights, else ignored.
    pub weights: &'a [f32],
    /// The router's logits, `[n_expert]`; needed if the shape keeps logits, else ignored.
    pub logits: &'a [f32],
}

impl<'a> LayerChoice<'a> {
    /// Experts only.
    #[must_use]
    pub const fn new(experts: &'a [u16]) -> Self {
        Self {
            experts,
            weights: &[],
            logits: &[],
        }
    }

    /// The same with mixture weights.
    #[must_use]
    pub const fn with_weights(mut self, weights: &'a [f32]) -> Self {
        self.weights = weights;
        self
    }

    /// The same with logits.
    #[must_use]
    pub const fn with_logits(mut self, logits: &'a [f32]) -> Self {
        self.logits = logits;
        self
    }
}

/// A record being filled; reused from token to token.
#[derive(Clone, Debug)]
pub struct RecordBuf {
    shape: Shape,
    bytes: Vec<u8>,
    n_layers: u32,
    /// Experts by descending logit.
    order: Vec<u16>,
    marks: Marks,
}

impl RecordBuf {
    /// An empty record of token 0.
    ///
    /// # Errors
    /// What [`Shape::check`] finds, and [`Error::OutOfRange`] for a record that memory cannot hold.
    pub fn new(shape: &Shape) -> Result<Self, Error> {
        shape.check()?;
        let record_bytes = shape.record_bytes();
        let mut bytes = Vec::new();
        let reserved = usize::try_from(record_bytes)
            .ok()
            .and_then(|n| bytes.try_reserve_exact(n).ok());
        if reserved.is_none() {
            return Err(Error::OutOfRange {
                field: "record_bytes",
                found: record_bytes,
                min: 0,
                max: usize::MAX as u64 / 2,
            });
        }
        let mut record = Self {
            shape: *shape,
            bytes,
            n_layers: 0,
            order: Vec::with_capacity(shape.n_expert as usize),
            marks: Marks::new(shape.n_expert),
        };
        record.start(0);
        Ok(record)
    }

    /// Empties the record and gives it another token id.
    pub fn start(&mut self, token_id: u32) {
        self.bytes.clear();
        self.bytes.extend_from_slice(&token_id.to_le_bytes());
        self.n_layers = 0;
    }

    /// Appends the next layer.
    ///
    /// Weights and half-precision logits are rounded to nearest. Minus infinity is a legitimate
    /// logit (a masked expert).
    ///
    /// # Errors
    /// [`Error::WrongCount`] for one layer too many or a list of the wrong length,
    /// [`Error::ExpertOutOfRange`], [`Error::DuplicateExpert`], and [`Error::BadValue`] for NaN,
    /// plus infinity or a number too great for half precision. The `token` in an error is 0: a
    /// record does not know its position. The record is unchanged then.
    pub fn push_layer(&mut self, choice: &LayerChoice<'_>) -> Result<(), Error> {
        let shape = self.shape;
        if self.n_layers == shape.n_layer {
            return Err(count(
                "layers in a record",
                shape.n_layer,
                self.n_layers as usize + 1,
            ));
        }
        self.check_choice(choice)?;
        for expert in choice.experts {
            self.bytes.extend_from_slice(&expert.to_le_bytes());
        }
        if shape.weights {
            self.put_halves(choice.weights);
        }
        match shape.logits {
            Logits::None => {}
            Logits::FullF16 => self.put_halves(choice.logits),
            Logits::FullF32 => {
                for logit in choice.logits {
                    self.bytes.extend_from_slice(&logit.to_le_bytes());
                }
            }
            Logits::Top { m } => self.put_top(choice.logits, usize::from(m)),
        }
        self.n_layers += 1;
        Ok(())
    }

    /// The bytes of the record.
    ///
    /// # Errors
    /// [`Error::WrongCount`] while layers are missing.
    pub fn bytes(&self) -> Result<&[u8], Error> {
        if self.n_layers != self.shape.n_layer {
            return Err(count(
                "layers in a record",
                self.shape.n_layer,
                self.n_layers as usize,
            ));
        }
        Ok(&self.bytes)
    }

    /// The shape it was made for.
    #[must_use]
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    fn check_choice(&mut self, choice: &LayerChoice<'_>) -> Result<(), Error> {
        let shape = self.shape;
        let k = u32::from(shape.k);
        if choice.experts.len() != usize::from(shape.k) {
            return Err(count("experts of a layer", k, choice.experts.len()));
        }
        self.marks.start();
        for &expert in choice.experts {
            self.marks.mark(expert, 0, self.n_layers)?;
        }
        if shape.weights {
            if choice.weights.len() != usize::from(shape.k) {
                return Err(count("weights of a layer", k, choice.weights.len()));
            }
            let usable = |w: f32| f32_from_f16(f16_from_f32(w)).is_finite();
            self.check_values("weight", choice.weights, usable)?;
        }
        if shape.logits == Logits::None {
            return Ok(());
        }
        if choice.logits.len() != shape.n_expert as usize {
            return Err(count(
                "logits of a layer",
                shape.n_expert,
                choice.logits.len(),
            ));
        }
        let in_f32 = shape.logits == Logits::FullF32;
        self.check_values("logit", choice.logits, |z| {
            if in_f32 {
                is_logit(z)
            } else {
                // A finite number must not turn into infinity.
                z == f32::NEG_INFINITY || f32_from_f16(f16_from_f32(z)).is_finite()
            }
        })
    }

    fn check_values(
        &self,
        field: &'static str,
        values: &[f32],
        usable: impl Fn(f32) -> bool,
    ) -> Result<(), Error> {
        match (0u32..).zip(values).find(|&(_, &value)| !usable(value)) {
            Some((index, &found)) => Err(Error::BadValue {
                token: 0,
                layer: self.n_layers,
                field,
                index,
                found,
            }),
            None => Ok(()),
        }
    }

    fn put_halves(&mut self, values: &[f32]) {
        for &value in values {
            self.bytes
                .extend_from_slice(&f16_from_f32(value).to_le_bytes());
        }
    }

    fn put_top(&mut self, logits: &[f32], m: usize) {
        let by_rank = |&a: &u16, &b: &u16| {
            // No NaN gets here.
            logits[usize::from(b)]
                .partial_cmp(&logits[usize::from(a)])
                .unwrap_or(Ordering::Equal)
                .then(a.cmp(&b))
        };
        self.order.clear();
        // There are at most 65536 experts, so the zip ends with the logits.
        self.order
            .extend((0..=u16::MAX).zip(logits).map(|(expert, _)| expert));
        if m < self.order.len() {
            self.order.select_nth_unstable_by(m, by_rank);
            self.order.truncate(m);
        }
        self.order.sort_unstable_by(by_rank);
        for &expert in &self.order {
            let logit = f16_from_f32(logits[usize::from(expert)]);
            self.bytes.extend_from_slice(&expert.to_le_bytes());
            self.bytes.extend_from_slice(&logit.to_le_bytes());
        }
        let least = logits.iter().copied().fold(f32::INFINITY, f32::min);
        self.bytes.extend_from_slice(&least.to_le_bytes());
    }
}

/// Finds repeated experts in O(1) each.
#[derive(Clone, Debug)]
pub(crate) struct Marks {
    seen: Vec<u64>,
    list: u64,
}

impl Marks {
    pub(crate) fn new(n_expert: u32) -> Self {
        Self {
            seen: vec![0; n_expert as usize],
            list: 0,
        }
    }

    /// Starts a new list.
    pub(crate) const fn start(&mut self) {
        // 2^64 lists are out of reach.
        self.list += 1;
    }

    pub(crate) fn mark(&mut self, expert: u16, token: u64, layer: u32) -> Result<(), Error> {
        // The length came from a u32 in `new`.
        let n_expert = self.seen.len() as u32;
        let Some(seen) = self.seen.get_mut(usize::from(expert)) else {
            return Err(Error::ExpertOutOfRange {
                token,
                layer,
                found: u32::from(expert),
                n_expert,
            });
        };
        if std::mem::replace(seen, self.list) == self.list {
            return Err(Error::DuplicateExpert {
                token,
                layer,
                expert,
            });
        }
        Ok(())
    }
}

/// Finite, or the minus infinity of a masked expert.
pub(crate) fn is_logit(z: f32) -> bool {
    z.is_finite() || z == f32::NEG_INFINITY
}

fn count(what: &'static str, expected: u32, found: usize) -> Error {
    Error::WrongCount {
        what,
        expected: u64::from(expected),
        found: found as u64,
    }
}

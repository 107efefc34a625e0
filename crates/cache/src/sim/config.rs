//! `SimConfig`: what to simulate.
//!
//! Owns the settings and their check against each other; borrows lists. Cost: none.

use crate::{Error, Key, KeySpace, PolicyKind, Tuning};

/// Whether layers share their slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Scope {
    /// One cache over all keys.
    Global,
    /// A cache of `capacity` slots for each layer.
    PerLayer,
}

/// How many bytes a miss reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum KeyBytes<'a> {
    /// Every key has the same size.
    Uniform(u64),
    /// Sizes by layer, `[n_layer]`.
    PerLayer(&'a [u64]),
}

/// Where a document starts in the sequence of tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Document {
    /// Its first clock value.
    pub first_token: u64,
    /// Its domain, an index into the report.
    pub domain: u32,
}

/// What to simulate.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SimConfig<'a> {
    /// The policy.
    pub policy: PolicyKind,
    /// The keys.
    pub space: KeySpace,
    /// Whether layers share their slots. Default [`Scope::Global`].
    pub scope: Scope,
    /// Slots: of the one cache, or of each layer's.
    pub capacity: u32,
    /// Most keys in one access.
    pub batch: u32,
    /// Seed of the policies that draw lots. Default 1.
    pub seed: u64,
    /// Constants of the policies.
    pub tuning: Tuning,
    /// Keys to load before the first access, hottest first, as many as fit.
    pub warm: &'a [Key],
    /// Accesses with a clock below this are served but not counted.
    pub skip_tokens: u64,
    /// If set, a miss is kept only if the key was missed within so many misses before.
    pub second_miss_window: Option<u64>,
    /// Sizes. Default one byte a key.
    pub key_bytes: KeyBytes<'a>,
    /// Documents in the order of their tokens; may be empty.
    pub documents: &'a [Document],
    /// Whether a document starts with empty caches. Default false, as in serving. What a policy has
    /// learned about keys it keeps.
    pub clear_at_documents: bool,
}

impl<'a> SimConfig<'a> {
    /// One cache of `capacity` slots, started empty, everything counted.
    #[must_use]
    pub fn new(policy: PolicyKind, space: KeySpace, capacity: u32, batch: u32) -> Self {
        Self {
            policy,
            space,
            scope: Scope::Global,
            capacity,
            batch,
            seed: 1,
            tuning: Tuning::default(),
            warm: &[],
            skip_tokens: 0,
            second_miss_window: None,
            key_bytes: KeyBytes::Uniform(1),
            documents: &[],
            clear_at_documents: false,
        }
    }

    /// The same with another scope.
    #[must_use]
    pub const fn with_scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// The same with keys to load first, hottest first.
    #[must_use]
    pub const fn with_warm(mut self, warm: &'a [Key]) -> Self {
        self.warm = warm;
        self
    }

    /// Checks the inputs that have to fit each other.
    pub(super) fn check(&self) -> Result<(), Error> {
        if let KeyBytes::PerLayer(sizes) = self.key_bytes
            && sizes.len() != usize::from(self.space.n_layer())
        {
            return Err(Error::ShapeMismatch {
                what: "key sizes, one a layer,",
                expected: u64::from(self.space.n_layer()),
                found: sizes.len() as u64,
            });
        }
        for pair in self.documents.windows(2) {
            if pair[1].first_token < pair[0].first_token {
                return Err(Error::ShapeMismatch {
                    what: "first token of a document, not below its predecessor's,",
                    expected: pair[0].first_token,
                    found: pair[1].first_token,
                });
            }
        }
        Ok(())
    }

    /// Bytes of a key; 0 out of range.
    pub(super) fn bytes_of(&self, key: Key) -> u64 {
        match self.key_bytes {
            KeyBytes::Uniform(bytes) => bytes,
            KeyBytes::PerLayer(sizes) => self
                .space
                .expert(key)
                .and_then(|expert| sizes.get(usize::from(expert.layer)).copied())
                .unwrap_or(0),
        }
    }
}

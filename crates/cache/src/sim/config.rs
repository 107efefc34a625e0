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
    /// Sizes by key, `[n_keys]`: where experts of one layer differ.
    PerKey(&'a [u64]),
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
        let (what, expected, found) = match self.key_bytes {
            KeyBytes::Uniform(_) => ("", 0, 0),
            KeyBytes::PerLayer(sizes) => {
                let n_layer = u64::from(self.space.n_layer());
                ("key sizes, one a layer,", n_layer, sizes.len())
            }
            KeyBytes::PerKey(sizes) => {
                let n_keys = u64::from(self.space.n_keys());
                ("key sizes, one a key,", n_keys, sizes.len())
            }
        };
        let found = found as u64;
        if found != expected {
            return Err(Error::ShapeMismatch {
                what,
                expected,
                found,
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
            KeyBytes::PerKey(sizes) => sizes.get(key.index()).copied().unwrap_or(0),
        }
    }

    /// Domains that the documents name, at least up to the greatest.
    pub(super) fn n_domain(&self) -> usize {
        let greatest = self.documents.iter().map(|d| d.domain).max();
        greatest.map_or(0, |greatest| greatest as usize + 1)
    }
}

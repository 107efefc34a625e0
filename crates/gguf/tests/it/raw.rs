//! Builds headers byte by byte, so that tests can write what `Writer` refuses to.

use std::time::{Duration, Instant};

use thalweg_gguf::{Error, Header};

pub(crate) const U8: u32 = 0;
pub(crate) const U32: u32 = 4;
pub(crate) const BOOL: u32 = 7;
pub(crate) const STRING: u32 = 8;
pub(crate) const ARRAY: u32 = 9;
pub(crate) const F32: u32 = 0;
pub(crate) const Q2_0: u32 = 42;

/// A file under construction.
#[derive(Clone)]
pub(crate) struct Raw(pub(crate) Vec<u8>);

impl Raw {
    /// A version 3 header with these counts.
    pub(crate) fn new(n_tensors: u64, n_keys: u64) -> Self {
        Self::version(3).u64(n_tensors).u64(n_keys)
    }

    pub(crate) fn version(version: u32) -> Self {
        Self(b"GGUF".to_vec()).u32(version)
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    pub(crate) fn u32(self, n: u32) -> Self {
        self.bytes(&n.to_le_bytes())
    }

    pub(crate) fn u64(self, n: u64) -> Self {
        self.bytes(&n.to_le_bytes())
    }

    pub(crate) fn str(self, text: &str) -> Self {
        self.u64(text.len() as u64).bytes(text.as_bytes())
    }

    /// A key and the type of its value, which is to follow.
    pub(crate) fn key(self, key: &str, ty: u32) -> Self {
        self.str(key).u32(ty)
    }

    pub(crate) fn tensor(self, name: &str, shape: &[u64], ty: u32, offset: u64) -> Self {
        let named = self.str(name).u32(shape.len() as u32);
        shape
            .iter()
            .fold(named, |raw, &n| raw.u64(n))
            .u32(ty)
            .u64(offset)
    }

    /// The data section: padding, then zeros.
    pub(crate) fn data(mut self, alignment: usize, len: usize) -> Self {
        let start = self.0.len().next_multiple_of(alignment);
        self.0.resize(start + len, 0);
        self
    }

    pub(crate) fn parse(&self) -> Result<Header, Error> {
        Header::parse(&self.0, self.0.len() as u64)
    }

    /// Parses what must be refused, and refused quickly; gives the fact without its wrapping.
    pub(crate) fn refused(&self) -> Facts {
        let timed = || {
            let start = Instant::now();
            let error = self.parse().expect_err("the file must be refused");
            (start.elapsed(), error)
        };
        // The best of three, since a busy machine may be away for longer than the limit.
        let (taken, error) = (0..3)
            .map(|_| timed())
            .min_by_key(|(taken, _)| *taken)
            .expect("three");
        assert!(taken < Duration::from_millis(100), "{error} took {taken:?}");
        Facts(error)
    }
}

/// An error to be matched by its root.
pub(crate) struct Facts(pub(crate) Error);

impl Facts {
    pub(crate) fn root(&self) -> &Error {
        self.0.root()
    }
}

/// Asserts that a [`Facts`] is of a pattern, and prints the error if not.
macro_rules! assert_refused {
    ($raw:expr, $pattern:pat $(if $guard:expr)?) => {{
        let facts = $raw.refused();
        assert!(matches!(facts.root(), $pattern $(if $guard)?), "{}", facts.0);
    }};
}
pub(crate) use assert_refused;

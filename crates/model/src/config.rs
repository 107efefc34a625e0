//! Typed reading of an architecture's metadata keys.
//!
//! A missing or unusable key is noted in the [`Check`] and reads as zero, so that one pass finds
//! every problem of a file.

use crate::weights::Check;

/// Keys below one architecture's prefix.
#[derive(Debug)]
pub(crate) struct Keys<'c, 'a> {
    pub(crate) check: &'c mut Check<'a>,
    prefix: &'static str,
}

impl<'c, 'a> Keys<'c, 'a> {
    pub(crate) fn new(check: &'c mut Check<'a>, prefix: &'static str) -> Self {
        Self { check, prefix }
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    /// Notes that a key's value cannot be used.
    pub(crate) fn refuse(&mut self, name: &str, reason: impl Into<String>) {
        let key = self.key(name);
        self.check.metadata(&key, reason);
    }

    /// A required size above zero. Arrays are accepted where all elements agree.
    pub(crate) fn size(&mut self, name: &str) -> usize {
        let n = self.size_or_zero(name, None);
        if n == 0 && !self.is_noted(name) {
            self.refuse(name, "must be above 0, found 0");
        }
        n
    }

    /// An optional size; `default` where the key is absent.
    pub(crate) fn size_or(&mut self, name: &str, default: usize) -> usize {
        self.size_or_zero(name, Some(default))
    }

    fn size_or_zero(&mut self, name: &str, default: Option<usize>) -> usize {
        let key = self.key(name);
        let metadata = self.check.file().metadata();
        if let (None, Some(default)) = (metadata.get(&key), default) {
            return default;
        }
        // Some writers store per-layer arrays of one and the same value.
        if let Ok(values) = metadata.u32_array(&key) {
            let first = values.first().copied().unwrap_or(0);
            if values.iter().any(|v| *v != first) {
                self.refuse(name, "layers with different values are not supported");
            }
            return first as usize;
        }
        let value = metadata.u32(&key);
        self.check.value(&key, value) as usize
    }

    /// A required finite number above zero.
    pub(crate) fn positive(&mut self, name: &str) -> f32 {
        let key = self.key(name);
        let value = self.check.file().metadata().f32(&key);
        let value = self.check.value(&key, value);
        let usable = value.is_finite() && value > 0.0;
        if !usable && !self.is_noted(name) {
            self.refuse(name, format!("must be finite and above 0, found {value}"));
        }
        value
    }

    /// An optional array of small integers (or booleans).
    pub(crate) fn opt_array(&mut self, name: &str) -> Option<Vec<u32>> {
        let key = self.key(name);
        let metadata = self.check.file().metadata();
        metadata.get(&key)?;
        let value = metadata
            .bool_array(&key)
            .map(|flags| flags.into_iter().map(u32::from).collect())
            .or_else(|_| metadata.u32_array(&key));
        Some(self.check.value(&key, value))
    }

    /// A required array of 64-bit integers.
    pub(crate) fn long_array(&mut self, name: &str) -> Vec<u64> {
        let key = self.key(name);
        let value = self.check.file().metadata().u64_array(&key);
        self.check.value(&key, value)
    }

    /// Whether the file has the key.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.check.file().metadata().get(&self.key(name)).is_some()
    }

    fn is_noted(&self, name: &str) -> bool {
        self.check.notes_key(&self.key(name))
    }
}

//! `Access`: one batch of keys that must be resident together, and the order it is served in.
//!
//! Owns the description of a batch; borrows everything, allocates nothing, and checks nothing:
//! [`Residency::check_batch`](crate::Residency::check_batch) is where a batch meets its bounds.
//! Cost: a copy of a few words.

use crate::Key;

/// A batch: `k` distinct keys that must all be resident at the same time.
///
/// In a Mixture-of-Experts model it is what one layer needs for one token; elsewhere it may be
/// the pages of one request or the textures of one draw call. Plain caches use batches of one.
///
/// # The batch contract
///
/// Whoever serves an access calls the policy in this order ([`serve`](crate::serve) does it):
///
/// 1. [`begin`](crate::Policy::begin) once;
/// 2. every key that is resident is pinned and reported with [`on_hit`](crate::Policy::on_hit),
///    in ascending weight order (that is, `keys` backward);
/// 3. every other key, again in ascending weight order, is loaded one at a time:
///    [`on_miss`](crate::Policy::on_miss), then, if no slot is free,
///    [`victim`](crate::Policy::victim) and [`on_evict`](crate::Policy::on_evict), then
///    [`on_insert`](crate::Policy::on_insert). The key stays pinned;
/// 4. [`end`](crate::Policy::end) once: a policy that keeps recency writes it here, in ascending
///    weight order, so that the heaviest key is the most recent;
/// 5. the pins are released when the caller has used the batch.
///
/// So no key of a batch can be evicted for another key of the same batch, and capacity must be
/// at least the batch size. There is no bypass: a missed key is loaded.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Access<'a> {
    /// Time in the caller's unit, never decreasing; for a language model the token number, equal
    /// for all layers of that token.
    pub clock: u64,
    /// The batch: distinct keys, heaviest first.
    pub keys: &'a [Key],
    /// Keys that nearly made it, best first (for a router: ranks `k+1..=2k`). May be empty.
    pub near: &'a [Key],
    /// How likely each key of a range was to be asked for. `None` when unknown.
    pub probs: Option<Probs<'a>>,
}

impl<'a> Access<'a> {
    /// A batch without near keys or probabilities.
    #[must_use]
    pub const fn new(clock: u64, keys: &'a [Key]) -> Self {
        Self {
            clock,
            keys,
            near: &[],
            probs: None,
        }
    }

    /// The same batch with the keys that nearly made it, best first.
    #[must_use]
    pub const fn with_near(mut self, near: &'a [Key]) -> Self {
        self.near = near;
        self
    }

    /// The same batch with the probabilities of a whole key range.
    #[must_use]
    pub const fn with_probs(mut self, probs: Probs<'a>) -> Self {
        self.probs = Some(probs);
        self
    }

    /// The batch in the order in which it is served: lightest key first.
    pub fn ascending(&self) -> impl ExactSizeIterator<Item = Key> + DoubleEndedIterator + use<'a> {
        self.keys.iter().rev().copied()
    }
}

/// Probabilities of consecutive keys: `values[i]` belongs to key `first + i`.
#[derive(Clone, Copy, Debug)]
pub struct Probs<'a> {
    /// The key of `values[0]`; for a router the layer's expert 0.
    pub first: Key,
    /// One probability a key; values that are not finite or not positive count as zero.
    pub values: &'a [f32],
}

impl<'a> Probs<'a> {
    /// Probabilities of the keys `first..first + values.len()`.
    #[must_use]
    pub const fn new(first: Key, values: &'a [f32]) -> Self {
        Self { first, values }
    }

    /// Pairs of key and usable probability, bad values read as zero.
    pub fn iter(&self) -> impl Iterator<Item = (Key, f32)> + use<'a> {
        let first = self.first.id();
        (first..=u32::MAX).zip(self.values).map(|(id, &p)| {
            let usable = if p.is_finite() && p > 0.0 { p } else { 0.0 };
            (Key::new(id), usable)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn a_batch_is_served_lightest_first() {
        let keys = [Key::new(4), Key::new(9), Key::new(2)];
        let order: Vec<u32> = Access::new(0, &keys).ascending().map(Key::id).collect();
        assert_eq!(order, [2, 9, 4]);
    }

    #[test]
    fn unusable_probabilities_count_as_zero_and_keys_do_not_wrap() {
        let values = [0.5, f32::NAN, -1.0, f32::INFINITY];
        let probs = Probs::new(Key::new(7), &values);
        let pairs: Vec<(u32, f32)> = probs.iter().map(|(k, p)| (k.id(), p)).collect();
        assert_eq!(pairs, [(7, 0.5), (8, 0.0), (9, 0.0), (10, 0.0)]);
        assert_eq!(Probs::new(Key::new(u32::MAX), &values).iter().count(), 1);
    }
}

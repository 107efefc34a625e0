//! Tokens that are never emitted.
//!
//! Owns a sorted list of ids, so that an absurd id costs four bytes and not a table up to it.

/// A set of forbidden tokens.
#[derive(Debug, Default)]
pub(super) struct Mask {
    /// Ascending, each once.
    ids: Vec<u32>,
}

impl Mask {
    pub(super) fn insert(&mut self, ids: &[u32]) {
        self.ids.extend_from_slice(ids);
        self.ids.sort_unstable();
        self.ids.dedup();
    }

    pub(super) fn clear(&mut self) {
        self.ids.clear();
    }

    /// Sets the logits of the set to negative infinity.
    pub(super) fn apply(&self, logits: &mut [f32]) {
        for &id in &self.ids {
            match logits.get_mut(id as usize) {
                Some(logit) => *logit = f32::NEG_INFINITY,
                None => break,
            }
        }
    }

    /// Ids of the set that are below `n_logits`.
    pub(super) fn count_below(&self, n_logits: usize) -> usize {
        self.ids.partition_point(|&id| (id as usize) < n_logits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_outside_of_the_row_are_counted_out_and_do_no_harm() {
        let mut mask = Mask::default();
        mask.insert(&[u32::MAX, 2, 0, 2]);
        mask.insert(&[0, 7]);
        let mut logits = [1.0; 3];
        mask.apply(&mut logits);
        assert_eq!(logits.map(f32::is_finite), [false, true, false]);
        assert_eq!(mask.count_below(3), 2);
        mask.clear();
        assert_eq!(mask.count_below(usize::MAX), 0);
    }
}

//! Routing over some of the experts, as if the file had no others.
//!
//! Owns the check of the lists and the choice without what is left out; not the reason for a list.
//! Memory: a byte for each expert. Invariant: choices and weights are those of a file that was pruned
//! to the lists, bit for bit, because a router's logit that is minus infinity has no part in them.

use thalweg_backend::Routing;
use thalweg_model::ModelSpec;

use crate::{Error, Result};

/// Which experts of each layer may be chosen.
#[derive(Debug)]
pub(crate) struct KeptExperts {
    /// By layer and expert.
    is_kept: Vec<Vec<bool>>,
}

impl KeptExperts {
    /// Checks lists of expert ids, one for each layer.
    ///
    /// # Errors
    /// [`Error::Option`].
    pub(crate) fn new(lists: &[Vec<u16>], spec: &ModelSpec) -> Result<Self> {
        let wrong = |expected: String, found: String| Error::Option {
            option: "keep_experts",
            expected,
            found,
        };
        if lists.len() != spec.experts.len() {
            let expected = format!("a list for each of {} layers", spec.experts.len());
            return Err(wrong(expected, format!("{} lists", lists.len())));
        }
        let layers = lists.iter().zip(&spec.experts).enumerate();
        let is_kept = layers.map(|(layer, (list, experts))| {
            let mut is_kept = vec![false; experts.n_expert];
            for id in list {
                match is_kept.get_mut(usize::from(*id)) {
                    Some(kept) => *kept = true,
                    None => {
                        let expected = format!("ids below {} in layer {layer}", experts.n_expert);
                        return Err(wrong(expected, id.to_string()));
                    }
                }
            }
            let n = is_kept.iter().filter(|kept| **kept).count();
            match n < experts.k {
                true => {
                    let expected = format!("at least {} experts in layer {layer}", experts.k);
                    Err(wrong(expected, n.to_string()))
                }
                false => Ok(is_kept),
            }
        });
        Ok(Self {
            is_kept: is_kept.collect::<Result<_>>()?,
        })
    }

    /// Chooses again for every token of the chunk, among the kept experts.
    pub(crate) fn reroute(&self, routing: &mut Routing, layer: usize) -> Result<()> {
        let is_kept = &self.is_kept[layer];
        for logits in routing.logits_mut().chunks_exact_mut(is_kept.len()) {
            for (logit, kept) in logits.iter_mut().zip(is_kept) {
                if !kept {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        Ok(routing.choose()?)
    }
}

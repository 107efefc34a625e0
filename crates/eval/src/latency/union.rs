//! Bytes of experts that a prompt reads, expected or counted.
//!
//! Owns the rule: a chunk reads each expert that any of its tokens picks once, unless it is
//! resident, so a prompt reads the sum over its chunks and layers. Owns no models of time.
//! Invariants: 1. doubling the chunk never adds reads; 2. no chunk reads more than its picks, nor
//! more than the experts that are not resident. Memory: [`UnionCounter`] keeps 8 bytes and a bit an
//! expert. Cost: O(picks) to count, O(experts) to expect.

use std::ops::Range;

use serde::Serialize;
use thalweg_cache::{ExpertKey, KeySpace};
use thalweg_trace::Trace;

use super::decode::bytes_of_an_expert;
use crate::error::share;
use crate::{Error, Result};

/// Bytes of all experts less what is resident: what a cold prompt reads if it picks every expert.
///
/// ```
/// use thalweg_eval::latency::union::non_resident_bytes;
/// // 48 layers of 256 experts with 7.5 GB resident
/// assert_eq!(non_resident_bytes(48, 256, 1_382_400, 7_500_000_000)?, 9_486_931_200);
/// # Ok::<(), thalweg_eval::Error>(())
/// ```
///
/// # Errors
/// [`Error::TooLarge`] if the product exceeds 64 bits.
pub fn non_resident_bytes(
    n_layer: u64,
    n_expert: u64,
    expert_bytes: u64,
    resident_bytes: u64,
) -> Result<u64> {
    n_layer
        .checked_mul(n_expert)
        .and_then(|n| n.checked_mul(expert_bytes))
        .map(|all| all.saturating_sub(resident_bytes))
        .ok_or(Error::TooLarge {
            what: "all experts",
        })
}

/// Distinct experts that `n_tokens` tokens are expected to pick, if each picks expert `e` with
/// probability `pick_probs[e]` independently of the others: the sum of `1 - (1 - p)^n`.
///
/// Neighboring tokens of a text pick alike, so the truth is usually less.
///
/// # Errors
/// [`Error::OutOfRange`] for a probability outside 0 to 1.
pub fn expected_distinct(pick_probs: &[f64], n_tokens: u64) -> Result<f64> {
    let mut sum = 0.0;
    for (e, &p) in pick_probs.iter().enumerate() {
        sum += picked_at_least_once(share("pick probability", Some(e), p)?, n_tokens);
    }
    Ok(sum)
}

/// Probabilities from counts: how often each expert was picked among `n_tokens` tokens.
///
/// # Errors
/// [`Error::OutOfRange`] for an expert that was picked more often than there are tokens.
pub fn pick_probs(counts: &[u64], n_tokens: u64) -> Result<Vec<f64>> {
    counts
        .iter()
        .enumerate()
        .map(|(e, &count)| {
            if count == 0 {
                return Ok(0.0);
            }
            share("pick probability", Some(e), count as f64 / n_tokens as f64)
        })
        .collect()
}

/// How a layer's experts are used.
#[derive(Clone, Copy, Debug)]
pub struct LayerUse<'a> {
    /// Probability that a token picks each expert.
    pub pick_probs: &'a [f64],
    /// Experts that need not be read; repetitions count once.
    pub resident: &'a [u16],
    /// Bytes of one expert.
    pub expert_bytes: u64,
}

/// Bytes that a prompt of `n_tokens` is expected to read in chunks of `chunk_tokens`, the last of
/// which may be shorter.
///
/// # Errors
/// [`Error::OutOfRange`] for a probability outside 0 to 1, a chunk or an expert of size zero,
/// [`Error::NoSuch`] for a resident expert that the layer does not have.
///
/// # Cost
/// O(experts); one bit-sized flag an expert of a layer.
pub fn expected_bytes(layers: &[LayerUse<'_>], n_tokens: u64, chunk_tokens: u64) -> Result<f64> {
    check_chunk(chunk_tokens)?;
    let n_whole = n_tokens / chunk_tokens;
    let rest = n_tokens % chunk_tokens;
    let mut sum = 0.0;
    for layer in layers {
        let bytes = bytes_of_an_expert(layer.expert_bytes)? as f64;
        let mut is_resident = vec![false; layer.pick_probs.len()];
        for &expert in layer.resident {
            *is_resident
                .get_mut(usize::from(expert))
                .ok_or_else(|| Error::NoSuch {
                    what: "expert",
                    found: u64::from(expert),
                    limit: layer.pick_probs.len() as u64,
                })? = true;
        }
        for (e, &p) in layer.pick_probs.iter().enumerate() {
            let p = share("pick probability", Some(e), p)?;
            if is_resident[e] {
                continue;
            }
            sum += bytes
                * (n_whole as f64 * picked_at_least_once(p, chunk_tokens)
                    + picked_at_least_once(p, rest));
        }
    }
    Ok(sum)
}

/// Counts the reads of a chunked prompt from its picks.
///
/// ```
/// use thalweg_eval::latency::union::UnionCounter;
/// let picks: [&[u16]; 4] = [&[0, 1], &[1, 2], &[0, 1], &[2, 3]];
/// let count = |chunk_tokens| {
///     let mut counter = UnionCounter::new(1, 4, chunk_tokens)?;
///     for (token, experts) in (0..).zip(picks) {
///         counter.push(token, 0, experts)?;
///     }
///     Ok::<_, thalweg_eval::Error>(counter.finish().n_reads)
/// };
/// assert_eq!(count(1)?, 8); // decode: every pick
/// assert_eq!(count(2)?, 3 + 4);
/// assert_eq!(count(4)?, 4); // the union of all
/// # Ok::<(), thalweg_eval::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct UnionCounter {
    space: KeySpace,
    chunk_tokens: u64,
    /// By key: 0 or 1 + the chunk that picked it last.
    seen_in: Vec<u64>,
    /// By key.
    resident: Vec<bool>,
    first_token: Option<u64>,
    reads: UnionReads,
}

/// What [`UnionCounter`] counted.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct UnionReads {
    /// Chunks from the first token to the last.
    pub n_chunks: u64,
    /// Picks, resident ones included.
    pub n_picks: u64,
    /// Experts read.
    pub n_reads: u64,
    /// The same by layer.
    pub layer_reads: Vec<u64>,
}

impl UnionReads {
    /// Bytes read, for experts of equal size; `None` beyond 64 bits.
    #[must_use]
    pub const fn bytes(&self, expert_bytes: u64) -> Option<u64> {
        self.n_reads.checked_mul(expert_bytes)
    }
}

impl UnionCounter {
    /// A counter for a model of `n_layer` layers with `n_expert` experts each.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a chunk of no tokens.
    ///
    /// # Cost
    /// 9 bytes a (layer, expert) pair.
    pub fn new(n_layer: u16, n_expert: u16, chunk_tokens: u64) -> Result<Self> {
        check_chunk(chunk_tokens)?;
        let space = KeySpace::new(n_layer, n_expert);
        let n_keys = space.n_keys() as usize;
        Ok(Self {
            space,
            chunk_tokens,
            seen_in: vec![0; n_keys],
            resident: vec![false; n_keys],
            first_token: None,
            reads: UnionReads {
                layer_reads: vec![0; usize::from(n_layer)],
                ..UnionReads::default()
            },
        })
    }

    /// Marks an expert as resident throughout: it is never read.
    ///
    /// # Errors
    /// [`Error::NoSuch`] for one that the model does not have.
    pub fn set_resident(&mut self, expert: ExpertKey) -> Result<()> {
        let key = self.key(expert)?;
        self.resident[key] = true;
        Ok(())
    }

    /// Counts the picks of one token in one layer. Chunks begin at the first token given and may
    /// not be returned to; within a chunk, tokens and layers may come in any order.
    ///
    /// # Errors
    /// [`Error::ChunkIsPast`] for a token before the chunk of the last one; [`Error::NoSuch`] for
    /// an expert that the model does not have, after which the counter is of no more use.
    pub fn push(&mut self, token: u64, layer: u16, experts: &[u16]) -> Result<()> {
        let first = *self.first_token.get_or_insert(token);
        let chunk_number = token
            .checked_sub(first)
            .map(|n| (n / self.chunk_tokens).saturating_add(1))
            .filter(|&number| number >= self.reads.n_chunks)
            .ok_or(Error::ChunkIsPast { token })?;
        self.reads.n_chunks = chunk_number;
        for &expert in experts {
            let key = self.key(ExpertKey::new(layer, expert))?;
            self.reads.n_picks += 1;
            if self.resident[key] || self.seen_in[key] == chunk_number {
                continue;
            }
            self.seen_in[key] = chunk_number;
            self.reads.n_reads += 1;
            self.reads.layer_reads[usize::from(layer)] += 1;
        }
        Ok(())
    }

    /// The counts.
    #[must_use]
    pub fn finish(self) -> UnionReads {
        self.reads
    }

    fn key(&self, expert: ExpertKey) -> Result<usize> {
        if let Some(key) = self.space.key(expert) {
            return Ok(key.index());
        }
        let (what, found, limit) = if expert.layer >= self.space.n_layer() {
            ("layer", expert.layer, self.space.n_layer())
        } else {
            ("expert", expert.expert, self.space.n_expert())
        };
        Err(Error::NoSuch {
            what,
            found: u64::from(found),
            limit: u64::from(limit),
        })
    }
}

/// Counts the reads of a range of a trace as one prompt in chunks.
///
/// # Errors
/// [`Error::NoSuch`] for a range beyond the trace, a resident expert that the model does not have,
/// or a model of more than 65,535 layers or experts; [`Error::OutOfRange`] for a chunk of no
/// tokens.
///
/// # Cost
/// O(picks of the range).
pub fn count_unions(
    trace: &Trace<'_>,
    tokens: Range<u64>,
    chunk_tokens: u64,
    resident: &[ExpertKey],
) -> Result<UnionReads> {
    let shape = trace.shape();
    let narrow = |what, n: u32| {
        u16::try_from(n).map_err(|_| Error::NoSuch {
            what,
            found: u64::from(n),
            limit: u64::from(u16::MAX),
        })
    };
    let (n_layer, n_expert) = (
        narrow("layer", shape.n_layer)?,
        narrow("expert", shape.n_expert)?,
    );
    let mut counter = UnionCounter::new(n_layer, n_expert, chunk_tokens)?;
    for &expert in resident {
        counter.set_resident(expert)?;
    }
    let mut experts = Vec::with_capacity(usize::from(shape.k));
    for position in tokens {
        let token = trace.token(position).ok_or_else(|| Error::NoSuch {
            what: "token",
            found: position,
            limit: trace.n_tokens(),
        })?;
        for (layer, choice) in (0..n_layer).zip(token.layers()) {
            experts.clear();
            experts.extend(choice.experts());
            counter.push(position, layer, &experts)?;
        }
    }
    Ok(counter.finish())
}

/// `1 - (1 - p)^n`, exact also where `p` is tiny.
fn picked_at_least_once(p: f64, n: u64) -> f64 {
    if n == 0 {
        // Also where p is 1: ln(0) * 0 would be no number.
        return 0.0;
    }
    -f64::exp_m1(n as f64 * f64::ln_1p(-p))
}

fn check_chunk(chunk_tokens: u64) -> Result<()> {
    crate::error::positive("chunk_tokens", None, chunk_tokens as f64).map(|_| ())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use thalweg_cache::SplitMix64;
    use thalweg_trace::{Header, LayerChoice, RecordBuf, Shape, Writer};

    use super::*;

    /// Each token picks expert `e` of a layer with its own probability, independently.
    fn independent_picks(probs: &[f64], n_tokens: u64, seed: u64) -> Vec<Vec<u16>> {
        let mut random = SplitMix64::new(seed);
        (0..n_tokens)
            .map(|_| {
                (0..)
                    .zip(probs)
                    .filter(|&(_, &p)| (random.next_u64() >> 11) as f64 * 2f64.powi(-53) < p)
                    .map(|(e, _)| e)
                    .collect()
            })
            .collect()
    }

    fn count(picks: &[Vec<u16>], n_expert: u16, chunk_tokens: u64) -> UnionReads {
        let mut counter = UnionCounter::new(1, n_expert, chunk_tokens).expect("usable");
        for (token, experts) in (0..).zip(picks) {
            counter.push(token, 0, experts).expect("in range");
        }
        counter.finish()
    }

    #[test]
    fn the_expectation_meets_the_mean_of_counted_runs() {
        let probs: Vec<f64> = (1..=64).map(|e| 0.6 / f64::from(e)).collect();
        let (n_tokens, chunk_tokens, n_runs) = (50, 16, 400);
        let use_of_layer = LayerUse {
            pick_probs: &probs,
            resident: &[],
            expert_bytes: 1,
        };
        let expected = expected_bytes(&[use_of_layer], n_tokens, chunk_tokens).expect("usable");
        let mean = (0..n_runs)
            .map(|seed| {
                let picks = independent_picks(&probs, n_tokens, seed);
                count(&picks, 64, chunk_tokens).n_reads as f64
            })
            .sum::<f64>()
            / n_runs as f64;
        // 4 chunks of 64 experts: the variance of a run is below 4 * 64 / 4, hence the standard
        // deviation of the mean below 0.4; five of them.
        assert!((mean - expected).abs() < 2.0, "{mean} for {expected}");
    }

    #[test]
    fn larger_chunks_read_less() {
        let probs = vec![10.0 / 512.0; 512];
        let picks = independent_picks(&probs, 1264, 7);
        let by_1024 = count(&picks, 512, 1024).n_reads;
        let by_2048 = count(&picks, 512, 2048).n_reads;
        let by_1 = count(&picks, 512, 1);
        assert!(by_2048 < by_1024 && by_1024 < by_1.n_reads);
        assert_eq!(by_1.n_reads, by_1.n_picks);
        assert_eq!(by_2048, 512);
        let layer = LayerUse {
            pick_probs: &probs,
            resident: &[],
            expert_bytes: 1,
        };
        let expected = |chunk| expected_bytes(&[layer], 1264, chunk).expect("usable");
        assert!((expected(1024) - by_1024 as f64).abs() < 15.0);
        assert!((expected(2048) - 512.0).abs() < 1e-6);
    }

    #[test]
    fn resident_experts_are_not_read() {
        let layer = LayerUse {
            pick_probs: &[1.0, 0.5, 0.0],
            resident: &[0, 0],
            expert_bytes: 100,
        };
        // Two chunks of one token, expert 1 with probability 1/2 each.
        let bytes = expected_bytes(&[layer, layer], 2, 1).expect("usable");
        assert!((bytes - 2.0 * 2.0 * 0.5 * 100.0).abs() < 1e-9);
        let mut counter = UnionCounter::new(2, 3, 8).expect("usable");
        counter
            .set_resident(ExpertKey::new(1, 0))
            .expect("in range");
        counter.push(5, 0, &[0, 1]).expect("in range");
        counter.push(5, 1, &[0, 1]).expect("in range");
        let reads = counter.finish();
        assert_eq!(reads.layer_reads, [2, 1]);
        assert_eq!((reads.n_picks, reads.n_chunks), (4, 1));
        assert_eq!(reads.bytes(100), Some(300));
        assert_eq!(reads.bytes(u64::MAX), None);
    }

    #[test]
    fn a_trace_is_counted_like_its_picks() {
        let shape = Shape::new(2, 8, 2);
        let header = Header {
            shape,
            n_tokens: 4,
            n_docs: 0,
            fingerprint: [0; 32],
        };
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes, &header, &[], "{}").expect("writable");
        let mut record = RecordBuf::new(&shape).expect("usable");
        for picks in [
            [[0, 1], [4, 5]],
            [[1, 2], [4, 5]],
            [[0, 1], [6, 7]],
            [[3, 2], [4, 5]],
        ] {
            record.start(0);
            for experts in picks {
                record
                    .push_layer(&LayerChoice::new(&experts))
                    .expect("distinct");
            }
            writer.push(&record).expect("writable");
        }
        writer.finish().expect("writable");
        let trace = Trace::parse(&bytes).expect("whole");
        let reads = count_unions(&trace, 0..4, 2, &[]).expect("in range");
        assert_eq!(reads.layer_reads, [3 + 4, 2 + 4]);
        // Chunks begin where the range does.
        let tail = count_unions(&trace, 1..4, 2, &[ExpertKey::new(1, 4)]).expect("in range");
        assert_eq!(tail.layer_reads, [3 + 2, 3 + 1]);
        assert!(matches!(
            count_unions(&trace, 3..5, 2, &[]),
            Err(Error::NoSuch {
                what: "token",
                found: 4,
                limit: 4
            })
        ));
    }

    #[test]
    fn bad_input_is_an_error() {
        assert!(UnionCounter::new(1, 1, 0).is_err());
        assert!(expected_distinct(&[0.5, 1.1], 3).is_err());
        assert!(expected_distinct(&[f64::NAN], 3).is_err());
        assert!(pick_probs(&[3], 2).is_err());
        assert!(pick_probs(&[1], 0).is_err());
        assert_eq!(pick_probs(&[0, 1], 2).expect("in range"), [0.0, 0.5]);
        assert!(non_resident_bytes(u64::MAX, 2, 1, 0).is_err());
        assert_eq!(non_resident_bytes(1, 1, 5, 9).expect("small"), 0);
        let layer = LayerUse {
            pick_probs: &[0.5],
            resident: &[1],
            expert_bytes: 1,
        };
        assert!(matches!(
            expected_bytes(&[layer], 1, 1),
            Err(Error::NoSuch { found: 1, .. })
        ));
        let mut counter = UnionCounter::new(2, 4, 8).expect("usable");
        assert!(counter.push(0, 2, &[0]).is_err());
        assert!(counter.push(0, 0, &[4]).is_err());
        // Failed pushes of token 0 began the first chunk; token 9 lies in the second.
        counter.push(9, 0, &[0]).expect("in range");
        counter.push(8, 0, &[0]).expect("the same chunk");
        let past = |result| matches!(result, Err(Error::ChunkIsPast { token: 7 }));
        assert!(past(counter.push(7, 0, &[0])));
        let mut counter = UnionCounter::new(1, 1, 8).expect("usable");
        counter.push(8, 0, &[0]).expect("in range");
        assert!(past(counter.push(7, 0, &[0])));
    }

    #[test]
    fn extreme_probabilities_are_exact() {
        let distinct = |p, n| expected_distinct(&[p], n).expect("in range");
        assert!((distinct(1.0, 1) - 1.0).abs() < 1e-15);
        assert!(distinct(1.0, 0).abs() < 1e-15);
        assert!(distinct(0.0, u64::MAX).abs() < 1e-15);
        // 1 - (1 - p)^n would lose all digits here.
        assert!((distinct(1e-18, 1000) / 1e-15 - 1.0).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn doubling_the_chunk_never_adds_reads(
            picks in proptest::collection::vec(proptest::collection::vec(0u16..16, 0..6), 0..40),
            chunk in 1u64..20,
        ) {
            let (small, large) = (count(&picks, 16, chunk), count(&picks, 16, 2 * chunk));
            prop_assert!(large.n_reads <= small.n_reads);
            prop_assert!(small.n_reads <= small.n_picks);
            prop_assert!(small.n_reads <= 16 * small.n_chunks);
            prop_assert_eq!(small.layer_reads.iter().sum::<u64>(), small.n_reads);
            // The definition, counted again with sets.
            let sets: usize = picks
                .chunks(chunk as usize)
                .map(|c| c.iter().flatten().collect::<std::collections::BTreeSet<_>>().len())
                .sum();
            prop_assert_eq!(sets as u64, small.n_reads);
        }

        #[test]
        fn expected_reads_lie_between_one_token_and_all_experts(
            probs in proptest::collection::vec(0.0f64..=1.0, 1..32),
            n in 1u64..5000,
        ) {
            let distinct = expected_distinct(&probs, n).expect("in range");
            prop_assert!(distinct <= probs.len() as f64 + 1e-9);
            prop_assert!(distinct >= probs.iter().sum::<f64>() - 1e-9);
            prop_assert!(expected_distinct(&probs, n + 1).expect("in range") >= distinct - 1e-9);
        }
    }
}

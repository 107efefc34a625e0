//! `PrefillModel`: time of a prompt.
//!
//! Owns the formula `T = n / C + R / BW - omega * min(n / C, R / BW)`, `n` tokens and `R` bytes.
//! Does not count the bytes; [`union`](super::union) does. Invariants: 1. constants are usable;
//! 2. `T` never falls when tokens or bytes rise, nor rises with `omega`; 3. `T` is at least the
//! longer of compute and reads. Cost: arithmetic.

use serde::Serialize;

use crate::Result;
use crate::error::{not_negative, positive, share};

/// Time of a prompt from its tokens and the bytes it reads.
///
/// ```
/// use thalweg_eval::latency::PrefillModel;
/// let model = PrefillModel::new(356.0, 6.8, 0.0)?;
/// let time = model.predict(256, 9.49e9)?;
/// assert_eq!(format!("{:.4}", time.total_s), "2.1147");
/// # Ok::<(), thalweg_eval::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct PrefillModel {
    ceiling_tokens_per_s: f64,
    gb_per_s: f64,
    overlap: f64,
}

/// A chunk of a prompt: what is computed and read together.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PrefillChunk {
    /// Tokens.
    pub n_tokens: u64,
    /// Bytes of experts read for them.
    pub read_bytes: f64,
}

/// Where the time of a prompt goes.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct PrefillTime {
    /// Tokens.
    pub n_tokens: u64,
    /// Compute.
    pub compute_s: f64,
    /// Reads, whether awaited or not.
    pub read_s: f64,
    /// Time in which both run.
    pub hidden_s: f64,
    /// `compute_s + read_s - hidden_s`.
    pub total_s: f64,
}

impl PrefillTime {
    /// Tokens a second; `None` for a prompt that takes no time.
    #[must_use]
    pub fn tokens_per_s(&self) -> Option<f64> {
        (self.total_s > 0.0).then(|| self.n_tokens as f64 / self.total_s)
    }
}

impl PrefillModel {
    /// `ceiling_tokens_per_s` when nothing is read, `gb_per_s` of reading, `overlap` the share of
    /// the shorter of the two that the longer hides: 0 for taking turns, 1 for all.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) unless rates are positive and the overlap
    /// is within 0 to 1.
    pub fn new(ceiling_tokens_per_s: f64, gb_per_s: f64, overlap: f64) -> Result<Self> {
        Ok(Self {
            ceiling_tokens_per_s: positive("ceiling_tokens_per_s", None, ceiling_tokens_per_s)?,
            gb_per_s: positive("gb_per_s", None, gb_per_s)?,
            overlap: share("overlap", None, overlap)?,
        })
    }

    /// Tokens a second when nothing is read.
    #[must_use]
    pub const fn ceiling_tokens_per_s(&self) -> f64 {
        self.ceiling_tokens_per_s
    }

    /// Bandwidth.
    #[must_use]
    pub const fn gb_per_s(&self) -> f64 {
        self.gb_per_s
    }

    /// Time of a prompt that is one chunk.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) for bytes that are negative or infinite.
    pub fn predict(&self, n_tokens: u64, read_bytes: f64) -> Result<PrefillTime> {
        self.predict_chunks(&[PrefillChunk {
            n_tokens,
            read_bytes,
        }])
    }

    /// Time of a prompt in chunks, one after the other: reads hide behind compute of their own
    /// chunk only.
    ///
    /// # Errors
    /// As [`predict`](Self::predict).
    pub fn predict_chunks(&self, chunks: &[PrefillChunk]) -> Result<PrefillTime> {
        let mut sum = PrefillTime::default();
        for (i, chunk) in chunks.iter().enumerate() {
            let bytes = not_negative("read_bytes", Some(i), chunk.read_bytes)?;
            let compute_s = chunk.n_tokens as f64 / self.ceiling_tokens_per_s;
            let read_s = bytes / self.gb_per_s / 1e9;
            let hidden_s = self.overlap * compute_s.min(read_s);
            sum.n_tokens = sum.n_tokens.saturating_add(chunk.n_tokens);
            sum.compute_s += compute_s;
            sum.read_s += read_s;
            sum.hidden_s += hidden_s;
            // Summed from the longer part up, so that no cancellation makes it less than that.
            sum.total_s += compute_s.max(read_s) + (1.0 - self.overlap) * compute_s.min(read_s);
        }
        Ok(sum)
    }

    /// The overlap at which a prompt would take `measured_s`, the model's own put aside: below 0
    /// if it took longer than compute and reads in turn, above 1 if less than the longer of them.
    /// `None` if either takes no time.
    ///
    /// # Errors
    /// As [`predict`](Self::predict), and for a time that is not positive.
    pub fn implied_overlap(
        &self,
        n_tokens: u64,
        read_bytes: f64,
        measured_s: f64,
    ) -> Result<Option<f64>> {
        let time = self.predict(n_tokens, read_bytes)?;
        positive("measured_s", None, measured_s)?;
        let shorter = time.compute_s.min(time.read_s);
        Ok((shorter > 0.0).then(|| (time.compute_s + time.read_s - measured_s) / shorter))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::latency::reference::{
        EXPERT_BYTES, MEASURED_PREFILL, N_LAYER, NON_RESIDENT_TABLE, PREFILL_TABLE, PrefillFigure,
        RESIDENT_BYTES,
    };
    use crate::latency::union::non_resident_bytes;

    fn model() -> PrefillModel {
        PrefillModel::new(356.0, 6.8, 0.0).expect("usable")
    }

    fn published_bytes(k: u64) -> f64 {
        let row = NON_RESIDENT_TABLE.iter().find(|row| row.0 == k);
        row.expect("a row of the table").1 * 1e9
    }

    #[test]
    fn published_non_resident_sizes_are_all_experts_less_the_budget() {
        for &(k, gb) in NON_RESIDENT_TABLE {
            let bytes =
                non_resident_bytes(N_LAYER, k, EXPERT_BYTES, RESIDENT_BYTES).expect("small");
            assert_eq!(format!("{:.2}", bytes as f64 / 1e9), format!("{gb:.2}"));
        }
    }

    #[test]
    fn every_prompt_of_the_published_table_comes_out_to_its_last_digit() {
        for row in PREFILL_TABLE {
            let rounded = model()
                .predict(row.n_tokens, published_bytes(row.n_expert))
                .expect("usable");
            let exact = non_resident_bytes(N_LAYER, row.n_expert, EXPERT_BYTES, RESIDENT_BYTES)
                .and_then(|bytes| model().predict(row.n_tokens, bytes as f64))
                .expect("usable");
            for time in [rounded, exact] {
                match row.figure {
                    PrefillFigure::TokensPerS(rate) => {
                        let found = time.tokens_per_s().expect("takes time");
                        // The exact bytes of one row lie within 0.06 of the printed figure, whose
                        // sizes were rounded before; the sizes as printed meet it to the digit.
                        let half = if time == rounded { 0.05 } else { 0.0601 };
                        assert!((found - rate).abs() <= half, "{found} for {rate}");
                    }
                    PrefillFigure::Seconds(seconds) => {
                        assert!((time.total_s - seconds).abs() <= 0.005);
                    }
                }
            }
        }
    }

    #[test]
    fn the_unrounded_prompts_have_four_places() {
        let rate = |k| {
            let time = model().predict(4096, published_bytes(k)).expect("usable");
            format!("{:.3}", time.tokens_per_s().expect("takes time"))
        };
        assert_eq!((rate(320), rate(256)), ("302.853".into(), "317.490".into()));
        let seconds = |k| {
            let time = model().predict(256, published_bytes(k)).expect("usable");
            format!("{:.4}", time.total_s)
        };
        assert_eq!(
            (seconds(320), seconds(256)),
            ("2.7382".into(), "2.1147".into())
        );
    }

    #[test]
    fn published_measurements_imply_an_overlap() {
        let bytes = non_resident_bytes(N_LAYER, 256, EXPERT_BYTES, 3_400_000_000).expect("small");
        let implied: Vec<String> = MEASURED_PREFILL
            .iter()
            .map(|row| {
                let overlap = model()
                    .implied_overlap(row.n_tokens, bytes as f64, row.seconds)
                    .expect("usable");
                format!("{:.2}", overlap.expect("both take time"))
            })
            .collect();
        assert_eq!(implied, ["0.84", "0.98", "0.21", "0.06"]);
    }

    #[test]
    fn nothing_to_do_takes_no_time_and_has_no_rate() {
        let time = model().predict(0, 0.0).expect("usable");
        assert!(time.total_s.abs() < 1e-300);
        assert_eq!(time.tokens_per_s(), None);
        assert_eq!(model().implied_overlap(0, 1.0, 1.0).expect("usable"), None);
    }

    #[test]
    fn unusable_constants_and_loads_are_refused() {
        for bad in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            assert!(PrefillModel::new(bad, 1.0, 0.0).is_err());
            assert!(PrefillModel::new(1.0, bad, 0.0).is_err());
            assert!(model().implied_overlap(1, 1.0, bad).is_err());
        }
        for bad in [f64::NAN, -0.01, 1.01] {
            assert!(PrefillModel::new(1.0, 1.0, bad).is_err());
        }
        for bad in [f64::NAN, f64::INFINITY, -1.0] {
            assert!(model().predict(1, bad).is_err());
        }
    }

    proptest! {
        #[test]
        fn time_never_falls_when_tokens_or_bytes_rise_nor_rises_with_overlap(
            n in 0u64..100_000,
            more in 0u64..1000,
            bytes in 0.0f64..1e12,
            more_bytes in 0.0f64..1e9,
            overlap in 0.0f64..=1.0,
            ceiling in 1.0f64..1e4,
            bw in 0.1f64..20.0,
        ) {
            let model = PrefillModel::new(ceiling, bw, overlap).expect("usable");
            let total = |n, bytes| model.predict(n, bytes).expect("usable").total_s;
            let slack = 1e-12 * total(n, bytes);
            prop_assert!(total(n + more, bytes) >= total(n, bytes) - slack);
            prop_assert!(total(n, bytes + more_bytes) >= total(n, bytes) - slack);
            let none = PrefillModel::new(ceiling, bw, 0.0).expect("usable");
            prop_assert!(total(n, bytes) <= none.predict(n, bytes).expect("usable").total_s);
            let time = model.predict(n, bytes).expect("usable");
            prop_assert!(time.total_s >= time.compute_s.max(time.read_s));
            let parts = time.compute_s + time.read_s - time.hidden_s;
            prop_assert!((time.total_s - parts).abs() <= 1e-12 * (1.0 + parts));
        }
    }
}

//! `TableModel` and `DecodeModel`: time of one decode token.
//!
//! Owns the two formulas and their constants. Does not own the bandwidth curve's measurement.
//! Invariants: 1. constants are finite, times at least 0, rates above 0; 2. the overlap is part of
//! the compute, so a token takes at least its compute and at least its reads; 3. time never falls
//! when misses or bytes rise. Cost: arithmetic.

use serde::Serialize;

use super::BandwidthCurve;
use crate::error::{not_negative, positive};
use crate::{Error, Result};

/// The simplest model: `t(m) = floor + m * b / BW`. Reads and compute take turns, and a read costs
/// its bytes alone.
///
/// ```
/// use thalweg_eval::latency::TableModel;
/// let model = TableModel::new(12.0, 1_382_400, 6.8)?;
/// assert_eq!(format!("{:.1}", model.tokens_per_s(53.95)?), "43.5");
/// # Ok::<(), thalweg_eval::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct TableModel {
    floor_ms: f64,
    expert_bytes: u64,
    gb_per_s: f64,
}

impl TableModel {
    /// A token without misses takes `floor_ms`; each miss reads `expert_bytes`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] unless all three are positive.
    pub fn new(floor_ms: f64, expert_bytes: u64, gb_per_s: f64) -> Result<Self> {
        Ok(Self {
            floor_ms: positive("floor_ms", None, floor_ms)?,
            expert_bytes: bytes_of_an_expert(expert_bytes)?,
            gb_per_s: positive("gb_per_s", None, gb_per_s)?,
        })
    }

    /// Time of a token without misses.
    #[must_use]
    pub const fn floor_ms(&self) -> f64 {
        self.floor_ms
    }

    /// Bytes of one miss.
    #[must_use]
    pub const fn expert_bytes(&self) -> u64 {
        self.expert_bytes
    }

    /// Bandwidth.
    #[must_use]
    pub const fn gb_per_s(&self) -> f64 {
        self.gb_per_s
    }

    /// What one miss adds.
    #[must_use]
    pub fn ms_per_miss(&self) -> f64 {
        ms_to_read(self.expert_bytes as f64, self.gb_per_s)
    }

    /// Time of a token.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] unless the misses are a finite number of at least 0.
    pub fn ms_per_token(&self, misses_per_token: f64) -> Result<f64> {
        let misses = not_negative("misses_per_token", None, misses_per_token)?;
        Ok(self.floor_ms + misses * self.ms_per_miss())
    }

    /// Tokens a second.
    ///
    /// # Errors
    /// As [`ms_per_token`](Self::ms_per_token).
    pub fn tokens_per_s(&self, misses_per_token: f64) -> Result<f64> {
        Ok(1e3 / self.ms_per_token(misses_per_token)?)
    }

    /// The same model as a [`DecodeModel`]: no host time, no overlap, no latency.
    ///
    /// # Errors
    /// None in practice: the constants were checked.
    pub fn general(&self) -> Result<DecodeModel> {
        let parts = DecodeParts {
            gpu_ms: self.floor_ms,
            ..DecodeParts::default()
        };
        DecodeModel::new(parts, BandwidthCurve::constant(self.gb_per_s)?)
    }
}

/// The times that a [`DecodeModel`] consists of, per token unless said otherwise.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct DecodeParts {
    /// Kernels, on whichever device computes.
    pub gpu_ms: f64,
    /// What the host does besides: submission, routing, sampling.
    pub host_ms: f64,
    /// Compute that can run while reads are awaited: 0 if a layer waits for all its experts before
    /// it computes any; else its resident experts, its shared expert. At most `gpu_ms + host_ms`.
    pub overlap_ms: f64,
    /// What a read costs besides its bytes, each.
    pub read_latency_ms: f64,
}

/// `t = t_gpu + t_host + max(0, t_io - overlap)` with `t_io = bytes / BW(q) + misses * latency`.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct DecodeModel {
    parts: DecodeParts,
    bandwidth: BandwidthCurve,
}

/// What a token asks of the drive.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DecodeLoad {
    /// Reads that a token waits for.
    pub misses_per_token: f64,
    /// Bytes of all reads of a token, wasted read-ahead included.
    pub bytes_per_token: f64,
    /// Reads under way together.
    pub queue_depth: f64,
}

impl DecodeLoad {
    /// Experts of equal size, and no read but misses.
    #[must_use]
    pub fn uniform(misses_per_token: f64, expert_bytes: u64, queue_depth: f64) -> Self {
        Self {
            misses_per_token,
            bytes_per_token: misses_per_token * expert_bytes as f64,
            queue_depth,
        }
    }
}

/// Where the time of a token goes.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct DecodeTime {
    /// Kernels and host.
    pub compute_ms: f64,
    /// Reads, whether awaited or not.
    pub io_ms: f64,
    /// Reads that nothing hides.
    pub wait_ms: f64,
    /// `compute_ms + wait_ms`.
    pub total_ms: f64,
}

impl DecodeTime {
    /// Tokens a second; `None` for a token that takes no time.
    #[must_use]
    pub fn tokens_per_s(&self) -> Option<f64> {
        (self.total_ms > 0.0).then(|| 1e3 / self.total_ms)
    }
}

impl DecodeModel {
    /// A model of checked constants.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a negative or infinite time, and for an overlap above the compute:
    /// what is hidden must be there.
    pub fn new(parts: DecodeParts, bandwidth: BandwidthCurve) -> Result<Self> {
        not_negative("gpu_ms", None, parts.gpu_ms)?;
        not_negative("host_ms", None, parts.host_ms)?;
        not_negative("read_latency_ms", None, parts.read_latency_ms)?;
        not_negative("overlap_ms", None, parts.overlap_ms)?;
        if parts.overlap_ms > parts.gpu_ms + parts.host_ms {
            return Err(Error::OutOfRange {
                field: "overlap_ms",
                index: None,
                found: parts.overlap_ms,
                expected: "at most gpu_ms + host_ms",
            });
        }
        Ok(Self { parts, bandwidth })
    }

    /// The times it consists of.
    #[must_use]
    pub const fn parts(&self) -> &DecodeParts {
        &self.parts
    }

    /// The drive's bandwidth.
    #[must_use]
    pub const fn bandwidth(&self) -> &BandwidthCurve {
        &self.bandwidth
    }

    /// Time of a token under a load.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a negative or infinite load, or a queue depth that is not
    /// positive.
    pub fn predict(&self, load: &DecodeLoad) -> Result<DecodeTime> {
        let misses = not_negative("misses_per_token", None, load.misses_per_token)?;
        let bytes = not_negative("bytes_per_token", None, load.bytes_per_token)?;
        let gb_per_s = self.bandwidth.gb_per_s(load.queue_depth)?;
        let compute_ms = self.parts.gpu_ms + self.parts.host_ms;
        let io_ms = ms_to_read(bytes, gb_per_s) + misses * self.parts.read_latency_ms;
        let wait_ms = (io_ms - self.parts.overlap_ms).max(0.0);
        Ok(DecodeTime {
            compute_ms,
            io_ms,
            wait_ms,
            total_ms: compute_ms + wait_ms,
        })
    }
}

/// Share of a token's picks that are no misses.
///
/// # Errors
/// [`Error::OutOfRange`] unless `picks_per_token` is positive and the misses are at most that.
pub fn hit_rate(misses_per_token: f64, picks_per_token: f64) -> Result<f64> {
    positive("picks_per_token", None, picks_per_token)?;
    not_negative("misses_per_token", None, misses_per_token)?;
    if misses_per_token > picks_per_token {
        return Err(Error::OutOfRange {
            field: "misses_per_token",
            index: None,
            found: misses_per_token,
            expected: "at most picks_per_token",
        });
    }
    Ok(1.0 - misses_per_token / picks_per_token)
}

/// Milliseconds that bytes take.
pub(super) fn ms_to_read(bytes: f64, gb_per_s: f64) -> f64 {
    // 1 GB/s is 1e6 bytes a millisecond.
    bytes / gb_per_s / 1e6
}

/// Checks the size of an expert.
pub(super) fn bytes_of_an_expert(expert_bytes: u64) -> Result<u64> {
    positive("expert_bytes", None, expert_bytes as f64)?;
    Ok(expert_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::latency::reference::{
        self, DECODE_TABLE, EXPERT_BYTES, HIGH_GB_PER_S, LOW_GB_PER_S, MISSES_TABLE,
        PICKS_PER_TOKEN,
    };

    fn at(floor_ms: f64, gb_per_s: f64, misses: f64) -> f64 {
        TableModel::new(floor_ms, EXPERT_BYTES, gb_per_s)
            .and_then(|model| model.tokens_per_s(misses))
            .expect("usable constants")
    }

    #[test]
    fn every_rate_of_the_published_table_comes_out_to_its_last_digit() {
        let mut n_rows = 0;
        for row in DECODE_TABLE {
            let Some(misses) = row.misses_per_token else {
                continue;
            };
            let [low, high] = [LOW_GB_PER_S, HIGH_GB_PER_S].map(|bw| at(12.0, bw, misses));
            assert_eq!(format!("{low:.1}"), format!("{:.1}", row.low_tokens_per_s));
            assert_eq!(
                format!("{high:.1}"),
                format!("{:.1}", row.high_tokens_per_s)
            );
            n_rows += 1;
        }
        assert_eq!(n_rows, 3);
    }

    #[test]
    fn other_readings_of_the_published_table_are_ruled_out() {
        // The slowest published bandwidth is not the low end of the table.
        let slow = reference::SSD_GB_PER_S[0].1;
        assert_eq!(format!("{:.1}", at(12.0, slow, 44.65)), "26.6");
        // With all compute overlapped, the high end would be the floor's rate.
        let parts = DecodeParts {
            gpu_ms: 12.0,
            overlap_ms: 12.0,
            ..DecodeParts::default()
        };
        let curve = BandwidthCurve::constant(HIGH_GB_PER_S).expect("positive");
        let overlapped = DecodeModel::new(parts, curve)
            .and_then(|model| model.predict(&DecodeLoad::uniform(44.65, EXPERT_BYTES, 1.0)))
            .expect("usable");
        let rate = overlapped.tokens_per_s().expect("takes time");
        assert_eq!(format!("{rate:.1}"), "83.3");
    }

    #[test]
    fn hit_rates_of_the_published_misses_follow_from_480_picks() {
        for &(_, misses, percent) in MISSES_TABLE {
            let rate = 100.0 * hit_rate(misses, PICKS_PER_TOKEN).expect("in range");
            // Both figures are rounded: half a unit of each.
            assert!((rate - percent).abs() <= 0.005 + 0.5 / PICKS_PER_TOKEN + 1e-9);
        }
        assert!(hit_rate(480.1, 480.0).is_err());
        assert!(hit_rate(1.0, 0.0).is_err());
        assert!((hit_rate(480.0, 480.0).expect("all miss")).abs() < 1e-15);
    }

    #[test]
    fn the_published_measurements_do_not_follow_the_table() {
        // 22.25 tok/s were measured at 10.5 misses, for which the table's constants say 70.7.
        assert_eq!(format!("{:.1}", at(12.0, HIGH_GB_PER_S, 10.5)), "70.7");
        let measured: Vec<_> = reference::MEASURED_DECODE
            .iter()
            .map(|row| (row.misses_per_token, row.ms_per_token))
            .collect();
        for (misses, ms) in measured {
            assert!(1e3 / at(12.0, HIGH_GB_PER_S, misses) < 0.5 * ms);
        }
    }

    #[test]
    fn latency_and_queue_depth_enter_the_reads() {
        let curve = BandwidthCurve::new(&[(1.0, 2.0), (4.0, 8.0)]).expect("usable");
        let parts = DecodeParts {
            gpu_ms: 10.0,
            host_ms: 1.5,
            overlap_ms: 3.0,
            read_latency_ms: 0.1,
        };
        let model = DecodeModel::new(parts, curve).expect("usable");
        // 8 MB at 4 GB/s are 2 ms, 20 reads 2 ms more, of which 3 are hidden.
        let load = DecodeLoad {
            misses_per_token: 20.0,
            bytes_per_token: 8e6,
            queue_depth: 2.0,
        };
        let time = model.predict(&load).expect("usable");
        assert!((time.io_ms - 4.0).abs() < 1e-12);
        assert!((time.wait_ms - 1.0).abs() < 1e-12);
        assert!((time.total_ms - 12.5).abs() < 1e-12);
    }

    #[test]
    fn unusable_constants_and_loads_are_refused() {
        for bad in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            assert!(TableModel::new(bad, 1, 1.0).is_err());
            assert!(TableModel::new(1.0, 1, bad).is_err());
        }
        assert!(TableModel::new(1.0, 0, 1.0).is_err());
        let table = TableModel::new(12.0, 1, 1.0).expect("usable");
        let model = table.general().expect("usable");
        for bad in [f64::NAN, f64::INFINITY, -1.0] {
            assert!(table.ms_per_token(bad).is_err());
            assert!(model.predict(&DecodeLoad::uniform(bad, 1, 1.0)).is_err());
            assert!(model.predict(&DecodeLoad::uniform(1.0, 1, bad)).is_err());
        }
        let parts = DecodeParts {
            gpu_ms: 1.0,
            overlap_ms: 1.5,
            ..DecodeParts::default()
        };
        let curve = BandwidthCurve::constant(1.0).expect("positive");
        assert!(DecodeModel::new(parts, curve).is_err());
    }

    #[test]
    fn a_token_without_any_time_has_no_rate() {
        let curve = BandwidthCurve::constant(1.0).expect("positive");
        let model = DecodeModel::new(DecodeParts::default(), curve).expect("usable");
        let time = model
            .predict(&DecodeLoad::uniform(0.0, 1, 1.0))
            .expect("usable");
        assert_eq!(time.tokens_per_s(), None);
    }

    prop_compose! {
        fn model()(
            gpu_ms in 0.1f64..100.0,
            host_ms in 0.0f64..10.0,
            overlap in 0.0f64..=1.0,
            read_latency_ms in 0.0f64..1.0,
            rates in proptest::collection::vec(0.1f64..20.0, 1..6),
        ) -> DecodeModel {
            let overlap_ms = overlap * gpu_ms;
            let parts = DecodeParts { gpu_ms, host_ms, overlap_ms, read_latency_ms };
            let points: Vec<_> = (1..).map(f64::from).zip(rates).collect();
            BandwidthCurve::new(&points)
                .and_then(|curve| DecodeModel::new(parts, curve))
                .expect("usable")
        }
    }

    proptest! {
        #[test]
        fn time_never_falls_when_misses_rise(
            model in model(),
            misses in 0.0f64..500.0,
            more in 0.0f64..100.0,
            bytes in 1u64..10_000_000,
            depth in 0.5f64..10.0,
        ) {
            let time = |m| {
                model.predict(&DecodeLoad::uniform(m, bytes, depth)).expect("usable").total_ms
            };
            prop_assert!(time(misses + more) >= time(misses));
            let table = TableModel::new(12.0, bytes, 3.9).expect("usable");
            let time = |m| table.ms_per_token(m).expect("usable");
            prop_assert!(time(misses + more) >= time(misses));
        }

        #[test]
        fn a_token_takes_at_least_its_compute_and_its_reads(
            model in model(),
            misses in 0.0f64..500.0,
            bytes in 1u64..10_000_000,
            depth in 0.5f64..10.0,
        ) {
            let time = model.predict(&DecodeLoad::uniform(misses, bytes, depth)).expect("usable");
            prop_assert!(time.total_ms >= time.compute_ms);
            prop_assert!(time.total_ms >= time.io_ms * (1.0 - 1e-12));
            prop_assert!(time.total_ms <= time.compute_ms + time.io_ms);
        }

        #[test]
        fn the_table_is_a_case_of_the_general_model(
            floor in 0.1f64..50.0,
            bytes in 1u64..10_000_000,
            bw in 0.1f64..20.0,
            misses in 0.0f64..500.0,
            depth in 0.5f64..10.0,
        ) {
            let table = TableModel::new(floor, bytes, bw).expect("usable");
            let general = table.general().expect("usable");
            let a = table.ms_per_token(misses).expect("usable");
            let load = DecodeLoad::uniform(misses, bytes, depth);
            let b = general.predict(&load).expect("usable").total_ms;
            prop_assert!((a - b).abs() <= 1e-12 * a);
        }
    }
}

//! How long the device takes for what is recorded, and what its arithmetic can reach.
//!
//! Owns clocks and the kernels that do nothing but count; not what is measured (a caller records
//! it) nor statistics over repetitions. Memory: two timestamps; a buffer of results of
//! [`arithmetic`](WgpuBackend::arithmetic).

use std::time::{Duration, Instant};

use thalweg_backend::{Backend, Result};

use crate::check::{enough, volume, word};
use crate::pipeline::{Key, Op};
use crate::recorder::Arg::Device;
use crate::{Error, WgpuBackend, WgpuBuffer, WgpuRecorder};

/// Who told a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Clock {
    /// Timestamps of the device, before the first command and after the last one.
    Device,
    /// The host, from the first submission to the end of the wait for the last one.
    Host,
}

impl Clock {
    /// `device` or `host`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Host => "host",
        }
    }
}

/// Numbers that a kernel of pure arithmetic computes with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Arithmetic {
    /// f32 on every lane.
    F32,
    /// Pairs of f16 on every lane; the device must have [`f16`](crate::Features::f16).
    F16,
}

impl Arithmetic {
    /// `f32` or `f16`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
        }
    }
}

/// Lanes of a workgroup of the counting kernels, accumulators of a lane and their uses in a step:
/// the numbers of `fma_f32.wgsl` and `fma_f16.wgsl`.
const COUNTING_LANES: usize = 64;
const FMAS_PER_STEP: usize = 64;

impl WgpuBackend {
    /// The clock of [`time`](Self::time).
    #[must_use]
    pub fn clock(&self) -> Clock {
        match self.features().timestamps {
            true => Clock::Device,
            false => Clock::Host,
        }
    }

    /// How long the device takes for what `work` records. What was recorded before is finished
    /// first, and `work` is submitted as one as far as its uploads go (some thousands of dispatches),
    /// so that the device does not wait for the recording.
    ///
    /// # Errors
    /// Those of `work` and of the device.
    ///
    /// # Cost
    /// Waits for the device twice. On the host's clock a submission and a wait count as well: tens of
    /// microseconds.
    pub fn time(
        &self,
        rec: &mut WgpuRecorder,
        work: impl FnOnce(&mut WgpuRecorder) -> Result<()>,
    ) -> Result<Duration> {
        rec.submit();
        self.device().wait()?;
        rec.hold(true);
        let time = self.time_held(rec, work);
        rec.hold(false);
        time
    }

    fn time_held(
        &self,
        rec: &mut WgpuRecorder,
        work: impl FnOnce(&mut WgpuRecorder) -> Result<()>,
    ) -> Result<Duration> {
        if self.clock() == Clock::Host {
            let start = Instant::now();
            work(rec)?;
            rec.submit();
            self.device().wait()?;
            return Ok(start.elapsed());
        }
        let stamps = self.device().timestamps(2)?;
        rec.stamp(&stamps, 0)?;
        work(rec)?;
        rec.stamp(&stamps, 1)?;
        let mut ticks = [0_u64; 2];
        rec.read_stamps(&stamps, &mut ticks)?;
        let period_ns = f64::from(self.device().queue.get_timestamp_period());
        let ns = ticks[1].saturating_sub(ticks[0]) as f64 * period_ns;
        Ok(Duration::from_secs_f64(ns * 1e-9))
    }

    /// Waits until the device has finished what was recorded.
    ///
    /// # Errors
    /// Those of the device.
    pub fn finish(&self, rec: &mut WgpuRecorder) -> Result<()> {
        rec.submit();
        Ok(self.device().wait()?)
    }

    /// Records multiplications and additions that read no memory, and returns how many floating-point
    /// operations they are. `out` holds one element for each of 64 lanes of `n_groups` workgroups.
    ///
    /// # Errors
    /// [`Shape`](thalweg_backend::Error::Shape) if `out` is too short,
    /// [`Feature`](Error::Feature) for arithmetic that the device does not have.
    pub fn arithmetic(
        &self,
        rec: &mut WgpuRecorder,
        kind: Arithmetic,
        n_groups: usize,
        n_steps: usize,
        out: &mut WgpuBuffer,
    ) -> Result<u64> {
        let (op, width) = match kind {
            Arithmetic::F32 => (Op::FmaF32, 1),
            Arithmetic::F16 if self.features().f16 => (Op::FmaF16, 2),
            Arithmetic::F16 => {
                let adapter = self.adapter().to_string();
                return Err(Error::Feature {
                    adapter,
                    what: "arithmetic on halves",
                }
                .into());
            }
        };
        let lanes = volume([n_groups, COUNTING_LANES]);
        enough("arithmetic", "out", self.len(out), lanes)?;
        let params = [word(n_steps), word(n_groups)];
        rec.dispatch(Key::new(op), &params, &[(1, Device(out.raw()))], n_groups)?;
        Ok(2 * volume([lanes, n_steps, FMAS_PER_STEP, width]) as u64)
    }
}

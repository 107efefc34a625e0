//! `IoCounters`: how much a backend asked of the system, and for how long it was at it.
//!
//! Owns the figures; does not own the clock of whoever waits for a read. Memory: one small lock.
//! Invariants: 1. busy time is the length of the union of all reads' times, so that bytes over it
//! is the bandwidth that was reached while reading; 2. what is under way counts up to now.
//! Separate atomics cannot keep the first: a read that ends while another begins would be counted
//! twice or not at all. Cost: two uncontended locks a read, which takes a thousand times as long.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a backend has done since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IoStats {
    /// Bytes asked of the system: whole aligned windows, so more than operations asked for.
    pub bytes_requested: u64,
    /// Reads asked of the system, repeated and continued ones too.
    pub reads: u64,
    /// Time during which at least one read was under way.
    pub busy: Duration,
}

impl IoStats {
    /// Bytes asked for over busy time, in 1e9 bytes a second; `None` before the first read.
    #[must_use]
    pub fn gb_per_s(&self) -> Option<f64> {
        let seconds = self.busy.as_secs_f64();
        (seconds > 0.0).then(|| self.bytes_requested as f64 / seconds / 1e9)
    }
}

/// The counters of one backend, shared with whoever wants to look while it works.
#[derive(Debug, Default)]
pub struct IoCounters {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    stats: IoStats,
    n_under_way: usize,
    /// When the first of those under way began.
    since: Option<Instant>,
}

impl IoCounters {
    /// The figures up to now.
    #[must_use]
    pub fn stats(&self) -> IoStats {
        let inner = self.lock();
        let running = inner.since.map(|since| since.elapsed());
        IoStats {
            busy: inner.stats.busy + running.unwrap_or_default(),
            ..inner.stats
        }
    }

    /// Notes that a read goes to the system.
    pub(super) fn begin(&self, len_bytes: usize) {
        let mut inner = self.lock();
        inner.stats.reads += 1;
        inner.stats.bytes_requested += len_bytes as u64;
        inner.n_under_way += 1;
        inner.since.get_or_insert_with(Instant::now);
    }

    /// Notes that one came back.
    pub(super) fn end(&self) {
        let mut inner = self.lock();
        inner.n_under_way = inner.n_under_way.saturating_sub(1);
        if inner.n_under_way == 0
            && let Some(since) = inner.since.take()
        {
            inner.stats.busy += since.elapsed();
        }
    }

    /// [`begin`](Self::begin) now and [`end`](Self::end) when the value is dropped, also by a
    /// panic.
    pub(super) fn timed(&self, len_bytes: usize) -> Timed<'_> {
        self.begin(len_bytes);
        Timed(self)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Plain numbers: a panic elsewhere cannot have left them half changed.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Timed<'a>(&'a IoCounters);

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;

    use super::*;

    #[test]
    fn reads_at_the_same_time_are_busy_once_and_pauses_are_not() {
        let counters = IoCounters::default();
        assert_eq!(counters.stats().gb_per_s(), None);
        let step = Duration::from_millis(20);
        let start = Instant::now();
        let first = counters.timed(4096);
        let second = counters.timed(8192);
        sleep(step);
        drop(first);
        assert!(counters.stats().busy >= step);
        drop(second);
        let together = start.elapsed();
        let stats = counters.stats();
        assert_eq!((stats.reads, stats.bytes_requested), (2, 12_288));
        assert!(stats.busy >= step && stats.busy <= together);
        sleep(step);
        assert_eq!(counters.stats(), stats);
        assert!(stats.gb_per_s().expect("has read") > 0.0);
    }
}

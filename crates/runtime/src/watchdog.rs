//! A watchdog over the machine's memory: stops a run before the system swaps or kills something.
//!
//! Owns one thread that samples free memory and swapping, the reason why it tripped, and the
//! samples. Does not stop anything itself: whoever runs the model asks [`Watchdog::tripped`]
//! between layers and ends the step with [`Error::Watchdog`]. Memory: at most 4,096 samples of 48
//! bytes. Invariants: 1. it trips once, and the reason stays; 2. samples cover the run from its
//! start, at even distances that double when there are too many. Cost: reading a few small files
//! four times a second; asking is one atomic load.
//!
//! # Platform
//! Linux. Elsewhere nothing can be read: no thread is started, and [`Watchdog::watches`] says so.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::{Error, Result, available_memory_bytes};

/// 2.2 GiB: what a desktop keeps responsive with.
const DEFAULT_FLOOR_BYTES: u64 = (22 << 30) / 10;
/// More swapping than this since the start is not by chance.
const DEFAULT_SWAP_OUT_LIMIT_BYTES: u64 = 64 << 20;
const DEFAULT_INTERVAL: Duration = Duration::from_millis(250);
/// At the default interval the first 17 minutes are kept whole.
const MAX_SAMPLES: usize = 4096;

/// When a [`Watchdog`] trips.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "callers write `WatchdogOptions { field, ..default }`"
)]
pub struct WatchdogOptions {
    /// Time between two samples; 0.25 s by default.
    pub interval: Duration,
    /// Trips when fewer bytes are available. `None`: 2.2 GiB, but at most a quarter of what was
    /// available at the start, so that small machines can run at all. 0: never.
    pub floor_bytes: Option<u64>,
    /// Trips when the system has swapped out more bytes since the start; 64 MiB by default. 0:
    /// never.
    pub swap_out_limit_bytes: u64,
}

/// What a reader found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "readers outside of this crate make them"
)]
pub struct MemoryReading {
    /// Bytes that may be taken without swapping; `None` if the system does not say.
    pub available_bytes: Option<u64>,
    /// Bytes written to swap since the system booted; `None` if the system does not say.
    pub swapped_out_bytes: Option<u64>,
}

/// Where a [`Watchdog`] has its figures from.
pub trait MemoryReader: Send + 'static {
    /// Reads both figures now.
    fn read(&mut self) -> MemoryReading;
}

/// Reads the system's own account.
///
/// # Platform
/// Linux: [`available_memory_bytes`], and `pswpout` of `/proc/vmstat`, which counts the pages of
/// the whole system. Elsewhere nothing is known.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemMemory;

/// One look at the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemorySample {
    /// Since the watchdog was started.
    pub at: Duration,
    /// Bytes available.
    pub available_bytes: Option<u64>,
    /// Bytes swapped out since the watchdog was started.
    pub swapped_out_bytes: Option<u64>,
}

/// Why a [`Watchdog`] tripped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TripReason {
    /// Too little memory was left.
    LowMemory {
        /// Bytes available.
        available_bytes: u64,
        /// Bytes that should be.
        floor_bytes: u64,
    },
    /// The system swapped.
    SwapOut {
        /// Bytes swapped out since the start.
        swapped_out_bytes: u64,
        /// Bytes that may be.
        limit_bytes: u64,
    },
}

/// What a [`Watchdog`] can see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Watched {
    /// The floor in force; `None` if it is off or available memory can't be read.
    pub floor_bytes: Option<u64>,
    /// The limit of swapping in force; `None` if it is off or swapping can't be read.
    pub swap_out_limit_bytes: Option<u64>,
}

/// A running watchdog; dropping it ends it.
///
/// ```
/// use thalweg_runtime::{SystemMemory, Watchdog, WatchdogOptions};
/// let watchdog = Watchdog::start(WatchdogOptions::default(), SystemMemory)?;
/// // Between two layers:
/// if let Some(reason) = watchdog.tripped() {
///     eprintln!("stopping: {reason}");
/// }
/// println!("{} samples", watchdog.samples().len());
/// # Ok::<(), thalweg_runtime::Error>(())
/// ```
#[derive(Debug)]
pub struct Watchdog {
    shared: Arc<Shared>,
    watched: Watched,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// Set after `State::reason`, so that asking takes no lock while all is well.
    tripped: AtomicBool,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug)]
struct State {
    reason: Option<TripReason>,
    samples: Samples,
    ending: bool,
}

/// Samples at even distances, of a bounded number.
#[derive(Debug)]
struct Samples {
    kept: Vec<MemorySample>,
    limit: usize,
    /// Every so many-th sample is kept.
    stride: u64,
    n_seen: u64,
}

/// The part that judges: no thread, no clock.
#[derive(Debug, Clone, Copy)]
struct Judge {
    floor_bytes: Option<u64>,
    swap_out_limit_bytes: Option<u64>,
    swapped_out_at_start: u64,
}

impl Default for WatchdogOptions {
    fn default() -> Self {
        Self {
            interval: DEFAULT_INTERVAL,
            floor_bytes: None,
            swap_out_limit_bytes: DEFAULT_SWAP_OUT_LIMIT_BYTES,
        }
    }
}

impl Watchdog {
    /// Takes the first sample, which says where swapping is counted from, and starts the thread.
    ///
    /// Without anything to watch (both limits off, or a system that tells nothing) there is no
    /// thread; [`watches`](Self::watches) tells.
    ///
    /// # Errors
    /// [`Error::Option`] for an interval of 0; [`Error::WatchdogThread`] when the system gives no
    /// thread.
    pub fn start(options: WatchdogOptions, mut reader: impl MemoryReader) -> Result<Self> {
        if options.interval.is_zero() {
            return Err(Error::Option {
                option: "watchdog interval",
                expected: "above 0".to_owned(),
                found: "0".to_owned(),
            });
        }
        let began = Instant::now();
        let first = reader.read();
        let judge = Judge::new(&options, first);
        let shared = Arc::new(Shared {
            tripped: AtomicBool::new(false),
            state: Mutex::new(State {
                reason: None,
                samples: Samples::new(MAX_SAMPLES),
                ending: false,
            }),
            ended: Condvar::new(),
        });
        shared.record(judge, Duration::ZERO, first);
        let watched = judge.watched();
        let blind = watched.floor_bytes.is_none() && watched.swap_out_limit_bytes.is_none();
        let thread = match blind || shared.tripped.load(Ordering::Acquire) {
            true => None,
            false => {
                let shared = Arc::clone(&shared);
                let watch = move || shared.watch(judge, options.interval, began, &mut reader);
                let thread = Builder::new().name("watchdog".to_owned()).spawn(watch);
                Some(thread.map_err(Error::WatchdogThread)?)
            }
        };
        Ok(Self {
            shared,
            watched,
            thread,
        })
    }

    /// Why the run has to stop, if it has to.
    pub fn tripped(&self) -> Option<TripReason> {
        match self.shared.tripped.load(Ordering::Acquire) {
            true => self.shared.lock().reason,
            false => None,
        }
    }

    /// The limits in force.
    pub const fn watches(&self) -> Watched {
        self.watched
    }

    /// The samples so far, from the first on; every second one goes whenever there are too many.
    ///
    /// # Cost
    /// Copies at most 4,096 samples.
    pub fn samples(&self) -> Vec<MemorySample> {
        self.shared.lock().samples.kept.clone()
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.lock().ending = true;
        self.shared.ended.notify_all();
        if let Some(thread) = self.thread.take() {
            // A reader that panicked has said so on its own thread; there is no more to do here.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// A panic elsewhere leaves the state whole: nothing in it is changed in two steps.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(
        &self,
        judge: Judge,
        interval: Duration,
        began: Instant,
        reader: &mut impl MemoryReader,
    ) {
        loop {
            let waiting = self
                .ended
                .wait_timeout_while(self.lock(), interval, |s| !s.ending);
            let (state, _) = waiting.unwrap_or_else(PoisonError::into_inner);
            if state.ending {
                return;
            }
            // Reading may take long on a machine in trouble, and nobody shall wait for it.
            drop(state);
            let reading = reader.read();
            if self.record(judge, began.elapsed(), reading) {
                return;
            }
        }
    }

    /// Keeps a reading; whether it trips the watchdog.
    fn record(&self, judge: Judge, at: Duration, reading: MemoryReading) -> bool {
        let sample = judge.sample(at, reading);
        let reason = judge.judge(&sample);
        let mut state = self.lock();
        // The sample that trips is the one that everybody will look for.
        state.samples.push(sample, reason.is_some());
        state.reason = reason;
        drop(state);
        self.tripped.store(reason.is_some(), Ordering::Release);
        reason.is_some()
    }
}

impl Judge {
    fn new(options: &WatchdogOptions, first: MemoryReading) -> Self {
        let floor = |available: u64| match options.floor_bytes {
            Some(floor) => floor,
            None => DEFAULT_FLOOR_BYTES.min(available / 4),
        };
        let limit = options.swap_out_limit_bytes;
        Self {
            floor_bytes: first.available_bytes.map(floor).filter(|f| *f > 0),
            swap_out_limit_bytes: first.swapped_out_bytes.map(|_| limit).filter(|l| *l > 0),
            swapped_out_at_start: first.swapped_out_bytes.unwrap_or(0),
        }
    }

    const fn watched(self) -> Watched {
        Watched {
            floor_bytes: self.floor_bytes,
            swap_out_limit_bytes: self.swap_out_limit_bytes,
        }
    }

    fn sample(self, at: Duration, reading: MemoryReading) -> MemorySample {
        let since = |total: u64| total.saturating_sub(self.swapped_out_at_start);
        MemorySample {
            at,
            available_bytes: reading.available_bytes,
            swapped_out_bytes: reading.swapped_out_bytes.map(since),
        }
    }

    /// A figure that can't be read for once says nothing.
    fn judge(self, sample: &MemorySample) -> Option<TripReason> {
        if let (Some(available_bytes), Some(floor_bytes)) =
            (sample.available_bytes, self.floor_bytes)
            && available_bytes < floor_bytes
        {
            return Some(TripReason::LowMemory {
                available_bytes,
                floor_bytes,
            });
        }
        let (swapped_out_bytes, limit_bytes) =
            sample.swapped_out_bytes.zip(self.swap_out_limit_bytes)?;
        (swapped_out_bytes > limit_bytes).then_some(TripReason::SwapOut {
            swapped_out_bytes,
            limit_bytes,
        })
    }
}

impl Samples {
    const fn new(limit: usize) -> Self {
        Self {
            kept: Vec::new(),
            limit,
            stride: 1,
            n_seen: 0,
        }
    }

    fn push(&mut self, sample: MemorySample, always: bool) {
        let due = self.n_seen.is_multiple_of(self.stride);
        self.n_seen += 1;
        if !due && !always {
            return;
        }
        if self.kept.len() >= self.limit {
            let mut keep = false;
            self.kept.retain(|_| {
                keep = !keep;
                keep
            });
            self.stride *= 2;
            // The one at hand may now lie between two that are kept.
            if !always && !(self.n_seen - 1).is_multiple_of(self.stride) {
                return;
            }
        }
        self.kept.push(sample);
    }
}

impl MemoryReader for SystemMemory {
    fn read(&mut self) -> MemoryReading {
        MemoryReading {
            available_bytes: available_memory_bytes(),
            swapped_out_bytes: swapped_out_bytes(),
        }
    }
}

impl fmt::Display for TripReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LowMemory {
                available_bytes,
                floor_bytes,
            } => write!(
                f,
                "memory ran low: {available_bytes} bytes are available, the floor is {floor_bytes}"
            ),
            Self::SwapOut {
                swapped_out_bytes,
                limit_bytes,
            } => write!(
                f,
                "the system swapped out {swapped_out_bytes} bytes since the start, the limit is \
                 {limit_bytes}"
            ),
        }
    }
}

#[cfg(target_os = "linux")]
fn swapped_out_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/vmstat").ok()?;
    let pages = vmstat_swapped_out_pages(&text)?;
    pages.checked_mul(rustix::param::page_size() as u64)
}

#[cfg(not(target_os = "linux"))]
fn swapped_out_bytes() -> Option<u64> {
    None
}

/// `pswpout` of `/proc/vmstat`, in pages.
#[cfg(any(target_os = "linux", test))]
fn vmstat_swapped_out_pages(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix("pswpout "))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn reading(available_bytes: u64, swapped_out_bytes: u64) -> MemoryReading {
        MemoryReading {
            available_bytes: Some(available_bytes),
            swapped_out_bytes: Some(swapped_out_bytes),
        }
    }

    /// Hands out what a test sends, and then the last of it again and again.
    struct Script {
        next: Receiver<MemoryReading>,
        last: MemoryReading,
    }

    impl MemoryReader for Script {
        fn read(&mut self) -> MemoryReading {
            if let Ok(reading) = self.next.try_recv() {
                self.last = reading;
            }
            self.last
        }
    }

    fn script(first: MemoryReading) -> (Sender<MemoryReading>, Script) {
        let (send, next) = channel();
        (send, Script { next, last: first })
    }

    fn fast() -> WatchdogOptions {
        WatchdogOptions {
            interval: Duration::from_millis(1),
            ..WatchdogOptions::default()
        }
    }

    /// Waits until something holds, for as long as a busy machine may need.
    fn eventually<T>(mut probe: impl FnMut() -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(found) = probe() {
                return found;
            }
            assert!(began.elapsed() < Duration::from_secs(20), "never came");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn memory_below_the_floor_trips_with_both_figures() {
        let (send, reader) = script(reading(20 * GIB, 0));
        let watchdog = Watchdog::start(fast(), reader).unwrap();
        eventually(|| (watchdog.samples().len() > 3).then_some(()));
        assert_eq!(watchdog.tripped(), None);
        send.send(reading(2 * GIB, 0)).unwrap();
        let reason = eventually(|| watchdog.tripped());
        assert_eq!(
            reason,
            TripReason::LowMemory {
                available_bytes: 2 * GIB,
                floor_bytes: 2_362_232_012,
            }
        );
        assert_eq!(
            Error::Watchdog { reason }.to_string(),
            "stopped by the watchdog: memory ran low: 2147483648 bytes are available, the floor \
             is 2362232012"
        );
        let last = *watchdog.samples().last().unwrap();
        assert_eq!(last.available_bytes, Some(2 * GIB));
    }

    #[test]
    fn swapping_is_counted_from_the_start() {
        let (send, reader) = script(reading(20 * GIB, 500 * GIB));
        let watchdog = Watchdog::start(fast(), reader).unwrap();
        send.send(reading(20 * GIB, 500 * GIB + 64 * MIB)).unwrap();
        let at_limit = |s: &MemorySample| s.swapped_out_bytes == Some(64 * MIB);
        eventually(|| watchdog.samples().iter().any(at_limit).then_some(()));
        assert_eq!(watchdog.tripped(), None);
        send.send(reading(20 * GIB, 500 * GIB + 64 * MIB + 4096))
            .unwrap();
        let reason = eventually(|| watchdog.tripped());
        let swapped_out_bytes = 64 * MIB + 4096;
        let limit_bytes = 64 * MIB;
        assert_eq!(
            reason,
            TripReason::SwapOut {
                swapped_out_bytes,
                limit_bytes,
            }
        );
        assert!(reason.to_string().contains("swapped out 67112960 bytes"));
    }

    #[test]
    fn a_reason_stays_when_memory_comes_back() {
        let (send, reader) = script(reading(20 * GIB, 0));
        let watchdog = Watchdog::start(fast(), reader).unwrap();
        send.send(reading(GIB, 0)).unwrap();
        send.send(reading(20 * GIB, 0)).unwrap();
        let reason = eventually(|| watchdog.tripped());
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(watchdog.tripped(), Some(reason));
    }

    #[test]
    fn the_default_floor_is_at_most_a_quarter_of_what_was_there() {
        let floor = |options: WatchdogOptions, available_bytes| {
            let judge = Judge::new(&options, reading(available_bytes, 0));
            judge.watched().floor_bytes
        };
        let default = WatchdogOptions::default();
        assert_eq!(floor(default, 20 * GIB), Some(DEFAULT_FLOOR_BYTES));
        assert_eq!(floor(default, 4 * GIB), Some(GIB));
        assert_eq!(floor(default, 0), None);
        let asked = |floor_bytes| WatchdogOptions {
            floor_bytes: Some(floor_bytes),
            ..default
        };
        assert_eq!(floor(asked(3 * GIB), 4 * GIB), Some(3 * GIB));
        assert_eq!(floor(asked(0), 4 * GIB), None);
    }

    #[test]
    fn a_floor_that_is_missed_at_the_start_trips_at_once() {
        let options = WatchdogOptions {
            floor_bytes: Some(8 * GIB),
            ..fast()
        };
        let (_send, reader) = script(reading(4 * GIB, 0));
        let watchdog = Watchdog::start(options, reader).unwrap();
        assert!(matches!(
            watchdog.tripped(),
            Some(TripReason::LowMemory { .. })
        ));
        assert!(watchdog.thread.is_none());
    }

    #[test]
    fn limits_of_zero_are_off() {
        let options = WatchdogOptions {
            floor_bytes: Some(0),
            swap_out_limit_bytes: 0,
            ..fast()
        };
        let (_send, reader) = script(reading(0, GIB));
        let watchdog = Watchdog::start(options, reader).unwrap();
        assert!(watchdog.thread.is_none());
        assert_eq!(watchdog.tripped(), None);
        let off = Watched {
            floor_bytes: None,
            swap_out_limit_bytes: None,
        };
        assert_eq!(watchdog.watches(), off);
    }

    #[test]
    fn a_system_that_tells_nothing_is_said_to_be_unwatched() {
        let (_send, reader) = script(MemoryReading::default());
        let watchdog = Watchdog::start(fast(), reader).unwrap();
        assert_eq!(watchdog.watches().floor_bytes, None);
        assert_eq!(watchdog.watches().swap_out_limit_bytes, None);
        assert!(watchdog.thread.is_none());
    }

    #[test]
    fn a_figure_that_is_missing_for_once_trips_nothing() {
        let (send, reader) = script(reading(20 * GIB, 0));
        let watchdog = Watchdog::start(fast(), reader).unwrap();
        send.send(MemoryReading::default()).unwrap();
        let missing = |s: &MemorySample| s.available_bytes.is_none();
        eventually(|| watchdog.samples().iter().any(missing).then_some(()));
        assert_eq!(watchdog.tripped(), None);
    }

    #[test]
    fn dropping_does_not_wait_for_the_interval() {
        let options = WatchdogOptions {
            interval: Duration::from_secs(3600),
            ..WatchdogOptions::default()
        };
        let (_send, reader) = script(reading(20 * GIB, 0));
        let watchdog = Watchdog::start(options, reader).unwrap();
        let began = Instant::now();
        drop(watchdog);
        assert!(began.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn an_interval_of_zero_is_refused() {
        let options = WatchdogOptions {
            interval: Duration::ZERO,
            ..WatchdogOptions::default()
        };
        let error = Watchdog::start(options, SystemMemory).unwrap_err();
        assert!(error.to_string().contains("interval must be above 0"));
    }

    #[test]
    fn too_many_samples_are_thinned_evenly_and_the_last_one_stays() {
        let mut samples = Samples::new(8);
        let sample = |ms| MemorySample {
            at: Duration::from_millis(ms),
            available_bytes: None,
            swapped_out_bytes: None,
        };
        for ms in 0..1000 {
            samples.push(sample(ms), false);
            assert!(samples.kept.len() <= 8);
        }
        let at = |samples: &Samples| -> Vec<u128> {
            samples.kept.iter().map(|s| s.at.as_millis()).collect()
        };
        assert_eq!(at(&samples), [0, 128, 256, 384, 512, 640, 768, 896]);
        samples.push(sample(1001), true);
        assert_eq!(at(&samples), [0, 256, 512, 768, 1001]);
    }

    #[test]
    fn swapped_pages_are_read_from_their_own_line() {
        let text = "pswpin 7\npswpout 12\npswpout_extra 9\n";
        assert_eq!(vmstat_swapped_out_pages(text), Some(12));
        assert_eq!(vmstat_swapped_out_pages("pswpin 7\n"), None);
        assert_eq!(vmstat_swapped_out_pages("pswpout many\n"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_is_watched() {
        let options = WatchdogOptions {
            // Other programs may swap while tests run.
            swap_out_limit_bytes: u64::MAX,
            floor_bytes: Some(1),
            ..fast()
        };
        let watchdog = Watchdog::start(options, SystemMemory).unwrap();
        let samples = eventually(|| Some(watchdog.samples()).filter(|s| s.len() >= 3));
        assert!(samples.iter().all(|s| s.available_bytes > Some(0)));
        assert!(samples.is_sorted_by(|a, b| a.at < b.at));
        assert_eq!(watchdog.watches().floor_bytes, Some(1));
        assert_eq!(watchdog.tripped(), None);
    }
}

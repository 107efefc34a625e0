//! What the kernel counts for a process and a file.
//!
//! Owns the reading of `/proc/self/io` and `/proc/self/status`, and the emptying of the page cache
//! of a file. Keeps no state. `read_bytes` counts what was fetched from the storage layer on behalf
//! of any thread of the process: page faults on mapped files, read-ahead and direct reads alike;
//! bytes that the page cache had are not in it.

use std::fs::{self, File};
use std::io::IoSliceMut;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use rustix::time::{ClockId, clock_gettime};

/// Places of a file that are looked at to see how much of it is cached.
const N_SAMPLES: u64 = 512;

/// Bytes that this process had read from storage so far.
pub(crate) fn read_bytes() -> Result<u64> {
    let text = fs::read_to_string("/proc/self/io").context("cannot read /proc/self/io")?;
    field(&text, "read_bytes:").context("no read_bytes in /proc/self/io")
}

/// Processor time of all threads of this process so far.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Processor time of all processes and of the system since it started, waiting not counted.
pub(crate) fn busy_time() -> Option<Duration> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    busy_ticks(&text).map(|ticks| {
        let per_second = rustix::param::clock_ticks_per_second().max(1);
        Duration::from_secs_f64(ticks as f64 / per_second as f64)
    })
}

/// user, nice, system, (idle, iowait,) irq, softirq, steal; guests are in user and nice.
fn busy_ticks(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix("cpu "))?;
    let fields = line.split_whitespace().map(str::parse::<u64>);
    let fields = fields.collect::<Result<Vec<_>, _>>().ok()?;
    let [user, nice, system, _, _, rest @ ..] = &fields[..] else {
        return None;
    };
    Some(user + nice + system + rest.iter().take(3).sum::<u64>())
}

/// The most memory that was mapped in at any time, pages of mapped files included.
pub(crate) fn peak_rss_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    Some(field(&text, "VmHWM:")? * 1024)
}

fn field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|l| l.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Asks the kernel to forget cached pages: those of the file, and as root everybody's.
///
/// Pages that another process has mapped stay; [`cached_share`] tells.
pub(crate) fn drop_cache(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    // Dirty pages cannot be dropped. A file system that cannot sync has nothing to write either.
    let _ = rustix::fs::fdatasync(&file);
    fadvise(&file, 0, None, Advice::DontNeed)
        .with_context(|| format!("cannot drop cached pages of {}", path.display()))?;
    // Not allowed to everybody, and the line above did what matters.
    let _ = fs::write("/proc/sys/vm/drop_caches", "3");
    Ok(())
}

/// The share of the file that is in the page cache, 0 to 1, by a sample of its pages; `None` where
/// the file system does not tell.
pub(crate) fn cached_share(path: &Path) -> Result<Option<f64>> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let len = file.metadata()?.len();
    // Looking must not start read-ahead.
    fadvise(&file, 0, None, Advice::Random)?;
    let n = N_SAMPLES.min(len.div_ceil(4096)).max(1);
    let mut cached = 0_u64;
    let before = read_bytes()?;
    for i in 0..n {
        let mut byte = [0_u8];
        let mut into = [IoSliceMut::new(&mut byte)];
        match preadv2(&file, &mut into, len / n * i, ReadWriteFlags::NOWAIT) {
            Ok(_) => cached += 1,
            Err(Errno::AGAIN) => {}
            Err(Errno::OPNOTSUPP | Errno::INVAL) => return Ok(None),
            Err(e) => return Err(e).with_context(|| format!("cannot read {}", path.display())),
        }
    }
    // A read that must not wait may still start one, which a slow look finds done already. Those
    // are counted.
    let page_bytes = rustix::param::page_size().max(1) as u64;
    let started = (read_bytes()? - before) / page_bytes;
    let cached = cached.min(n.saturating_sub(started));
    fadvise(&file, 0, None, Advice::DontNeed)?;
    Ok(Some(cached as f64 / n as f64))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "rchar: 1\nread_bytes: 4096\ncancelled_write_bytes: 7\n";
        assert_eq!(field(text, "read_bytes:"), Some(4096));
        assert_eq!(field("VmHWM:\t   12 kB\n", "VmHWM:"), Some(12));
        assert_eq!(field(text, "write_bytes:"), None);
    }

    #[test]
    fn busy_time_leaves_out_idling_and_waiting() {
        let text = "cpu  1 20 300 4000 50000 6 70 800 9 9\ncpu0 5 5 5 5 5 5 5 5 5 5\n";
        assert_eq!(busy_ticks(text), Some(1 + 20 + 300 + 6 + 70 + 800));
        assert_eq!(busy_ticks("cpu  1 2\n"), None);
        assert!(busy_time().expect("/proc/stat") > cpu_time());
    }

    #[test]
    fn dropped_pages_are_read_from_storage_again() {
        // Next to the build, since a temporary folder may be memory.
        let test = std::env::current_exe().expect("this test's path");
        let folder = test.parent().expect("its folder");
        let mut file = tempfile::NamedTempFile::new_in(folder).expect("temporary file");
        const LEN: usize = 4 << 20;
        file.write_all(&vec![7; LEN]).expect("write");
        file.as_file().sync_all().expect("sync");
        assert_eq!(cached_share(file.path()).expect("share"), Some(1.0));
        drop_cache(file.path()).expect("drop");
        let share = cached_share(file.path()).expect("share").expect("known");
        assert!(share < 0.5, "{share}");
        let before = read_bytes().expect("counter");
        let mut text = Vec::new();
        let mut again = File::open(file.path()).expect("open");
        again.read_to_end(&mut text).expect("read");
        let read = read_bytes().expect("counter") - before;
        assert!(read >= LEN as u64 / 2, "{read}");
    }
}

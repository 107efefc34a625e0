//! Counters of bytes that were really read from a device.
//!
//! Owns the seam (`ReadCounter`) and the parsing of what Linux says. Does not own the comparison.
//! Memory: one small file's text a look. A count may be larger than what one file's reads caused,
//! never smaller. Cost: a look reads one file under `/proc`.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Bytes of a sector in `/proc/diskstats`, whatever the device's own sectors are.
const SECTOR_BYTES: u64 = 512;

/// Something that counts bytes read from a device.
pub trait ReadCounter: Send {
    /// Who counts.
    fn source(&self) -> CounterSource;

    /// The count so far; `None` when it cannot be had.
    fn read_bytes(&mut self) -> Option<u64>;
}

/// Who counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CounterSource {
    /// The device, for everybody who reads it.
    Device,
    /// The system, for this process and all devices.
    Process,
}

impl fmt::Display for CounterSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Device => "/proc/diskstats",
            Self::Process => "/proc/self/io",
        })
    }
}

/// Sectors of a file's device, from `/proc/diskstats`.
#[derive(Debug)]
pub struct DeviceCounter {
    diskstats: PathBuf,
    major: u32,
    minor: u32,
}

/// `read_bytes` of `/proc/self/io`: what this process caused to be fetched from devices.
#[derive(Debug)]
pub struct ProcessCounter {
    io: PathBuf,
}

/// The counters that work for a file, the one with most weight first.
///
/// # Platform
/// None outside Linux. In containers the device may be hidden, and then only the process counts.
#[must_use]
pub fn counters_for(path: &Path) -> Vec<Box<dyn ReadCounter>> {
    let mut counters: Vec<Box<dyn ReadCounter>> = Vec::new();
    if let Some(device) = DeviceCounter::new(path) {
        counters.push(Box::new(device));
    }
    if let Some(process) = ProcessCounter::new() {
        counters.push(Box::new(process));
    }
    counters
}

impl DeviceCounter {
    /// The counter of the device that a file lies on; `None` where the device is not listed.
    #[must_use]
    pub fn new(path: &Path) -> Option<Self> {
        let (major, minor) = device_of(path)?;
        let mut counter = Self {
            diskstats: "/proc/diskstats".into(),
            major,
            minor,
        };
        counter.read_bytes().map(|_| counter)
    }

    /// The device's name as the system has it, such as `nvme0n1`.
    #[must_use]
    pub fn device_name(&self) -> Option<String> {
        let text = fs::read_to_string(&self.diskstats).ok()?;
        let (name, _) = diskstats_device(&text, self.major, self.minor)?;
        Some(name.to_owned())
    }
}

impl ReadCounter for DeviceCounter {
    fn source(&self) -> CounterSource {
        CounterSource::Device
    }

    fn read_bytes(&mut self) -> Option<u64> {
        let text = fs::read_to_string(&self.diskstats).ok()?;
        diskstats_device(&text, self.major, self.minor).map(|(_, bytes)| bytes)
    }
}

impl ProcessCounter {
    /// The counter; `None` where the system keeps none.
    #[must_use]
    pub fn new() -> Option<Self> {
        let mut counter = Self {
            io: "/proc/self/io".into(),
        };
        counter.read_bytes().map(|_| counter)
    }
}

impl ReadCounter for ProcessCounter {
    fn source(&self) -> CounterSource {
        CounterSource::Process
    }

    fn read_bytes(&mut self) -> Option<u64> {
        process_bytes(&fs::read_to_string(&self.io).ok()?)
    }
}

/// Name and bytes read of a device, from the text of `/proc/diskstats`: major, minor, name, reads,
/// merged reads, sectors read.
fn diskstats_device(text: &str, major: u32, minor: u32) -> Option<(&str, u64)> {
    text.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let is_it = fields.next()?.parse() == Ok(major) && fields.next()?.parse() == Ok(minor);
        let name = fields.next()?;
        let sectors: u64 = fields.nth(2)?.parse().ok()?;
        is_it.then(|| (name, sectors.saturating_mul(SECTOR_BYTES)))
    })
}

/// `read_bytes` from the text of `/proc/self/io`.
fn process_bytes(text: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix("read_bytes:"))?
        .trim()
        .parse()
        .ok()
}

/// Major and minor number of the device that holds a file.
#[cfg(target_os = "linux")]
fn device_of(path: &Path) -> Option<(u32, u32)> {
    use std::os::unix::fs::MetadataExt;
    let device = fs::metadata(path).ok()?.dev();
    Some((rustix::fs::major(device), rustix::fs::minor(device)))
}

#[cfg(not(target_os = "linux"))]
fn device_of(_: &Path) -> Option<(u32, u32)> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISKSTATS: &str = "   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n \
        259       0 nvme0n1 120 7 4096 33 0 0 0 0 0 0 0\n \
        259       1 nvme0n1p1 11 2 808 3 0 0 0 0 0 0 0\nshort\n 8 0 sda x y z\n";

    #[test]
    fn sectors_of_the_file_s_device_count() {
        assert_eq!(
            diskstats_device(DISKSTATS, 259, 0),
            Some(("nvme0n1", 4096 * 512))
        );
        assert_eq!(
            diskstats_device(DISKSTATS, 259, 1),
            Some(("nvme0n1p1", 808 * 512))
        );
        assert_eq!(diskstats_device(DISKSTATS, 7, 0), Some(("loop0", 0)));
    }

    #[test]
    fn unknown_devices_and_broken_lines_have_no_count() {
        assert_eq!(diskstats_device(DISKSTATS, 259, 2), None);
        assert_eq!(diskstats_device(DISKSTATS, 8, 0), None);
        assert_eq!(diskstats_device("", 8, 0), None);
    }

    #[test]
    fn the_process_counts_fetched_bytes_not_requested_ones() {
        let text = "rchar: 6976\nwchar: 1\nsyscr: 10\nsyscw: 0\nread_bytes: 8192\nwrite_bytes: 3\n";
        assert_eq!(process_bytes(text), Some(8192));
        assert_eq!(process_bytes("rchar: 1\nread_bytes: many\n"), None);
        assert_eq!(process_bytes("rchar: 1\n"), None);
    }

    #[test]
    fn counters_come_with_the_device_first_and_never_descend() {
        let mut counters = counters_for(Path::new("."));
        assert!(counters.len() <= 2);
        if let [first, second] = counters.as_slice() {
            assert_eq!(first.source(), CounterSource::Device);
            assert_eq!(second.source(), CounterSource::Process);
        }
        for counter in &mut counters {
            let before = counter.read_bytes().expect("worked a moment ago");
            assert!(counter.read_bytes().expect("still works") >= before);
        }
    }
}

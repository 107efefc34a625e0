//! What differs between operating systems: positioned reads and file identity.
//!
//! Owns no state. Tested on Linux; the Windows half compiles from std's documentation and has not
//! been run. Cost: one system call a read.

use std::fs::{File, Metadata};
use std::io;

/// Reads at a 64-bit offset, once; may return fewer bytes than asked for.
#[cfg(unix)]
pub(crate) fn read_at(file: &File, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, offset_bytes)
}

/// As on unix, but moves the handle's own position, which nothing in this crate uses.
#[cfg(windows)]
pub(crate) fn read_at(file: &File, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buffer, offset_bytes)
}

/// Device and inode: equal for two names of one file. `None` where std does not offer them.
#[cfg(unix)]
pub(crate) fn file_id(metadata: &Metadata) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
pub(crate) fn file_id(_: &Metadata) -> Option<(u64, u64)> {
    None
}

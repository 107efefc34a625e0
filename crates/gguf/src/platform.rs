//! What differs between operating systems. Owns: positioned reads, file identity, making a rename
//! durable. Does not own: retries and limits (`file`). Tested on Linux only; the Windows half has
//! not been run.

use std::fs::{File, Metadata};
use std::io;
use std::path::Path;

/// Reads at a 64-bit offset, once; may return fewer bytes than asked for.
///
/// On Windows this moves the handle's own position, which nothing else in this crate uses.
#[cfg(unix)]
pub(crate) fn read_at(file: &File, buffer: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, offset_bytes)
}

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

/// Makes a rename inside a folder survive a power cut.
#[cfg(unix)]
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Other systems give no handle to sync a folder with.
#[cfg(not(unix))]
pub(crate) fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

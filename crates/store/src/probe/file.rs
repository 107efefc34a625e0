//! `RandomFile`: a file of random bytes to read from, made once and found again.
//!
//! Owns the file's name, content and removal. Word `i` of the content is output `i` of SplitMix64,
//! so that any place can be checked alone, and no drive can compress or share blocks. Memory: one
//! piece of 1 MiB while writing. Invariants: 1. a file under its final name is complete and on the
//! device: it is written under another name, flushed, then renamed; 2. the unfinished file is
//! locked while it is written, so one that is not locked is left over and is removed. Cost: one
//! write of the file; finding it again reads a few blocks.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::unfinished::{Unfinished, failed};
use crate::{ALIGNMENT_BYTES, AlignedBuf, DirectFile, Error, Result};

/// One name for all lengths, so that any run finds what another left.
const UNFINISHED_NAME: &str = "thalweg-probe.part";
/// Bytes written at once.
const PIECE_BYTES: usize = 1 << 20;
/// Bytes after which they are sent to the device and dropped from memory.
const FLUSH_BYTES: u64 = 64 << 20;
/// Blocks that are compared when a file is found.
const N_SAMPLES: u64 = 16;
const SEED: u64 = 0x7468_616c_7765_6721;

/// A complete file of random bytes. Dropping the value leaves the file.
#[derive(Debug)]
pub struct RandomFile {
    path: PathBuf,
    len_bytes: u64,
    reused: bool,
    removed_leftover: bool,
}

impl RandomFile {
    /// Finds the file of this length in a folder, or makes it. `progress` is told bytes written
    /// and bytes in all.
    ///
    /// # Errors
    /// [`Error::BadSize`] unless the length is a positive multiple of [`ALIGNMENT_BYTES`];
    /// [`Error::File`] when the system refuses, also for a full drive, and then nothing is left
    /// behind; [`Error::Busy`] while another process makes the file; [`Error::NotAProbeFile`] for
    /// a file of that name with other content.
    ///
    /// # Cost
    /// One write of all bytes, or 16 blocks read.
    pub fn prepare(
        folder: &Path,
        len_bytes: u64,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        if len_bytes == 0 || !len_bytes.is_multiple_of(ALIGNMENT_BYTES as u64) {
            return Err(Error::BadSize {
                what: "a probe file",
                found_bytes: len_bytes,
            });
        }
        let path = folder.join(format!("thalweg-probe-{len_bytes}.bin"));
        let unfinished = Unfinished::create(folder.join(UNFINISHED_NAME))?;
        let removed_leftover = unfinished.was_left_over();
        let reused = path.exists();
        if reused {
            check_content(&path, len_bytes)?;
        } else {
            write(&unfinished, len_bytes, progress)?;
            unfinished.rename(&path)?;
        }
        Ok(Self {
            path,
            len_bytes,
            reused,
            removed_leftover,
        })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Whether it was there already, so that an earlier run has read it.
    #[must_use]
    pub const fn is_reused(&self) -> bool {
        self.reused
    }

    /// Whether the unfinished file of an interrupted run was found and removed.
    #[must_use]
    pub const fn removed_leftover(&self) -> bool {
        self.removed_leftover
    }

    /// Removes the file.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn remove(self) -> Result<()> {
        fs::remove_file(&self.path).map_err(failed(&self.path, "remove"))
    }
}

/// Fills a file with the bytes that belong there.
fn write(
    unfinished: &Unfinished,
    len_bytes: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    unfinished.reserve(len_bytes)?;
    let mut piece = vec![0; PIECE_BYTES];
    let mut written = 0;
    let mut flushed = 0;
    let mut file = unfinished.file();
    while written < len_bytes {
        let left = usize::try_from(len_bytes - written).unwrap_or(usize::MAX);
        let piece = &mut piece[..left.min(PIECE_BYTES)];
        fill_random(written, piece);
        let result = file.write_all(piece);
        result.map_err(failed(unfinished.path(), "write"))?;
        written += piece.len() as u64;
        if written - flushed >= FLUSH_BYTES || written == len_bytes {
            unfinished.flush()?;
            flushed = written;
        }
        progress(written, len_bytes);
    }
    Ok(())
}

/// Compares some blocks, the first and the last among them, with what should be there.
fn check_content(path: &Path, len_bytes: u64) -> Result<()> {
    let file = DirectFile::open(path)?;
    let differs = |offset_bytes| Error::NotAProbeFile {
        path: path.to_owned(),
        offset_bytes,
    };
    if file.len_bytes() != len_bytes {
        return Err(differs(file.len_bytes().min(len_bytes)));
    }
    let n_blocks = len_bytes / ALIGNMENT_BYTES as u64;
    let n_samples = N_SAMPLES.min(n_blocks);
    let mut found = AlignedBuf::zeroed(ALIGNMENT_BYTES)?;
    let mut expected = [0; ALIGNMENT_BYTES];
    for sample in 0..n_samples {
        // From the first to the last block; divided first so that no length overflows.
        let block = match n_samples {
            1 => 0,
            n if sample == n - 1 => n_blocks - 1,
            n => (n_blocks - 1) / (n - 1) * sample,
        };
        let offset_bytes = block * ALIGNMENT_BYTES as u64;
        file.read_exact_at(offset_bytes, &mut found)?;
        fill_random(offset_bytes, &mut expected);
        if found[..] != expected[..] {
            return Err(differs(offset_bytes));
        }
    }
    Ok(())
}

/// The content at a multiple of eight bytes.
fn fill_random(offset_bytes: u64, piece: &mut [u8]) {
    for (i, word) in (offset_bytes / 8..).zip(piece.chunks_mut(8)) {
        word.copy_from_slice(&split_mix_64(i).to_le_bytes()[..word.len()]);
    }
}

/// Output `i` of SplitMix64 (Steele, Lea and Flood, 2014): its state advances by a constant, so any
/// output can be had alone.
const fn split_mix_64(i: u64) -> u64 {
    const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut z = SEED.wrapping_add(GAMMA.wrapping_mul(i.wrapping_add(1)));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::direct::os;

    const LEN: u64 = 3 << 20;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().expect("temporary folder")
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("readable");
        entries
            .map(|entry| entry.expect("readable").file_name())
            .map(|name| name.to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn a_file_is_made_found_again_and_removed() {
        let folder = folder();
        let mut last = (0, 0);
        let made = RandomFile::prepare(folder.path(), LEN, &mut |done, all| {
            assert!(done > last.0);
            last = (done, all);
        })
        .expect("room");
        assert_eq!(last, (LEN, LEN));
        assert!(!made.is_reused() && !made.removed_leftover());
        assert_eq!(names(folder.path()), [format!("thalweg-probe-{LEN}.bin")]);
        let content = fs::read(made.path()).expect("readable");
        assert_eq!(content.len() as u64, LEN);

        let never = &mut |_, _| panic!("nothing is written");
        let found = RandomFile::prepare(folder.path(), LEN, never).expect("complete");
        assert!(found.is_reused());
        assert_eq!(found.len_bytes(), LEN);
        found.remove().expect("there");
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn the_bytes_look_random() {
        let mut bytes = vec![0; 1 << 16];
        fill_random(8 << 20, &mut bytes);
        let mut counts = [0_u32; 256];
        for byte in &bytes {
            counts[usize::from(*byte)] += 1;
        }
        // 256 expected of each, with a standard deviation of 16.
        assert!(counts.iter().all(|n| (160..352).contains(n)), "{counts:?}");
        let mut again = vec![0; 1 << 15];
        fill_random((8 << 20) + (1 << 15), &mut again);
        assert!(bytes[1 << 15..] == again[..], "a place has one content");
    }

    #[test]
    fn other_content_is_refused_and_kept() {
        let folder = folder();
        let made = RandomFile::prepare(folder.path(), LEN, &mut |_, _| ()).expect("room");
        let mut content = fs::read(made.path()).expect("readable");
        *content.last_mut().expect("not empty") ^= 1;
        fs::write(made.path(), &content).expect("writable");
        let error = RandomFile::prepare(folder.path(), LEN, &mut |_, _| ());
        let Err(Error::NotAProbeFile { offset_bytes, .. }) = error else {
            panic!("{error:?}");
        };
        assert_eq!(offset_bytes, LEN - 4096);
        fs::write(made.path(), &content[..100]).expect("writable");
        let error = RandomFile::prepare(folder.path(), LEN, &mut |_, _| ());
        assert!(matches!(
            error,
            Err(Error::NotAProbeFile {
                offset_bytes: 100,
                ..
            })
        ));
        assert_eq!(names(folder.path()).len(), 1);
    }

    #[test]
    fn a_leftover_of_an_interrupted_run_is_replaced() {
        let folder = folder();
        let part = folder.path().join(UNFINISHED_NAME);
        fs::write(&part, [1; 5000]).expect("writable");
        let made = RandomFile::prepare(folder.path(), LEN, &mut |_, _| ()).expect("room");
        assert!(made.removed_leftover());
        assert!(!part.exists());
        check_content(made.path(), LEN).expect("complete");
    }

    #[test]
    fn two_runs_do_not_write_the_same_file() {
        let folder = folder();
        let part = folder.path().join(UNFINISHED_NAME);
        let other = Unfinished::create(part.clone()).expect("free");
        let error = RandomFile::prepare(folder.path(), LEN, &mut |_, _| ());
        assert!(matches!(error, Err(Error::Busy { .. })), "{error:?}");
        assert!(part.exists(), "the other run's file stays");
        drop(other);
        RandomFile::prepare(folder.path(), LEN, &mut |_, _| ()).expect("free again");
    }

    #[test]
    fn lengths_and_folders_that_cannot_be_are_refused() {
        let folder = folder();
        for len in [0, 1, 4097] {
            let error = RandomFile::prepare(folder.path(), len, &mut |_, _| ());
            assert!(matches!(error, Err(Error::BadSize { .. })));
        }
        let missing = folder.path().join("missing");
        let error = RandomFile::prepare(&missing, LEN, &mut |_, _| ());
        assert!(matches!(error, Err(Error::File { action: "make", .. })));
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn a_full_drive_shows_at_once_and_leaves_nothing_behind() {
        let folder = folder();
        let small = Unfinished::create(folder.path().join("small.part")).expect("free");
        if os::reserve(small.file(), 4096).is_err() {
            eprintln!(
                "skipped: space cannot be reserved in {}",
                folder.path().display()
            );
            return;
        }
        drop(small);
        // More than any drive holds.
        let never = &mut |_, _| panic!("written");
        let error = RandomFile::prepare(folder.path(), 1 << 60, never);
        assert!(matches!(
            error,
            Err(Error::File {
                action: "write",
                ..
            })
        ));
        assert!(names(folder.path()).is_empty());
    }
}

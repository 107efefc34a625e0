//! Models on disk. Owns: open handles of all shards, their identity, positioned reads of tensor
//! data. Does not own: caching, direct I/O, reader threads (`thalweg-store` does).
//! Memory: the merged header; a tensor's data only in the buffer that is returned or given.
//!
//! Invariants: 1. reads go to the handles opened first, whatever happens to the names since.
//! 2. A read fills its buffer or fails; short reads and interruptions are retried. 3. Nothing is
//! mutated after opening, so one [`Gguf`] serves many threads.
//! Cost: opening reads each shard's header once; a lookup by name is one hash.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::Error;
use crate::metadata::Metadata;
use crate::platform;
use crate::read::Header;
use crate::split::{self, Place, ShardName};
use crate::tensor::TensorInfo;

/// An open model: one GGUF file, or all shards of a split one.
#[derive(Debug)]
pub struct Gguf {
    shards: Vec<Shard>,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

/// What a file was when it was opened; two equal identities mean the same bytes, short of intent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// Length of the file.
    pub len_bytes: u64,
    /// Time of the last change, where the file system keeps one.
    pub modified: Option<SystemTime>,
    /// Device and inode, where the platform has them.
    pub file_id: Option<(u64, u64)>,
    /// [`Header::hash`] of the header.
    pub header_hash: u64,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    file: File,
    identity: Identity,
    version: u32,
    alignment_bytes: u32,
    data_start_bytes: u64,
}

impl Gguf {
    /// Opens a single file, or all shards of a split model from any of them.
    ///
    /// Whether a model is split is decided by its metadata; the others are then looked for by
    /// name, `PREFIX-00001-of-00003.gguf`, in the same folder.
    ///
    /// # Errors
    /// [`Error::InFile`] around any reason for which [`Header::read`] refuses a file;
    /// [`Error::System`] and [`Error::NotAFile`] if it cannot be opened;
    /// [`Error::MissingShard`] with the path of the shard, [`Error::NotAShardName`], and those of
    /// [`split::merge`].
    ///
    /// # Cost
    /// Reads the headers only. Tensor data is not touched.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let (first, header) = Shard::open(path)?;
        let in_file = |error: Error| error.in_file(path);
        let place = Place::of(&header).map_err(in_file)?;
        let (shards, headers) = match place.filter(|place| place.count > 1) {
            None => (vec![first], vec![header]),
            Some(place) => open_all(path, place, first, header)?,
        };
        // One shard's faults were reported with its path; what is left concerns the set.
        let split::Model {
            metadata, tensors, ..
        } = split::merge(headers).map_err(in_file)?;
        let named = |(i, tensor): (usize, &TensorInfo)| (tensor.name.clone(), i);
        let by_name = tensors.iter().enumerate().map(named).collect();
        Ok(Self {
            shards,
            metadata,
            tensors,
            by_name,
        })
    }

    /// The model's metadata, without `split.*`; see [`split::merge`].
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors, in the order of the file, or of the shards.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name, in whichever shard it is.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).and_then(|&i| self.tensors.get(i))
    }

    /// Number of files.
    #[must_use]
    pub fn n_shards(&self) -> usize {
        self.shards.len()
    }

    /// Path of a shard, as opened; `None` beyond the last.
    #[must_use]
    pub fn path(&self, shard: usize) -> Option<&Path> {
        self.shards.get(shard).map(|shard| shard.path.as_path())
    }

    /// The open handle of a shard, for readers that do their own I/O; `None` beyond the last.
    #[must_use]
    pub fn file(&self, shard: usize) -> Option<&File> {
        self.shards.get(shard).map(|shard| &shard.file)
    }

    /// What a shard was when it was opened; `None` beyond the last.
    #[must_use]
    pub fn identity(&self, shard: usize) -> Option<&Identity> {
        self.shards.get(shard).map(|shard| &shard.identity)
    }

    /// Container version of a shard, 2 or 3; `None` beyond the last.
    #[must_use]
    pub fn version(&self, shard: usize) -> Option<u32> {
        self.shards.get(shard).map(|shard| shard.version)
    }

    /// Alignment of tensor data in a shard; `None` beyond the last.
    #[must_use]
    pub fn alignment_bytes(&self, shard: usize) -> Option<u32> {
        self.shards.get(shard).map(|shard| shard.alignment_bytes)
    }

    /// Where a shard's data section starts; `None` beyond the last.
    #[must_use]
    pub fn data_start_bytes(&self, shard: usize) -> Option<u64> {
        self.shards.get(shard).map(|shard| shard.data_start_bytes)
    }

    /// Fills a buffer from a shard, starting `offset_bytes` into the file.
    ///
    /// # Errors
    /// [`Error::NoSuchShard`]; [`Error::InFile`] around [`Error::UnexpectedEnd`] if the file ends
    /// first, with what was wanted and got, or around [`Error::Read`]. The buffer's contents are
    /// then unspecified.
    pub fn read_at(&self, shard: usize, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let n_shards = self.shards.len();
        let Shard { file, path, .. } = self
            .shards
            .get(shard)
            .ok_or(Error::NoSuchShard { shard, n_shards })?;
        read_fully(buffer, offset_bytes, |part, at| {
            platform::read_at(file, part, at)
        })
        .map_err(|error| error.in_file(path))
    }

    /// Reads a tensor's data.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; those of [`read_at`](Self::read_at).
    pub fn read_tensor(&self, tensor: &TensorInfo) -> Result<Vec<u8>, Error> {
        let size_bytes = tensor.size_bytes;
        let out_of_memory = || Error::OutOfMemory { size_bytes }.in_tensor(&tensor.name);
        let len = usize::try_from(size_bytes).map_err(|_| out_of_memory())?;
        let mut data = Vec::new();
        data.try_reserve_exact(len).map_err(|_| out_of_memory())?;
        data.resize(len, 0);
        self.read_at(tensor.file, tensor.offset_bytes, &mut data)?;
        Ok(data)
    }

    /// Fills a buffer from a tensor's data, starting `offset_bytes` into the tensor.
    ///
    /// # Errors
    /// [`Error::OutsideTensor`] if the buffer reaches beyond the tensor; those of
    /// [`read_at`](Self::read_at).
    pub fn read_tensor_range(
        &self,
        tensor: &TensorInfo,
        offset_bytes: u64,
        buffer: &mut [u8],
    ) -> Result<(), Error> {
        let (wanted_bytes, size_bytes) = (len_bytes(buffer), tensor.size_bytes);
        let inside = offset_bytes
            .checked_add(wanted_bytes)
            .is_some_and(|end| end <= size_bytes);
        let start = tensor.offset_bytes.checked_add(offset_bytes);
        let Some(start) = start.filter(|_| inside) else {
            let problem = Error::OutsideTensor {
                offset_bytes,
                wanted_bytes,
                size_bytes,
            };
            return Err(problem.in_tensor(&tensor.name));
        };
        self.read_at(tensor.file, start, buffer)
    }

    /// Checks that every file is still the one that was opened: the open handle has its length,
    /// and the path leads to the same file with the same length and time of change.
    ///
    /// A change of contents that keeps all of these is not seen.
    ///
    /// # Errors
    /// [`Error::InFile`] around [`Error::Changed`], naming what changed, or around
    /// [`Error::System`] if the file cannot be looked at any more.
    ///
    /// # Cost
    /// Two metadata calls a shard; no reads.
    pub fn verify_unchanged(&self) -> Result<(), Error> {
        self.shards
            .iter()
            .try_for_each(|shard| shard.verify_unchanged().map_err(|e| e.in_file(&shard.path)))
    }
}

impl Shard {
    fn open(path: &Path) -> Result<(Self, Header), Error> {
        Self::open_bare(path).map_err(|error| error.in_file(path))
    }

    fn open_bare(path: &Path) -> Result<(Self, Header), Error> {
        // Asked before opening, because opening a pipe waits for its other end.
        let on_disk = fs::metadata(path).map_err(|cause| system("open", cause))?;
        if !on_disk.is_file() {
            return Err(Error::NotAFile);
        }
        let file = File::open(path).map_err(|cause| system("open", cause))?;
        let metadata = file.metadata().map_err(|cause| system("examine", cause))?;
        let header = Header::read(&file, metadata.len())?;
        let identity = Identity {
            len_bytes: metadata.len(),
            modified: metadata.modified().ok(),
            file_id: platform::file_id(&metadata),
            header_hash: header.hash(),
        };
        let shard = Self {
            path: path.to_owned(),
            file,
            identity,
            version: header.version(),
            alignment_bytes: header.alignment_bytes(),
            data_start_bytes: header.data_start_bytes(),
        };
        Ok((shard, header))
    }

    fn verify_unchanged(&self) -> Result<(), Error> {
        let opened = &self.identity;
        let open = self
            .file
            .metadata()
            .map_err(|cause| system("examine", cause))?;
        compare("length of the open file", &opened.len_bytes, &open.len())?;
        let named = fs::metadata(&self.path).map_err(|cause| system("find again", cause))?;
        compare(
            "identity on disk",
            &opened.file_id,
            &platform::file_id(&named),
        )?;
        compare("length", &opened.len_bytes, &named.len())?;
        compare(
            "modification time",
            &opened.modified,
            &named.modified().ok(),
        )
    }
}

/// Opens the other shards of a set, in order, around the one that is open.
fn open_all(
    path: &Path,
    place: Place,
    first: Shard,
    header: Header,
) -> Result<(Vec<Shard>, Vec<Header>), Error> {
    let count = place.count;
    let name =
        ShardName::parse(path).ok_or_else(|| Error::NotAShardName { count }.in_file(path))?;
    let check = |place: Place, number: u32, path: &Path| {
        let shard = usize::try_from(number).unwrap_or(usize::MAX);
        split::check_place(place, shard, name.count()).map_err(|e| e.in_file(path))
    };
    check(place, name.number(), path)?;

    let mut opened = Some((first, header));
    let mut shards = Vec::new();
    let mut headers = Vec::new();
    for number in 0..count {
        let (shard, header) = match opened.take_if(|_| number == name.number()) {
            Some(already) => already,
            None => open_sibling(&name.sibling(number), number, count)?,
        };
        let path = &shard.path;
        let place = Place::of(&header).map_err(|e| e.in_file(path))?;
        let alone = Place {
            number: 0,
            count: 0,
            n_tensors: None,
        };
        check(place.unwrap_or(alone), number, path)?;
        shards.push(shard);
        headers.push(header);
    }
    Ok((shards, headers))
}

fn open_sibling(path: &Path, number: u32, count: u32) -> Result<(Shard, Header), Error> {
    Shard::open(path).map_err(|error| match error.root() {
        Error::System { cause, .. } if cause.kind() == ErrorKind::NotFound => Error::MissingShard {
            number: number + 1,
            count,
        }
        .in_file(path),
        _ => error,
    })
}

/// Fills a buffer by positioned reads, through short reads and interruptions.
fn read_fully(
    buffer: &mut [u8],
    offset_bytes: u64,
    mut read: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
) -> Result<(), Error> {
    let wanted_bytes = len_bytes(buffer);
    let mut got_bytes = 0;
    let mut rest = buffer;
    while !rest.is_empty() {
        let at = offset_bytes.saturating_add(got_bytes);
        match read(rest, at) {
            Ok(0) => {
                return Err(Error::UnexpectedEnd {
                    offset_bytes,
                    wanted_bytes,
                    got_bytes,
                });
            }
            Ok(n) => {
                rest = &mut rest[n..];
                got_bytes = wanted_bytes - len_bytes(rest);
            }
            Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
            Err(cause) => {
                return Err(Error::Read {
                    offset_bytes: at,
                    cause,
                });
            }
        }
    }
    Ok(())
}

fn compare<T: PartialEq + std::fmt::Debug>(
    what: &'static str,
    expected: &T,
    found: &T,
) -> Result<(), Error> {
    if expected == found {
        return Ok(());
    }
    let (expected, found) = (format!("{expected:?}"), format!("{found:?}"));
    Err(Error::Changed {
        what,
        expected,
        found,
    })
}

fn system(operation: &'static str, cause: io::Error) -> Error {
    Error::System { operation, cause }
}

fn len_bytes(buffer: &[u8]) -> u64 {
    u64::try_from(buffer.len()).expect("a length in memory fits u64")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads from memory as a bad disk would: one byte short of half each time, interrupted in
    /// between.
    fn stutter(data: &[u8]) -> impl FnMut(&mut [u8], u64) -> io::Result<usize> {
        let mut calls = 0;
        move |buffer, at| {
            calls += 1;
            if calls % 2 == 0 {
                return Err(ErrorKind::Interrupted.into());
            }
            let left = &data[usize::try_from(at).unwrap().min(data.len())..];
            let n = (buffer.len() / 2).max(1).min(left.len());
            buffer[..n].copy_from_slice(&left[..n]);
            Ok(n)
        }
    }

    #[test]
    fn short_and_interrupted_reads_are_continued() {
        let data: Vec<u8> = (0..=255).collect();
        let mut buffer = [0; 100];
        read_fully(&mut buffer, 50, stutter(&data)).unwrap();
        assert_eq!(buffer, data[50..150]);
    }

    #[test]
    fn end_of_file_reports_offset_wanted_and_got() {
        let mut buffer = [0; 100];
        let error = read_fully(&mut buffer, 200, stutter(&[7; 230])).unwrap_err();
        assert!(
            matches!(
                error,
                Error::UnexpectedEnd {
                    offset_bytes: 200,
                    wanted_bytes: 100,
                    got_bytes: 30
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn read_error_names_the_place_it_happened_at() {
        let mut first = true;
        let error = read_fully(&mut [0; 10], 5, |_, _| {
            if std::mem::take(&mut first) {
                Ok(3)
            } else {
                Err(ErrorKind::TimedOut.into())
            }
        })
        .unwrap_err();
        assert!(
            matches!(
                error,
                Error::Read {
                    offset_bytes: 8,
                    ..
                }
            ),
            "{error}"
        );
    }
}

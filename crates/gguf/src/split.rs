//! Split models. Owns: the split keys, shard names, the union of several headers. Does not own:
//! files (`file` opens them).
//! Memory: moves the headers' values; adds nothing but a set of names.
//!
//! Invariants of a [`Model`]: 1. tensor names are unique across shards. 2. Each tensor's `file` is
//! the index of its shard. 3. The metadata has no `split.*` key, so it can be written to one file
//! as it is. Cost: linear in keys and tensors.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::metadata::Metadata;
use crate::read::{ALIGNMENT_KEY, Header};
use crate::tensor::TensorInfo;

/// Key of a shard's number, from 0.
pub const NUMBER_KEY: &str = "split.no";
/// Key of the number of shards.
pub const COUNT_KEY: &str = "split.count";
/// Key of the number of tensors in all shards.
pub const TENSOR_COUNT_KEY: &str = "split.tensors.count";

/// A shard's place in its model, by its metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// Number of the shard, from 0.
    pub number: u32,
    /// Number of shards.
    pub count: u32,
    /// Number of tensors in all shards, if the file says.
    pub n_tensors: Option<u64>,
}

impl Place {
    /// The place of a file among its shards; `None` if it stands alone.
    ///
    /// A `split.count` of 0 stands for a single file too: llama.cpp's merging tool leaves it.
    ///
    /// # Errors
    /// [`Error::WrongType`] or [`Error::OutOfRange`] for keys that are no integers;
    /// [`Error::MissingKey`] for a count without a number; [`Error::SplitNumber`] for a number
    /// that is not below the count.
    pub fn of(header: &Header) -> Result<Option<Self>, Error> {
        let metadata = header.metadata();
        let Some(count) = metadata.opt_u32(COUNT_KEY)?.filter(|&count| count > 0) else {
            return Ok(None);
        };
        let number = metadata.u32(NUMBER_KEY)?;
        if number >= count {
            return Err(Error::SplitNumber {
                expected: count - 1,
                found: number,
            });
        }
        let n_tensors = metadata.opt_u64(TENSOR_COUNT_KEY)?;
        Ok(Some(Self {
            number,
            count,
            n_tensors,
        }))
    }
}

/// Several shards, or one file, seen as one model.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Model {
    /// The first shard's metadata without `split.*`, then keys that only later shards have.
    pub metadata: Metadata,
    /// All tensors, in the order of the shards.
    pub tensors: Vec<TensorInfo>,
}

/// Joins the headers of all shards, in order, or the one header of a single file.
///
/// Later shards need only the split keys. `general.alignment` is each shard's own, and the first
/// shard's is kept; any other key in two shards must have one value.
///
/// # Errors
/// [`Error::SplitCount`], [`Error::SplitNumber`], [`Error::SplitTensorCount`] if a shard is
/// missing, out of place or not of this set; [`Error::MissingKey`] if one of several headers has
/// no split keys; [`Error::DuplicateTensor`], [`Error::SplitConflict`].
pub fn merge(headers: Vec<Header>) -> Result<Model, Error> {
    let n_headers = u32::try_from(headers.len()).unwrap_or(u32::MAX);
    let mut model = Model::default();
    let mut promised = None;
    for (shard, header) in headers.into_iter().enumerate() {
        match Place::of(&header)? {
            Some(place) => {
                check_place(place, shard, n_headers)?;
                promised = promised.or(place.n_tensors);
                if let (Some(expected), Some(found)) = (promised, place.n_tensors)
                    && expected != found
                {
                    return Err(Error::SplitTensorCount { expected, found });
                }
            }
            None if n_headers == 1 => {}
            None => {
                let expected = "the number of shards";
                return Err(Error::MissingKey {
                    key: COUNT_KEY.to_owned(),
                    expected,
                });
            }
        }
        append(&mut model, shard, header)?;
    }

    let found = u64::try_from(model.tensors.len()).unwrap_or(u64::MAX);
    if let Some(expected) = promised.filter(|&expected| expected != found) {
        return Err(Error::SplitTensorCount { expected, found });
    }
    let mut names = HashSet::with_capacity(model.tensors.len());
    match model
        .tensors
        .iter()
        .find(|tensor| !names.insert(tensor.name.as_str()))
    {
        Some(twice) => Err(Error::DuplicateTensor {
            name: twice.name.clone(),
        }),
        None => Ok(model),
    }
}

/// The file name of a shard, taken apart: `PREFIX-00001-of-00003.gguf`.
///
/// ```
/// use std::path::Path;
/// use thalweg_gguf::split::ShardName;
///
/// let name = ShardName::parse(Path::new("models/demo-00002-of-00003.gguf")).unwrap();
/// assert_eq!((name.number(), name.count()), (1, 3));
/// assert_eq!(name.sibling(2), Path::new("models/demo-00003-of-00003.gguf"));
/// assert!(ShardName::parse(Path::new("models/demo.gguf")).is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardName {
    path: PathBuf,
    prefix: String,
    number: u32,
    count: u32,
}

impl ShardName {
    /// Takes a path apart; `None` if its name is not that of a shard.
    #[must_use]
    pub fn parse(path: &Path) -> Option<Self> {
        let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let (number, count) = (five_digits(number)?, five_digits(count)?);
        if number == 0 || number > count {
            return None;
        }
        let (path, prefix) = (path.to_owned(), prefix.to_owned());
        Some(Self {
            path,
            prefix,
            number: number - 1,
            count,
        })
    }

    /// Number of this shard, from 0; the name counts from 1.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Number of shards.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Path of another shard of the set, by its number from 0.
    #[must_use]
    pub fn sibling(&self, number: u32) -> PathBuf {
        let Self { prefix, count, .. } = self;
        let number = u64::from(number) + 1;
        self.path
            .with_file_name(format!("{prefix}-{number:05}-of-{count:05}.gguf"))
    }
}

pub(crate) fn check_place(place: Place, shard: usize, n_shards: u32) -> Result<(), Error> {
    if place.count != n_shards {
        return Err(Error::SplitCount {
            expected: n_shards,
            found: place.count,
        });
    }
    let expected = u32::try_from(shard).unwrap_or(u32::MAX);
    if place.number != expected {
        return Err(Error::SplitNumber {
            expected,
            found: place.number,
        });
    }
    Ok(())
}

fn append(model: &mut Model, shard: usize, header: Header) -> Result<(), Error> {
    let (metadata, tensors) = header.into_parts();
    for (key, value) in metadata.into_entries() {
        if [NUMBER_KEY, COUNT_KEY, TENSOR_COUNT_KEY].contains(&key.as_str()) {
            continue;
        }
        match model.metadata.get(&key) {
            None => model.metadata.insert(key, value)?,
            Some(_) if key == ALIGNMENT_KEY => {}
            Some(earlier) if *earlier == value => {}
            Some(_) => return Err(Error::SplitConflict { shard, key }),
        }
    }
    let placed = tensors.into_iter().map(|mut tensor| {
        tensor.file = shard;
        tensor
    });
    model.tensors.extend(placed);
    Ok(())
}

fn five_digits(text: &str) -> Option<u32> {
    let digits = text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

//! `BundleFile`: a file of bundles, opened, with its header checked.
//!
//! Owns the handle and the header. Does not own slots or reads: [`BundleFile::into_parts`] gives
//! what a store needs. Memory: the header. Invariants: 1. the header was read through the handle
//! that experts will be read through; 2. the file is as long as its header says.
//! Cost: opening reads the header; experts are not looked at, see [`BundleFile::verify`].

use std::path::Path;

use super::header::Prefix;
use super::shape::PREFIX_BYTES;
use super::{BundleFault, BundleHeader, BundleShape};
use crate::{Error, ExpertLayout, FileSet, PreadBackend, Result, Segment};

/// A file of bundles that is ready to be read.
#[derive(Clone, Debug)]
pub struct BundleFile {
    pub(super) files: FileSet,
    pub(super) header: BundleHeader,
}

impl BundleFile {
    /// Opens a file and checks its header and its length.
    ///
    /// # Errors
    /// [`Error::Bundle`] with the path and the first thing found wrong; those of
    /// [`FileSet::open`]; [`Error::Read`], [`Error::UnexpectedEof`].
    ///
    /// # Cost
    /// Reads the header: 16 bytes an expert. Allocates it only if the file is as long.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let faulty = |fault| Error::Bundle {
            path: Some(path.to_owned()),
            fault,
        };
        let files = FileSet::open(&[path])?;
        let found_bytes = files.len_bytes(0).unwrap_or(0);
        let mut reader = PreadBackend::new(files.clone());
        let mut read = |n_bytes: u64| {
            // Not beyond the file, so a length that cannot be addressed does not occur.
            let len_bytes = usize::try_from(n_bytes.min(found_bytes)).unwrap_or(usize::MAX);
            let mut bytes = vec![0; len_bytes];
            let segment = Segment {
                file: 0,
                offset_bytes: 0,
                len_bytes,
                dst_bytes: 0,
            };
            reader.read_segment(&segment, &mut bytes)?;
            Ok::<_, Error>(bytes)
        };
        let prefix = Prefix::decode(&read(PREFIX_BYTES as u64)?).map_err(faulty)?;
        let header = BundleHeader::parse(&read(prefix.header_bytes())?);
        let header = header.map_err(|e| with_path(e, path))?;
        let expected_bytes = header.shape().file_bytes();
        if expected_bytes != found_bytes {
            return Err(faulty(BundleFault::Length {
                expected_bytes,
                found_bytes,
            }));
        }
        Ok(Self { files, header })
    }

    /// Checks that it was made from the model file of this fingerprint, whose experts have this
    /// shape.
    ///
    /// # Errors
    /// [`Error::Bundle`] with both fingerprints, or the first figure that differs.
    pub fn expect(&self, fingerprint: &[u8; 32], shape: &BundleShape) -> Result<()> {
        let found = *self.header.fingerprint();
        if found != *fingerprint {
            return Err(self.faulty(BundleFault::Stale {
                expected: *fingerprint,
                found,
            }));
        }
        let same = self.header.shape().expect(shape);
        same.map_err(|fault| self.faulty(fault))
    }

    /// What it says of itself.
    #[must_use]
    pub const fn header(&self) -> &BundleHeader {
        &self.header
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.files.path(0).unwrap_or_else(|| Path::new(""))
    }

    /// The open file, as a set of one, and where the experts lie in it.
    ///
    /// # Errors
    /// As [`BundleShape::layout`].
    pub fn into_parts(self) -> Result<(FileSet, ExpertLayout)> {
        let layout = self.header.shape().layout()?;
        Ok((self.files, layout))
    }

    pub(super) fn faulty(&self, fault: BundleFault) -> Error {
        Error::Bundle {
            path: Some(self.path().to_owned()),
            fault,
        }
    }
}

/// Adds the path to a fault that was found in bytes.
fn with_path(error: Error, path: &Path) -> Error {
    match error {
        Error::Bundle { path: None, fault } => Error::Bundle {
            path: Some(path.to_owned()),
            fault,
        },
        other => other,
    }
}

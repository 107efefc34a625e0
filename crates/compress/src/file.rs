//! JSON files of this crate: which kind a file is, before anything else is read of it.

use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::{Error, Result};

/// A kind of file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) format: &'static str,
    pub(crate) version: u32,
    /// For messages.
    pub(crate) what: &'static str,
}

#[derive(Deserialize)]
struct Head {
    format: String,
    version: u32,
}

/// Reads a file of a kind.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path, kind: Kind) -> Result<T> {
    let text = std::fs::read_to_string(path).map_err(|source| Error::Io {
        path: path.to_owned(),
        action: "read",
        source,
    })?;
    let json = |source| Error::Json {
        path: path.to_owned(),
        what: kind.what,
        source,
    };
    let head: Head = serde_json::from_str(&text).map_err(json)?;
    let wrong = |field, expected: String, found: String| Error::WrongFile {
        path: path.to_owned(),
        field,
        expected,
        found,
    };
    if head.format != kind.format {
        return Err(wrong("format", kind.format.to_owned(), head.format));
    }
    if head.version != kind.version {
        let found = head.version.to_string();
        return Err(wrong("version", kind.version.to_string(), found));
    }
    serde_json::from_str(&text).map_err(json)
}

/// As hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

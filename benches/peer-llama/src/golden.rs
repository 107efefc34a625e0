//! Reference logits that a folder holds.
//!
//! Owns the reading of both kinds of folder: `manifest.json` with prompts and, in files of f32,
//! logits at some of their positions; or `tokens.txt` with one sequence and `logits.npy` with the
//! logits of all its positions. Does not own comparing. Memory: the folder's logits.
//!
//! Invariants of what is returned
//! 1. There is a prompt, each has a token and a position; positions rise and are below the tokens.
//! 2. Each position has a row of `n_vocab` logits, and every token is below `n_vocab`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// What the reference computed for one prompt.
#[derive(Debug)]
pub(crate) struct Prompt {
    pub name: String,
    pub tokens: Vec<u32>,
    /// Positions that have logits.
    pub positions: Vec<usize>,
    pub n_vocab: usize,
    /// `[n_positions, n_vocab]`.
    logits: Vec<f32>,
}

#[derive(Deserialize)]
struct Manifest {
    prompts: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    name: String,
    tokens: Vec<u32>,
    logits_file: String,
    logits_positions: Vec<usize>,
    n_vocab: usize,
}

impl Prompt {
    /// Positions with their logits, `[n_vocab]` each.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (usize, &[f32])> {
        let rows = self.logits.chunks_exact(self.n_vocab);
        self.positions.iter().copied().zip(rows)
    }

    fn check(self) -> Result<Self> {
        let (name, n, n_vocab) = (&self.name, self.tokens.len(), self.n_vocab);
        ensure!(
            n > 0 && n_vocab > 0,
            "prompt {name:?} has {n} tokens of a vocabulary of {n_vocab}"
        );
        let positions = &self.positions;
        ensure!(
            !positions.is_empty()
                && positions.is_sorted_by(|a, b| a < b)
                && positions.iter().all(|p| *p < n),
            "prompt {name:?} has logits at {positions:?}; rising positions below {n} are expected"
        );
        let beyond = self.tokens.iter().find(|t| **t as usize >= n_vocab);
        ensure!(
            beyond.is_none(),
            "prompt {name:?} has a token beyond its vocabulary of {n_vocab}"
        );
        let (found, expected) = (self.logits.len(), positions.len().checked_mul(n_vocab));
        ensure!(
            Some(found) == expected,
            "prompt {name:?} has {found} logits, {} positions of {n_vocab} are expected",
            positions.len()
        );
        Ok(self)
    }
}

/// Reads a folder.
pub(crate) fn open(folder: &Path) -> Result<Vec<Prompt>> {
    let prompts = match folder.join("tokens.txt").is_file() {
        true => vec![sequence(folder)?],
        false => manifest(folder)?,
    };
    let prompts = prompts.into_iter().map(Prompt::check);
    let prompts: Vec<Prompt> = prompts
        .collect::<Result<_>>()
        .with_context(|| format!("{} is unusable", folder.display()))?;
    ensure!(!prompts.is_empty(), "{} has no prompts", folder.display());
    Ok(prompts)
}

fn manifest(folder: &Path) -> Result<Vec<Prompt>> {
    let path = folder.join("manifest.json");
    let manifest: Manifest = serde_json::from_slice(&read(&path)?)
        .with_context(|| format!("cannot understand {}", path.display()))?;
    let prompt = |entry: Entry| {
        let path = folder.join(&entry.logits_file);
        let logits = floats(&read(&path)?).with_context(|| path.display().to_string())?;
        Ok(Prompt {
            name: entry.name,
            tokens: entry.tokens,
            positions: entry.logits_positions,
            n_vocab: entry.n_vocab,
            logits,
        })
    };
    manifest.prompts.into_iter().map(prompt).collect()
}

fn sequence(folder: &Path) -> Result<Prompt> {
    let path = folder.join("tokens.txt");
    let text = read(&path)?;
    let text = String::from_utf8_lossy(&text);
    let tokens = text.split_whitespace().map(str::parse);
    let tokens = tokens
        .collect::<Result<Vec<u32>, _>>()
        .with_context(|| format!("{} is no list of token ids", path.display()))?;
    let path = folder.join("logits.npy");
    let (shape, logits) = npy(&read(&path)?).with_context(|| path.display().to_string())?;
    let [n_rows, n_vocab] = shape;
    ensure!(
        n_rows == tokens.len(),
        "{} has {n_rows} rows for {} tokens",
        path.display(),
        tokens.len()
    );
    Ok(Prompt {
        name: "sequence".to_owned(),
        positions: (0..n_rows).collect(),
        tokens,
        n_vocab,
        logits,
    })
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

fn floats(bytes: &[u8]) -> Result<Vec<f32>> {
    let (words, rest) = bytes.as_chunks();
    ensure!(rest.is_empty(), "{} bytes are no f32 values", bytes.len());
    Ok(words.iter().map(|word| f32::from_le_bytes(*word)).collect())
}

/// Shape and values of a `.npy` file, version 1, of a matrix of little-endian f32 in C order.
fn npy(bytes: &[u8]) -> Result<([usize; 2], Vec<f32>)> {
    let rest = bytes.strip_prefix(b"\x93NUMPY\x01\x00");
    let rest = rest.context("it is no .npy file of version 1")?;
    let (length, rest) = rest.split_first_chunk().context("it is cut short")?;
    let length = usize::from(u16::from_le_bytes(*length));
    let (header, data) = rest.split_at_checked(length).context("it is cut short")?;
    let header = String::from_utf8_lossy(header);
    ensure!(
        header.contains("'<f4'") && header.contains("'fortran_order': False"),
        "it holds no little-endian f32 in C order: {header}"
    );
    let shape = header.split_once("'shape': (").map(|(_, rest)| rest);
    let shape = shape.and_then(|rest| rest.split_once(')'));
    let numbers = shape.map_or("", |(numbers, _)| numbers).split(',');
    let numbers = numbers.map(str::trim).filter(|n| !n.is_empty());
    let numbers = numbers.map(str::parse).collect::<Result<Vec<usize>, _>>();
    let shape = numbers.ok().and_then(|n| <[usize; 2]>::try_from(n).ok());
    let shape = shape.with_context(|| format!("it holds no matrix: {header}"))?;
    Ok((shape, floats(data)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    fn npy_file(header: &str, values: &[f32]) -> Vec<u8> {
        let length = u16::try_from(header.len()).expect("short").to_le_bytes();
        [
            b"\x93NUMPY\x01\x00",
            &length[..],
            header.as_bytes(),
            &bytes(values),
        ]
        .concat()
    }

    const HEADER: &str = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n";

    #[test]
    fn a_sequence_has_a_row_for_every_token() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, data: &[u8]| {
            fs::write(folder.path().join(name), data).expect("a file");
        };
        write("tokens.txt", b"2 0\n");
        let values = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
        write("logits.npy", &npy_file(HEADER, &values));
        let prompts = open(folder.path()).expect("a golden");
        let rows: Vec<_> = prompts[0].rows().collect();
        assert_eq!(rows, [(0, &values[..3]), (1, &values[3..])]);
        // A token more than rows, a token beyond the vocabulary, fewer values than the shape says.
        write("tokens.txt", b"2 0 1\n");
        assert!(open(folder.path()).is_err());
        write("tokens.txt", b"3 0\n");
        assert!(open(folder.path()).is_err());
        write("tokens.txt", b"2 0\n");
        write("logits.npy", &npy_file(HEADER, &values[1..]));
        assert!(open(folder.path()).is_err());
    }

    #[test]
    fn arrays_of_other_kinds_are_refused() {
        assert!(npy(&npy_file(HEADER, &[0.0; 6])).is_ok());
        for other in [
            HEADER.replace("<f4", "<f8"),
            HEADER.replace("False", "True"),
            HEADER.replace("(2, 3)", "(6,)"),
            HEADER.replace("(2, 3)", "(1, 2, 3)"),
        ] {
            assert!(npy(&npy_file(&other, &[0.0; 6])).is_err(), "{other}");
        }
        assert!(npy(&npy_file(HEADER, &[0.0; 6])[..20]).is_err());
        assert!(npy(b"GGUF").is_err());
    }

    #[test]
    fn a_manifest_that_does_not_fit_its_logits_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("a.f32"), bytes(&[0.5, 0.25])).expect("a file");
        let with = |tokens: &str, positions: &str| {
            let manifest = format!(
                r#"{{"prompts": [{{"name": "a", "tokens": {tokens}, "n_vocab": 2,
                    "logits_file": "a.f32", "logits_positions": {positions}}}]}}"#
            );
            fs::write(folder.path().join("manifest.json"), manifest).expect("a file");
            open(folder.path())
        };
        let prompts = with("[0, 1]", "[1]").expect("a golden");
        assert_eq!(prompts[0].rows().next(), Some((1, &[0.5, 0.25][..])));
        for (tokens, positions) in [
            ("[]", "[0]"),
            ("[0, 1]", "[]"),
            ("[0, 1]", "[2]"),
            ("[0, 1]", "[0, 1]"),
            ("[0, 2]", "[1]"),
        ] {
            assert!(with(tokens, positions).is_err(), "{tokens} {positions}");
        }
        fs::write(folder.path().join("manifest.json"), r#"{"prompts": []}"#).expect("a file");
        assert!(open(folder.path()).is_err());
    }
}

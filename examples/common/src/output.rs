//! Files that flags name: which may be read, which may be replaced, and how a new one appears.
//!
//! Owns the checks; not what is written, nor how it appears (`Unfinished` of the store). Memory: the text that is read or
//! written. Invariants: 1. only a regular file is opened, since opening a pipe waits for its other
//! end; 2. a target is the old file or the whole new one. Cost: metadata calls, and a flush.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use thalweg_store::{Error, Unfinished};

/// Bytes of a regular file.
///
/// # Errors
/// With the path, when there is none, when it is a folder, a pipe or a device, and when it cannot
/// be read.
pub fn read_file(path: &Path) -> Result<Vec<u8>> {
    let failed = || format!("cannot read {}", path.display());
    let metadata = fs::metadata(path).with_context(failed)?;
    ensure!(
        metadata.is_file(),
        "cannot read {}: not a regular file",
        path.display()
    );
    fs::read(path).with_context(failed)
}

/// Text of a regular file.
///
/// # Errors
/// As [`read_file`], and for text that is not UTF-8.
pub fn read_text(path: &Path) -> Result<String> {
    let text = String::from_utf8(read_file(path)?);
    text.with_context(|| format!("cannot read {}: not UTF-8", path.display()))
}

/// Refuses outputs that would replace what nobody wants replaced: anything but a regular file, a
/// file that is also read, and one another. Each path comes with the flag that names it.
///
/// # Errors
/// With the flags and the path; also when the folder of an output is not there.
pub fn check_outputs(outputs: &[(&str, &Path)], inputs: &[(&str, &Path)]) -> Result<()> {
    for (i, &(flag, path)) in outputs.iter().enumerate() {
        let shown = path.display();
        ensure!(path.file_name().is_some(), "{flag} {shown} names no file");
        ensure!(
            folder(path).is_dir(),
            "{flag} {shown}: there is no folder {}",
            folder(path).display()
        );
        if let Ok(there) = fs::symlink_metadata(path) {
            ensure!(
                there.is_file(),
                "{flag} {shown} is {}, which is not replaced; name a regular file or a new one",
                kind(&there)
            );
        }
        for &(input, read) in inputs {
            ensure!(
                !is_same(path, read),
                "{flag} {shown} is also read, as {input}; name another file"
            );
        }
        for &(other, second) in &outputs[..i] {
            ensure!(
                !is_same(path, second),
                "{other} and {flag} are one file, {shown}; name two"
            );
        }
    }
    Ok(())
}

fn kind(metadata: &fs::Metadata) -> &'static str {
    match (metadata.is_symlink(), metadata.is_dir()) {
        (true, _) => "a symbolic link",
        (_, true) => "a folder",
        _ => "a device, a pipe or a socket",
    }
}

/// Whether two paths lead to one file, which may be yet to come.
fn is_same(a: &Path, b: &Path) -> bool {
    let ids = (id(a), id(b));
    place(a) == place(b) || (ids.0.is_some() && ids.0 == ids.1)
}

/// The path without links and dots, as far as it exists.
fn place(path: &Path) -> PathBuf {
    let whole = path.canonicalize();
    let in_folder = || {
        let folder = folder(path).canonicalize().ok()?;
        Some(folder.join(path.file_name()?))
    };
    whole
        .ok()
        .or_else(in_folder)
        .unwrap_or_else(|| path.to_owned())
}

/// What the system tells files apart by, where it has such a thing.
#[cfg(unix)]
fn id(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
fn id(_: &Path) -> Option<(u64, u64)> {
    None
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Writes a file so that it appears whole or not at all. What a killed run leaves, `.NAME.partial`
/// beside the file, the next one takes over.
///
/// # Errors
/// When the system refuses, and while another run writes the same file.
pub fn write_whole(path: &Path, text: &str) -> Result<()> {
    let failed = || format!("cannot write {}", path.display());
    let name = path.file_name().with_context(failed)?;
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(".partial");
    let part = path.with_file_name(hidden);
    let unfinished = match Unfinished::create(part) {
        Err(Error::Busy { .. }) => {
            bail!("cannot write {}: another run is writing it", path.display())
        }
        made => made.with_context(failed)?,
    };
    let mut file = unfinished.file();
    file.write_all(text.as_bytes()).with_context(failed)?;
    unfinished.rename(path).with_context(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(outputs: &[(&str, &Path)], inputs: &[(&str, &Path)]) -> String {
        let error = check_outputs(outputs, inputs).expect_err("refused");
        format!("{error:#}")
    }

    #[test]
    fn an_output_is_no_input_no_other_output_and_nothing_but_a_regular_file() {
        let folder = tempfile::tempdir().expect("writable");
        let at = |name: &str| folder.path().join(name);
        fs::write(at("old"), "old").expect("written");
        let (old, new) = (at("old"), at("new"));
        check_outputs(&[("--out", &old), ("--csv", &new)], &[("--in", &at("x"))]).expect("fine");
        // Another spelling of a file that is there, and of one that is not.
        let spelled = folder.path().join(".").join("old");
        assert!(error(&[("--out", &spelled)], &[("--in", &old)]).contains("as --in"));
        let twice = folder.path().join(".").join("new");
        let said = error(&[("--out", &new), ("--csv", &twice)], &[]);
        assert!(said.contains("--out and --csv are one file"), "{said}");
        assert!(error(&[("--out", folder.path())], &[]).contains("is a folder"));
        assert!(error(&[("--out", &at("no/new"))], &[]).contains("there is no folder"));
        assert!(error(&[("--out", Path::new(""))], &[]).contains("names no file"));
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(&old, at("link")).expect("linked");
            let link = at("link");
            assert!(error(&[("--out", &link)], &[]).contains("a symbolic link"));
            assert!(error(&[("--out", &old)], &[("--in", &link)]).contains("as --in"));
            fs::hard_link(&old, at("hard")).expect("linked");
            assert!(error(&[("--out", &old)], &[("--in", &at("hard"))]).contains("as --in"));
            let socket = at("socket");
            let _listens = std::os::unix::net::UnixListener::bind(&socket).expect("bound");
            assert!(error(&[("--out", &socket)], &[]).contains("a socket"));
            assert!(read_file(&socket).is_err_and(|e| e.to_string().contains("regular")));
        }
    }

    #[test]
    fn a_file_appears_whole_and_what_a_killed_run_left_is_taken_over() {
        let folder = tempfile::tempdir().expect("writable");
        let path = folder.path().join("s.jsonl");
        let part = folder.path().join(".s.jsonl.partial");
        fs::write(&part, "much longer than what comes now").expect("written");
        write_whole(&path, "new").expect("written");
        assert_eq!(read_text(&path).expect("readable"), "new");
        assert!(!part.exists());
        // While another run holds it nothing changes.
        let held = Unfinished::create(part).expect("made");
        let said = format!("{:#}", write_whole(&path, "newer").expect_err("held"));
        assert!(said.contains("another run"), "{said}");
        assert_eq!(read_text(&path).expect("readable"), "new");
        drop(held);
        write_whole(&path, "newer").expect("written");
        assert_eq!(read_text(&path).expect("readable"), "newer");
        assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 1);
    }
}

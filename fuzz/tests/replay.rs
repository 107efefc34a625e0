//! Runs every fuzz target on its seeds and on all inputs that once broke something.

use std::fs;
use std::path::{Path, PathBuf};

use thalweg_fuzz::TARGETS;

#[test]
fn targets_hold_on_seeds_and_regressions() {
    for (name, body) in TARGETS {
        let inputs = [inputs("seeds", name), inputs("regressions", name)].concat();
        for path in inputs {
            let data = fs::read(&path).unwrap();
            println!("{name}: {}", path.display());
            body(&data);
        }
    }
}

#[test]
fn targets_hold_on_nothing_and_on_one_byte() {
    for (name, body) in TARGETS {
        println!("{name}");
        body(&[]);
        for byte in 0..=u8::MAX {
            body(&[byte]);
        }
    }
}

#[test]
fn every_target_has_a_binary_and_seeds() {
    for (name, _) in TARGETS {
        assert!(
            folder()
                .join("fuzz_targets")
                .join(name)
                .with_extension("rs")
                .is_file(),
            "{name}"
        );
        assert!(!inputs("seeds", name).is_empty(), "{name} has no seeds");
    }
    let targets = fs::read_dir(folder().join("fuzz_targets")).unwrap().count();
    assert_eq!(targets, TARGETS.len());
}

/// Files below `kind`/`target`, in order. A file whose name ends in `.md` is a note.
fn inputs(kind: &str, target: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder().join(kind).join(target)) else {
        return Vec::new();
    };
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_none_or(|end| end != "md"))
        .collect();
    paths.sort();
    paths
}

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

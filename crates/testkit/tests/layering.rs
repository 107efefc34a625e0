//! Who may depend on whom. Owns: the table of arrows between the workspace's crates, compared with
//! `cargo metadata` and with the drawing in `docs/architecture.md`.
//!
//! To add an arrow, add it here and there; to add a crate, give it a row.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// A library crate without its prefix, its level, and the crates that it may depend on.
const ARROWS: &[(&str, u8, &[&str])] = &[
    ("gguf", 0, &[]),
    ("quant", 0, &[]),
    ("cache", 0, &[]),
    ("trace", 0, &[]),
    ("text", 0, &[]),
    ("backend", 1, &["quant"]),
    ("store", 1, &["cache"]),
    ("wgpu", 2, &["quant", "cache", "backend"]),
    ("model", 2, &["gguf", "quant", "backend"]),
    (
        "runtime",
        3,
        &[
            "model", "store", "cache", "trace", "backend", "gguf", "quant",
        ],
    ),
    (
        "compress",
        4,
        &["runtime", "model", "backend", "gguf", "quant"],
    ),
    ("eval", 4, &["runtime", "trace", "cache", "text", "gguf"]),
    (
        "thalweg",
        4,
        &["runtime", "gguf", "cache", "text", "backend"],
    ),
    ("testkit", 1, &["gguf", "quant"]),
];

/// Crates that strangers shall be able to use with little: all that they may have from outside.
const OUTSIDE: &[(&str, &[&str])] = &[
    ("gguf", &["thiserror"]),
    ("quant", &["bytemuck", "half", "thiserror"]),
    ("cache", &[]),
    ("trace", &[]),
];

/// Binaries that write the testkit's models for people.
const WRITERS: &[&str] = &["synth"];

/// Folders whose packages may depend on any library and on which none may depend.
const TOPS: &[&str] = &["examples", "benches"];

#[test]
fn dependencies_follow_the_arrows() {
    for package in packages() {
        let Some((_, allowed)) = rule(&package) else {
            continue;
        };
        for dependency in package.normal.iter().filter_map(|name| ours(name)) {
            assert!(
                allowed.contains(&dependency),
                "{} may not depend on {dependency}: it may on {allowed:?}",
                package.name,
            );
        }
    }
}

#[test]
fn every_package_has_a_place() {
    let packages = packages();
    for package in &packages {
        let known = rule(package).is_some() || is_top(package);
        assert!(
            known,
            "{} is neither in ARROWS nor in {TOPS:?}",
            package.name
        );
    }
    for (name, ..) in ARROWS {
        let exists = packages
            .iter()
            .any(|package| ours(&package.name) == Some(name));
        assert!(exists, "ARROWS lists {name}, which is not in the workspace");
    }
}

#[test]
fn nothing_depends_on_binaries() {
    let packages = packages();
    let tops: Vec<&str> = packages
        .iter()
        .filter(|p| is_top(p))
        .map(|p| p.name.as_str())
        .collect();
    assert!(!tops.is_empty());
    for package in packages.iter().filter(|package| !is_top(package)) {
        for name in package.normal.iter().chain(&package.dev) {
            assert!(
                !tops.contains(&name.as_str()),
                "{} depends on {name}",
                package.name
            );
        }
    }
}

#[test]
fn only_tests_and_writers_depend_on_the_testkit() {
    for package in packages() {
        let writes = is_top(&package) && WRITERS.contains(&package.name.as_str());
        assert!(
            writes
                || !package
                    .normal
                    .iter()
                    .any(|name| ours(name) == Some("testkit")),
            "{} has the testkit outside its dev-dependencies",
            package.name,
        );
    }
}

#[test]
fn tests_depend_on_the_testkit_and_downwards() {
    for package in packages() {
        let Some((level, _)) = rule(&package) else {
            continue;
        };
        for dependency in package.dev.iter().filter_map(|name| ours(name)) {
            let below = level_of(dependency).is_some_and(|l| l <= level);
            assert!(
                dependency == "testkit" || below,
                "tests of {} (level {level}) may not depend on {dependency}",
                package.name,
            );
        }
    }
}

#[test]
fn arrows_point_down() {
    for (name, level, allowed) in ARROWS {
        for dependency in *allowed {
            let below = level_of(dependency).expect("arrows lead to crates of the table");
            assert!(
                below < *level,
                "{name} (level {level}) -> {dependency} (level {below})"
            );
        }
    }
}

#[test]
fn small_crates_stay_small() {
    let packages = packages();
    for (name, allowed) in OUTSIDE {
        let package = packages
            .iter()
            .find(|package| ours(&package.name) == Some(name));
        for dependency in &package.expect("the table names members").normal {
            assert!(
                allowed.contains(&dependency.as_str()),
                "{name} depends on {dependency}"
            );
        }
    }
}

#[test]
fn the_drawing_shows_these_arrows() {
    let path = root().join("docs/architecture.md");
    let text = std::fs::read_to_string(&path).expect("docs/architecture.md is readable");
    let drawn: BTreeMap<String, Vec<String>> = text
        .lines()
        .skip_while(|line| *line != "```arrows")
        .skip(1)
        .take_while(|line| *line != "```")
        .filter_map(|line| line.split_once("->"))
        .map(|(from, to)| (from.trim().to_owned(), sorted(to.split(',').map(str::trim))))
        .collect();
    let table: BTreeMap<String, Vec<String>> = ARROWS
        .iter()
        .filter(|(_, _, to)| !to.is_empty())
        .map(|(from, _, to)| ((*from).to_owned(), sorted(to.iter().copied())))
        .collect();
    assert_eq!(
        drawn, table,
        "docs/architecture.md (left) and ARROWS (right) differ"
    );
}

/// What this test needs of a workspace member.
struct Package {
    name: String,
    /// First folder of its path below the workspace.
    folder: String,
    normal: Vec<String>,
    dev: Vec<String>,
}

fn packages() -> Vec<Package> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--offline",
            "--no-deps",
            "--format-version",
            "1",
        ])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let packages = metadata["packages"]
        .as_array()
        .expect("cargo lists the packages");
    packages.iter().map(package).collect()
}

fn package(value: &Value) -> Package {
    let text = |value: &Value| value.as_str().expect("cargo gives text here").to_owned();
    let manifest = PathBuf::from(text(&value["manifest_path"]));
    let below = manifest
        .strip_prefix(root())
        .expect("members lie in the workspace");
    let folder = below
        .components()
        .next()
        .expect("a manifest has a name")
        .as_os_str();
    let dependencies = value["dependencies"]
        .as_array()
        .expect("cargo lists the dependencies");
    let of_kind = |wanted: &[&str]| {
        let kind = |d: &Value| d["kind"].as_str().unwrap_or("normal").to_owned();
        let chosen = dependencies
            .iter()
            .filter(|d| wanted.contains(&kind(d).as_str()));
        chosen.map(|d| text(&d["name"])).collect()
    };
    Package {
        name: text(&value["name"]),
        folder: folder.to_string_lossy().into_owned(),
        normal: of_kind(&["normal", "build"]),
        dev: of_kind(&["dev"]),
    }
}

/// Level and allowed dependencies of a library crate.
fn rule(package: &Package) -> Option<(u8, &'static [&'static str])> {
    let name = ours(&package.name)?;
    let row = ARROWS.iter().find(|(known, ..)| *known == name)?;
    Some((row.1, row.2))
}

fn level_of(name: &str) -> Option<u8> {
    ARROWS
        .iter()
        .find(|(known, ..)| *known == name)
        .map(|(_, level, _)| *level)
}

fn is_top(package: &Package) -> bool {
    TOPS.contains(&package.folder.as_str())
}

/// The name without the workspace's prefix, if it is a crate of ours.
fn ours(name: &str) -> Option<&str> {
    if name == "thalweg" {
        Some(name)
    } else {
        name.strip_prefix("thalweg-")
    }
}

fn sorted<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort();
    names
}

fn root() -> &'static Path {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    folder
        .ancestors()
        .nth(2)
        .expect("this crate lies two folders below the workspace")
}

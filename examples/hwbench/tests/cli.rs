//! The binary on a file of 8 MiB: what it prints and what it leaves behind.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use thalweg_eval::HostConstants;

fn hwbench(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hwbench"))
        .args(["drive", "--size", "8MiB", "--seconds", "0.5", "--dir"])
        .arg(dir)
        .args(args)
        .output()
        .expect("starts")
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("temporary folder")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn host(output: &Output) -> HostConstants {
    assert!(output.status.success(), "{}", text(&output.stderr));
    HostConstants::from_json(&text(&output.stdout)).expect("a host's constants")
}

#[test]
fn the_json_has_a_point_for_each_way_of_reading_and_the_file_is_gone() {
    let folder = folder();
    let blocks = ["--block", "65536,1MiB"];
    let output = hwbench(
        folder.path(),
        &[&["--json", "--threads", "1,3"], &blocks[..]].concat(),
    );
    let host = host(&output);
    let ways: Vec<_> = host
        .drive
        .iter()
        .map(|p| (p.threads, p.block_bytes))
        .collect();
    assert_eq!(ways, [(1, 65_536), (3, 65_536), (1, 1 << 20), (3, 1 << 20)]);
    for point in &host.drive {
        assert_eq!(point.queue_depth, 1);
        assert!(point.gb_per_s > 0.0);
        let proven = point
            .physical_ratio
            .is_some_and(|r| (r - 1.0).abs() <= 0.01);
        assert_eq!(point.cached, !proven);
    }
    for fact in [
        "command",
        "cores",
        "date",
        "drive",
        "drive_file",
        "drive_reads",
        "os",
    ] {
        assert!(host.facts.contains_key(fact), "{fact}");
    }
    // The folder's name is nobody's business.
    let command = &host.facts["command"];
    assert!(command.contains("--dir DIR --size 8388608"), "{command}");
    assert_eq!(host.gemm, None);
    assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 0);
}

#[test]
fn readers_of_the_store_have_rows_of_their_own() {
    use thalweg_eval::DriveReader::{Pool, Pread, Uring};
    let folder = folder();
    let args = ["--json", "--threads", "2,3", "--block", "65536", "--reader"];
    let ways = |output: &Output| -> Vec<_> {
        let points = host(output).drive;
        let way = |p: &thalweg_eval::DrivePoint| (p.reader, p.threads, p.queue_depth);
        points.iter().map(way).collect()
    };
    let output = hwbench(folder.path(), &[&args[..], &["pread,pool"]].concat());
    assert!(text(&output.stderr).contains("one row a block"));
    assert!(host(&output).facts["command"].contains("--reader pread,pool"));
    let expected = [(Some(Pread), 1, 1), (Some(Pool), 2, 1), (Some(Pool), 3, 1)];
    assert_eq!(ways(&output), expected);

    let output = hwbench(folder.path(), &[&args[..], &["uring"]].concat());
    if output.status.success() {
        assert_eq!(ways(&output), [(Some(Uring), 1, 2), (Some(Uring), 1, 3)]);
    } else {
        let stderr = text(&output.stderr);
        assert!(
            stderr.contains("--reader uring: io_uring cannot"),
            "{stderr}"
        );
    }

    let unknown = hwbench(folder.path(), &[&args[..], &["pool,mmap"]].concat());
    let stderr = text(&unknown.stderr);
    assert!(
        stderr.contains("\"mmap\"; known are pread, pool, uring"),
        "{stderr}"
    );
    assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 0);
}

#[test]
fn a_kept_file_is_used_again() {
    let folder = folder();
    let args = ["--json", "--threads", "1", "--block", "1MiB"];
    let first = hwbench(folder.path(), &[&args[..], &["--keep"]].concat());
    assert!(host(&first).facts["drive_file"].contains("made for this run"));
    assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 1);
    let second = hwbench(folder.path(), &args);
    assert!(host(&second).facts["drive_file"].contains("earlier run"));
    assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 0);
}

#[test]
fn rows_on_bytes_that_were_read_before_are_named() {
    let folder = folder();
    let args = ["--threads", "1,1,2", "--block", "1MiB", "--slice", "4MiB"];
    let output = hwbench(folder.path(), &[&args[..], &["--json"]].concat());
    assert_eq!(host(&output).facts["drive_read_again"], "entries 2");
    let stderr = text(&output.stderr);
    assert!(
        stderr.contains("0 of the file have not been read"),
        "{stderr}"
    );

    let table = hwbench(folder.path(), &args);
    let stdout = text(&table.stdout);
    let marked: Vec<_> = stdout
        .lines()
        .filter(|l| l.ends_with("read again"))
        .collect();
    assert_eq!(marked.len(), 1, "{stdout}");
}

#[test]
fn impossible_wishes_are_refused_with_the_figure() {
    let folder = folder();
    for (args, expected) in [
        (&["--slice", "9MiB", "--block", "1MiB"][..], "8388608"),
        (
            &["--block", "5000"],
            "--block 5000 is not a positive multiple of 4096",
        ),
        (&["--block", "0"], "--block 0"),
        (&["--threads", "0"], "--threads"),
        (&["--threads", "257"], "at most 256"),
        (&["--seconds=-1"], "--seconds"),
        (&["--seconds", "nan"], "--seconds"),
    ] {
        let output = hwbench(folder.path(), args);
        assert!(!output.status.success(), "{args:?}");
        let stderr = text(&output.stderr);
        assert!(stderr.contains(expected), "{args:?}: {stderr}");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 0);

    let missing = hwbench(&folder.path().join("missing"), &[]);
    assert!(text(&missing.stderr).contains("missing"));
    let no_folder = Command::new(env!("CARGO_BIN_EXE_hwbench"))
        .output()
        .expect("starts");
    assert!(text(&no_folder.stderr).contains("--dir"));
}

#[test]
fn matrix_products_need_no_folder() {
    let output = Command::new(env!("CARGO_BIN_EXE_hwbench"))
        .args(["gemm", "--seconds", "2.5", "--json"])
        .output()
        .expect("starts");
    let host = host(&output);
    assert_eq!(host.drive, []);
    let gemm = host.gemm.expect("two buckets");
    assert!(gemm.flops_per_s > 1e6);
    assert_eq!(host.facts["command"], "hwbench gemm --seconds 2.5");
}

#[cfg(target_os = "linux")]
#[test]
fn what_cannot_be_printed_is_reported_without_a_panic() {
    let full = || fs::File::options().write(true).open("/dev/full");
    let run = |args: &[&str], stderr_too: bool| {
        let folder = folder();
        let mut command = Command::new(env!("CARGO_BIN_EXE_hwbench"));
        command.args(["drive", "--size", "8MiB", "--seconds", "0.5", "--dir"]);
        command
            .arg(folder.path())
            .args(["--threads", "1"])
            .args(args);
        command.stdout(full().expect("there"));
        if stderr_too {
            command.stderr(full().expect("there"));
        }
        command.output().expect("starts")
    };
    for args in [&["--json"][..], &[]] {
        let output = run(args, false);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(
            error.contains("error: ") && !error.contains("panicked"),
            "{error}"
        );
    }
    // A panic would end with 101.
    assert_eq!(run(&["--json"], true).status.code(), Some(1));
}

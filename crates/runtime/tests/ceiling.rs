//! The budget as a hard ceiling: a model of four times the budget runs in a control group that the
//! system kills when it takes more.
//!
//! Each test runs its own executable again, so that what is measured is one engine in a fresh
//! process. Where no memory control group can be made (that takes root or a delegated group) the
//! peak of resident memory alone decides, and a line says so.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use thalweg_runtime::{
    CpuBackend, CpuOptions, Engine, EngineOptions, Silent, available_memory_bytes,
};
use thalweg_testkit::SmallModel;

const MIB: u64 = 1 << 20;
const BUDGET_BYTES: u64 = 24 * MIB;
/// Code, stacks, metadata of the file: what a program takes beside its budget.
const MARGIN_BYTES: u64 = 32 * MIB;
const N_PROMPT: u32 = 200;
const N_DECODED: u32 = 16;

/// Tells the executable that it is the measured process, and of which model.
const MODEL: &str = "THALWEG_CEILING_MODEL";
/// Budget in bytes; not set for the default one.
const BUDGET: &str = "THALWEG_CEILING_BUDGET";
/// Folder of the control group to enter.
const GROUP: &str = "THALWEG_CEILING_GROUP";
/// Exit code of a process that may not enter its group.
const NOT_ENTERED: i32 = 42;

#[test]
fn a_model_of_four_times_the_budget_stays_below_it_and_answers_the_same() {
    if let Some(model) = std::env::var_os(MODEL) {
        measured_run(Path::new(&model));
    }
    let this = "a_model_of_four_times_the_budget_stays_below_it_and_answers_the_same";
    let (_dir, model) = large_model();
    let file_bytes = fs::metadata(&model).unwrap().len();
    assert!(file_bytes >= 4 * BUDGET_BYTES, "{file_bytes} bytes");

    let (small, how) = limited(
        this,
        &model,
        Some(BUDGET_BYTES),
        BUDGET_BYTES + MARGIN_BYTES,
    );
    let large = report(&run(this, &model, Some(1 << 30), None));
    println!(
        "{how}: budget {BUDGET_BYTES}, peak above the start {}; budget {}, peak {}",
        small.peak_bytes,
        1 << 30,
        large.peak_bytes
    );
    assert_eq!(small.budget_bytes, BUDGET_BYTES);
    assert!(
        small.peak_bytes <= BUDGET_BYTES + MARGIN_BYTES,
        "{how}: {} bytes above the start",
        small.peak_bytes
    );
    assert!(small.misses > large.misses, "nothing was evicted");
    assert_eq!(small.logits, large.logits);
    // Were this not so, the measure would see nothing.
    assert!(large.peak_bytes > BUDGET_BYTES + MARGIN_BYTES);
}

#[test]
fn a_small_limit_makes_a_small_default_budget() {
    if let Some(model) = std::env::var_os(MODEL) {
        measured_run(Path::new(&model));
    }
    let this = "a_small_limit_makes_a_small_default_budget";
    let (_dir, model) = large_model();
    let limit = 96 * MIB;
    let (found, how) = limited(this, &model, None, limit);
    println!("{how}: default budget {}", found.budget_bytes);
    // By its own account when it started; opening the file took some of it before the engine asked.
    let (available, budget) = (found.available_bytes, found.budget_bytes);
    let facts = format!("{how}: {available} bytes available, default budget {budget}");
    assert!(budget <= available / 100 * 80, "{facts}");
    assert!(budget >= available / 100 * 60, "{facts}");
    if how.in_group() {
        assert!(available <= limit && available > limit / 2, "{facts}");
        assert!(budget <= limit / 4 * 3, "{facts}");
    }
}

/// What the measured process says.
struct Report {
    budget_bytes: u64,
    /// Available before the model was opened.
    available_bytes: u64,
    /// Largest resident memory less that before the model was opened.
    peak_bytes: u64,
    misses: u64,
    /// Bits of the last logits.
    logits: String,
}

/// How a run was held to its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    Group1,
    Group2,
    Sampling,
}

impl Held {
    fn in_group(self) -> bool {
        self != Self::Sampling
    }
}

impl std::fmt::Display for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Group1 => "limited by a memory control group, version 1",
            Self::Group2 => "limited by a memory control group, version 2",
            Self::Sampling => {
                "NOT LIMITED: no memory control group can be made here, so only the peak of \
                 resident memory (VmHWM) is looked at"
            }
        })
    }
}

/// The measured process: enters its group, runs the model, reports and ends.
fn measured_run(model: &Path) -> ! {
    if let Some(group) = std::env::var_os(GROUP) {
        let entered = fs::write(
            Path::new(&group).join("cgroup.procs"),
            std::process::id().to_string(),
        );
        if entered.is_err() {
            std::process::exit(NOT_ENTERED);
        }
    }
    let available_bytes = available_memory_bytes().unwrap_or(0);
    let start_bytes = status_bytes("VmRSS:");
    let budget_bytes = std::env::var(BUDGET).ok().map(|b| b.parse().unwrap());
    let options = EngineOptions {
        budget_bytes,
        n_ctx: 256,
        ..EngineOptions::default()
    };
    let backend = CpuBackend::new(CpuOptions { n_threads: 2 }).unwrap();
    let mut engine = Engine::open(model, backend, options).unwrap();
    let mut session = engine.session().unwrap();
    let tokens: Vec<u32> = (0..N_PROMPT + N_DECODED)
        .map(|i| (i * 197 + 5) % 512)
        .collect();
    let (prompt, decoded) = tokens.split_at(N_PROMPT as usize);
    engine.prefill(&mut session, prompt, &mut Silent).unwrap();
    for token in decoded {
        engine.decode(&mut session, *token).unwrap();
    }
    let peak_bytes = status_bytes("VmHWM:").saturating_sub(start_bytes);
    let logits: Vec<String> = session
        .logits()
        .iter()
        .map(|z| {
            assert!(z.is_finite());
            format!("{:08x}", z.to_bits())
        })
        .collect();
    println!(
        "\nreport {} {available_bytes} {peak_bytes} {} {}",
        engine.plan().budget_bytes,
        engine.stats().misses,
        logits.concat()
    );
    std::process::exit(0);
}

/// A figure of `/proc/self/status`.
fn status_bytes(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix(name)).unwrap();
    let kib: u64 = line
        .trim()
        .strip_suffix("kB")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    kib * 1024
}

/// 4 layers of 256 experts of 98 KB, of which the system has nothing in memory.
fn large_model() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("large.gguf");
    let model = SmallModel {
        n_expert: 256,
        ..SmallModel::default()
    };
    model.write(&path).unwrap();
    let file = File::open(&path).unwrap();
    file.sync_all().unwrap();
    // Pages that this process brought in would not count against the group that reads them.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    (dir, path)
}

/// Runs a test's executable again as the measured process.
fn run(test: &str, model: &Path, budget: Option<u64>, group: Option<&Path>) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .env(MODEL, model);
    command.env_remove(BUDGET).env_remove(GROUP);
    if let Some(budget) = budget {
        command.env(BUDGET, budget.to_string());
    }
    if let Some(group) = group {
        command.env(GROUP, group);
    }
    command.output().unwrap()
}

/// Runs the measured process in a control group if there can be one.
fn limited(test: &str, model: &Path, budget: Option<u64>, limit: u64) -> (Report, Held) {
    if let Some(group) = Group::make(limit) {
        let output = run(test, model, budget, Some(&group.folder));
        if output.status.code() != Some(NOT_ENTERED) {
            let peak = group.peak_bytes();
            println!(
                "{}: the group's peak, page cache included: {peak:?} of {limit}",
                group.held
            );
            assert!(peak.is_none_or(|peak| peak <= limit), "{peak:?} of {limit}");
            return (report(&output), group.held);
        }
    }
    let how = Held::Sampling;
    eprintln!("{how}");
    (report(&run(test, model, budget, None)), how)
}

fn report(output: &Output) -> Report {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    // A process that the system killed for its memory has no exit code.
    assert!(
        output.status.success(),
        "{}\n{text}\n{errors}",
        output.status
    );
    let line = text.lines().find_map(|l| l.strip_prefix("report "));
    let fields: Vec<&str> = line.expect("a report").split(' ').collect();
    let number = |i: usize| fields[i].parse().unwrap();
    Report {
        budget_bytes: number(0),
        available_bytes: number(1),
        peak_bytes: number(2),
        misses: number(3),
        logits: fields[4].to_owned(),
    }
}

/// A memory control group; dropping it removes it.
struct Group {
    folder: PathBuf,
    held: Held,
}

impl Group {
    /// A group below this process's own, or below the root of the hierarchy.
    fn make(limit: u64) -> Option<Self> {
        let text = fs::read_to_string("/proc/self/cgroup").ok()?;
        let mut parents = Vec::new();
        for line in text.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            let (root, held) = match controllers {
                "" => ("/sys/fs/cgroup", Held::Group2),
                c if c.split(',').any(|c| c == "memory") => ("/sys/fs/cgroup/memory", Held::Group1),
                _ => continue,
            };
            parents.push((format!("{root}{path}"), held));
            parents.push((root.to_owned(), held));
        }
        let mut tried = parents
            .iter()
            .filter_map(|(p, held)| Self::below(p, *held, limit));
        tried.next()
    }

    fn below(parent: &str, held: Held, limit: u64) -> Option<Self> {
        let thread = std::thread::current();
        // Two tests of one process run side by side.
        let tag = thread.name().map_or(0, |n| n.len());
        let name = format!("thalweg-ceiling-{}-{tag}", std::process::id());
        let file = match held {
            Held::Group1 => "memory.limit_in_bytes",
            Held::Group2 => "memory.max",
            Held::Sampling => return None,
        };
        let folder = Path::new(parent).join(name);
        fs::create_dir(&folder).ok()?;
        let group = Self { folder, held };
        // A plain folder, or a group without the memory controller, has no such file.
        let limit_file = group.folder.join(file);
        let limited = limit_file.is_file() && fs::write(&limit_file, limit.to_string()).is_ok();
        limited.then_some(group)
    }

    /// Largest memory of the group, if the system keeps it.
    fn peak_bytes(&self) -> Option<u64> {
        let names = ["memory.max_usage_in_bytes", "memory.peak"];
        let texts = names.map(|name| fs::read_to_string(self.folder.join(name)).ok());
        texts
            .into_iter()
            .flatten()
            .find_map(|t| t.trim().parse().ok())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The system takes a moment to let go of a process that has ended.
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("cannot remove the control group {}", self.folder.display());
    }
}

//! A run in a process of its own, inside a control group.
//!
//! Owns the child from its start to its end, including the end that a time limit or Ctrl-C makes.
//! The child is this program with another command; it answers with one line of JSON. It joins its
//! group first, so that everything it touches is charged to it, and it dies with its parent.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::group::{self, Group, Parent};
use crate::work::Outcome;

const POLL: Duration = Duration::from_millis(20);

/// Set by Ctrl-C.
pub(crate) static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Where a child runs and where it leaves its logits.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Place {
    /// Control group to join
    #[arg(long, value_name = "DIR")]
    pub group: PathBuf,

    /// File for the last logits
    #[arg(long, value_name = "FILE")]
    pub logits: PathBuf,
}

impl Place {
    /// What a child does first.
    pub(crate) fn enter(&self) -> Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        group::join(&self.group)
    }
}

/// What a child answered and what its group came to.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub outcome: Outcome,
    pub group_peak_bytes: Option<u64>,
}

/// Runs this program with `command` and `flags` under a memory limit.
pub(crate) fn run(
    parent: &Parent,
    limit_bytes: u64,
    time_limit: Duration,
    command: &str,
    flags: Vec<OsString>,
    logits: &Path,
) -> Result<Run> {
    let group = Group::create(parent, limit_bytes)?;
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut child = Command::new(program)
        .arg(command)
        .args(flags)
        .arg("--group")
        .arg(group.path())
        .arg("--logits")
        .arg(logits)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start a child")?;
    let Some(mut stdout) = child.stdout.take() else {
        bail!("a child without output");
    };
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).map(|_| text)
    });
    let status = wait(&mut child, time_limit);
    // The pipe ends with the child, so this returns.
    let text = reader.join().ok().and_then(Result::ok).unwrap_or_default();
    let status = status.with_context(|| format!("{command} did not finish"))?;
    if !status.success() {
        let kills = group.oom_kills();
        if kills > 0 {
            bail!("{command} needs more than {limit_bytes} bytes: the kernel killed it");
        }
        bail!("{command} failed: {status}");
    }
    let outcome = serde_json::from_str(text.trim())
        .with_context(|| format!("{command} answered {:?}", text.trim()))?;
    Ok(Run {
        outcome,
        group_peak_bytes: group.peak_bytes(),
    })
}

/// Waits for a child, and kills it when its time is up or nobody wants its answer any more.
fn wait(child: &mut Child, time_limit: Duration) -> Result<ExitStatus> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let interrupted = INTERRUPTED.load(Ordering::Relaxed);
        if interrupted || start.elapsed() > time_limit {
            // It may have ended by itself just now.
            let _ = child.kill();
            child.wait()?;
            if interrupted {
                bail!("interrupted");
            }
            bail!("not done after {} s (--time-limit)", time_limit.as_secs());
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_takes_too_long_is_killed() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
        let start = Instant::now();
        let error = wait(&mut child, Duration::from_millis(50)).expect_err("too long");
        assert!(start.elapsed() < Duration::from_secs(10));
        assert!(error.to_string().contains("--time-limit"), "{error}");
        let status = child.try_wait().expect("reaped").expect("ended");
        assert!(!status.success());
    }
}

//! Long work on files: a bar of bytes that an interrupt ends, and the look at the free space first.
//!
//! Owns the bar and the flag that the interrupt sets; not the work. Memory: none. An interrupt only
//! asks: the work ends at its next step, and cleans up after itself.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar comes when the work takes longer than this.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether the user has asked the program to end.
#[derive(Debug, Clone)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens from now on; the first call of a program must be its only one.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn listen() -> Result<Self> {
        let asked = Self(Arc::new(AtomicBool::new(false)));
        let flag = Arc::clone(&asked.0);
        ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed))
            .context("cannot listen for interrupts")?;
        Ok(asked)
    }

    /// `Break` once the user has asked.
    pub fn flow(&self) -> ControlFlow<()> {
        match self.0.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

/// A bar over bytes with the time left, drawn on standard error where that is a terminal.
#[derive(Debug)]
pub struct ByteBar {
    bar: ProgressBar,
    start: Instant,
}

impl ByteBar {
    /// A bar that is drawn from its third second on.
    #[must_use]
    pub fn new(what: &'static str) -> Self {
        let bar = ProgressBar::hidden();
        let style = "{msg} {wide_bar} {bytes}/{total_bytes}, {decimal_bytes_per_sec}, {eta} left";
        // The template is a constant; an unusable one would show as the default style.
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        bar.set_message(what);
        Self {
            bar,
            start: Instant::now(),
        }
    }

    /// `done` of `total` bytes.
    pub fn update(&self, done: u64, total: u64) {
        if self.bar.is_hidden() && self.start.elapsed() > PATIENCE {
            self.bar
                .set_draw_target(ProgressDrawTarget::stderr_with_hz(4));
        }
        self.bar.set_length(total);
        self.bar.set_position(done);
        if done >= total {
            // What the system holds back goes to the drive now.
            self.bar.set_message("waiting for the drive");
        }
    }

    /// Takes the bar away; returns how long the work took.
    pub fn finish(self) -> Duration {
        self.bar.finish_and_clear();
        self.start.elapsed()
    }
}

/// Refuses a file of `bytes` bytes that the drive has no room for. An old file at the target still
/// counts: it goes only when the new one is complete.
///
/// # Errors
/// With both figures; when the folder cannot be looked at.
pub fn check_space(out: &Path, bytes: u64) -> Result<()> {
    let folder = match out.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let facts = rustix::fs::statvfs(folder)
        .with_context(|| format!("cannot write to the folder {}", folder.display()))?;
    let free = facts.f_bavail.saturating_mul(facts.f_frsize);
    if free < bytes {
        let gb = |bytes: u64| format!("{:.2} GB", bytes as f64 / 1e9);
        bail!(
            "the file has {}, the drive of {} has {} left",
            gb(bytes),
            folder.display(),
            gb(free)
        );
    }
    Ok(())
}

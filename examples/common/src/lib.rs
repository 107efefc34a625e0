//! What the binaries share: the flags that open a model, progress on a terminal, statistics as text
//! and JSON, and the live view. No algorithm lives here.

mod args;
#[cfg(feature = "gpu")]
mod device;
mod flags;
mod live;
mod output;
mod progress;
mod stats;
mod work;

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;

pub use args::{ModelArgs, Switch};
#[cfg(feature = "gpu")]
pub use device::{BackendKind, Device, DeviceArgs};
pub use flags::{count, note_budget, parse, whole};
pub use live::Live;
pub use output::{check_outputs, read_file, read_text, write_whole};
pub use progress::CountBar;
pub use stats::{PerToken, Settings, StatsFormat, or_na, print_stats, stats_json};
pub use work::{ByteBar, Interrupt, check_space};

/// Runs a binary: an error is one line on standard error and exit code 1, and a reader that had
/// enough (`| head`) is no error.
pub fn report(result: Result<bool>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) if is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            // Where standard error is closed or full, nobody can be told.
            let _ = writeln!(std::io::stderr(), "error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// Writes a line to standard output.
///
/// # Errors
/// When it cannot be written; [`report`] knows a reader that had enough.
pub fn print_line(line: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{line}")?;
    Ok(())
}

/// Writes a line whose reader may have had enough (`| head -1`): that is no error, and the binary
/// goes on, since its exit code says what it found.
///
/// # Errors
/// When it cannot be written for another reason.
pub fn print_if_read(line: &str) -> Result<()> {
    match print_line(line) {
        Err(e) if is_broken_pipe(&e) => Ok(()),
        other => other,
    }
}

/// A line for a person on standard error; lost where that is closed or full.
pub fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn is_broken_pipe(e: &anyhow::Error) -> bool {
    let io = e.downcast_ref::<std::io::Error>();
    io.is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

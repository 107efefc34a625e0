//! The progress bar of a measurement.
//!
//! Owns its look. It is drawn when it is told something, and by no thread of its own unless the
//! caller asks for that: where the measurement is in the same process nothing else may run.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar over `n_runs` runs.
pub(crate) fn bar(n_runs: u64) -> ProgressBar {
    let bar = ProgressBar::new(n_runs);
    // The template is a constant; an unusable one would show as the default style.
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} run {pos}/{len}, {elapsed}") {
        bar.set_style(style);
    }
    bar
}

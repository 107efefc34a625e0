//! The files of a report.
//!
//! Owns their names. Memory: their text.

use std::path::Path;

use anyhow::Result;
use thalweg_eval::report::{Report, quality_svg};
use thalweg_examples_common::write_whole;

/// Names of the files, in the order in which they are written.
pub(crate) const FILES: [&str; 6] = [
    "report.md",
    "figures.csv",
    "windows.csv",
    "windows.svg",
    "quality.svg",
    "report.json",
];

/// Writes all of them, the JSON last: where it is, the others are.
///
/// # Errors
/// When the system refuses; each file is the old or the new one.
pub(crate) fn write(folder: &Path, report: &Report, earlier: &[Report]) -> Result<()> {
    let all: Vec<&Report> = earlier.iter().chain([report]).collect();
    let texts = [
        report.to_markdown(),
        report.to_csv(),
        report.windows_csv(),
        report.windows_svg()?,
        quality_svg(&all)?,
        report.to_json()? + "\n",
    ];
    for (name, text) in FILES.iter().zip(texts) {
        write_whole(&folder.join(name), &text)?;
    }
    Ok(())
}

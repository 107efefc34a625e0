//! The files of a report, and the file of a reference's log-probabilities.
//!
//! Owns their names and how they appear. Memory: their text; one row.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use thalweg_eval::base_logits::{BaseHeader, BaseWriter};
use thalweg_eval::report::Report;
use thalweg_eval::{Cut, WindowSet};
use thalweg_examples_common::{note, write_whole};
use thalweg_store::Unfinished;

/// Writes all of them, the JSON last: where it is, the others are.
///
/// # Errors
/// When the system refuses; each file is the old or the new one.
pub(crate) fn write(folder: &Path, report: &Report, earlier: &[Report]) -> Result<()> {
    for (name, text) in report.files(earlier)? {
        write_whole(&folder.join(name), &text)?;
    }
    Ok(())
}

/// A file of log-probabilities that appears when it is complete. What a killed run leaves,
/// `.NAME.partial`, the next one takes over.
pub(crate) struct LogitsFile {
    writer: BaseWriter<BufWriter<File>>,
    unfinished: Unfinished,
    path: PathBuf,
    /// Of each window, its rows and whether they are kept.
    windows: std::vec::IntoIter<(usize, bool)>,
    /// The window that rows arrive of.
    current: (usize, bool),
}

impl LogitsFile {
    /// A file for the whole windows of `set`, which must be scored from their middle on.
    ///
    /// # Errors
    /// When there is no whole window, and when the system refuses.
    pub(crate) fn create(path: &Path, set: &WindowSet, cut: Cut, n_vocab: usize) -> Result<Self> {
        let failed = || format!("cannot write {}", path.display());
        let is_whole = |w: &&thalweg_eval::Window| w.tokens().len() == cut.n_window;
        let whole = set.windows().iter().filter(is_whole);
        let tokens: Vec<u32> = whole.flat_map(|w| w.tokens().to_vec()).collect();
        ensure!(
            !tokens.is_empty(),
            "no text has a whole window of {} tokens, which --write-logits needs",
            cut.n_window
        );
        let header = BaseHeader::new(cut.n_window, n_vocab, tokens)?;
        note(&format!(
            "logits   {:.1} MB to {}",
            header.file_bytes()? as f64 / 1e6,
            path.display()
        ));
        let name = path.file_name().with_context(failed)?;
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(".partial");
        let unfinished = Unfinished::create(path.with_file_name(hidden)).with_context(failed)?;
        let output = unfinished.file().try_clone().with_context(failed)?;
        let writer = BaseWriter::new(header, BufWriter::new(output)).with_context(failed)?;
        let rows = set.windows().iter();
        let rows: Vec<_> = rows.map(|w| (w.scored().len(), is_whole(&w))).collect();
        Ok(Self {
            writer,
            unfinished,
            path: path.to_owned(),
            windows: rows.into_iter(),
            current: (0, false),
        })
    }

    /// Takes the next row of the comparison.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn push(&mut self, row: &[f32]) -> thalweg_eval::Result<()> {
        while self.current.0 == 0 {
            let Some(next) = self.windows.next() else {
                break;
            };
            self.current = next;
        }
        self.current.0 = self.current.0.saturating_sub(1);
        match self.current.1 {
            true => self.writer.push(row),
            false => Ok(()),
        }
    }

    /// Makes the file appear.
    ///
    /// # Errors
    /// When the system refuses; the old file stays.
    pub(crate) fn finish(self) -> Result<()> {
        let failed = || format!("cannot write {}", self.path.display());
        let mut output = self.writer.finish().with_context(failed)?;
        output.flush().with_context(failed)?;
        drop(output);
        self.unfinished.rename(&self.path).with_context(failed)
    }
}

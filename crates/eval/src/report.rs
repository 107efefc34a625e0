//! `Report`: what a comparison of two models found, and what it was made from.
//!
//! Owns the JSON object (`docs/formats/report.md`) and its checks; tables are `text`, pictures
//! `pictures`, differences between two reports `change`. Memory: a few hundred bytes a window.
//! Invariants: 1. every figure is finite; 2. figures are those of the windows listed.

mod change;
mod pictures;
mod text;

pub use change::{Change, DomainChange, ScopeChange};
pub use pictures::quality_svg;
use serde::{Deserialize, Serialize};

use crate::metrics::WindowSums;
use crate::overlap::OverlapReport;
use crate::statistics::Bootstrap;
use crate::{Cut, Error, Result, Summary, WindowSet};

/// The `format` of the JSON object.
pub const REPORT_FORMAT: &str = "thalweg-report";
/// The `version` of the JSON object.
pub const REPORT_VERSION: u32 = 1;
/// Intervals of fewer windows are said to be too narrow.
const FEW_WINDOWS: usize = 10;
/// A text above this size is refused: it is something else.
pub const MAX_REPORT_BYTES: usize = 256 << 20;

/// What a comparison found.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Report {
    format: String,
    version: u32,
    /// The model whose predictions count as right.
    pub reference: ModelFacts,
    /// The model that is judged.
    pub test: ModelFacts,
    /// What was read, in the order of windows.
    pub texts: Vec<TextFacts>,
    /// How texts were cut; none where each window has a span of its own.
    pub cut: Option<CutFacts>,
    /// Settings of the intervals.
    pub bootstrap: BootstrapFacts,
    /// [`WindowSet::fingerprint`] in hexadecimal: reports with the same can be compared window by
    /// window.
    pub windows_sha256: String,
    /// The figures.
    #[serde(flatten)]
    pub summary: Summary,
    /// The sums that the figures are made of.
    pub windows: Vec<WindowSums>,
    /// How the test model compares with those of earlier reports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
    /// What evaluation and calibration texts share, if it was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<OverlapReport>,
    /// What a reader should know before the figures are believed.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Time of the comparison, opening excluded.
    pub seconds: f64,
}

/// What is known of a model.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[expect(
    clippy::exhaustive_structs,
    reason = "callers write `ModelFacts { field, ..default }`"
)]
pub struct ModelFacts {
    /// The file, as it was named.
    pub file: String,
    /// Fingerprint of the model in hexadecimal.
    pub sha256: String,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Bytes of routed experts among them.
    pub expert_bytes: u64,
    /// Experts of the layer that has most.
    pub n_expert: usize,
    /// Experts that a token uses there.
    pub n_expert_used: usize,
    /// Precision of tokens' vectors in matrix products.
    pub activations: String,
    /// Bias toward resident experts.
    pub moce: String,
}

/// What is known of a text.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[expect(
    clippy::exhaustive_structs,
    reason = "a place and a count; more would be another thing"
)]
pub struct TextFacts {
    /// The file, as it was named.
    pub file: String,
    /// Its domain.
    pub domain: String,
    /// Its tokens.
    pub n_tokens: usize,
}

/// How texts were cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CutFacts {
    /// Tokens of a window.
    pub n_window: usize,
    /// Tokens at its beginning that are not scored.
    pub n_context: usize,
}

/// How intervals were made.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BootstrapFacts {
    /// How often windows were drawn again.
    pub n_resamples: u32,
    /// Seed of the draws.
    pub seed: u64,
    /// Probability that an interval shall hold.
    pub level: f64,
}

impl Report {
    /// Names of the files that [`files`](Self::files) makes.
    pub const FILES: [&str; 6] = [
        "report.md",
        "figures.csv",
        "windows.csv",
        "windows.svg",
        "quality.svg",
        "report.json",
    ];

    /// Summarizes the sums of a set's windows.
    ///
    /// # Errors
    /// [`Error::WrongCount`] for sums of other windows, and what [`Summary::of`] refuses.
    pub fn new(
        models: [ModelFacts; 2],
        set: &WindowSet,
        cut: Option<Cut>,
        sums: Vec<WindowSums>,
        bootstrap: &Bootstrap,
    ) -> Result<Self> {
        if sums.len() != set.windows().len() {
            return Err(Error::WrongCount {
                what: "sums of windows",
                expected: set.windows().len(),
                found: sums.len(),
            });
        }
        let [reference, test] = models;
        let summary = Summary::of(set.domains(), &sums, bootstrap)?;
        let mut notes = Vec::new();
        for domain in &summary.domains {
            if domain.figures.n_windows < 2 {
                notes.push(format!(
                    "domain {:?} has a single window: nothing can be said of how sure its figures \
                     and the macro figures are",
                    domain.name
                ));
            } else if domain.figures.n_windows < FEW_WINDOWS {
                notes.push(format!(
                    "domain {:?} has {} windows: intervals of so few are too narrow",
                    domain.name, domain.figures.n_windows
                ));
            }
        }
        Ok(Self {
            format: REPORT_FORMAT.to_owned(),
            version: REPORT_VERSION,
            reference,
            test,
            texts: Vec::new(),
            cut: cut.map(|cut| CutFacts {
                n_window: cut.n_window,
                n_context: cut.n_context,
            }),
            bootstrap: BootstrapFacts {
                n_resamples: bootstrap.n_resamples,
                seed: bootstrap.seed,
                level: bootstrap.level,
            },
            windows_sha256: hex(&set.fingerprint()),
            summary,
            windows: sums,
            changes: Vec::new(),
            overlap: None,
            notes,
            seconds: 0.0,
        })
    }

    /// Reads JSON text and checks it.
    ///
    /// # Errors
    /// [`Error::Json`] with line and column, [`Error::UnknownFormat`], [`Error::UnknownVersion`],
    /// [`Error::TooLarge`], and windows that the figures are not made of.
    pub fn from_json(text: &str) -> Result<Self> {
        if text.len() > MAX_REPORT_BYTES {
            return Err(Error::TooLarge { what: "the report" });
        }
        let report: Self = serde_json::from_str(text).map_err(|source| Error::Json {
            what: "the report",
            source,
        })?;
        if report.format != REPORT_FORMAT {
            return Err(Error::UnknownFormat {
                expected: REPORT_FORMAT,
                found: report.format,
            });
        }
        if report.version != REPORT_VERSION {
            return Err(Error::UnknownVersion {
                format: REPORT_FORMAT,
                expected: REPORT_VERSION,
                found: report.version,
            });
        }
        let domains = &report.summary.domains;
        for window in &report.windows {
            if window.domain >= domains.len() {
                return Err(Error::NoSuch {
                    what: "domain",
                    found: window.domain as u64,
                    limit: domains.len() as u64,
                });
            }
        }
        let counted: u64 = report.windows.iter().map(|w| w.n_tokens).sum();
        if counted != report.summary.pooled.n_tokens
            || report.windows.iter().any(|w| w.n_tokens == 0)
        {
            return Err(Error::WrongCount {
                what: "scored tokens of the report's windows",
                // Counts of tokens that were in memory.
                expected: usize::try_from(report.summary.pooled.n_tokens).unwrap_or(usize::MAX),
                found: usize::try_from(counted).unwrap_or(usize::MAX),
            });
        }
        Ok(report)
    }

    /// JSON text on one line.
    ///
    /// # Errors
    /// [`Error::Json`] if the library fails.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|source| Error::Json {
            what: "the report",
            source,
        })
    }

    /// The report as files: names and texts. `earlier` are reports that the picture of quality over
    /// size shows as well. The JSON comes last: where it is, the others are.
    ///
    /// # Errors
    /// [`Error::Json`], [`Error::Plot`], [`Error::EmptyPlot`] if the libraries fail.
    pub fn files(&self, earlier: &[Self]) -> Result<[(&'static str, String); 6]> {
        let all: Vec<&Self> = earlier.iter().chain([self]).collect();
        let texts = [
            self.to_markdown(),
            self.to_csv(),
            self.windows_csv(),
            self.windows_svg()?,
            quality_svg(&all)?,
            self.to_json()? + "\n",
        ];
        let mut names = Self::FILES.into_iter();
        Ok(texts.map(|text| (names.next().unwrap_or_default(), text)))
    }

    /// The test model's name and what was changed of its arithmetic.
    fn label(&self) -> String {
        let mut label = self.name().to_owned();
        for (value, usual) in [(&self.test.activations, "f32"), (&self.test.moce, "off")] {
            if value != usual {
                label = format!("{label} {value}");
            }
        }
        label
    }

    /// The test model's name for tables: its file without the folder.
    fn name(&self) -> &str {
        file_name(&self.test.file)
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;

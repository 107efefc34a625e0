//! `Error`: everything that can go wrong in this crate, with the facts.
//!
//! Owns the messages. Owns no state.

use std::path::PathBuf;
use std::{fmt, io};

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system failed an operation on a file.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried, as a verb.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The path leads to a folder, a pipe or a device.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The problem concerns this file.
    #[error("cannot use {}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<Self>,
    },
    /// A text is not the JSON that it should be.
    #[error("{what} is not usable JSON")]
    Json {
        /// What the text should hold.
        what: &'static str,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A file of another kind.
    #[error("format is {found:?}, expected {expected:?}")]
    UnknownFormat {
        /// The name of the format.
        expected: &'static str,
        /// The name in the file.
        found: String,
    },
    /// A version of a format that this reader does not know.
    #[error("version of {format} is {found}, expected {expected}")]
    UnknownVersion {
        /// The format.
        format: &'static str,
        /// The version known.
        expected: u32,
        /// The version in the file.
        found: u32,
    },
    /// A figure that cannot be what it should be.
    #[error("{field}{} is {found}, expected {expected}", Entry(*index))]
    OutOfRange {
        /// The figure.
        field: &'static str,
        /// Its place where there are several, from zero.
        index: Option<usize>,
        /// Its value.
        found: f64,
        /// What it should be.
        expected: &'static str,
    },
    /// A text that is no printed number.
    #[error("{found:?} is not a decimal number above zero such as 32.1")]
    NotPrinted {
        /// The text.
        found: String,
    },
    /// Two lists that belong together differ in length, or a list is too short.
    #[error("{what}: {found} given, expected {expected}")]
    WrongCount {
        /// What is counted.
        what: &'static str,
        /// How many there should be.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// Rows that do not differ in what the constants depend on.
    #[error("{n_rows} rows determine fewer than {n_constants} constants")]
    Underdetermined {
        /// Rows given.
        n_rows: usize,
        /// Constants sought.
        n_constants: usize,
    },
    /// The least squares fit has a constant that no machine can have.
    #[error("the best fit has {first_name} {first} and {second_name} {second}, not both positive")]
    Unphysical {
        /// The first constant.
        first_name: &'static str,
        /// Its value.
        first: f64,
        /// The second constant.
        second_name: &'static str,
        /// Its value.
        second: f64,
    },
    /// An id that the model does not have.
    #[error("{what} {found} of {limit}")]
    NoSuch {
        /// Layer, expert, token.
        what: &'static str,
        /// The id.
        found: u64,
        /// Ids there are.
        limit: u64,
    },
    /// A token of a chunk that was left before.
    #[error("token {token} lies before the current chunk; chunks must not descend")]
    ChunkIsPast {
        /// The token.
        token: u64,
    },
    /// A size exceeds what can be counted.
    #[error("size of {what} exceeds 64 bits")]
    TooLarge {
        /// What has the size.
        what: &'static str,
    },
    /// The constants of the host lack what a prediction needs.
    #[error("the host's constants hold no {what}, which {needed_for} needs")]
    MissingConstant {
        /// The constant.
        what: &'static str,
        /// What cannot be predicted without it.
        needed_for: &'static str,
    },
    /// A candidate lacks what the bar, or the comparison with the others, needs.
    #[error("candidate {name:?} has no {field}, which {needed_for} needs")]
    MissingFigure {
        /// The candidate.
        name: String,
        /// The figure.
        field: &'static str,
        /// What needs it.
        needed_for: &'static str,
    },
    /// A candidate's figure that cannot be what it should be.
    #[error("{field} of candidate {name:?} is {found}, expected {expected}")]
    BadCandidate {
        /// The candidate.
        name: String,
        /// The figure.
        field: &'static str,
        /// Its value.
        found: f64,
        /// What it should be.
        expected: &'static str,
    },
    /// Two candidates of one name: a report could not tell them apart.
    #[error("two candidates are named {name:?}")]
    DuplicateCandidate {
        /// The name.
        name: String,
    },
    /// A scored span that begins with a window's first token.
    #[error(
        "the scored span 0..{end} begins at 0, but the first token of a window has no prediction; let it begin at 1 or later"
    )]
    SpanAtStart {
        /// End of the span.
        end: usize,
    },
    /// A scored span that is empty or goes beyond its window.
    #[error(
        "the scored span {start}..{end} is empty or goes beyond the window's {n_tokens} tokens"
    )]
    Span {
        /// First scored token.
        start: usize,
        /// The token after the last.
        end: usize,
        /// Tokens of the window.
        n_tokens: usize,
    },
    /// A window whose tokens are stated in neither way.
    #[error("a window needs context and continuation, or tokens and scored")]
    SpanForm,
    /// A text without a single scored token.
    #[error(
        "a text of {domain:?} has {n_tokens} tokens; at least {needed} are needed to score one: give a longer text or a shorter context"
    )]
    TextTooShort {
        /// Domain of the text.
        domain: String,
        /// Its tokens.
        n_tokens: usize,
        /// Fewest that would do.
        needed: usize,
    },
    /// Two models whose tokens differ in number cannot be compared.
    #[error("the reference has a vocabulary of {reference} tokens, the test one of {test}")]
    Vocabulary {
        /// Tokens of the reference.
        reference: usize,
        /// Tokens of the test.
        test: usize,
    },
    /// Two models that mean different things by a token cannot be compared.
    #[error(
        "token {id} is {reference:?} to the reference and {test:?} to the test: their distributions cannot be compared"
    )]
    OtherToken {
        /// The token.
        id: usize,
        /// What it is to the reference.
        reference: String,
        /// What it is to the test.
        test: String,
    },
    /// Two models do not fit into their common budget.
    #[error(
        "both models together need at least {needed_bytes} bytes but the budget is {budget_bytes}: the reference {reference_bytes}, the test {test_bytes}, logits {logits_bytes}"
    )]
    Budget {
        /// The smallest budget that would do.
        needed_bytes: u64,
        /// The budget.
        budget_bytes: u64,
        /// What the reference needs of it.
        reference_bytes: u64,
        /// What the test needs.
        test_bytes: u64,
        /// What logits would take.
        logits_bytes: u64,
    },
    /// A logit that belongs to no distribution.
    #[error("the {who} model's logit of token {token} is {value}")]
    BadLogit {
        /// Reference or test.
        who: &'static str,
        /// The token whose logit it is.
        token: usize,
        /// The logit.
        value: f32,
    },
    /// A row of logits in which every token is impossible.
    #[error("every logit of the {who} model is minus infinity")]
    EmptyRow {
        /// Reference or test.
        who: &'static str,
    },
    /// A token's figure that no mean can hold.
    #[error("the {what} is {value}")]
    Infinite {
        /// The figure.
        what: &'static str,
        /// Its value.
        value: f64,
    },
    /// Where in the texts something is wrong.
    #[error("at position {position} of window {window} ({domain})")]
    AtToken {
        /// Number of the window, from zero.
        window: usize,
        /// Position of the scored token in it.
        position: usize,
        /// The window's domain.
        domain: String,
        /// What is wrong there.
        source: Box<Self>,
    },
    /// Evaluation texts share n-grams with calibration texts.
    #[error(
        "{n_shared} {n}-grams that end in a scored token of {n_windows} of {n_all_windows} windows are also in calibration texts, the first in window {window} ({domain}) and {text:?}; a model that has seen them cannot be judged by them"
    )]
    Overlap {
        /// Tokens of an n-gram.
        n: usize,
        /// Shared n-grams that end in a scored token.
        n_shared: usize,
        /// Windows that have any.
        n_windows: usize,
        /// All windows.
        n_all_windows: usize,
        /// The first that has one.
        window: usize,
        /// Its domain.
        domain: String,
        /// The calibration text.
        text: String,
    },
    /// Whoever watched a comparison ended it.
    #[error("the comparison was ended after {n_done} of {n_total} tokens")]
    Interrupted {
        /// Tokens taken in by both models.
        n_done: usize,
        /// Tokens of all windows.
        n_total: usize,
    },
    /// An engine failed.
    #[error(transparent)]
    Runtime(#[from] thalweg_runtime::Error),
    /// A model file lacks what is asked of it.
    #[error(transparent)]
    Model(#[from] thalweg_gguf::Error),
    /// Two reports that no window-by-window comparison can be made of.
    #[error("the reports of {first:?} and {second:?} cannot be compared: they have {what}")]
    Incomparable {
        /// Test model of the first.
        first: String,
        /// Test model of the second.
        second: String,
        /// In what they differ.
        what: &'static str,
    },
    /// An input or output that is no file failed.
    #[error("cannot {action}")]
    Stream {
        /// What was tried, as a verb.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// A file whose length is not what its header says.
    #[error("the file has {found} bytes, its header says {expected}")]
    FileLength {
        /// Bytes that it should have.
        expected: u64,
        /// Bytes that it has.
        found: u64,
    },
    /// A line of a file of lines.
    #[error("line {line}")]
    InLine {
        /// Its number, from one.
        line: usize,
        /// What is wrong with it.
        source: Box<Self>,
    },
    /// Two lines of one task: the later would count, or the earlier.
    #[error("the task {id:?} came before")]
    DuplicateTask {
        /// The task's name.
        id: String,
    },
    /// A task that nobody answered.
    #[error("no output for task {id:?}")]
    MissingOutput {
        /// The task's name.
        id: String,
    },
    /// An output to another question than the task's.
    #[error("the output for task {id:?} answers another conversation than the task's")]
    OtherQuestion {
        /// The task's name.
        id: String,
    },
    /// A pattern that cannot be compiled.
    #[error("the pattern cannot be used")]
    Pattern {
        /// What is wrong with it.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A schema with a part that has no meaning here.
    #[error("the schema is not usable at {place}: expected {expected}")]
    Schema {
        /// Where in the schema.
        place: String,
        /// What should be there.
        expected: &'static str,
    },
    /// A plot without a finite point in one of its panels.
    #[error("the plot {title:?} has a panel without a finite point")]
    EmptyPlot {
        /// Title of the plot.
        title: String,
    },
    /// A plot could not be drawn.
    #[error("cannot draw the plot {title:?}")]
    Plot {
        /// Title of the plot.
        title: String,
        /// The plotting library's reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Which entry of a list, in a message.
struct Entry(Option<usize>);

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(index) => write!(f, " of entry {index}"),
            None => Ok(()),
        }
    }
}

/// `value` if it is finite and above zero.
pub(crate) fn positive(field: &'static str, index: Option<usize>, value: f64) -> Result<f64> {
    check(field, index, value, value > 0.0, "a finite number above 0")
}

/// `value` if it is finite and not below zero.
pub(crate) fn not_negative(field: &'static str, index: Option<usize>, value: f64) -> Result<f64> {
    check(
        field,
        index,
        value,
        value >= 0.0,
        "a finite number of at least 0",
    )
}

/// `value` if it lies in 0..=1.
pub(crate) fn share(field: &'static str, index: Option<usize>, value: f64) -> Result<f64> {
    let holds = (0.0..=1.0).contains(&value);
    check(field, index, value, holds, "a number from 0 to 1")
}

fn check(
    field: &'static str,
    index: Option<usize>,
    found: f64,
    holds: bool,
    expected: &'static str,
) -> Result<f64> {
    if holds && found.is_finite() {
        return Ok(found);
    }
    Err(Error::OutOfRange {
        field,
        index,
        found,
        expected,
    })
}

//! Tasks with answers that a rule can judge: what a model is asked, what was answered, and which
//! rules hold.
//!
//! Owns the two JSON Lines formats (`docs/formats/tasks.md`) and the scoring. Runs no model: outputs
//! are stored, so that other rules can judge them later. Memory: the texts. Invariants: 1. a task
//! has at least one check, since one without cannot fail; 2. a field or a keyword that is not known
//! is refused, since it would count for nothing.

mod check;
mod schema;
mod tool;

use std::collections::{BTreeMap, HashMap, HashSet};

pub use check::Check;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::statistics::{Fisher, fisher_exact};
use crate::{Error, Result};

/// The cause of a failure of an answer that was cut off.
pub const TRUNCATED: &str = "truncated";

/// What a model is asked, and how the answer is judged.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Task {
    /// Its name; unique in a file.
    pub id: String,
    /// The conversation, as chat templates see it. Empty in a file of rules for stored outputs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Value>,
    /// Tools that may be called, as chat templates see them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Value>,
    /// Most tokens of the answer.
    #[serde(default = "default_max_tokens")]
    pub max_tokens: usize,
    /// All must hold.
    pub checks: Vec<Check>,
}

fn default_max_tokens() -> usize {
    256
}

impl Task {
    /// Reads tasks, one JSON object a line; empty lines are skipped.
    ///
    /// # Errors
    /// [`Error::InLine`] around what a line is refused for: [`Error::Json`], a task without checks
    /// ([`Error::WrongCount`]), a check that cannot be used, an id that came before
    /// ([`Error::DuplicateTask`]). [`Error::WrongCount`] for no task at all.
    pub fn read_all(text: &str) -> Result<Vec<Self>> {
        let tasks: Vec<Self> = lines(text, "a task", |task: &Self| {
            if task.checks.is_empty() {
                return Err(Error::WrongCount {
                    what: "checks of a task",
                    expected: 1,
                    found: 0,
                });
            }
            task.checks.iter().try_for_each(Check::validate)?;
            Ok(task.id.clone())
        })?;
        if tasks.is_empty() {
            return Err(Error::WrongCount {
                what: "tasks",
                expected: 1,
                found: 0,
            });
        }
        Ok(tasks)
    }

    /// SHA-256 of conversation and tools, in hexadecimal: outputs say which question they answer.
    #[must_use]
    pub fn prompt_sha256(&self) -> String {
        let mut hash = Sha256::new();
        for message in &self.messages {
            hash.update(message.to_string());
            hash.update([0]);
        }
        if let Some(tools) = &self.tools {
            hash.update(tools.to_string());
        }
        let bytes = hash.finalize();
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// What a model answered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(
    clippy::exhaustive_structs,
    reason = "whoever runs a model makes one field by field"
)]
pub struct TaskOutput {
    /// The task's name.
    pub id: String,
    /// [`Task::prompt_sha256`] of the question.
    pub prompt_sha256: String,
    /// The answer.
    pub text: String,
    /// Tokens of it.
    pub n_tokens: usize,
    /// Whether it was cut off, by the task's limit or the context's.
    pub truncated: bool,
}

impl TaskOutput {
    /// Reads outputs, one JSON object a line; empty lines are skipped.
    ///
    /// # Errors
    /// [`Error::InLine`] around [`Error::Json`] or [`Error::DuplicateTask`].
    pub fn read_all(text: &str) -> Result<Vec<Self>> {
        lines(text, "an output of a task", |output: &Self| {
            Ok(output.id.clone())
        })
    }
}

/// Reads a value a line; `check` says its id.
fn lines<T: DeserializeOwned>(
    text: &str,
    what: &'static str,
    check: impl Fn(&T) -> Result<String>,
) -> Result<Vec<T>> {
    let mut seen = HashSet::new();
    let numbered = text.lines().enumerate();
    let filled = numbered.filter(|(_, line)| !line.trim().is_empty());
    let parsed = filled.map(|(i, line)| {
        let value = serde_json::from_str(line)
            .map_err(|source| Error::Json { what, source })
            .and_then(|value: T| match check(&value)? {
                id if seen.contains(&id) => Err(Error::DuplicateTask { id }),
                id => {
                    seen.insert(id);
                    Ok(value)
                }
            });
        value.map_err(|source| Error::InLine {
            line: i + 1,
            source: Box::new(source),
        })
    });
    parsed.collect()
}

/// How outputs were judged.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct Scores {
    /// Tasks judged.
    pub n_tasks: usize,
    /// Those of which every check holds.
    pub n_passed: usize,
    /// Failures by cause.
    pub causes: BTreeMap<String, usize>,
    /// By task, in the order of the tasks.
    pub tasks: Vec<TaskScore>,
    /// Outputs that no task judges.
    pub unjudged: Vec<String>,
}

/// How one output was judged.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct TaskScore {
    /// The task's name.
    pub id: String,
    /// Whether every check holds.
    pub passed: bool,
    /// Why not: `truncated` for an answer that was cut off, whatever else is wrong with it, since the
    /// rest might have made it right; else the kind of the first check that fails.
    pub cause: Option<String>,
    /// Kinds of all checks that fail.
    pub failed: Vec<String>,
}

impl Scores {
    /// Judges stored outputs by the checks of tasks.
    ///
    /// # Errors
    /// [`Error::MissingOutput`] for a task without an output; [`Error::OtherQuestion`] for an output
    /// to another conversation than the task's (a task without messages judges any).
    pub fn of(tasks: &[Task], outputs: &[TaskOutput]) -> Result<Self> {
        let by_id: HashMap<&str, &TaskOutput> =
            outputs.iter().map(|o| (o.id.as_str(), o)).collect();
        let scores = tasks.iter().map(|task| {
            let id = || task.id.clone();
            let output = by_id.get(task.id.as_str());
            let output = output.ok_or_else(|| Error::MissingOutput { id: id() })?;
            if !task.messages.is_empty() && task.prompt_sha256() != output.prompt_sha256 {
                return Err(Error::OtherQuestion { id: id() });
            }
            let failed = task.checks.iter().filter(|check| !check.holds(output));
            let failed: Vec<String> = failed.map(|check| check.kind().to_owned()).collect();
            let cause = match (failed.first(), output.truncated) {
                (None, _) => None,
                (Some(_), true) => Some(TRUNCATED.to_owned()),
                (Some(kind), false) => Some(kind.clone()),
            };
            Ok(TaskScore {
                id: id(),
                passed: failed.is_empty(),
                cause,
                failed,
            })
        });
        let scores: Vec<TaskScore> = scores.collect::<Result<_>>()?;
        let mut causes = BTreeMap::new();
        for cause in scores.iter().filter_map(|s| s.cause.clone()) {
            *causes.entry(cause).or_insert(0) += 1;
        }
        let judged: HashSet<&str> = tasks.iter().map(|t| t.id.as_str()).collect();
        let unjudged = outputs.iter().filter(|o| !judged.contains(o.id.as_str()));
        Ok(Self {
            n_tasks: scores.len(),
            n_passed: scores.iter().filter(|s| s.passed).count(),
            causes,
            unjudged: unjudged.map(|o| o.id.clone()).collect(),
            tasks: scores,
        })
    }

    /// How another model did on the same tasks.
    ///
    /// # Errors
    /// [`Error::WrongCount`] for scores of other tasks.
    pub fn compare(&self, other: &Self) -> Result<TaskComparison> {
        let mut pairs = self.tasks.iter().zip(&other.tasks);
        let is_same = self.n_tasks == other.n_tasks && pairs.all(|(a, b)| a.id == b.id);
        if !is_same {
            return Err(Error::WrongCount {
                what: "tasks that both were judged by",
                expected: self.n_tasks,
                found: other.n_tasks,
            });
        }
        let narrow = |n: usize| {
            u32::try_from(n).map_err(|_| Error::TooLarge {
                what: "the list of tasks",
            })
        };
        let n = narrow(self.n_tasks)?;
        let only = |one: &Self, two: &Self| {
            let pairs = one.tasks.iter().zip(&two.tasks);
            let only = pairs.filter(|(a, b)| a.passed && !b.passed);
            only.map(|(a, _)| a.id.clone()).collect()
        };
        Ok(TaskComparison {
            n_tasks: self.n_tasks,
            n_passed: [self.n_passed, other.n_passed],
            only_first: only(self, other),
            only_second: only(other, self),
            fisher: fisher_exact((narrow(self.n_passed)?, n), (narrow(other.n_passed)?, n))?,
        })
    }
}

/// How two models did on the same tasks.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct TaskComparison {
    /// Tasks.
    pub n_tasks: usize,
    /// Those that each passed.
    pub n_passed: [usize; 2],
    /// Tasks that the first passed and the second did not.
    pub only_first: Vec<String>,
    /// The other way round.
    pub only_second: Vec<String>,
    /// Whether the difference says anything; with twenty tasks three failures more do not.
    pub fisher: Fisher,
}

#[cfg(test)]
mod tests;

//! Rules that an answer is held to.
//!
//! Owns what each kind means. Memory: the rule; a pattern is compiled each time it is asked.

use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{TaskOutput, schema, tool};
use crate::{Error, Result};

/// One rule.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Check {
    /// The answer is one JSON value, perhaps in a code fence, with white space around it.
    Json {},
    /// The answer is JSON that a schema holds for; the keywords are listed in the format's page.
    Schema {
        /// The schema.
        schema: Value,
    },
    /// A pattern is found in the answer.
    Regex {
        /// In the syntax of the `regex` crate; `(?s)` lets a dot match line ends.
        pattern: String,
    },
    /// A pattern is not found in the answer.
    NotRegex {
        /// As for `regex`.
        pattern: String,
    },
    /// The first tool that the answer calls.
    Tool {
        /// Its name.
        name: String,
        /// Arguments that it must be called with; others may be there too.
        #[serde(default)]
        arguments: Map<String, Value>,
    },
    /// The share of the answer's letters that are Japanese: kana and ideographs.
    Japanese {
        /// The smallest share that will do, from 0 to 1.
        at_least: f64,
    },
    /// The answer was not cut off.
    NotTruncated {},
}

impl Check {
    /// Its name in files and causes.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Json {} => "json",
            Self::Schema { .. } => "schema",
            Self::Regex { .. } => "regex",
            Self::NotRegex { .. } => "not_regex",
            Self::Tool { .. } => "tool",
            Self::Japanese { .. } => "japanese",
            Self::NotTruncated {} => "not_truncated",
        }
    }

    /// Whether the rule can be used at all.
    ///
    /// # Errors
    /// [`Error::Pattern`], [`Error::Schema`] with the place in the schema, [`Error::OutOfRange`].
    pub fn validate(&self) -> Result<()> {
        match self {
            Self::Json {} | Self::Tool { .. } | Self::NotTruncated {} => Ok(()),
            Self::Schema { schema } => schema::validate(schema),
            Self::Regex { pattern } | Self::NotRegex { pattern } => compiled(pattern).map(|_| ()),
            Self::Japanese { at_least } => {
                crate::error::share("at_least", None, *at_least)?;
                Ok(())
            }
        }
    }

    /// Whether it holds for an answer; a rule that cannot be used holds for none.
    #[must_use]
    pub fn holds(&self, output: &TaskOutput) -> bool {
        let text = output.text.as_str();
        match self {
            Self::Json {} => json(text).is_some(),
            Self::Schema { schema } => {
                json(text).is_some_and(|value| schema::holds(schema, &value))
            }
            Self::Regex { pattern } => compiled(pattern).is_ok_and(|p| p.is_match(text)),
            Self::NotRegex { pattern } => compiled(pattern).is_ok_and(|p| !p.is_match(text)),
            Self::Tool { name, arguments } => tool::first_call(text).is_some_and(|call| {
                let mut wanted = arguments.iter();
                call.name == *name && wanted.all(|(key, value)| call.has(key, value))
            }),
            Self::Japanese { at_least } => japanese_share(text) >= *at_least,
            Self::NotTruncated {} => !output.truncated,
        }
    }
}

fn compiled(pattern: &str) -> Result<Regex> {
    Regex::new(pattern).map_err(|source| Error::Pattern {
        source: Box::new(source),
    })
}

/// The JSON value that a text is.
fn json(text: &str) -> Option<Value> {
    let text = text.trim();
    let fenced = text
        .strip_prefix("```")
        .and_then(|rest| rest.strip_suffix("```"));
    let text = match fenced {
        None => text,
        // The first line may name the language.
        Some(inside) => inside.split_once('\n')?.1,
    };
    serde_json::from_str(text).ok()
}

/// Japanese letters over all letters; 0 for a text without letters.
fn japanese_share(text: &str) -> f64 {
    let is_japanese = |c: &char| {
        matches!(c,
            '\u{3005}'..='\u{3007}'      // iteration mark, zero
            | '\u{3041}'..='\u{3096}'    // hiragana
            | '\u{309d}'..='\u{309f}'
            | '\u{30a1}'..='\u{30fa}'    // katakana
            | '\u{30fc}'..='\u{30ff}'
            | '\u{3400}'..='\u{4dbf}'    // ideographs
            | '\u{4e00}'..='\u{9fff}'
            | '\u{f900}'..='\u{faff}'
            | '\u{ff66}'..='\u{ff9f}'    // halfwidth katakana
            | '\u{20000}'..='\u{2fa1f}')
    };
    let letters = text.chars().filter(|c| c.is_alphabetic() || is_japanese(c));
    let n = letters.clone().count();
    match n {
        0 => 0.0,
        _ => letters.filter(is_japanese).count() as f64 / n as f64,
    }
}

//! Tool calls in an answer.
//!
//! Owns the two ways in which models of the Qwen families write one between `<tool_call>` and
//! `</tool_call>`: a JSON object with `name` and `arguments`, and `<function=NAME>` with
//! `<parameter=KEY>` elements. Memory: the call.

use serde_json::{Map, Value};

/// A tool and what it is called with.
#[derive(Debug, PartialEq)]
pub(super) struct Call {
    pub(super) name: String,
    arguments: Map<String, Value>,
    /// Whether arguments are texts whatever they mean.
    is_text: bool,
}

impl Call {
    /// Whether an argument has this value.
    pub(super) fn has(&self, key: &str, value: &Value) -> bool {
        match self.arguments.get(key) {
            Some(found) if found == value => true,
            Some(Value::String(text)) if self.is_text => {
                serde_json::from_str::<Value>(text).is_ok_and(|found| found == *value)
            }
            _ => false,
        }
    }
}

/// The first call of an answer, if it is one that can be read.
pub(super) fn first_call(text: &str) -> Option<Call> {
    let inside = between(text, "<tool_call>", "</tool_call>")?.0.trim();
    if let Ok(Value::Object(mut call)) = serde_json::from_str(inside) {
        let name = call.get("name")?.as_str()?.to_owned();
        let arguments = match call.remove("arguments") {
            None => Map::new(),
            Some(Value::Object(arguments)) => arguments,
            // Some models write the arguments as a text that holds JSON.
            Some(Value::String(text)) => serde_json::from_str(&text).ok()?,
            Some(_) => return None,
        };
        return Some(Call {
            name,
            arguments,
            is_text: false,
        });
    }
    let (function, _) = between(inside, "<function=", "</function>")?;
    let (name, mut rest) = function.split_once('>')?;
    let mut arguments = Map::new();
    while let Some((parameter, behind)) = between(rest, "<parameter=", "</parameter>") {
        let (key, value) = parameter.split_once('>')?;
        // One line end on each side belongs to the notation.
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        arguments.insert(key.trim().to_owned(), Value::String(value.to_owned()));
        rest = behind;
    }
    Some(Call {
        name: name.trim().to_owned(),
        arguments,
        is_text: true,
    })
}

/// What lies between two markers, and what follows the second.
fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<(&'a str, &'a str)> {
    let (_, rest) = text.split_once(start)?;
    rest.split_once(end)
}

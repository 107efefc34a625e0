//! The part of JSON Schema that tasks need.
//!
//! Owns the keywords and what they mean. A keyword that is not known is refused by [`validate`]: it
//! would hold for everything. Memory: none. Cost: linear in value and schema; both come from the JSON
//! reader, whose depth is bounded.

use serde_json::{Map, Value};

use crate::{Error, Result};

/// Keywords that say nothing of a value.
const ANNOTATIONS: [&str; 4] = ["$schema", "title", "description", "default"];
const TYPES: [&str; 7] = [
    "null", "boolean", "object", "array", "number", "integer", "string",
];

/// Whether every keyword is known and has a usable value.
pub(super) fn validate(schema: &Value) -> Result<()> {
    at(schema, "")
}

fn at(schema: &Value, place: &str) -> Result<()> {
    let refuse = |keyword: &str, expected: &'static str| {
        Err(Error::Schema {
            place: format!("{place}/{keyword}"),
            expected,
        })
    };
    let keywords = match schema {
        Value::Bool(_) => return Ok(()),
        Value::Object(keywords) => keywords,
        _ => return refuse("", "an object or a boolean"),
    };
    for (keyword, value) in keywords {
        let below = format!("{place}/{keyword}");
        match keyword.as_str() {
            "type" => {
                let names = match value {
                    Value::Array(names) if !names.is_empty() => names.as_slice(),
                    other => std::slice::from_ref(other),
                };
                let is_known = |name: &Value| name.as_str().is_some_and(|n| TYPES.contains(&n));
                if !names.iter().all(is_known) {
                    return refuse(keyword, "a type or a list of types");
                }
            }
            "properties" => {
                let Some(properties) = value.as_object() else {
                    return refuse(keyword, "an object of schemas");
                };
                for (name, schema) in properties {
                    at(schema, &format!("{below}/{name}"))?;
                }
            }
            "items" | "additionalProperties" => at(value, &below)?,
            "required" => {
                let is_names = |names: &Vec<Value>| names.iter().all(Value::is_string);
                if !value.as_array().is_some_and(is_names) {
                    return refuse(keyword, "a list of names");
                }
            }
            "enum" if value.is_array() => {}
            "enum" => return refuse(keyword, "a list of values"),
            "const" => {}
            "minimum" | "maximum" if value.is_number() => {}
            "minimum" | "maximum" => return refuse(keyword, "a number"),
            "minLength" | "maxLength" | "minItems" | "maxItems" if value.is_u64() => {}
            "minLength" | "maxLength" | "minItems" | "maxItems" => {
                return refuse(keyword, "a whole number of at least 0");
            }
            other if ANNOTATIONS.contains(&other) => {}
            _ => return refuse(keyword, "a keyword that is known"),
        }
    }
    Ok(())
}

/// Whether a schema, which is usable, holds for a value.
pub(super) fn holds(schema: &Value, value: &Value) -> bool {
    match schema {
        Value::Bool(holds) => *holds,
        Value::Object(keywords) => keywords
            .iter()
            .all(|(keyword, rule)| keyword_holds(keyword, rule, keywords, value)),
        _ => false,
    }
}

fn keyword_holds(keyword: &str, rule: &Value, all: &Map<String, Value>, value: &Value) -> bool {
    let limit = rule.as_f64().unwrap_or(f64::NAN);
    let count = rule.as_u64().and_then(|n| usize::try_from(n).ok());
    let count = count.unwrap_or(usize::MAX);
    // Keywords of another type than the value's hold, as the standard says.
    match (keyword, value) {
        ("type", _) => match rule {
            Value::Array(names) => names.iter().any(|name| is_of_type(name, value)),
            name => is_of_type(name, value),
        },
        ("enum", _) => rule.as_array().is_some_and(|list| list.contains(value)),
        ("const", _) => rule == value,
        ("properties", Value::Object(fields)) => rule.as_object().is_some_and(|properties| {
            let mut present = properties
                .iter()
                .filter_map(|(name, schema)| Some((schema, fields.get(name)?)));
            present.all(|(schema, field)| holds(schema, field))
        }),
        ("additionalProperties", Value::Object(fields)) => {
            let known = all.get("properties").and_then(Value::as_object);
            let is_known = |name: &String| known.is_some_and(|known| known.contains_key(name));
            let mut others = fields.iter().filter(|(name, _)| !is_known(name));
            others.all(|(_, field)| holds(rule, field))
        }
        ("required", Value::Object(fields)) => rule.as_array().is_some_and(|names| {
            let mut names = names.iter().filter_map(Value::as_str);
            names.all(|name| fields.contains_key(name))
        }),
        ("items", Value::Array(items)) => items.iter().all(|item| holds(rule, item)),
        ("minItems", Value::Array(items)) => items.len() >= count,
        ("maxItems", Value::Array(items)) => items.len() <= count,
        ("minimum", Value::Number(n)) => n.as_f64().is_some_and(|n| n >= limit),
        ("maximum", Value::Number(n)) => n.as_f64().is_some_and(|n| n <= limit),
        ("minLength", Value::String(text)) => text.chars().count() >= count,
        ("maxLength", Value::String(text)) => text.chars().count() <= count,
        _ => true,
    }
}

fn is_of_type(name: &Value, value: &Value) -> bool {
    match (name.as_str().unwrap_or_default(), value) {
        ("null", Value::Null)
        | ("boolean", Value::Bool(_))
        | ("object", Value::Object(_))
        | ("array", Value::Array(_))
        | ("number", Value::Number(_))
        | ("string", Value::String(_)) => true,
        // 2.0 is an integer too.
        ("integer", Value::Number(n)) => n.as_f64().is_some_and(|n| n.fract() == 0.0),
        _ => false,
    }
}

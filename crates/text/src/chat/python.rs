//! What templates expect of Python: `json.dumps`, tests and a few string methods.
//!
//! Owns: those functions. Does not own: how they are registered. Every function that can produce
//! more than it was given pays for it with the render's fuel, so none can run away.
//! Cost: linear in the output.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Error, ErrorKind, State, Value};

/// The deepest nesting that is written or assigned; Python gives up near 1000.
const MAX_DEPTH: usize = 100;

/// `json.dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn to_json(
    state: &State<'_, '_>,
    value: &Value,
    args: Rest<ValueOrKwargs>,
) -> Result<Value, Error> {
    const NAMES: [&str; 4] = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let args = args.into_values();
    let (by_place, by_name): (&[Value], Kwargs) = from_args(&args)?;
    if by_place.len() > NAMES.len() {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let mut given = [const { None }; 4];
    for (index, (slot, name)) in given.iter_mut().zip(NAMES).enumerate() {
        let value = match by_place.get(index) {
            Some(value) => Some(value.clone()),
            None => by_name.get::<Option<Value>>(name)?,
        };
        *slot = value.filter(|value| !value.is_none() && !value.is_undefined());
    }
    by_name.assert_all_used()?;
    let [ensure_ascii, indent, separators, sort_keys] = given;

    let indent = indent.map(|indent| indent_of(&indent)).transpose()?;
    let (item, key) = match separators {
        Some(pair) => (pair.get_item_by_index(0)?, pair.get_item_by_index(1)?),
        // Python drops the blank behind the comma where a line break follows.
        None => (
            Value::from(if indent.is_some() { "," } else { ", " }),
            Value::from(": "),
        ),
    };
    let (Some(item_separator), Some(key_separator)) = (item.to_str(), key.to_str()) else {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "separators must be two strings",
        ));
    };
    let mut writer = JsonWriter {
        out: Metered {
            out: String::new(),
            state,
            n_paid: 0,
        },
        ensure_ascii: ensure_ascii.is_some_and(|flag| flag.is_true()),
        sort_keys: sort_keys.is_some_and(|flag| flag.is_true()),
        indent,
        item_separator: &item_separator,
        key_separator: &key_separator,
    };
    writer.value(value, 0)?;
    Ok(Value::from(writer.out.out))
}

/// The `string` filter: what `{{ value }}` prints.
pub(super) fn to_string(state: &State<'_, '_>, value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => return Ok(value.clone()),
        ValueKind::Number if !value.is_integer() => {
            return Ok(Value::from(float(f64::try_from(value.clone())?)));
        }
        _ => {}
    }
    let mut out = Metered {
        out: String::new(),
        state,
        n_paid: 0,
    };
    match write!(out, "{value}") {
        Ok(()) => Ok(Value::from(out.out)),
        Err(_) => Err(Error::from(ErrorKind::OutOfFuel)),
    }
}

/// Passes a value through that is about to be assigned to a variable, unless it is nested too
/// deeply to be printed, compared or dropped. One step of fuel for eight values within.
pub(super) fn variable(state: &State<'_, '_>, value: Value) -> Result<Value, Error> {
    walk(state, &value, 0, &mut 0)?;
    Ok(value)
}

/// As [`variable`], for a field of a namespace: the one place that can be assigned to after it was
/// put into a value, so that no namespace may come to hold another one, or itself.
pub(super) fn field(state: &State<'_, '_>, value: Value) -> Result<Value, Error> {
    if is_namespace(&value) {
        return Err(namespace_within());
    }
    variable(state, value)
}

fn walk(state: &State<'_, '_>, value: &Value, depth: usize, n_seen: &mut u64) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    if depth > 0 && is_namespace(value) {
        return Err(namespace_within());
    }
    *n_seen += 1;
    if n_seen.is_multiple_of(8) {
        state.consume_fuel(1)?;
    }
    match value.kind() {
        ValueKind::Seq => {
            for item in value.try_iter()? {
                walk(state, &item, depth + 1, n_seen)?;
            }
        }
        ValueKind::Map => {
            for key in value.try_iter()? {
                walk(state, &value.get_item(&key)?, depth + 1, n_seen)?;
                walk(state, &key, depth + 1, n_seen)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// The engine's type is private, its name is not.
fn is_namespace(value: &Value) -> bool {
    value
        .as_object()
        .is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

fn namespace_within() -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        "a namespace can't be kept inside another value",
    )
}

/// The `iterable` test: unlike the engine's own, not for `none`.
pub(super) fn is_iterable(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::String
            | ValueKind::Seq
            | ValueKind::Map
            | ValueKind::Iterable
            | ValueKind::Undefined
    )
}

/// The `sequence` test: whatever has a length and takes an index, so strings and dicts too.
pub(super) fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined
    )
}

fn too_deep() -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        "value is nested more than 100 deep",
    )
}

/// String methods that the engine's Python layer lacks, and `format` without runaway widths; `None`
/// for all other methods.
pub(super) fn string_method(
    value: &Value,
    method: &str,
    args: &[Value],
) -> Option<Result<Value, Error>> {
    let text = value.as_str()?;
    let affix = || -> Result<String, Error> {
        let (affix,) = from_args::<(String,)>(args)?;
        Ok(affix)
    };
    match method {
        "removeprefix" => {
            Some(affix().map(|affix| Value::from(text.strip_prefix(&*affix).unwrap_or(text))))
        }
        "removesuffix" => {
            Some(affix().map(|affix| Value::from(text.strip_suffix(&*affix).unwrap_or(text))))
        }
        "format" if pads_without_limit(text, args) => Some(Err(Error::new(
            ErrorKind::InvalidOperation,
            "format with a width above 9999",
        ))),
        _ => None,
    }
}

/// Whether a `str.format` string could ask for a field of 10,000 characters or more. The width may
/// stand in the string or, in a nested field, come from the arguments.
fn pads_without_limit(format: &str, args: &[Value]) -> bool {
    let mut n_digits = 0;
    let long_number = format.bytes().any(|byte| {
        n_digits = if byte.is_ascii_digit() {
            n_digits + 1
        } else {
            0
        };
        n_digits > 4
    });
    let nested = format
        .split('{')
        .skip(1)
        .any(|field| field.contains(':') && !field.contains('}'));
    let large =
        |arg: &Value| arg.is_number() && arg.as_i64().is_none_or(|n| n.unsigned_abs() >= 10_000);
    long_number || (nested && args.iter().any(large))
}

fn indent_of(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let n_blanks = match bool::try_from(value.clone()) {
        Ok(flag) => i64::from(flag),
        Err(_) => i64::try_from(value.clone())?,
    };
    match usize::try_from(n_blanks.max(0)) {
        Ok(n_blanks) if n_blanks <= 100 => Ok(" ".repeat(n_blanks)),
        _ => Err(Error::new(ErrorKind::InvalidOperation, "indent above 100")),
    }
}

/// A string whose growth is paid for: one step of fuel for 64 bytes, as the engine does.
struct Metered<'s, 't, 'e> {
    out: String,
    state: &'s State<'t, 'e>,
    n_paid: usize,
}

impl std::fmt::Write for Metered<'_, '_, '_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.out.push_str(text);
        let owed = (self.out.len() - self.n_paid) / 64;
        if owed > 0 {
            self.n_paid += owed * 64;
            let owed = u64::try_from(owed).map_err(|_| std::fmt::Error)?;
            self.state.consume_fuel(owed).map_err(|_| std::fmt::Error)?;
        }
        Ok(())
    }
}

struct JsonWriter<'s, 't, 'e> {
    out: Metered<'s, 't, 'e>,
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    item_separator: &'s str,
    key_separator: &'s str,
}

impl JsonWriter<'_, '_, '_> {
    fn put(&mut self, text: &str) -> Result<(), Error> {
        self.out
            .write_str(text)
            .map_err(|_| Error::from(ErrorKind::OutOfFuel))
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(too_deep());
        }
        match value.kind() {
            ValueKind::None => self.put("null"),
            ValueKind::Bool => self.put(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.put(&value.to_string()),
            ValueKind::Number => self.put(&float(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth),
            ValueKind::Map => self.map(value, depth),
            kind => Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("object of type {kind} is not JSON serializable"),
            )),
        }
    }

    fn list(&mut self, list: &Value, depth: usize) -> Result<(), Error> {
        self.put("[")?;
        let mut n_items = 0;
        for item in list.try_iter()? {
            self.between(n_items, depth + 1)?;
            self.value(&item, depth + 1)?;
            n_items += 1;
        }
        self.close("]", n_items, depth)
    }

    fn map(&mut self, map: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = map.try_iter()?.collect();
        if self.sort_keys {
            keys.sort();
        }
        self.put("{")?;
        for (n_items, key) in keys.iter().enumerate() {
            self.between(n_items, depth + 1)?;
            self.key(key)?;
            let separator = self.key_separator;
            self.put(separator)?;
            self.value(&map.get_item(key)?, depth + 1)?;
        }
        self.close("}", keys.len(), depth)
    }

    /// Keys are strings; Python turns numbers, booleans and `None` into them.
    fn key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.string(key.as_str().unwrap_or_default()),
            ValueKind::None => self.put("\"null\""),
            ValueKind::Bool => self.put(if key.is_true() {
                "\"true\""
            } else {
                "\"false\""
            }),
            ValueKind::Number if key.is_integer() => self.put(&format!("\"{key}\"")),
            ValueKind::Number => {
                let number = float(f64::try_from(key.clone())?);
                self.put(&format!("\"{number}\""))
            }
            kind => Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("a key of a JSON object can't be of type {kind}"),
            )),
        }
    }

    fn between(&mut self, n_items: usize, depth: usize) -> Result<(), Error> {
        if n_items > 0 {
            let separator = self.item_separator;
            self.put(separator)?;
        }
        self.line_break(depth)
    }

    fn close(&mut self, bracket: &str, n_items: usize, depth: usize) -> Result<(), Error> {
        if n_items > 0 {
            self.line_break(depth)?;
        }
        self.put(bracket)
    }

    fn line_break(&mut self, depth: usize) -> Result<(), Error> {
        if let Some(indent) = &self.indent {
            let line = format!("\n{}", indent.repeat(depth));
            self.put(&line)?;
        }
        Ok(())
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        let mut quoted = String::with_capacity(text.len() + 2);
        quoted.push('"');
        for c in text.chars() {
            match c {
                '"' => quoted.push_str("\\\""),
                '\\' => quoted.push_str("\\\\"),
                '\n' => quoted.push_str("\\n"),
                '\r' => quoted.push_str("\\r"),
                '\t' => quoted.push_str("\\t"),
                '\u{8}' => quoted.push_str("\\b"),
                '\u{c}' => quoted.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _infallible = write!(quoted, "\\u{unit:04x}");
                    }
                }
                c => quoted.push(c),
            }
        }
        quoted.push('"');
        self.put(&quoted)
    }
}

/// A float as Python prints it: shortest digits that read back, exponent from 1e16 on and below
/// 1e-4, with at least two digits.
fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
        _ => {
            let mut plain = value.to_string();
            if !plain.contains('.') {
                plain.push_str(".0");
            }
            plain
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_in_python() {
        for (value, expected) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e-5, "1.5e-05"),
            (0.0001, "0.0001"),
            (1e300, "1e+300"),
            (123_456.789, "123456.789"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            assert_eq!(float(value), expected);
        }
    }

    #[test]
    fn wide_fields_are_found() {
        assert!(pads_without_limit("{:>10000}", &[]));
        assert!(pads_without_limit(
            "{:>{}}",
            &[Value::from("x"), Value::from(1_000_000)]
        ));
        assert!(!pads_without_limit(
            "{:>{}}",
            &[Value::from("x"), Value::from(10)]
        ));
        assert!(!pads_without_limit("{} {:4d}", &[Value::from(1_000_000)]));
    }
}

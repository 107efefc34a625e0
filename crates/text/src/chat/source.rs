//! Preparing a chat template's source for the engine.
//!
//! Owns: a scanner that finds tags the way the engine's lexer does, and what is changed or refused
//! on its grounds. Does not own: syntax; the engine reports what does not parse.
//! Invariants: 1. no line break is added or removed, so line numbers stay true; 2. text, comments,
//! raw blocks and string literals are left alone; 3. what passes keeps the recursion of the
//! engine's parser, compiler and destructors within a megabyte of stack.
//! Cost: one pass.

use crate::error::{Error, Result};

/// The filter through which every value passes that is assigned to a variable.
pub(super) const VARIABLE_FILTER: &str = "__variable";

/// The filter through which every value passes that is assigned to a namespace's field.
pub(super) const FIELD_FILTER: &str = "__field";

/// The largest template accepted. Published ones stay below 64 KiB.
const MAX_TEMPLATE_BYTES: usize = 256 << 10;

/// Each operator of a chain (`a.b.c`, `1 + 1 + 1`, `not not a`) costs the engine a level of
/// recursion, which its own limit on nesting does not count.
const MAX_TOKENS_PER_TAG: usize = 1024;

/// Each `elif` is a level of recursion too.
const MAX_ELIFS: usize = 256;

/// Rewrites a template into what the engine understands and can be trusted to survive.
///
/// - `{% generation %}` blocks, which mark what an assistant said and print it unchanged, become
///   `{% if true %}` blocks.
/// - `{% set a = b %}` becomes `{% set a = (b)|__variable %}`: a namespace that holds itself, or a
///   list that a loop nests in itself, would exhaust the stack.
pub(super) fn prepare(source: &str) -> Result<String> {
    if source.len() > MAX_TEMPLATE_BYTES {
        return Err(Error::TemplateSize {
            found_bytes: source.len(),
            max_bytes: MAX_TEMPLATE_BYTES,
        });
    }
    let mut prepared = String::with_capacity(source.len() + source.len() / 8);
    let mut scanner = Scanner { source, at: 0 };
    let mut copied = 0;
    let mut n_elifs = 0;
    while let Some(tag) = scanner.next_tag() {
        if tag.n_tokens > MAX_TOKENS_PER_TAG {
            return Err(scanner.error(tag.start, "more than 1024 tokens in one tag"));
        }
        n_elifs += usize::from(tag.name == "elif");
        if n_elifs > MAX_ELIFS {
            return Err(scanner.error(tag.start, "more than 256 elif branches"));
        }
        let mut replace = |from: usize, to: usize, with: &str| {
            prepared.push_str(&source[copied..from]);
            prepared.push_str(with);
            copied = to;
        };
        let name_end = tag.name_start + tag.name.len();
        match (tag.name, tag.assigned) {
            ("generation", _) if tag.n_tokens == 1 => replace(tag.name_start, name_end, "if true"),
            ("endgeneration", _) if tag.n_tokens == 1 => replace(tag.name_start, name_end, "endif"),
            ("set", Some(value_start)) => {
                replace(value_start, value_start, "(");
                replace(tag.end, tag.end, ")|");
                let field = source[tag.name_start..value_start].contains('.');
                replace(
                    tag.end,
                    tag.end,
                    if field { FIELD_FILTER } else { VARIABLE_FILTER },
                );
                replace(tag.end, tag.end, " ");
            }
            _ => {}
        }
    }
    prepared.push_str(&source[copied..]);
    Ok(prepared)
}

/// A `{{ .. }}` or `{% .. %}`.
struct Tag<'s> {
    /// Offset of the opening braces.
    start: usize,
    /// The first word of a `{% %}` tag, else empty.
    name: &'s str,
    name_start: usize,
    n_tokens: usize,
    /// For `set`: where the value begins, behind the `=`.
    assigned: Option<usize>,
    /// Offset of the closing braces, or of the sign in front of them.
    end: usize,
}

struct Scanner<'s> {
    source: &'s str,
    at: usize,
}

impl<'s> Scanner<'s> {
    /// The next tag outside of comments and raw blocks; `None` at the end, or where the source
    /// can't be read further (the engine then reports why).
    fn next_tag(&mut self) -> Option<Tag<'s>> {
        loop {
            let rest = &self.source[self.at..];
            let open = rest
                .as_bytes()
                .windows(2)
                .position(|two| two[0] == b'{' && matches!(two[1], b'{' | b'%' | b'#'))?;
            let start = self.at + open;
            match rest.as_bytes()[open + 1] {
                b'#' => {
                    self.at = start + 2 + self.source[start + 2..].find("#}")? + 2;
                }
                b'%' => match self.raw_block(start + 2) {
                    Some(end) => self.at = end?,
                    None => return self.tag(start, "%}"),
                },
                _ => return self.tag(start, "}}"),
            }
        }
    }

    /// If a raw block begins behind the braces before `at`: its end, if it has one.
    fn raw_block(&self, at: usize) -> Option<Option<usize>> {
        let mut from = simple_tag(self.source, at, "raw")?;
        loop {
            let Some(open) = self.source[from..].find("{%") else {
                return Some(None);
            };
            from += open + 2;
            if let Some(end) = simple_tag(self.source, from, "endraw") {
                return Some(Some(end));
            }
        }
    }

    fn tag(&mut self, start: usize, close: &str) -> Option<Tag<'s>> {
        let bytes = self.source.as_bytes();
        let mut at = start + 2;
        // A sign right behind the braces controls white space.
        at += usize::from(matches!(bytes.get(at), Some(b'-' | b'+')));
        let mut tag = Tag {
            start,
            name: "",
            name_start: at,
            n_tokens: 0,
            assigned: None,
            end: at,
        };
        let mut balance = 0_isize;
        // Whether all tokens so far can be the target of an assignment.
        let mut target = true;
        loop {
            let byte = *bytes.get(at)?;
            if byte.is_ascii_whitespace() {
                at += 1;
                continue;
            }
            if balance == 0 {
                let sign = usize::from(matches!(byte, b'-' | b'+'));
                if bytes[at + sign..].starts_with(close.as_bytes()) {
                    tag.end = at;
                    self.at = at + sign + close.len();
                    return Some(tag);
                }
            }
            let length = token_length(&self.source[at..])?;
            let token = &self.source[at..at + length];
            if tag.n_tokens == 0 && close == "%}" {
                (tag.name, tag.name_start) = (token, at);
            }
            tag.n_tokens += 1;
            match token {
                "(" | "[" | "{" => balance += 1,
                ")" | "]" | "}" => balance -= 1,
                "=" if balance == 0 && target && tag.name == "set" && tag.n_tokens > 2 => {
                    tag.assigned = Some(at + 1);
                }
                _ => {}
            }
            target &= matches!(token, "." | "," | "(" | ")") || is_word(byte);
            at += length;
        }
    }

    fn error(&self, at: usize, message: &str) -> Error {
        let line = 1 + self.source[..at]
            .bytes()
            .filter(|&byte| byte == b'\n')
            .count();
        Error::Template {
            line: Some(line),
            message: message.to_owned(),
        }
    }
}

/// If `{%` before `at` is closed as a tag that holds `name` alone: the offset behind it.
fn simple_tag(source: &str, at: usize, name: &str) -> Option<usize> {
    let blank = |c: char| c.is_ascii_whitespace();
    let rest = &source[at..];
    let rest = rest.strip_prefix(['-', '+']).unwrap_or(rest);
    let rest = rest
        .trim_start_matches(blank)
        .strip_prefix(name)?
        .trim_start_matches(blank);
    let rest = rest
        .strip_prefix(['-', '+'])
        .unwrap_or(rest)
        .strip_prefix("%}")?;
    Some(source.len() - rest.len())
}

/// The length of the token at the start of `text`; `None` for a string without an end.
fn token_length(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let first = *bytes.first()?;
    if matches!(first, b'\'' | b'"') {
        let mut escaped = false;
        let end = bytes[1..].iter().position(|&byte| {
            let end = byte == first && !escaped;
            escaped = byte == b'\\' && !escaped;
            end
        })?;
        return Some(end + 2);
    }
    if is_word(first) {
        return Some(
            bytes
                .iter()
                .position(|&byte| !is_word(byte))
                .unwrap_or(bytes.len()),
        );
    }
    let two = matches!(
        bytes.get(..2),
        Some(b"//" | b"**" | b"==" | b"!=" | b">=" | b"<=")
    );
    if two {
        Some(2)
    } else {
        text.chars().next().map(char::len_utf8)
    }
}

/// Letters, digits and everything beyond ASCII.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(source: &str) -> String {
        prepare(source).expect("within the limits")
    }

    #[test]
    fn generation_blocks_become_if_blocks_with_their_white_space_control() {
        assert_eq!(
            prepared("a{%- generation -%}b{% endgeneration +%}{%generation%}"),
            "a{%- if true -%}b{% endif +%}{%if true%}"
        );
    }

    #[test]
    fn text_comments_raw_blocks_and_strings_stay() {
        for source in [
            "generation {# {% generation %} #}",
            "{% raw %}{% generation %}{% set a = 1 %}{%- endraw -%}",
            "{{ '{% generation %}' }}",
            r#"{{ "\"{% generation %}" ~ '\'' }}"#,
            "{{ generation }}{% if generation %}{% endif %}",
            "{% set a %}{% generate %}{% endset %}",
            "{% if a == b %}{% call(x=1) y() %}{% endcall %}{% endif %}",
        ] {
            assert_eq!(prepared(source), source);
        }
    }

    #[test]
    fn assignments_are_bounded() {
        assert_eq!(prepared("{% set a = b %}"), "{% set a =( b )|__variable %}");
        assert_eq!(
            prepared("{%- set ns.a, b = {'}}': '%}'}, (1 == 2) -%}x"),
            "{%- set ns.a, b =( {'}}': '%}'}, (1 == 2) )|__field -%}x"
        );
    }

    #[test]
    fn unfinished_sources_are_left_to_the_engine() {
        for source in [
            "{{",
            "{%",
            "{#",
            "{{ 'a",
            "{% raw %}",
            "{% set a = ) %}",
            "{% set a = 'é\\",
        ] {
            assert_eq!(prepared(source), source);
        }
    }

    #[test]
    fn endless_chains_are_refused_with_their_line() {
        let chain = format!("\n{{{{ 1{} }}}}", " + 1".repeat(2000));
        assert_eq!(
            prepare(&chain).expect_err("too long").to_string(),
            "chat template line 2: more than 1024 tokens in one tag"
        );
        let elifs = format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(300));
        assert!(prepare(&elifs).is_err());
        assert!(prepare(&" ".repeat(MAX_TEMPLATE_BYTES + 1)).is_err());
    }
}

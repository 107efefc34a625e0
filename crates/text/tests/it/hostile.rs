//! Templates that try to hang or to exhaust memory or stack end in an error.

use proptest::prelude::*;
use thalweg_text::{ChatTemplate, Error, Message, RenderOptions, encode_chat};

use crate::demo::TOKENIZER;

/// Compiles and renders on a thread with the usual two megabytes of stack.
fn render(source: &str) -> Result<String, Error> {
    let source = source.to_owned();
    let thread = std::thread::Builder::new()
        .stack_size(2 << 20)
        .spawn(move || {
            let template = ChatTemplate::new(&source, "<s>", "</s>")?;
            template.render(&[Message::new("user", "text")], &RenderOptions::default())
        });
    thread.expect("a thread").join().expect("no panic")
}

#[test]
fn endless_work_runs_out_of_fuel() {
    for source in [
        "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}",
        "{% for a in range(10000) %}{{ 'x' * 10000 }}{% endfor %}",
        "{{ 'x' * 1000000000 }}",
        "{% set ns = namespace(s='x') %}{% for a in range(64) %}{% set ns.s = ns.s ~ ns.s %}\
         {% endfor %}",
        "{{ ('ab' * 1000).replace('a', 'x' * 100000) }}",
        "{% for a in range(1000) %}{{ range(10000) | list | tojson }}{% endfor %}",
    ] {
        assert!(
            matches!(render(source), Err(Error::TemplateTooLong { .. })),
            "{source}"
        );
    }
}

#[test]
fn endless_recursion_is_an_error() {
    assert!(render("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").is_err());
}

#[test]
fn values_that_hold_themselves_are_refused() {
    for source in [
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns == ns.x }}",
        "{% set ns = namespace() %}{%- set  ns.x={'a':ns} -%}{{ ns | tojson }}",
        "{% set ns = namespace(x=[]) %}{% for a in range(5000) %}{% set ns.x = [ns.x] %}\
         {% endfor %}",
        "{% set ns = namespace(x=0) %}{% for a in range(5000) %}{% set ns.x = {'a': ns.x} %}\
         {% endfor %}",
    ] {
        assert!(render(source).is_err(), "{source}");
    }
}

#[test]
fn values_that_hold_the_same_value_many_times_cost_what_they_print() {
    let doubled = "{% set ns = namespace(x=[1]) %}{% for a in range(60) %}\
                   {% set ns.x = [ns.x, ns.x] %}{% endfor %}";
    for use_ in [
        "{{ ns.x }}",
        "{{ ns.x | tojson }}",
        "{{ ns.x | string }}",
        "{{ ns.x ~ '' }}",
    ] {
        assert!(
            matches!(
                render(&format!("{doubled}{use_}")),
                Err(Error::TemplateTooLong { .. })
            ),
            "{use_}"
        );
    }
    // Written out without a loop.
    let lines = "{% set x = [1] %}".to_owned() + &"{% set x = [x, x] %}".repeat(60);
    assert!(matches!(
        render(&lines),
        Err(Error::TemplateTooLong { line: Some(1), .. })
    ));
}

#[test]
fn chains_of_operators_are_refused_before_they_exhaust_the_stack() {
    let n = 50_000;
    for source in [
        format!("{{{{ 1{} }}}}", " + 1".repeat(n)),
        format!("{{{{ 1{} }}}}", " and 1".repeat(n)),
        format!("{{{{ a{} }}}}", ".b".repeat(n)),
        format!("{{{{ a{} }}}}", "[0]".repeat(n)),
        format!("{{{{ a{} }}}}", "|upper".repeat(n)),
        format!("{{{{ {}1 }}}}", "not ".repeat(n)),
        format!("{{{{ {}1 }}}}", "-".repeat(n)),
        format!("{{{{ {}1 }}}}", "1 if a else ".repeat(n / 3)),
        format!("{{{{ {}1{} }}}}", "(".repeat(n), ")".repeat(n)),
        format!("{{{{ {}1{} }}}}", "[".repeat(n), "]".repeat(n)),
        format!("{{% if a %}}{}{{% endif %}}", "{% elif b %}".repeat(n / 3)),
        format!(
            "{}{}",
            "{% if a %}".repeat(n / 5),
            "{% endif %}".repeat(n / 5)
        ),
        format!(
            "{}{}",
            "{% for a in b %}".repeat(n / 5),
            "{% endfor %}".repeat(n / 5)
        ),
    ] {
        let result = render(&source);
        assert!(
            matches!(
                result,
                Err(Error::Template { .. } | Error::TemplateSize { .. })
            ),
            "{:.40}: {result:?}",
            source
        );
    }
}

#[test]
fn the_longest_chains_that_are_accepted_fit_the_stack() {
    for source in [
        format!("{{{{ 1{} }}}}", " + 1".repeat(500)),
        format!("{{{{ {}1 }}}}", "-".repeat(1000)),
        format!("{{{{ {}1 }}}}", "not ".repeat(1000)),
        format!("{{{{ 1{} }}}}", " and 1".repeat(500)),
        format!("{{% if a %}}{}{{% endif %}}", "{% elif b %}".repeat(256)),
    ] {
        // What counts is that the process survives.
        let _ended = render(&source);
    }
}

#[test]
fn wide_fields_and_indents_are_refused() {
    for source in [
        "{{ '{:>1000000000}'.format('x') }}",
        "{{ '{:>{}}'.format('x', 1000000000) }}",
        "{{ '{:.1000000000f}'.format(1.0) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ [1] | tojson(indent=1000000000) }}",
    ] {
        assert!(render(source).is_err(), "{source}");
    }
}

#[test]
fn templates_reach_no_files_and_no_other_templates() {
    for source in [
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% extends 'chat' %}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__init__ }}{{ messages.append(1) }}",
    ] {
        assert!(render(source).is_err(), "{source}");
    }
}

#[test]
fn large_chats_render_within_their_fuel() {
    let template = ChatTemplate::for_tokenizer(crate::chat::AGENT, &TOKENIZER).expect("parses");
    // Ten thousand messages, and one of four megabytes.
    let messages: Vec<Message> = (0..10_000)
        .map(|index| Message::new(["user", "assistant"][index % 2], "some words, < and > too"))
        .collect();
    template
        .render(&messages, &RenderOptions::default())
        .expect("renders");
    let messages = [Message::new("user", "word ".repeat(800_000))];
    template
        .render(&messages, &RenderOptions::default())
        .expect("renders");
}

proptest! {
    #[test]
    fn no_template_panics(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "{{", "}}", "{%", "%}", "{#", "#}", "-", "+", " ", "\n", "set", "if", "for", "in",
                "endif", "endfor", "generation", "endgeneration", "raw", "endraw", "macro", "x",
                "messages", "[", "]", "(", ")", "{", "}", "'", "\"", "\\", "=", "==", "|", "tojson",
                ".", ",", ":", "0", "1e9", "namespace", "loop", "break", "é", "content", "[::-1]",
                ".split('')", "|join", "|string", "range(3)", "'%s'", "format", "1.5", "~", "*",
            ]),
            0..40,
        )
    ) {
        let source = parts.concat();
        if let Ok(template) = ChatTemplate::new(&source, "", "") {
            let messages = [Message::new("user", "a<|im_end|>b")];
            let _ended = encode_chat(&TOKENIZER, &template, &messages, &RenderOptions::default());
        }
    }

    #[test]
    fn no_bytes_panic(source in "\\PC{0,64}", content in "\\PC{0,32}") {
        if let Ok(template) = ChatTemplate::new(&source, "", "") {
            let messages = [Message::new("user", content)];
            let _ended = template.render(&messages, &RenderOptions::default());
        }
    }

    #[test]
    fn no_damaged_template_panics(
        first: bool,
        edits in prop::collection::vec(
            (
                any::<prop::sample::Index>(),
                0_usize..24,
                prop::sample::select(vec![
                    "", "", "x", "messages", "[-1]", "[::0]", "(1)", "9999999999999", "-1", "''",
                    "none", " if x", " else ", "|list", "|sort", "|join(1)", ".split('')", "{}",
                    ".format(1)", "%", "//0", "**99", " is string", " in messages", "|length",
                    "|first", "[1:2]", "*3", "|tojson", "loop.previtem", "ns", "|batch(0)",
                    "|slice(0)", "|int", "|float", "|round(99)", "|indent(-1)", "|replace('', 'x')",
                    ".replace('', 'x', -1)", "|dictsort", "|items", "|unique", "|groupby('x')",
                    "|format(1)", "range(3)", "dict(a=1)", "{% break %}", "{% generation %}",
                ]),
            ),
            1..6,
        ),
    ) {
        let mut source = if first { crate::chat::AGENT } else { crate::chat::PYTHON }.to_owned();
        for (at, length, with) in edits {
            let mut start = at.index(source.len());
            let mut end = (start + length).min(source.len());
            while !source.is_char_boundary(start) { start -= 1; }
            while !source.is_char_boundary(end) { end += 1; }
            source.replace_range(start..end, with);
        }
        if let Ok(template) = ChatTemplate::new(&source, "<s>", "</s>") {
            let messages = [
                Message::new("user", "a<|im_end|>b</think>"),
                Message::new("assistant", "").with("tool_calls", serde_json::json!([
                    {"name": "f", "arguments": {"a": [1, 2.5, null], "b": {"c": "d"}}}
                ])),
            ];
            let values = serde_json::json!({"list": [1, "a", null], "map": {"a": 1, "b": []},
                "yes": true, "no": false, "int": -3, "float": 0.5, "text": "a,b", "words": ["b"]});
            let options = RenderOptions {
                variables: [("values".to_owned(), values)].into_iter().collect(),
                tools: Some(serde_json::json!([{"function": {"name": "f", "parameters": {}}}])),
                ..RenderOptions::default()
            };
            let _ended = encode_chat(&TOKENIZER, &template, &messages, &options);
        }
    }
}

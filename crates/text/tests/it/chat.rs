//! Rendered chats against Jinja2 set up as transformers does, and the errors of templates.

use std::time::{Duration, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use thalweg_text::{ChatTemplate, Error, Message, RenderOptions, SpecialTokens, encode_chat};

use crate::demo::{TOKENIZER, spec};

#[derive(Deserialize)]
struct Case {
    name: String,
    template: String,
    messages: Vec<Message>,
    tools: Option<Value>,
    #[serde(default)]
    add_generation_prompt: bool,
    #[serde(default)]
    variables: Map<String, Value>,
    #[serde(default)]
    bos: String,
    #[serde(default)]
    eos: String,
    #[serde(default)]
    now: u64,
    expected: Option<String>,
    raises: Option<String>,
}

const DEMO: &str = include_str!("../data/templates/demo.jinja");
pub(crate) const AGENT: &str = include_str!("../data/templates/agent.jinja");
pub(crate) const PYTHON: &str = include_str!("../data/templates/python.jinja");

fn cases() -> Vec<Case> {
    serde_json::from_str(include_str!("../data/chats.json")).expect("the chats are JSON")
}

impl Case {
    fn template(&self) -> ChatTemplate {
        let source = match self.template.as_str() {
            "demo.jinja" => DEMO,
            "agent.jinja" => AGENT,
            "python.jinja" => PYTHON,
            other => panic!("no template {other}"),
        };
        ChatTemplate::new(source, &self.bos, &self.eos).expect("the template parses")
    }

    fn options(&self) -> RenderOptions {
        RenderOptions {
            add_generation_prompt: self.add_generation_prompt,
            tools: self.tools.clone(),
            variables: self.variables.clone(),
            now: Some(UNIX_EPOCH + Duration::from_secs(self.now)),
        }
    }
}

#[test]
fn the_demo_template_under_test_is_that_of_the_model() {
    assert_eq!(spec().template(None), Some(DEMO));
}

#[test]
fn chats_render_as_in_jinja2() {
    for case in cases() {
        let rendered = case.template().render(&case.messages, &case.options());
        match (&case.expected, &case.raises) {
            (Some(expected), None) => {
                let rendered = rendered.unwrap_or_else(|error| panic!("{}: {error}", case.name));
                for (index, (ours, theirs)) in rendered.lines().zip(expected.lines()).enumerate() {
                    assert_eq!(ours, theirs, "{}, line {}", case.name, index + 1);
                }
                assert_eq!(&rendered, expected, "{}", case.name);
            }
            (None, Some(raised)) => assert!(
                matches!(&rendered, Err(Error::TemplateRefused { message, line: Some(_) })
                    if message == raised),
                "{}: {rendered:?}",
                case.name
            ),
            _ => panic!("{}: neither a text nor an exception", case.name),
        }
    }
}

#[test]
fn chats_without_markers_encode_as_their_rendered_text() {
    for case in cases().into_iter().filter(|case| case.expected.is_some()) {
        let (template, options) = (case.template(), case.options());
        let text = template.render(&case.messages, &options).expect("renders");
        let ids = encode_chat(&TOKENIZER, &template, &case.messages, &options);
        // Three chats hold text that is a control token in the demo vocabulary, and the agent's
        // template looks at it.
        let inspected = match case.name.as_str() {
            "agent with tools" | "agent history" => Some((5, "<think>")),
            "agent parts" => Some((2, "<tool_response>")),
            _ => None,
        };
        match (ids, inspected) {
            (Ok(ids), None) => {
                assert_eq!(
                    ids,
                    TOKENIZER.encode(&text, SpecialTokens::Parse),
                    "{}",
                    case.name
                );
            }
            (Err(Error::MarkerInContent { message, marker }), Some((index, text))) => {
                assert_eq!(
                    (message, marker.as_str()),
                    (Some(index), text),
                    "{}",
                    case.name
                );
            }
            (ids, _) => panic!("{}: {ids:?}", case.name),
        }
    }
}

#[test]
fn messages_read_from_json_keep_their_fields_but_never_trust() {
    let message: Message = serde_json::from_value(
        json!({"role": "tool", "content": null, "name": "f", "trusted": true}),
    )
    .expect("a message");
    assert_eq!(message.role, "tool");
    assert!(!message.trusted);
    assert_eq!(message.fields["trusted"], true);
    let template = ChatTemplate::new(
        "{{ messages[0].content is defined }} {{ messages[0] | tojson }}",
        "",
        "",
    )
    .expect("parses");
    assert_eq!(
        template
            .render(&[message], &RenderOptions::default())
            .expect("renders"),
        r#"False {"role": "tool", "name": "f", "trusted": true}"#
    );
}

#[test]
fn faults_in_templates_come_with_their_line() {
    for (source, line, part) in [
        ("a\n{% if %}", 2, "syntax error"),
        ("{{ 'a }}", 1, "unexpected end of string"),
        ("\n\n{{ 1 | nofilter }}", 3, "nofilter"),
        ("{% for a in b %}", 1, "unexpected end"),
        ("{% include 'x' %}", 1, ""),
    ] {
        let error = ChatTemplate::new(source, "", "")
            .and_then(|template| template.render(&[], &RenderOptions::default()))
            .expect_err("faulty");
        assert!(
            matches!(&error, Error::Template { line: Some(found), message }
                if *found == line && message.contains(part)),
            "{source:?}: {error:?}"
        );
    }
    let template = ChatTemplate::new("\n{{ messages[0].content.nothing.at_all }}", "", "");
    let error = template
        .expect("parses")
        .render(&[Message::new("user", "x")], &RenderOptions::default())
        .expect_err("undefined");
    assert!(
        matches!(error, Error::Template { line: Some(2), .. }),
        "{error:?}"
    );
}

#[test]
fn the_line_of_an_error_is_that_of_the_source_despite_rewriting() {
    let source = "{% set a = 1 %}\n{% generation %}\n{% set b =\n 2 %}{% endgeneration %}\n\
                  {{ raise_exception('here') }}";
    let error = ChatTemplate::new(source, "", "")
        .and_then(|template| template.render(&[], &RenderOptions::default()))
        .expect_err("raises");
    assert_eq!(
        error.to_string(),
        "chat template line 5 refuses the messages: here"
    );
}

#[test]
fn an_exception_raised_in_a_macro_is_still_a_refusal() {
    let source = "{% macro f() %}{{ raise_exception('deep') }}{% endmacro %}{{ f() }}";
    let error = ChatTemplate::new(source, "", "")
        .and_then(|template| template.render(&[], &RenderOptions::default()))
        .expect_err("raises");
    assert!(matches!(error, Error::TemplateRefused { message, .. } if message == "deep"));
}

#[test]
fn the_clock_is_the_system_clock_unless_given() {
    let template = ChatTemplate::new("{{ strftime_now('%Y') }}", "", "").expect("parses");
    let year = template
        .render(&[], &RenderOptions::default())
        .expect("renders");
    assert!(year.parse::<u32>().is_ok_and(|year| year >= 2025), "{year}");
}

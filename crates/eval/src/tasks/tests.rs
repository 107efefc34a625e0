use serde_json::json;

use super::*;

fn output(text: &str, truncated: bool) -> TaskOutput {
    TaskOutput {
        id: "t".to_owned(),
        prompt_sha256: String::new(),
        text: text.to_owned(),
        n_tokens: 1,
        truncated,
    }
}

#[track_caller]
fn holds(check: &Value, text: &str) -> bool {
    let check: Check = serde_json::from_value(check.clone()).unwrap();
    check.validate().unwrap();
    check.holds(&output(text, false))
}

#[test]
fn json_is_the_whole_answer_or_one_fence() {
    let check = json!({"kind": "json"});
    for text in [
        "{\"a\": 1}",
        "  [1, 2]\n",
        "```json\n{\"a\": 1}\n```",
        "```\n3\n```",
    ] {
        assert!(holds(&check, text), "{text}");
    }
    for text in [
        "",
        "Here: {\"a\": 1}",
        "{\"a\": 1",
        "{\"a\": 1} {}",
        "```json {}```",
    ] {
        assert!(!holds(&check, text), "{text}");
    }
}

#[test]
fn schemas_hold_as_the_standard_says() {
    let schema = json!({
        "type": "object",
        "required": ["name", "size"],
        "additionalProperties": false,
        "properties": {
            "name": {"type": "string", "minLength": 2},
            "size": {"type": "integer", "minimum": 1},
            "tags": {"type": "array", "maxItems": 2, "items": {"enum": ["a", "b"]}},
        }
    });
    let check = json!({"kind": "schema", "schema": schema});
    for text in [
        r#"{"name": "xy", "size": 3}"#,
        r#"{"name": "xy", "size": 3.0, "tags": []}"#,
        r#"{"size": 1, "name": "日本", "tags": ["b", "a"]}"#,
    ] {
        assert!(holds(&check, text), "{text}");
    }
    for text in [
        "[]",
        "{}",
        r#"{"name": "xy"}"#,
        r#"{"name": "x", "size": 3}"#,
        r#"{"name": "xy", "size": 0}"#,
        r#"{"name": "xy", "size": 3.5}"#,
        r#"{"name": "xy", "size": "3"}"#,
        r#"{"name": "xy", "size": 3, "more": 1}"#,
        r#"{"name": "xy", "size": 3, "tags": ["c"]}"#,
        r#"{"name": "xy", "size": 3, "tags": ["a", "a", "a"]}"#,
        r#"{"name": "xy", "size": 3"#,
    ] {
        assert!(!holds(&check, text), "{text}");
    }
    let any = json!({"kind": "schema", "schema": {"type": ["null", "number"], "const": 2}});
    assert!(holds(&any, "2") && !holds(&any, "null"));
}

#[test]
fn a_keyword_that_is_not_known_is_refused_with_its_place() {
    let message = |schema: Value| {
        let check: Check =
            serde_json::from_value(json!({"kind": "schema", "schema": schema})).unwrap();
        check.validate().unwrap_err().to_string()
    };
    let said = message(json!({"properties": {"a": {"oneOf": []}}}));
    assert!(said.contains("/properties/a/oneOf"), "{said}");
    for schema in [
        json!({"type": "text"}),
        json!({"required": "name"}),
        json!({"minItems": -1}),
        json!({"minimum": "1"}),
        json!({"enum": 1}),
        json!({"items": 3}),
        json!({"properties": []}),
    ] {
        assert!(message(schema).contains("expected"));
    }
}

#[test]
fn patterns_are_searched() {
    assert!(holds(
        &json!({"kind": "regex", "pattern": "^curl \\("}),
        "curl (web): x"
    ));
    assert!(!holds(
        &json!({"kind": "regex", "pattern": "^curl \\("}),
        "the curl (web)"
    ));
    assert!(holds(
        &json!({"kind": "not_regex", "pattern": "(?i)sorry"}),
        "Yes."
    ));
    assert!(!holds(
        &json!({"kind": "not_regex", "pattern": "(?i)sorry"}),
        "Sorry."
    ));
    let check: Check = serde_json::from_value(json!({"kind": "regex", "pattern": "("})).unwrap();
    assert!(
        check
            .validate()
            .unwrap_err()
            .to_string()
            .contains("pattern")
    );
    assert!(!check.holds(&output("(", false)));
}

#[test]
fn tools_are_read_in_both_notations() {
    let check = json!({
        "kind": "tool", "name": "weather", "arguments": {"city": "Kyoto", "days": 3}
    });
    for text in [
        r#"I look. <tool_call>
{"name": "weather", "arguments": {"days": 3, "city": "Kyoto", "unit": "C"}}
</tool_call>"#,
        r#"<tool_call>{"name": "weather", "arguments": "{\"days\": 3, \"city\": \"Kyoto\"}"}</tool_call>"#,
        "<tool_call>\n<function=weather>\n<parameter=city>\nKyoto\n</parameter>\n\
         <parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
    ] {
        assert!(holds(&check, text), "{text}");
    }
    for text in [
        "weather in Kyoto",
        r#"<tool_call>{"name": "weather", "arguments": {"city": "Kyoto"}}</tool_call>"#,
        r#"<tool_call>{"name": "weather", "arguments": {"city": "Kyoto", "days": "3"}}</tool_call>"#,
        r#"<tool_call>{"name": "news", "arguments": {"days": 3, "city": "Kyoto"}}</tool_call>"#,
        r#"<tool_call>{"name": "weather", "arguments": {"days": 3, "city": "Kyoto"}}"#,
        "<tool_call>\n<function=weather>\n<parameter=city>\nKyoto\n</function>\n</tool_call>",
    ] {
        assert!(!holds(&check, text), "{text}");
    }
    assert!(holds(
        &json!({"kind": "tool", "name": "now"}),
        r#"<tool_call>{"name": "now"}</tool_call>"#
    ));
}

#[test]
fn japanese_is_a_share_of_letters() {
    let at_least = |share: f64| json!({"kind": "japanese", "at_least": share});
    assert!(holds(&at_least(1.0), "川の水が少ない。123 !!"));
    // Three letters of eight.
    assert!(holds(&at_least(0.375), "カレーabcde"));
    assert!(!holds(&at_least(0.376), "カレーabcde"));
    assert!(!holds(&at_least(0.01), "123"));
    for share in [-0.1, 1.5] {
        let check: Check = serde_json::from_value(at_least(share)).unwrap();
        assert!(check.validate().is_err());
    }
}

/// Three tasks; the second is about JSON.
const TASKS: &str = r#"
{"id": "a", "messages": [{"role": "user", "content": "A?"}], "checks": [{"kind": "regex", "pattern": "yes"}]}

{"id": "b", "messages": [{"role": "user", "content": "B?"}], "max_tokens": 9, "checks": [{"kind": "not_truncated"}, {"kind": "json"}]}
{"id": "c", "messages": [{"role": "user", "content": "C?"}], "checks": [{"kind": "japanese", "at_least": 0.5}]}
"#;

fn outputs(tasks: &[Task], texts: [(&str, bool); 3]) -> Vec<TaskOutput> {
    let both = tasks.iter().zip(texts);
    both.map(|(task, (text, truncated))| TaskOutput {
        id: task.id.clone(),
        prompt_sha256: task.prompt_sha256(),
        ..output(text, truncated)
    })
    .collect()
}

#[test]
fn truncation_is_a_cause_of_its_own() {
    let tasks = Task::read_all(TASKS).unwrap();
    assert_eq!((tasks[0].max_tokens, tasks[1].max_tokens), (256, 9));
    let found = Scores::of(
        &tasks,
        &outputs(&tasks, [("yes", true), ("{\"a\":", true), ("no", false)]),
    );
    let found = found.unwrap();
    assert_eq!((found.n_tasks, found.n_passed), (3, 1));
    // An answer that is right as far as it goes is right.
    assert!(found.tasks[0].passed);
    assert_eq!(found.tasks[1].cause.as_deref(), Some("truncated"));
    assert_eq!(found.tasks[1].failed, ["not_truncated", "json"]);
    assert_eq!(found.tasks[2].cause.as_deref(), Some("japanese"));
    assert_eq!(
        found.causes,
        BTreeMap::from([("japanese".into(), 1), ("truncated".into(), 1)])
    );
}

#[test]
fn stored_outputs_are_judged_by_other_rules() {
    let tasks = Task::read_all(TASKS).unwrap();
    let stored = outputs(&tasks, [("no", false), ("{}", false), ("no", false)]);
    let text: String = stored
        .iter()
        .map(|o| serde_json::to_string(o).unwrap() + "\n")
        .collect();
    let stored = TaskOutput::read_all(&text).unwrap();
    // Rules alone, for one task.
    let rules = r#"{"id": "c", "checks": [{"kind": "regex", "pattern": "^no$"}]}"#;
    let found = Scores::of(&Task::read_all(rules).unwrap(), &stored).unwrap();
    assert_eq!((found.n_tasks, found.n_passed), (1, 1));
    assert_eq!(found.unjudged, ["a", "b"]);
    // A task that asks something else judges nothing.
    let other = TASKS.replace("C?", "D?");
    let error = Scores::of(&Task::read_all(&other).unwrap(), &stored).unwrap_err();
    assert!(error.to_string().contains("\"c\""), "{error}");
    let error = Scores::of(&tasks, &stored[..2]).unwrap_err();
    assert!(
        error.to_string().contains("no output for task \"c\""),
        "{error}"
    );
}

#[test]
fn two_models_are_compared_with_the_modesty_that_few_tasks_ask_for() {
    let lines: String = (0..20)
        .map(|i| format!("{{\"id\":\"{i}\",\"checks\":[{{\"kind\":\"json\"}}]}}\n"))
        .collect();
    let tasks = Task::read_all(&lines).unwrap();
    let with = |n_failed: usize| {
        let answers = tasks.iter().enumerate().map(|(i, task)| TaskOutput {
            id: task.id.clone(),
            ..output(if i < n_failed { "no" } else { "1" }, false)
        });
        Scores::of(&tasks, &answers.collect::<Vec<_>>()).unwrap()
    };
    let found = with(3).compare(&with(0)).unwrap();
    assert_eq!(found.n_passed, [17, 20]);
    assert_eq!((found.only_first.len(), found.only_second.len()), (0, 3));
    assert!((found.fisher.p_two_sided - 0.230_769).abs() < 5e-7);
    let other = Scores::of(&tasks[..19], &[]);
    assert!(other.is_err());
}

#[test]
fn lines_that_cannot_be_used_are_named() {
    let message = |text: &str| {
        let error = Task::read_all(text).unwrap_err();
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        format!("{error}: {}", cause.unwrap_or_default())
    };
    let good = r#"{"id": "a", "checks": [{"kind": "json"}]}"#;
    assert!(message("").contains("0 given, expected 1"));
    assert!(message(&format!("{good}\n{good}")).contains("line 2"));
    assert!(message(&format!("{good}\n{good}")).contains("\"a\""));
    assert!(message("\n{").contains("line 2"));
    assert!(message(r#"{"id": "a", "checks": []}"#).contains("checks of a task"));
    for unknown in [
        r#"{"id": "a", "check": [], "checks": [{"kind": "json"}]}"#,
        r#"{"id": "a", "checks": [{"kind": "yaml"}]}"#,
        r#"{"id": "a", "checks": [{"kind": "json", "strict": true}]}"#,
        r#"{"id": "a", "checks": [{"kind": "regex"}]}"#,
        r#"{"id": "a", "checks": [{"kind": "regex", "pattern": "x", "flags": "i"}]}"#,
        r#"{"id": "a", "checks": [{"kind": "regex", "pattern": "["}]}"#,
    ] {
        assert!(message(unknown).contains("line 1"), "{unknown}");
    }
    assert!(TaskOutput::read_all("{\"id\": \"a\"}").is_err());
}

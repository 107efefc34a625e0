//! `thalweg-text`.

use std::sync::OnceLock;
use std::time::SystemTime;

use thalweg_text::{
    ChatTemplate, Message, RenderOptions, SpecialTokens, StopStrings, Tokenizer, TokenizerSpec,
    Utf8Stream, encode_chat,
};

use crate::input::Input;

const CONTROL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// Compiles and renders a chat template: the input up to its first zero byte. The rest is a
/// message. Rendered as tokens, the message must not contain control tokens of its own.
pub fn chat_template(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (source, message) = text.split_once('\0').unwrap_or((&text, "Hi <|im_end|>"));
    let Ok(template) = ChatTemplate::for_tokenizer(source, tokenizer()) else {
        return;
    };
    let messages = [
        Message::new("system", "Be brief."),
        Message::new("user", message).with("name", "someone"),
    ];
    let tool = serde_json::json!([{"type": "function", "function": {"name": "look_up"}}]);
    for tools in [None, Some(tool)] {
        let options = RenderOptions {
            add_generation_prompt: tools.is_none(),
            tools,
            variables: serde_json::Map::new(),
            now: Some(SystemTime::UNIX_EPOCH),
        };
        let _ = template.render(&messages, &options);
        let _ = encode_chat(tokenizer(), &template, &messages, &options);
    }
}

/// Turns bytes into text piece by piece, in three ways that must agree with each other: as UTF-8,
/// through tokens, and past stop strings.
pub fn detokenizer(data: &[u8]) {
    let mut input = Input::new(data);
    let (mut utf8, mut text, mut bytes) = (Utf8Stream::new(), String::new(), Vec::new());
    let (mut piecewise, mut ids) = (String::new(), Vec::new());
    let mut stream = tokenizer().detokenizer(true);
    let stop_text = String::from_utf8_lossy(input.take(2)).into_owned();
    while !input.is_empty() {
        let n = 1 + input.below(5);
        let piece = input.take(n);
        bytes.extend_from_slice(piece);
        utf8.push(piece, &mut text);
        assert!(utf8.held_bytes() < 4);
        for byte in piece {
            // Of this vocabulary the id of a byte's token is the byte.
            ids.push(u32::from(*byte));
            piecewise.push_str(
                stream
                    .push(u32::from(*byte))
                    .expect("the id is in the vocabulary"),
            );
        }
    }
    utf8.finish(&mut text);
    piecewise.push_str(stream.finish());
    assert_eq!(text, String::from_utf8_lossy(&bytes));
    assert_eq!(piecewise, text);
    assert_eq!(
        tokenizer().decode(&ids, true).expect("all ids are known"),
        text
    );
    assert!(tokenizer().detokenizer(false).push(1 << 20).is_err());

    let encoded = tokenizer().encode(&text, SpecialTokens::AsText);
    assert!(
        !encoded.iter().any(|id| tokenizer().is_control(*id)),
        "text became a control token"
    );
    let _ = tokenizer().encode(&text, SpecialTokens::Parse);

    let Ok(mut stop) = StopStrings::new([stop_text.clone(), "\nUser:".to_owned()]) else {
        return;
    };
    let (mut passed, mut stopped) = (String::new(), false);
    for character in text.chars() {
        let out = stop.push(character.encode_utf8(&mut [0; 4]));
        passed.push_str(&out.text);
        stopped |= out.stopped_by.is_some();
    }
    passed.push_str(&stop.finish());
    assert!(text.starts_with(&passed));
    assert!(!passed.contains(&stop_text));
    assert!(stopped || passed == text);
}

fn tokenizer() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| {
        Tokenizer::new(TokenizerSpec::bytes_only(CONTROL)).expect("the vocabulary is valid")
    })
}

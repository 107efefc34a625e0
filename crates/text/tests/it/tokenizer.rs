//! Ids against the Hugging Face library, recognition of markers, and the way back.

use proptest::prelude::*;
use serde::Deserialize;
use thalweg_text::{Error, SpecialTokens, TokenKind, Tokenizer};

use crate::demo::{TOKENIZER, small};

#[derive(Deserialize)]
struct Case {
    name: String,
    text: String,
    parsed: Vec<u32>,
    as_text: Vec<u32>,
}

#[derive(Deserialize)]
struct Prompt {
    name: String,
    text: String,
    tokens: Vec<u32>,
}

fn corpus() -> Vec<Case> {
    serde_json::from_str(include_str!("../data/corpus.json")).expect("the corpus is JSON")
}

#[test]
fn ids_equal_those_of_the_tokenizers_library() {
    for Case {
        name,
        text,
        parsed,
        as_text,
    } in corpus()
    {
        assert_eq!(
            TOKENIZER.encode(&text, SpecialTokens::Parse),
            parsed,
            "{name}, parsed"
        );
        assert_eq!(
            TOKENIZER.encode(&text, SpecialTokens::AsText),
            as_text,
            "{name}, as text"
        );
    }
}

#[test]
fn ids_of_the_whole_corpus_at_once_decode_to_it() {
    let all: Vec<String> = corpus().into_iter().map(|case| case.text).collect();
    let all = all.join("\n");
    for special in [SpecialTokens::Parse, SpecialTokens::AsText] {
        let ids = TOKENIZER.encode(&all, special);
        let text = TOKENIZER
            .decode(&ids, false)
            .expect("ids of this vocabulary");
        // Encoding composes characters, so compare what a second pass makes of both.
        assert_eq!(TOKENIZER.encode(&text, special), ids);
    }
}

#[test]
fn ids_of_the_golden_prompts_are_the_recorded_ones() {
    let prompts: Vec<Prompt> =
        serde_json::from_str(include_str!("../data/prompts.json")).expect("the prompts are JSON");
    assert_eq!(prompts.len(), 6);
    for Prompt { name, text, tokens } in prompts {
        assert_eq!(
            TOKENIZER.encode(&text, SpecialTokens::Parse),
            tokens,
            "{name}"
        );
    }
}

#[test]
fn no_text_yields_a_control_id_unless_asked_to() {
    let control: Vec<u32> = (0..8192).filter(|&id| TOKENIZER.is_control(id)).collect();
    assert_eq!(
        control.len(),
        9,
        "the demo vocabulary has nine control tokens"
    );
    let markers: Vec<String> = control
        .iter()
        .map(|&id| {
            TOKENIZER
                .decode(&[id], false)
                .expect("an id of this vocabulary")
        })
        .collect();
    for marker in &markers {
        let half = marker.len() / 2;
        let (head, tail) = marker.split_at(half);
        for text in [
            marker.clone(),
            format!("{marker}{marker}"),
            format!("a {marker} b"),
            format!("{head}{marker}{tail}"),
            format!("{marker}\u{338}"),
            format!("\u{FF1C}{}", &marker[1..]),
            markers.concat(),
            head.to_owned(),
            tail.to_owned(),
        ] {
            let ids = TOKENIZER.encode(&text, SpecialTokens::AsText);
            assert!(!ids.iter().any(|&id| TOKENIZER.is_control(id)), "{text:?}");
        }
        let ids = TOKENIZER.encode(&format!("{head}{marker}{tail}"), SpecialTokens::Parse);
        assert_eq!(
            ids.iter().filter(|&&id| TOKENIZER.is_control(id)).count(),
            1,
            "{marker}"
        );
    }
}

#[test]
fn user_defined_tokens_are_recognized_in_all_text() {
    let tokenizer = Tokenizer::new(small()).expect("sound");
    let think = tokenizer.id_of("<think>").expect("known");
    for special in [SpecialTokens::AsText, SpecialTokens::Parse] {
        assert_eq!(tokenizer.encode("<think>", special), [think]);
    }
    assert_eq!(
        tokenizer.encode("x<think>y", SpecialTokens::AsText),
        [120, think, 121]
    );
}

#[test]
fn fillers_and_raw_bytes_are_never_encoded() {
    let tokenizer = Tokenizer::new(small()).expect("sound");
    let ids = tokenizer.encode("[PAD1]<unk><0x0A>", SpecialTokens::Parse);
    let text: Vec<u32> = "[PAD1]<unk><0x0A>".bytes().map(u32::from).collect();
    assert_eq!(ids, text);
    let kinds = ["[PAD1]", "<unk>", "<0x0A>", "<|im_end|>", "<think>", "abc"].map(|token| {
        let id = tokenizer.id_of(token).expect("known");
        assert_eq!(tokenizer.is_unused(id), token == "[PAD1]");
        tokenizer.kind(id).expect("in range")
    });
    assert_eq!(
        kinds,
        [
            TokenKind::Unused,
            TokenKind::Unknown,
            TokenKind::Byte,
            TokenKind::Control,
            TokenKind::UserDefined,
            TokenKind::Normal,
        ]
    );
}

#[test]
fn merges_apply_in_the_order_of_their_ranks() {
    let tokenizer = Tokenizer::new(small()).expect("sound");
    let id = |token| tokenizer.id_of(token).expect("known");
    assert_eq!(
        tokenizer.encode("abcab", SpecialTokens::AsText),
        [id("abc"), id("ab")]
    );
    // "a b" outranks "Ġ a", so the blank stays alone.
    assert_eq!(
        tokenizer.encode(" ab", SpecialTokens::AsText),
        [32, id("ab")]
    );
    assert_eq!(
        tokenizer.encode(" ac", SpecialTokens::AsText),
        [id("Ġa"), 99]
    );
}

#[test]
fn bytes_of_tokens_are_raw_bytes_or_literal_text() {
    let tokenizer = Tokenizer::new(small()).expect("sound");
    for (token, bytes) in [
        ("Ġa", " a"),
        ("abc", "abc"),
        ("<|im_end|>", "<|im_end|>"),
        ("<0x0A>", "\n"),
    ] {
        let id = tokenizer.id_of(token).expect("known");
        assert_eq!(
            tokenizer.token_bytes(id).expect("in range"),
            bytes.as_bytes()
        );
    }
    for byte in 0..=u8::MAX {
        assert_eq!(
            tokenizer.token_bytes(u32::from(byte)).expect("in range"),
            [byte]
        );
    }
}

#[test]
fn an_id_beyond_the_vocabulary_is_an_error_everywhere() {
    let n_vocab = TOKENIZER.n_vocab();
    assert_eq!(n_vocab, 8192);
    for id in [8192, u32::MAX] {
        assert!(matches!(
            TOKENIZER.decode(&[0, id], true),
            Err(Error::TokenOutOfRange { id: found, n_vocab: 8192 }) if found == id
        ));
        assert!(TOKENIZER.token_bytes(id).is_err());
        assert!(TOKENIZER.kind(id).is_err());
        assert!(!TOKENIZER.is_control(id) && !TOKENIZER.is_unused(id));
        let mut stream = TOKENIZER.detokenizer(false);
        assert!(stream.push(id).is_err());
        assert_eq!(stream.push(0).expect("in range"), "!");
    }
}

#[test]
fn special_ids_are_those_of_the_vocabulary() {
    assert_eq!(TOKENIZER.eos_id(), Some(8185));
    assert_eq!(TOKENIZER.eos_ids(), [8183, 8185]);
    assert!(!TOKENIZER.adds_bos());
    assert_eq!(TOKENIZER.id_of("<|im_end|>"), Some(8185));
    assert_eq!(TOKENIZER.id_of("nowhere to be found"), None);
}

#[test]
fn bos_is_put_in_front_once_if_the_vocabulary_asks_for_it() {
    let mut spec = small();
    spec.bos_id = Some(258);
    spec.add_bos = true;
    let tokenizer = Tokenizer::new(spec).expect("sound");
    assert_eq!(tokenizer.encode("", SpecialTokens::Parse), [258]);
    assert_eq!(tokenizer.encode("x", SpecialTokens::AsText), [258, 120]);
}

#[test]
fn control_and_unused_tokens_can_be_left_out_of_the_text() {
    let tokenizer = Tokenizer::new(small()).expect("sound");
    let id = |token| tokenizer.id_of(token).expect("known");
    let ids = [
        id("<|im_start|>"),
        id("abc"),
        id("[PAD1]"),
        id("<think>"),
        id("<|im_end|>"),
    ];
    assert_eq!(
        tokenizer.decode(&ids, true).expect("in range"),
        "abc<think>"
    );
    assert_eq!(
        tokenizer.decode(&ids, false).expect("in range"),
        "<|im_start|>abc[PAD1]<think><|im_end|>"
    );
}

#[test]
fn long_inputs_take_linear_time() {
    // A long word, blanks and marks; quadratic work would take minutes.
    for unit in ["a", " ", "\n", "\u{301}", "<", "<|im_end|>", "é"] {
        let text = unit.repeat((1 << 18) / unit.len());
        let ids = TOKENIZER.encode(&text, SpecialTokens::AsText);
        assert!(!ids.is_empty());
        assert_eq!(
            TOKENIZER.decode(&ids, false).expect("in range").len(),
            text.len(),
            "{unit:?}"
        );
    }
}

proptest! {
    #[test]
    fn text_comes_back_in_composed_form(text in "\\PC{0,40}") {
        let ids = TOKENIZER.encode(&text, SpecialTokens::AsText);
        let back = TOKENIZER.decode(&ids, true).expect("ids of this vocabulary");
        if text.is_ascii() {
            prop_assert_eq!(&back, &text);
        }
        // Composed text is a fixed point.
        let again = TOKENIZER.encode(&back, SpecialTokens::AsText);
        prop_assert_eq!(TOKENIZER.decode(&again, true).expect("ids of this vocabulary"), back);
    }

    #[test]
    fn fragments_of_markers_never_yield_control_ids(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "<", "|", ">", "<|", "|>", "im_", "end", "start", "<|im_end|>", "<|im_start|>",
                "<think>", "</", "think", " ", "\n", "a", "\u{338}", "<|endoftext|>",
            ]),
            0..24,
        )
    ) {
        let text = parts.concat();
        let ids = TOKENIZER.encode(&text, SpecialTokens::AsText);
        prop_assert!(!ids.iter().any(|&id| TOKENIZER.is_control(id)));
    }
}

#[test]
fn tokenizers_and_templates_can_be_shared_by_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Tokenizer>();
    shared::<thalweg_text::ChatTemplate>();
}

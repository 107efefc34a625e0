//! Faulty vocabularies are refused with the facts.

use thalweg_text::{Error, Tokenizer, TokenizerSpec};

use crate::demo::small;

/// What building a tokenizer from a changed small vocabulary says.
fn refusal(change: impl FnOnce(&mut TokenizerSpec)) -> String {
    let mut spec = small();
    change(&mut spec);
    Tokenizer::new(spec).expect_err("faulty").to_string()
}

#[test]
fn unknown_kinds_are_refused_with_the_known_ones() {
    assert_eq!(
        refusal(|spec| spec.model = "llama".into()),
        r#"tokenizer model "llama" is not supported; known: gpt2"#
    );
    assert_eq!(
        refusal(|spec| spec.pre = "default".into()),
        r#"pre-tokenizer "default" is not supported; known: qwen35"#
    );
}

#[test]
fn counts_and_types_must_fit() {
    assert_eq!(
        refusal(|spec| spec.tokens.clear()),
        "vocabulary of 0 tokens; between 1 and 4294967294 are allowed"
    );
    assert_eq!(
        refusal(|spec| spec.token_types.truncate(267)),
        "267 token types for 268 tokens"
    );
    for found in [0, 7, -1, i32::MAX] {
        assert_eq!(
            refusal(|spec| spec.token_types[7] = found),
            format!("token 7 has type {found}; types are 1 to 6")
        );
    }
}

#[test]
fn tokens_must_be_distinct_whatever_their_kind() {
    assert_eq!(
        refusal(|spec| spec.tokens[261] = "[PAD2]".into()),
        r#"tokens 261 and 262 are both spelled "[PAD2]""#
    );
    assert_eq!(
        refusal(|spec| spec.tokens[256] = "a".into()),
        r#"tokens 97 and 256 are both spelled "a""#
    );
    assert_eq!(
        refusal(|spec| spec.tokens[265] = "<think>".into()),
        r#"tokens 259 and 265 are both spelled "<think>""#
    );
}

#[test]
fn markers_need_text_and_byte_tokens_their_spelling() {
    assert_eq!(
        refusal(|spec| spec.tokens[257].clear()),
        "token 257 is a marker without text"
    );
    for token in ["<0x0>", "<0xGG>", "0x0A", "<0x+A>", ""] {
        assert_eq!(
            refusal(|spec| spec.tokens[264] = token.into()),
            format!("token 264 is of type 6 (byte) but is spelled {token:?}, not <0xHH>")
        );
    }
}

#[test]
fn every_byte_needs_an_ordinary_token() {
    assert_eq!(
        refusal(|spec| spec.tokens[0x20] = "blank".into()),
        "no ordinary token spells byte 0x20 (expected token 'Ġ')"
    );
    assert_eq!(
        refusal(|spec| spec.token_types[0xFF] = 3),
        "no ordinary token spells byte 0xFF (expected token 'ÿ')"
    );
}

#[test]
fn merges_must_be_pairs_of_ordinary_tokens() {
    for merge in ["ab", "", " ", "a ", " a"] {
        assert_eq!(
            refusal(|spec| spec.merges[1] = merge.into()),
            format!("merge 1 is {merge:?}, not two tokens separated by a space")
        );
    }
    for (merge, token) in [
        ("zz b", "zz"),
        ("a zz", "zz"),
        ("b c", "bc"),
        ("<think> a", "<think>"),
    ] {
        assert_eq!(
            refusal(|spec| spec.merges[1] = merge.into()),
            format!("merge 1 needs {token:?}, which is not an ordinary token of the vocabulary")
        );
    }
    assert_eq!(
        refusal(|spec| spec.merges.push("a b".into())),
        r#"merges 0 and 3 join the same pair "a b""#
    );
}

#[test]
fn a_merge_cannot_make_a_control_token() {
    // Otherwise ordinary text could be merged into it.
    assert_eq!(
        refusal(|spec| {
            spec.tokens.push("xy".into());
            spec.token_types.push(3);
            spec.merges.push("x y".into());
        }),
        r#"merge 3 needs "xy", which is not an ordinary token of the vocabulary"#
    );
}

#[test]
fn special_ids_must_be_in_the_vocabulary() {
    assert_eq!(
        refusal(|spec| spec.bos_id = Some(268)),
        "bos token id 268 is beyond the vocabulary of 268 tokens"
    );
    assert_eq!(
        refusal(|spec| spec.eos_id = Some(u32::MAX)),
        "eos token id 4294967295 is beyond the vocabulary of 268 tokens"
    );
    assert!(refusal(|spec| spec.padding_id = Some(300)).starts_with("padding token id 300"));
    assert!(matches!(
        Tokenizer::new(TokenizerSpec {
            add_bos: true,
            ..small()
        }),
        Err(Error::MissingBos)
    ));
}

#[test]
fn characters_outside_the_byte_alphabet_stand_for_themselves() {
    let mut spec = small();
    spec.tokens.push("a b\u{3042}".into());
    spec.token_types.push(1);
    let tokenizer = Tokenizer::new(spec).expect("sound");
    assert_eq!(
        tokenizer.decode(&[268], true).expect("in range"),
        "a b\u{3042}"
    );
}

#[test]
fn templates_are_found_by_name() {
    let spec = TokenizerSpec {
        chat_template: Some("a".into()),
        chat_templates: vec![("tool_use".into(), "b".into())],
        ..small()
    };
    assert_eq!(spec.template(None), Some("a"));
    assert_eq!(spec.template(Some("default")), Some("a"));
    assert_eq!(spec.template(Some("tool_use")), Some("b"));
    assert_eq!(spec.template(Some("rag")), None);
}

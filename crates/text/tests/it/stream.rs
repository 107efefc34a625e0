//! Streaming decodes any split of any bytes as the standard library decodes them at once.

use proptest::prelude::*;
use thalweg_text::{SpecialTokens, Tokenizer, Utf8Stream};

use crate::demo::{TOKENIZER, small};

fn streamed<'b>(pieces: impl IntoIterator<Item = &'b [u8]>) -> String {
    let (mut utf8, mut text) = (Utf8Stream::new(), String::new());
    for piece in pieces {
        utf8.push(piece, &mut text);
        assert!(utf8.held_bytes() <= 3);
    }
    utf8.finish(&mut text);
    assert_eq!(utf8.held_bytes(), 0);
    text
}

#[test]
fn all_single_bytes_and_all_pairs_decode_as_at_once() {
    for first in 0..=u8::MAX {
        assert_eq!(streamed([&[first][..]]), String::from_utf8_lossy(&[first]));
        for second in 0..=u8::MAX {
            let both = [first, second];
            let expected = String::from_utf8_lossy(&both);
            assert_eq!(streamed([&both[..]]), expected, "{both:02X?} together");
            assert_eq!(streamed(both.chunks(1)), expected, "{both:02X?} apart");
        }
    }
}

#[test]
fn all_triples_with_a_multibyte_lead_decode_as_at_once() {
    let edges = [
        0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC2, 0xE2, 0xF0, 0xFF,
    ];
    for first in 0xC0..=u8::MAX {
        for second in edges {
            for third in edges {
                for fourth in edges {
                    let all = [first, second, third, fourth];
                    let expected = String::from_utf8_lossy(&all);
                    assert_eq!(streamed(all.chunks(1)), expected, "{all:02X?} apart");
                    assert_eq!(
                        streamed(all.chunks(3)),
                        expected,
                        "{all:02X?} in two pieces"
                    );
                }
            }
        }
    }
}

#[test]
fn a_character_is_given_out_with_its_last_byte() {
    let (mut utf8, mut text) = (Utf8Stream::new(), String::new());
    utf8.push(b"\xF0\x9F", &mut text);
    assert_eq!(text, "");
    utf8.push(b"\x98\x80", &mut text);
    assert_eq!(text, "\u{1F600}");
}

#[test]
fn impossible_bytes_are_given_out_at_once() {
    for (bytes, expected) in [
        (&b"\xFF"[..], "\u{FFFD}"),
        (b"\xC0", "\u{FFFD}"),
        (b"\x80", "\u{FFFD}"),
        // A surrogate and an overlong form are impossible at their second byte.
        (b"\xED\xA0", "\u{FFFD}\u{FFFD}"),
        (b"\xE0\x80", "\u{FFFD}\u{FFFD}"),
        (b"\xF4\x90", "\u{FFFD}\u{FFFD}"),
        // The maximal prefix of a character counts once.
        (b"\xE1\x80A", "\u{FFFD}A"),
        (b"\xF0\x9F\x98\xF0", "\u{FFFD}"),
    ] {
        let (mut utf8, mut text) = (Utf8Stream::new(), String::new());
        for byte in bytes.chunks(1) {
            utf8.push(byte, &mut text);
        }
        assert_eq!(text, expected, "{bytes:02X?}");
    }
}

#[test]
fn the_end_flushes_one_replacement_for_an_incomplete_character() {
    for tail in [&b"\xE2"[..], b"\xE2\x82", b"\xF0\x9F\x98", b"\xC3"] {
        let (mut utf8, mut text) = (Utf8Stream::new(), String::new());
        utf8.push(tail, &mut text);
        assert_eq!(text, "");
        utf8.finish(&mut text);
        assert_eq!(text, "\u{FFFD}");
        utf8.finish(&mut text);
        assert_eq!(text, "\u{FFFD}", "the second end is empty");
    }
}

#[test]
fn tokens_of_single_bytes_stream_as_characters() {
    let tokenizer = Tokenizer::new(small()).expect("sound");
    let mut stream = tokenizer.detokenizer(true);
    let mut pieces = Vec::new();
    for &byte in "aé\u{1F600}".as_bytes() {
        pieces.push(stream.push(u32::from(byte)).expect("in range").to_owned());
    }
    assert_eq!(pieces, ["a", "", "é", "", "", "", "\u{1F600}"]);
    assert_eq!(stream.finish(), "");
    assert_eq!(stream.push(0xE2).expect("in range"), "");
    assert_eq!(stream.finish(), "\u{FFFD}");
}

proptest! {
    #[test]
    fn any_split_of_any_bytes_gives_the_same_text(
        bytes in prop::collection::vec(
            prop_oneof![any::<u8>(), 0x80_u8..=0xBF, 0xC0_u8..=0xFF, 0x20_u8..0x7F],
            0..64,
        ),
        cuts in prop::collection::vec(0_usize..64, 0..12),
    ) {
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]);
        prop_assert_eq!(streamed(pieces), String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn any_ids_stream_as_they_decode(
        ids in prop::collection::vec(0_u32..8192, 0..64),
        skip_control: bool,
    ) {
        let mut stream = TOKENIZER.detokenizer(skip_control);
        let mut text = String::new();
        for &id in &ids {
            text.push_str(stream.push(id).expect("in range"));
        }
        text.push_str(stream.finish());
        prop_assert_eq!(&text, &TOKENIZER.decode(&ids, skip_control).expect("in range"));
        if !skip_control {
            let bytes: Vec<u8> = ids
                .iter()
                .flat_map(|&id| TOKENIZER.token_bytes(id).expect("in range").to_vec())
                .collect();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn encoded_text_streams_without_loss(text in "[a-zé日\u{1F600} \n]{0,40}") {
        let mut stream = TOKENIZER.detokenizer(true);
        let mut back = String::new();
        for id in TOKENIZER.encode(&text, SpecialTokens::AsText) {
            back.push_str(stream.push(id).expect("in range"));
        }
        back.push_str(stream.finish());
        prop_assert_eq!(back, text);
    }
}

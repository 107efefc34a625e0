//! Stop strings end the same text at the same place, however it arrives.

use proptest::prelude::*;
use thalweg_text::{Error, StopStrings};

/// Pushes `pieces` and returns all text and the stop string.
fn run<'p>(stops: &[&str], pieces: impl IntoIterator<Item = &'p str>) -> (String, Option<usize>) {
    let mut stop = StopStrings::new(stops.iter().copied()).expect("no empty string");
    let mut text = String::new();
    for piece in pieces {
        let output = stop.push(piece);
        text.push_str(&output.text);
        if output.stopped_by.is_some() {
            assert_eq!(stop.push("more").text, "");
            assert_eq!(stop.finish(), "");
            return (text, output.stopped_by);
        }
    }
    text.push_str(&stop.finish());
    (text, None)
}

/// The definition: the first prefix of the text that ends in a stop string decides.
fn by_definition(stops: &[&str], text: &str) -> (String, Option<usize>) {
    for end in (0..=text.len()).filter(|&end| text.is_char_boundary(end)) {
        let seen = &text[..end];
        let longest = (0..stops.len())
            .filter(|&index| seen.ends_with(stops[index]))
            .max_by_key(|&index| (stops[index].len(), std::cmp::Reverse(index)));
        if let Some(index) = longest {
            return (seen[..end - stops[index].len()].to_owned(), Some(index));
        }
    }
    (text.to_owned(), None)
}

#[test]
fn text_that_may_begin_a_stop_string_is_held_back() {
    let mut stop = StopStrings::new(["###"]).expect("no empty string");
    assert_eq!(stop.push("a#").text, "a");
    assert_eq!(stop.push("#b#").text, "##b");
    assert_eq!(stop.push("#").text, "");
    let last = stop.push("#rest");
    assert_eq!((last.text.as_str(), last.stopped_by), ("", Some(0)));
}

#[test]
fn held_text_is_given_out_at_the_end() {
    assert_eq!(
        run(&["\n\nUser:"], ["Hello\n", "\nUser"]),
        ("Hello\n\nUser".to_owned(), None)
    );
}

#[test]
fn multibyte_stop_strings_never_cut_a_character() {
    assert_eq!(run(&["é"], ["a", "è", "é"]), ("aè".to_owned(), Some(0)));
    assert_eq!(
        run(&["é\u{1F600}"], ["é", "è\u{1F601}é", "\u{1F600}"]).0,
        "éè\u{1F601}"
    );
    assert_eq!(
        run(&["日本"], ["日", "日", "本"]),
        ("日".to_owned(), Some(0))
    );
}

#[test]
fn the_string_completed_first_wins_and_the_longest_of_several() {
    assert_eq!(run(&["abcd", "bc"], ["abcd"]), ("a".to_owned(), Some(1)));
    assert_eq!(run(&["c", "abc"], ["xabc"]), ("x".to_owned(), Some(1)));
    assert_eq!(run(&["b", "b"], ["ab"]), ("a".to_owned(), Some(0)));
}

#[test]
fn no_stop_strings_let_all_text_through_and_empty_ones_are_refused() {
    assert_eq!(run(&[], ["a", "b"]), ("ab".to_owned(), None));
    assert!(matches!(
        StopStrings::new(["a", ""]),
        Err(Error::EmptyStopString { index: 1 })
    ));
}

proptest! {
    #[test]
    fn the_outcome_follows_the_definition_for_any_split(
        stops in prop::collection::vec("[abé]{1,4}", 0..4),
        pieces in prop::collection::vec("[abéc]{0,4}", 0..8),
    ) {
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        let expected = by_definition(&stops, &pieces.concat());
        prop_assert_eq!(run(&stops, pieces.iter().map(String::as_str)), expected);
    }
}

//! The vocabulary of small models. Owns: tokens, their types, merges and a chat template, enough
//! for every text path. Does not own: how text is encoded (`thalweg-text`).
//!
//! Invariants: 1. ids in this order: markers, the 256 bytes, merged tokens, unused ones. 2. Every
//! text can be encoded, since every byte is a token.

use thalweg_gguf::Metadata;

use crate::Error;

/// Markers with their token type (3 control, 4 user-defined); the index is the id.
pub(crate) const MARKERS: [(&str, i32); 5] = [
    ("<|endoftext|>", 3),
    ("<|im_start|>", 3),
    ("<|im_end|>", 3),
    ("<think>", 4),
    ("</think>", 4),
];
/// Id of `<|endoftext|>`, which also resets the n-gram window.
pub(crate) const RESET: u32 = 0;
const END_OF_TURN: u32 = 2;

/// Merges, best first, in the byte alphabet (`Ġ` is a space).
const MERGES: [(&str, &str); 8] = [
    ("Ġ", "t"),
    ("h", "e"),
    ("Ġt", "he"),
    ("i", "n"),
    ("Ġ", "a"),
    ("e", "r"),
    ("o", "n"),
    ("r", "e"),
];

const CHAT_TEMPLATE: &str = "\
{%- for message in messages -%}
<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant\n{% endif -%}";

/// Adds the `tokenizer.*` keys of a vocabulary of `n_vocab` tokens.
///
/// # Errors
/// [`Error::Setting`] if `n_vocab` has no room for the markers and bytes; [`Error::Gguf`] if a key
/// is there already.
pub(crate) fn describe(metadata: &mut Metadata, n_vocab: usize) -> Result<(), Error> {
    let room = n_vocab
        .checked_sub(MARKERS.len() + 256)
        .ok_or(Error::Setting {
            field: "n_vocab",
            found: n_vocab,
            rule: "must hold 5 markers and 256 bytes",
        })?;
    let merges = &MERGES[..room.min(MERGES.len())];

    let mut tokens: Vec<String> = MARKERS.iter().map(|(text, _)| (*text).to_owned()).collect();
    let mut types: Vec<i32> = MARKERS.iter().map(|(_, ty)| *ty).collect();
    tokens.extend((0..=u8::MAX).map(|byte| char_of(byte).to_string()));
    tokens.extend(merges.iter().map(|(left, right)| format!("{left}{right}")));
    types.resize(tokens.len(), 1);
    tokens.extend((tokens.len()..n_vocab).map(|id| format!("[PAD{id}]")));
    types.resize(n_vocab, 5);
    let merges: Vec<String> = merges
        .iter()
        .map(|(left, right)| format!("{left} {right}"))
        .collect();

    metadata.insert("tokenizer.ggml.model", "gpt2")?;
    metadata.insert("tokenizer.ggml.pre", "qwen35")?;
    metadata.insert("tokenizer.ggml.tokens", tokens)?;
    metadata.insert("tokenizer.ggml.token_type", types)?;
    metadata.insert("tokenizer.ggml.merges", merges)?;
    metadata.insert("tokenizer.ggml.bos_token_id", RESET)?;
    metadata.insert("tokenizer.ggml.eos_token_id", END_OF_TURN)?;
    metadata.insert("tokenizer.ggml.padding_token_id", RESET)?;
    metadata.insert("tokenizer.ggml.add_bos_token", false)?;
    metadata.insert("tokenizer.chat_template", CHAT_TEMPLATE)?;
    Ok(())
}

/// Turns the unused tokens of a described vocabulary into words, so that what a random head picks
/// is text. No text is encoded to them, since no merge leads there.
///
/// # Errors
/// [`Error::Gguf`] if the vocabulary is not there.
pub(crate) fn fill(metadata: &mut Metadata) -> Result<(), Error> {
    let mut tokens = metadata.str_array("tokenizer.ggml.tokens")?.to_vec();
    let mut types = metadata.i32_array("tokenizer.ggml.token_type")?;
    for (id, (token, ty)) in tokens.iter_mut().zip(&mut types).enumerate() {
        if *ty == 5 {
            *token = format!("Ġw{id}");
            *ty = 1;
        }
    }
    metadata.set("tokenizer.ggml.tokens", tokens)?;
    metadata.set("tokenizer.ggml.token_type", types)?;
    Ok(())
}

/// The character that stands for a byte in GPT-2's alphabet: visible Latin-1 bytes stand for
/// themselves, the others for the characters from U+0100 on, in byte order.
fn char_of(byte: u8) -> char {
    let visible = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if visible(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|b| !visible(*b)).count();
    // At most 68 bytes are not visible, so the sum stays far below the surrogates.
    u32::try_from(before)
        .ok()
        .and_then(|n| char::from_u32(0x100 + n))
        .unwrap_or('?')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_alphabet_is_that_of_gpt_2() {
        assert_eq!(char_of(b' '), 'Ġ');
        assert_eq!(char_of(b'\n'), 'Ċ');
        assert_eq!(char_of(b'A'), 'A');
        assert_eq!(char_of(0x7f), 'ġ');
        assert_eq!(char_of(0xad), 'Ń');
        let mut all: Vec<char> = (0..=u8::MAX).map(char_of).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 256);
    }

    #[test]
    fn a_vocabulary_without_room_for_all_bytes_is_refused() {
        assert!(describe(&mut Metadata::new(), 260).is_err());
        let mut metadata = Metadata::new();
        describe(&mut metadata, 261).unwrap();
        assert_eq!(
            metadata.str_array("tokenizer.ggml.tokens").unwrap().len(),
            261
        );
    }

    #[test]
    fn merged_tokens_are_in_the_vocabulary() {
        let mut metadata = Metadata::new();
        describe(&mut metadata, 512).unwrap();
        let tokens = metadata.str_array("tokenizer.ggml.tokens").unwrap();
        for merge in metadata.str_array("tokenizer.ggml.merges").unwrap() {
            let (left, right) = merge.split_once(' ').unwrap();
            for part in [left.to_owned(), right.to_owned(), format!("{left}{right}")] {
                assert!(tokens.contains(&part), "{part}");
            }
        }
    }
}

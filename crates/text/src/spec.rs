//! What a tokenizer is made of, as plain data.
//!
//! Owns: [`TokenizerSpec`], the form in which a caller hands over a vocabulary. Does not own: the
//! file that it came from (this crate reads no files) nor any check; `Tokenizer::new` checks.
//! Memory: the strings of the vocabulary, which move into the tokenizer that is built from them.

use crate::bytes::char_of;

/// The parts of a tokenizer as GGUF metadata holds them, one field a key.
///
/// Nothing is checked here: [`Tokenizer::new`](crate::Tokenizer::new) checks everything at once.
/// The chat templates are not used by the tokenizer; take them out before the specification is
/// consumed.
#[derive(Clone, Debug, Default)]
pub struct TokenizerSpec {
    /// `tokenizer.ggml.model`: the kind of tokenizer. Known: `gpt2` (byte-level BPE).
    pub model: String,
    /// `tokenizer.ggml.pre`: the pre-tokenizer, by the name that llama.cpp uses. Known: `qwen35`.
    pub pre: String,
    /// `tokenizer.ggml.tokens`: the spelling of every token; the index is the id. Ordinary tokens
    /// are spelled in the GPT-2 byte alphabet (`Ġ` is a space), all others literally.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.token_type`: one number a token, see [`TokenKind`](crate::TokenKind).
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.merges`: `"left right"`, best first.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos_id: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos_id: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`.
    pub padding_id: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`: whether `encode` puts `bos_id` in front.
    pub add_bos: bool,
    /// `tokenizer.chat_template`: the default chat template, in Jinja.
    pub chat_template: Option<String>,
    /// `tokenizer.chat_template.<name>`: further chat templates as (name, source).
    pub chat_templates: Vec<(String, String)>,
}

impl TokenizerSpec {
    /// The smallest complete vocabulary: one token for each of the 256 bytes (the id is the byte),
    /// no merges, and the given control tokens behind. For tests and examples.
    #[must_use]
    pub fn bytes_only(control: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let mut tokens: Vec<String> = (0..=u8::MAX)
            .map(|byte| char_of(byte).to_string())
            .collect();
        let mut token_types = vec![1; tokens.len()];
        tokens.extend(control.into_iter().map(Into::into));
        token_types.resize(tokens.len(), 3);
        Self {
            model: "gpt2".to_owned(),
            pre: "qwen35".to_owned(),
            tokens,
            token_types,
            ..Self::default()
        }
    }

    /// The chat template called `name`, or the default one if `name` is `None` or `"default"`.
    #[must_use]
    pub fn template(&self, name: Option<&str>) -> Option<&str> {
        match name {
            None | Some("default") => self.chat_template.as_deref(),
            Some(name) => self
                .chat_templates
                .iter()
                .find(|(known, _)| known == name)
                .map(|(_, source)| source.as_str()),
        }
    }
}

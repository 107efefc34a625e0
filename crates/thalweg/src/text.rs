//! Text in, token ids out: the tokenizer and the chat template of a model file.

use thalweg_gguf::{Gguf, Metadata};
use thalweg_text::{
    ChatTemplate, Message, RenderOptions, SpecialTokens, Tokenizer, TokenizerSpec, encode_chat,
};

use crate::{Error, Result};

/// The tokenizer and the chat template of a model file.
#[derive(Debug)]
pub struct Text {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
}

impl Text {
    /// Builds both from a file's metadata.
    ///
    /// # Errors
    /// [`Error::Gguf`] for missing or wrong-typed keys, [`Error::Text`] for unusable contents.
    pub fn from_file(file: &Gguf) -> Result<Self> {
        let spec = tokenizer_spec(file.metadata())?;
        let source = spec.chat_template.clone();
        let tokenizer = Tokenizer::new(spec)?;
        let template = source
            .map(|s| ChatTemplate::for_tokenizer(&s, &tokenizer))
            .transpose()?;
        Ok(Self {
            tokenizer,
            template,
        })
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Whether the file has a chat template.
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// Tokens of a conversation, ready for the assistant's reply. Markers inside messages are text.
    ///
    /// # Errors
    /// [`Error::NoTemplate`], or [`Error::Text`] when the template refuses the messages.
    pub fn chat(&self, messages: &[Message]) -> Result<Vec<u32>> {
        let options = RenderOptions {
            add_generation_prompt: true,
            ..RenderOptions::default()
        };
        self.chat_with(messages, &options)
    }

    /// As [`chat`](Self::chat), with tools or further variables for the template.
    ///
    /// # Errors
    /// As [`chat`](Self::chat).
    pub fn chat_with(&self, messages: &[Message], options: &RenderOptions) -> Result<Vec<u32>> {
        let template = self.template.as_ref().ok_or(Error::NoTemplate)?;
        Ok(encode_chat(&self.tokenizer, template, messages, options)?)
    }

    /// As [`chat`](Self::chat), for a conversation whose last reply was generated: `prompt` and
    /// `reply` are the tokens of that turn (empty before the first), and `messages` ends with the reply
    /// as text and one new message.
    ///
    /// Text that is encoded again may split into other tokens than were generated, and a session
    /// could then reuse nothing. So the generated tokens stay, and only what follows the reply's
    /// end marker is taken from the new encoding; where that cannot be found, all of it is.
    ///
    /// # Errors
    /// As [`chat`](Self::chat).
    pub fn chat_on(&self, messages: &[Message], prompt: &[u32], reply: &[u32]) -> Result<Vec<u32>> {
        let whole = self.chat(messages)?;
        let n_before = messages.len().saturating_sub(2);
        if prompt.is_empty() || n_before == 0 {
            // The first turn: there is no reply to keep.
            return Ok(whole);
        }
        // Messages cannot hold end markers, so the reply's own is the one behind all those of the
        // conversation before it.
        let ends = self.tokenizer.eos_ids();
        let is_end = |token: &&u32| ends.contains(token);
        let n_ends = self
            .chat(&messages[..n_before])?
            .iter()
            .filter(is_end)
            .count();
        let mut found = whole
            .iter()
            .enumerate()
            .filter(|(_, token)| ends.contains(token));
        let rest = found.nth(n_ends).map(|(at, _)| &whole[at..]);
        Ok(match rest {
            Some(rest) => [prompt, reply, rest].concat(),
            None => whole,
        })
    }

    /// Tokens of plain text, with markers such as `<|im_start|>` parsed: only for trusted text.
    pub fn raw(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode(text, SpecialTokens::Parse)
    }
}

/// The tokenizer's keys of a GGUF file.
fn tokenizer_spec(metadata: &Metadata) -> Result<TokenizerSpec> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let named = metadata.iter().filter_map(|(key, _)| {
        let name = key.strip_prefix("tokenizer.chat_template.")?;
        Some((name.to_owned(), key))
    });
    let named = named.map(|(name, key)| Ok((name, metadata.str(key)?.to_owned())));
    Ok(TokenizerSpec {
        model: metadata.str(&key("model"))?.to_owned(),
        pre: metadata.str(&key("pre"))?.to_owned(),
        tokens: metadata.str_array(&key("tokens"))?.to_vec(),
        token_types: metadata.i32_array(&key("token_type"))?,
        merges: metadata.str_array(&key("merges"))?.to_vec(),
        bos_id: metadata.opt_u32(&key("bos_token_id"))?,
        eos_id: metadata.opt_u32(&key("eos_token_id"))?,
        padding_id: metadata.opt_u32(&key("padding_token_id"))?,
        add_bos: metadata.opt_bool(&key("add_bos_token"))?.unwrap_or(false),
        chat_template: metadata
            .opt_str("tokenizer.chat_template")?
            .map(str::to_owned),
        chat_templates: named.collect::<Result<_>>()?,
    })
}

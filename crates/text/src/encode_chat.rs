//! From messages to tokens, without letting content forge control tokens.
//!
//! Owns: telling the template's control markers from those in content. Does not own: rendering,
//! encoding. The template may trim, cut, split and join content at will, so content is never
//! wrapped or moved; only *single characters* are replaced for a second rendering, by private-use
//! characters that occur nowhere else, and a comparison of both renderings proves that the template
//! took no notice. Then the place of every replaced character is known.
//! Invariants: 1. no control marker whose first or last character stems from untrusted content
//! becomes a control token; 2. a chat without such characters takes one rendering and encodes
//! exactly as the rendered text does. Cost: one to three renderings.

use std::collections::BTreeSet;

use crate::chat::{ChatTemplate, Message, RenderOptions};
use crate::error::{Error, Result};
use crate::markers::{Markers, Which};
use crate::tokenizer::Tokenizer;

/// Renders a chat and encodes it: the template's control markers become control tokens, those in
/// the content of untrusted messages and in the tools stay text.
///
/// If the content has no character that begins or ends a control marker (such as `<` and `>`), this
/// equals `tokenizer.encode(&template.render(..)?, SpecialTokens::Parse)`, the way the model was
/// trained. Otherwise it differs from that only where content spells a control marker; the text
/// around it, including merges across the border between template and content, is encoded as a
/// whole in any case.
///
/// User-defined tokens (`<think>` in most vocabularies) are recognized everywhere. Markers in
/// messages that are [`trusted`](Message::trusted) and in the options' variables count as the
/// template's own. The `bos` token is put in front if the vocabulary asks for it and the template
/// did not write it.
///
/// ```
/// # let tokenizer = thalweg_text::Tokenizer::new(thalweg_text::TokenizerSpec::bytes_only(
/// #     ["<|im_start|>", "<|im_end|>"]))?;
/// use thalweg_text::{ChatTemplate, Message, RenderOptions, encode_chat};
///
/// let source = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}";
/// let template = ChatTemplate::for_tokenizer(source, &tokenizer)?;
/// let messages = [Message::new("user", "a<|im_end|>b")];
/// let ids = encode_chat(&tokenizer, &template, &messages, &RenderOptions::default())?;
///
/// let end = tokenizer.id_of("<|im_end|>");
/// assert_eq!(ids.iter().filter(|&&id| Some(id) == end).count(), 1);
/// assert_eq!(tokenizer.decode(&ids, true)?, "a<|im_end|>b");
/// # Ok::<(), thalweg_text::Error>(())
/// ```
///
/// # Errors
/// - Those of [`ChatTemplate::render`].
/// - [`Error::MarkerInContent`] if content spells a control marker and the template inspects that
///   text (say, splits it at `</think>` where that is a control token), so that both can't be told
///   apart.
/// - [`Error::MarkerOfUnknownOrigin`] if the same happens to a marker that is joined from several
///   pieces of content.
pub fn encode_chat(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    messages: &[Message],
    options: &RenderOptions,
) -> Result<Vec<u32>> {
    let chat = Chat {
        tokenizer,
        template,
        messages,
        options,
    };
    let now = options.now.unwrap_or_else(std::time::SystemTime::now);
    let render = |messages: &[Message], tools: Option<&serde_json::Value>| {
        template.render_at(messages, tools, options, now)
    };
    let plain = render(messages, options.tools.as_ref())?;

    let edges = Edges::of(tokenizer.markers());
    if !chat.any_untrusted(|text| text.chars().any(|c| edges.contains(c))) {
        return Ok(chat.encode(&plain, &edges));
    }

    let Some(edges) = edges.with_substitutes(|c| chat.uses(c) || plain.contains(c)) else {
        return Err(chat.refusal(&plain));
    };
    // First try: every character that could begin or end a marker is replaced.
    let (masked, tools) = chat.map_untrusted(|text| edges.mask(text));
    let all = render(&masked, tools.as_ref());
    if let Ok(all) = &all
        && edges.unmask(all) == plain
    {
        return Ok(chat.encode(all, &edges));
    }

    // The template looks at such characters (say, for `</think>`), but that need not concern the
    // control markers: replace no others. What is joined to a marker from pieces is not replaced
    // now, but would be missing among the control tokens of the first try.
    let (masked, tools) = chat.map_untrusted(|text| edges.mask_markers(text, tokenizer.markers()));
    let whole = render(&masked, tools.as_ref());
    if let (Ok(all), Ok(whole)) = (&all, &whole)
        && edges.unmask(whole) == plain
        && chat.control_ids(whole).eq(chat.control_ids(all))
    {
        return Ok(chat.encode(whole, &edges));
    }
    Err(chat.refusal(&plain))
}

struct Chat<'a> {
    tokenizer: &'a Tokenizer,
    template: &'a ChatTemplate,
    messages: &'a [Message],
    options: &'a RenderOptions,
}

impl Chat<'_> {
    /// Encodes a rendering in which the characters of untrusted markers are replaced.
    fn encode(&self, rendered: &str, edges: &Edges) -> Vec<u32> {
        let mut ids = Vec::with_capacity(rendered.len() / 3 + 1);
        let mut done = 0;
        // User-defined tokens are skipped here, not encoded: those in content must be found too,
        // and that is only possible once the characters are back.
        let found = self.tokenizer.markers().matches(rendered, Which::All);
        for control in found.filter(|found| found.control) {
            let text = edges.unmask(&rendered[done..control.range.start]);
            self.tokenizer
                .encode_into(&text, Which::UserDefined, &mut ids);
            ids.push(control.id);
            done = control.range.end;
        }
        let text = edges.unmask(&rendered[done..]);
        self.tokenizer
            .encode_into(&text, Which::UserDefined, &mut ids);
        match self
            .tokenizer
            .bos_id()
            .filter(|_| self.tokenizer.adds_bos())
        {
            Some(bos) if ids.first() != Some(&bos) => ids.insert(0, bos),
            _ => {}
        }
        ids
    }

    fn control_ids<'r>(&'r self, rendered: &'r str) -> impl Iterator<Item = u32> + 'r {
        let found = self.tokenizer.markers().matches(rendered, Which::All);
        found.filter(|found| found.control).map(|found| found.id)
    }

    /// The untrusted messages, with their indices.
    fn untrusted(&self) -> impl Iterator<Item = (usize, &Message)> {
        self.messages
            .iter()
            .enumerate()
            .filter(|(_, message)| !message.trusted)
    }

    fn any_untrusted(&self, test: impl Fn(&str) -> bool) -> bool {
        let messages = self
            .untrusted()
            .flat_map(|(_, message)| strings_of(message));
        messages.chain(self.tool_strings()).any(test)
    }

    fn tool_strings(&self) -> Vec<&str> {
        let mut strings = Vec::new();
        self.options
            .tools
            .iter()
            .for_each(|tools| collect_strings(tools, &mut strings));
        strings
    }

    /// Whether `c` stands anywhere in what the template sees or is.
    fn uses(&self, c: char) -> bool {
        let mut strings = self.tool_strings();
        self.options
            .variables
            .values()
            .for_each(|value| collect_strings(value, &mut strings));
        strings.push(self.template.source());
        strings
            .into_iter()
            .chain(self.messages.iter().flat_map(strings_of))
            .any(|s| s.contains(c))
    }

    /// Messages and tools with every untrusted string replaced.
    fn map_untrusted(
        &self,
        map: impl Fn(&str) -> String,
    ) -> (Vec<Message>, Option<serde_json::Value>) {
        let message = |message: &Message| {
            if message.trusted {
                return message.clone();
            }
            let fields = message.fields.iter();
            Message {
                role: map(&message.role),
                // A message's own field names are the interface to the template.
                fields: fields
                    .map(|(key, value)| (key.clone(), mapped(value, &map)))
                    .collect(),
                trusted: false,
            }
        };
        let tools = self.options.tools.as_ref().map(|tools| mapped(tools, &map));
        (self.messages.iter().map(message).collect(), tools)
    }

    fn refusal(&self, plain: &str) -> Error {
        let marker_in = |text: &str| {
            let found = self.tokenizer.markers().find(text, 0, Which::Control)?;
            Some(text[found.range].to_owned())
        };
        let in_messages = self.untrusted().find_map(|(index, message)| {
            let marker = strings_of(message).into_iter().find_map(marker_in)?;
            Some(Error::MarkerInContent {
                message: Some(index),
                marker,
            })
        });
        let in_tools = || {
            let marker = self.tool_strings().into_iter().find_map(marker_in)?;
            Some(Error::MarkerInContent {
                message: None,
                marker,
            })
        };
        in_messages
            .or_else(in_tools)
            .unwrap_or_else(|| Error::MarkerOfUnknownOrigin {
                marker: marker_in(plain).unwrap_or_default(),
            })
    }
}

/// The characters that begin or end some control marker, with their substitutes.
#[derive(Debug)]
struct Edges {
    chars: Vec<char>,
    /// One for each of `chars`, or none at all.
    substitutes: Vec<char>,
}

impl Edges {
    fn of(markers: &Markers) -> Self {
        let control = markers.iter().filter(|marker| marker.control);
        let edges = control.flat_map(|marker| {
            [marker.text.chars().next(), marker.text.chars().next_back()]
                .into_iter()
                .flatten()
        });
        let chars: BTreeSet<char> = edges.collect();
        Self {
            chars: chars.into_iter().collect(),
            substitutes: Vec::new(),
        }
    }

    /// Chooses private-use characters that are not `used`; `None` if there are too few.
    fn with_substitutes(mut self, used: impl Fn(char) -> bool) -> Option<Self> {
        let private = ('\u{F0000}'..='\u{FFFFD}').chain('\u{100000}'..='\u{10FFFD}');
        let free = private.filter(|&c| !self.contains(c) && !used(c));
        self.substitutes = free.take(self.chars.len()).collect();
        (self.substitutes.len() == self.chars.len()).then_some(self)
    }

    fn contains(&self, c: char) -> bool {
        self.chars.binary_search(&c).is_ok()
    }

    fn substitute(&self, c: char) -> char {
        self.chars
            .binary_search(&c)
            .ok()
            .and_then(|index| self.substitutes.get(index).copied())
            .unwrap_or(c)
    }

    fn original(&self, c: char) -> char {
        // Substitutes were chosen in ascending order.
        self.substitutes
            .binary_search(&c)
            .map_or(c, |index| self.chars[index])
    }

    fn mask(&self, text: &str) -> String {
        text.chars().map(|c| self.substitute(c)).collect()
    }

    fn unmask(&self, text: &str) -> String {
        text.chars().map(|c| self.original(c)).collect()
    }

    /// Replaces the first and last character of every control marker, overlapping ones included.
    fn mask_markers(&self, text: &str, markers: &Markers) -> String {
        let mut masked = BTreeSet::new();
        let mut from = 0;
        while let Some(found) = markers.find(text, from, Which::Control) {
            let marker = &text[found.range.clone()];
            let length = |c: Option<char>| c.map_or(1, char::len_utf8);
            masked.insert(found.range.start);
            masked.insert(found.range.end - length(marker.chars().next_back()));
            from = found.range.start + length(marker.chars().next());
        }
        text.char_indices()
            .map(|(at, c)| {
                if masked.contains(&at) {
                    self.substitute(c)
                } else {
                    c
                }
            })
            .collect()
    }
}

/// All strings of a message that a template can print, its role among them.
fn strings_of(message: &Message) -> Vec<&str> {
    let mut strings = vec![message.role.as_str()];
    message
        .fields
        .values()
        .for_each(|value| collect_strings(value, &mut strings));
    strings
}

fn collect_strings<'v>(value: &'v serde_json::Value, strings: &mut Vec<&'v str>) {
    match value {
        serde_json::Value::String(text) => strings.push(text),
        serde_json::Value::Array(items) => {
            items.iter().for_each(|item| collect_strings(item, strings));
        }
        serde_json::Value::Object(map) => map.iter().for_each(|(key, item)| {
            strings.push(key);
            collect_strings(item, strings);
        }),
        _ => {}
    }
}

fn mapped(value: &serde_json::Value, map: &impl Fn(&str) -> String) -> serde_json::Value {
    match value {
        serde_json::Value::String(text) => map(text).into(),
        serde_json::Value::Array(items) => items.iter().map(|item| mapped(item, map)).collect(),
        serde_json::Value::Object(fields) => fields
            .iter()
            .map(|(key, item)| (map(key), mapped(item, map)))
            .collect(),
        other => other.clone(),
    }
}

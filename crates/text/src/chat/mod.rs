//! Chat templates: from messages to the text that a model was trained on.
//!
//! Owns: the template engine as transformers sets it up, messages and options. Does not own:
//! tokens; `encode_chat` joins both. Memory: the compiled template; a render allocates what it
//! prints, at most 64 bytes for each step it may do.
//! Invariants: 1. a render ends, with a result or an error, after a number of steps that is bounded
//! by the size of its input; 2. a template reaches nothing but its variables and the clock.
//! Cost: a render is linear in its input for the usual templates.

mod clock;
mod python;
mod source;

use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, Environment, ErrorKind, State};
use serde::{Deserialize, Serialize};
use serde_json::Map;

use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;

const NAME: &str = "chat";

/// Steps of fuel for any render: about a million instructions or 64 MB of text.
const BASE_FUEL: u64 = 1_000_000;

/// Further steps for each message, since a template loops over them.
const FUEL_PER_MESSAGE: u64 = 2_000;

/// One message of a chat.
///
/// Deserializes from what chat interfaces send: an object with `role` and any other fields
/// (`content`, `tool_calls`, `reasoning_content`, ...), which templates see under their names.
/// Fields that are `null` are left out, as transformers does.
///
/// ```
/// use thalweg_text::Message;
///
/// let message: Message = serde_json::from_str(r#"{"role": "user", "content": "Hi"}"#)?;
/// assert_eq!(message, Message::new("user", "Hi"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, `tool` or what else the template knows.
    pub role: String,
    /// All other fields, in order.
    #[serde(flatten)]
    pub fields: Map<String, serde_json::Value>,
    /// Whether control tokens in the message's text are meant as such, as when the text is the
    /// model's own output. Never read from JSON.
    #[serde(skip)]
    pub trusted: bool,
}

impl Message {
    /// A message with a `content` field, which is a string or a list of parts.
    #[must_use]
    pub fn new(role: impl Into<String>, content: impl Into<serde_json::Value>) -> Self {
        let fields = Map::from_iter([("content".to_owned(), content.into())]);
        Self {
            role: role.into(),
            fields,
            trusted: false,
        }
    }

    /// The message with one more field.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<serde_json::Value>) -> Self {
        self.fields.insert(name.into(), value.into());
        self
    }

    /// The message with [`trusted`](Self::trusted) set.
    #[must_use]
    pub fn trusted(mut self) -> Self {
        self.trusted = true;
        self
    }
}

/// What a template gets besides the messages.
#[derive(Clone, Debug, Default)]
pub struct RenderOptions {
    /// Whether to end with the beginning of an assistant's turn.
    pub add_generation_prompt: bool,
    /// Descriptions of the tools that may be called: a list, as in the OpenAI interface.
    pub tools: Option<serde_json::Value>,
    /// Further variables, such as `enable_thinking`. They come from the application and are
    /// trusted.
    pub variables: Map<String, serde_json::Value>,
    /// The time that `strftime_now` sees, in UTC; the system's clock if `None`.
    pub now: Option<SystemTime>,
}

/// A compiled chat template.
///
/// Templates are Jinja as Hugging Face transformers runs it: `trim_blocks` and `lstrip_blocks`,
/// loop controls, Python's string and dict methods, `raise_exception`, `strftime_now`, a `tojson`
/// like `json.dumps(ensure_ascii=False)`, and `{% generation %}` blocks.
///
/// ```
/// use thalweg_text::{ChatTemplate, Message, RenderOptions};
///
/// let source = "{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}\n{% endfor %}";
/// let template = ChatTemplate::new(source, "", "")?;
/// let messages = [Message::new("user", " Hi "), Message::new("assistant", "Hello")];
/// let text = template.render(&messages, &RenderOptions::default())?;
/// assert_eq!(text, "[user] Hi\n[assistant] Hello\n");
/// # Ok::<(), thalweg_text::Error>(())
/// ```
///
/// # Hostile templates
/// A template comes with a model file and may be anybody's. The size of its source, the length of
/// its expressions, its steps, its output and the nesting of what it assigns are bounded, so that
/// it fails with an error instead of hanging or exhausting the stack. One way to waste time stays:
/// macros and nested loops can build a value that holds another one many times over without an
/// assignment, and the engine does not count comparing or joining such values as work.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Compiles a template. `bos` and `eos` are the literal texts of these tokens, or empty.
    ///
    /// # Errors
    /// [`Error::TemplateSize`], or [`Error::Template`] with the line if it does not parse.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self> {
        let mut environment = environment();
        environment
            .add_template_owned(NAME, source::prepare(source)?)
            .map_err(|error| convert(&error, 0))?;
        Ok(Self {
            environment,
            source: source.to_owned(),
            bos: bos.to_owned(),
            eos: eos.to_owned(),
        })
    }

    /// Compiles a template with the `bos` and `eos` tokens of a tokenizer.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn for_tokenizer(source: &str, tokenizer: &Tokenizer) -> Result<Self> {
        let (bos, eos) = (tokenizer.bos_id(), tokenizer.eos_id());
        Self::new(source, &tokenizer.literal(bos), &tokenizer.literal(eos))
    }

    /// The template's text as it was given.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a chat to text.
    ///
    /// The template sees `messages`, `tools`, `documents` (none unless a variable), `bos_token`,
    /// `eos_token`, `add_generation_prompt` and the options' variables.
    ///
    /// The text is for reading, or for a caller that trusts every message: once it is flat, a
    /// control marker that a user wrote looks like the template's own. Use
    /// [`encode_chat`](crate::encode_chat) to get tokens.
    ///
    /// # Errors
    /// [`Error::TemplateRefused`] if the template raises an exception, [`Error::TemplateTooLong`]
    /// if it does more work than its input warrants, [`Error::Template`] for all other faults.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String> {
        let now = options.now.unwrap_or_else(SystemTime::now);
        self.render_at(messages, options.tools.as_ref(), options, now)
    }

    /// Renders with other tools than the options' own.
    pub(crate) fn render_at(
        &self,
        messages: &[Message],
        tools: Option<&serde_json::Value>,
        options: &RenderOptions,
        now: SystemTime,
    ) -> Result<String> {
        let text = |text: &String| serde_json::Value::String(text.clone());
        let mut context = Map::new();
        context.insert("bos_token".to_owned(), text(&self.bos));
        context.insert("eos_token".to_owned(), text(&self.eos));
        context.insert("documents".to_owned(), serde_json::Value::Null);
        context.extend(options.variables.clone());
        context.insert(
            "add_generation_prompt".to_owned(),
            options.add_generation_prompt.into(),
        );
        context.insert("tools".to_owned(), tools.cloned().unwrap_or_default());
        let messages: Vec<serde_json::Value> = messages.iter().map(plain).collect();
        let n_messages = messages.len();
        context.insert("messages".to_owned(), messages.into());
        let size_bytes: u64 = context.values().map(size).sum();

        let fuel = u64::try_from(n_messages)
            .unwrap_or(u64::MAX)
            .saturating_mul(FUEL_PER_MESSAGE)
            .saturating_add(size_bytes)
            .saturating_add(BASE_FUEL);
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        environment.add_function("strftime_now", move |format: &str| {
            clock::strftime(format, now)
        });
        environment
            .get_template(NAME)
            .and_then(|template| template.render(Value::from(Serde(&context))))
            .map_err(|error| convert(&error, fuel))
    }
}

/// The engine as transformers sets Jinja up.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build();
    environment.set_syntax(syntax.unwrap_or_default());
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(|state, value, method, args| {
        python::string_method(value, method, args).unwrap_or_else(|| {
            minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
        })
    });
    environment.set_formatter(|out, state: &mut State<'_, '_>, value| {
        let text = python::to_string(state, value)?;
        out.write_str(text.as_str().unwrap_or_default())
            .map_err(minijinja::Error::from)
    });
    environment.add_filter("tojson", python::to_json);
    environment.add_filter("string", python::to_string);
    environment.add_filter(source::VARIABLE_FILTER, python::variable);
    environment.add_filter(source::FIELD_FILTER, python::field);
    environment.add_test("iterable", python::is_iterable);
    environment.add_test("sequence", python::is_sequence);
    environment.add_function("raise_exception", |message: String| -> Result<Value, _> {
        Err(minijinja::Error::from(ErrorKind::InvalidOperation).with_source(Raised(message)))
    });
    environment
}

/// What a template passed to `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// Turns an engine's error and all its causes into one of ours.
fn convert(error: &minijinja::Error, fuel: u64) -> Error {
    let line = error.line();
    let mut message = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    if error.kind() == ErrorKind::OutOfFuel {
        return Error::TemplateTooLong { line, fuel };
    }
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if let Some(Raised(message)) = error.downcast_ref() {
            return Error::TemplateRefused {
                line,
                message: message.clone(),
            };
        }
        let inner = error.downcast_ref::<minijinja::Error>();
        if inner.is_some_and(|inner| inner.kind() == ErrorKind::OutOfFuel) {
            return Error::TemplateTooLong { line, fuel };
        }
        message.push_str(": ");
        message.push_str(&error.to_string());
        cause = error.source();
    }
    Error::Template { line, message }
}

/// A message as templates see it.
fn plain(message: &Message) -> serde_json::Value {
    let role = ("role".to_owned(), message.role.clone().into());
    let fields = message.fields.iter().filter(|(_, value)| !value.is_null());
    let fields = fields.map(|(name, value)| (name.clone(), value.clone()));
    serde_json::Value::Object([role].into_iter().chain(fields).collect())
}

/// About how many bytes of text a value holds.
fn size(value: &serde_json::Value) -> u64 {
    let bytes = |text: &str| u64::try_from(text.len()).unwrap_or(u64::MAX);
    match value {
        serde_json::Value::String(text) => bytes(text),
        serde_json::Value::Array(items) => items.iter().map(|item| 8 + size(item)).sum(),
        serde_json::Value::Object(map) => map
            .iter()
            .map(|(key, item)| 8 + bytes(key) + size(item))
            .sum(),
        _ => 8,
    }
}

//! The error type of the crate.
//!
//! Owns: [`Error`], one variant a kind of fault, each with the facts a reader needs to find it.
//! Does not own: recovery; nothing in this crate retries or repairs its input.

/// Short for a result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can be wrong with a vocabulary, a token id, a template or its messages.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The tokenizer is of a kind that this crate does not implement.
    #[error("tokenizer model {found:?} is not supported; known: {}", known.join(", "))]
    UnknownModel {
        /// The name in the specification.
        found: String,
        /// The names that are accepted.
        known: &'static [&'static str],
    },
    /// The pre-tokenizer is one that this crate does not implement.
    #[error("pre-tokenizer {found:?} is not supported; known: {}", known.join(", "))]
    UnknownPre {
        /// The name in the specification.
        found: String,
        /// The names that are accepted.
        known: Vec<&'static str>,
    },
    /// The vocabulary has no token, or more than ids can number.
    #[error("vocabulary of {n_tokens} tokens; between 1 and {max} are allowed")]
    VocabularySize {
        /// How many tokens there are.
        n_tokens: usize,
        /// The largest vocabulary that ids can number.
        max: usize,
    },
    /// There is not one type for each token.
    #[error("{n_types} token types for {n_tokens} tokens")]
    TypeCount {
        /// How many tokens there are.
        n_tokens: usize,
        /// How many types there are.
        n_types: usize,
    },
    /// A token's type is not one of the six that GGUF defines.
    #[error("token {id} has type {found}; types are 1 to 6")]
    UnknownType {
        /// The token's id.
        id: u32,
        /// The type in the specification.
        found: i32,
    },
    /// Two tokens are spelled the same, so one of them could never be looked up.
    #[error("tokens {first} and {second} are both spelled {token:?}")]
    DuplicateToken {
        /// The spelling.
        token: String,
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
    },
    /// A control or user-defined token is empty, so it would match everywhere.
    #[error("token {id} is a marker without text")]
    EmptyMarker {
        /// The token's id.
        id: u32,
    },
    /// A token of type 6 (byte) is not spelled `<0xHH>`.
    #[error("token {id} is of type 6 (byte) but is spelled {token:?}, not <0xHH>")]
    MalformedByteToken {
        /// The token's id.
        id: u32,
        /// The spelling.
        token: String,
    },
    /// A byte has no ordinary token, so text that contains it could not be encoded.
    #[error("no ordinary token spells byte 0x{byte:02X} (expected token {expected:?})")]
    MissingByte {
        /// The byte.
        byte: u8,
        /// How the GPT-2 byte alphabet spells it.
        expected: char,
    },
    /// A merge is not two parts with a space between.
    #[error("merge {index} is {merge:?}, not two tokens separated by a space")]
    MalformedMerge {
        /// The merge's index.
        index: usize,
        /// The merge as found.
        merge: String,
    },
    /// A merge names, or results in, a token that is not an ordinary token of the vocabulary.
    #[error("merge {index} needs {token:?}, which is not an ordinary token of the vocabulary")]
    MergeUnknownToken {
        /// The merge's index.
        index: usize,
        /// The spelling that is missing.
        token: String,
    },
    /// The same pair is merged twice, so its rank is undefined.
    #[error("merges {first} and {second} join the same pair {merge:?}")]
    DuplicateMerge {
        /// The pair.
        merge: String,
        /// The lower index.
        first: usize,
        /// The higher index.
        second: usize,
    },
    /// A special id of the specification is beyond the vocabulary.
    #[error("{name} token id {id} is beyond the vocabulary of {n_vocab} tokens")]
    SpecialIdOutOfRange {
        /// Which id: `bos`, `eos` or `padding`.
        name: &'static str,
        /// The id in the specification.
        id: u32,
        /// The size of the vocabulary.
        n_vocab: usize,
    },
    /// `add_bos` is set without a `bos_id`.
    #[error("add_bos is set but there is no bos token id")]
    MissingBos,
    /// The pre-tokenizer's pattern could not be compiled.
    #[error("pattern of pre-tokenizer {pre:?} does not compile")]
    Pattern {
        /// The pre-tokenizer's name.
        pre: &'static str,
        /// What the regular-expression engine said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The model library refused a vocabulary that passed every check of this crate.
    #[error("the byte-pair model could not be built")]
    Model {
        /// What the library said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A token id is beyond the vocabulary.
    #[error("token id {id} is beyond the vocabulary of {n_vocab} tokens")]
    TokenOutOfRange {
        /// The id.
        id: u32,
        /// The size of the vocabulary.
        n_vocab: usize,
    },
    /// A stop string is empty, so it would stop before the first character.
    #[error("stop string {index} is empty")]
    EmptyStopString {
        /// The stop string's index.
        index: usize,
    },
    /// A chat template does not parse, or fails while it renders.
    #[error("chat template{}: {message}", at_line(*line))]
    Template {
        /// The line of the template, from 1, where it is known.
        line: Option<usize>,
        /// What is wrong.
        message: String,
    },
    /// A chat template called `raise_exception`: it does not accept these messages.
    #[error("chat template{} refuses the messages: {message}", at_line(*line))]
    TemplateRefused {
        /// The line of the template, from 1, where it is known.
        line: Option<usize>,
        /// The template's own words.
        message: String,
    },
    /// A chat template needs more work than a render may do.
    #[error("chat template{}: gave up after {fuel} steps", at_line(*line))]
    TemplateTooLong {
        /// The line of the template, from 1, where it is known.
        line: Option<usize>,
        /// How many steps were allowed.
        fuel: u64,
    },
    /// A chat template is larger than any real one.
    #[error("chat template of {found_bytes} bytes; at most {max_bytes} are accepted")]
    TemplateSize {
        /// The size of the template.
        found_bytes: usize,
        /// The largest that is accepted.
        max_bytes: usize,
    },
    /// Content holds a control marker, and the template treats that content in a way that makes it
    /// impossible to tell the marker from the template's own ones.
    #[error(
        "{} holds the control marker {marker:?} and the chat template inspects that text, so its \
         origin cannot be proven; remove the marker or mark the message as trusted",
        place(*message)
    )]
    MarkerInContent {
        /// Index of the message, or `None` for the tools.
        message: Option<usize>,
        /// The marker's text.
        marker: String,
    },
    /// A control marker arose where the template joined pieces of content, and its origin cannot be
    /// proven.
    #[error(
        "the rendered chat holds the control marker {marker:?} whose origin cannot be proven; it \
         may be joined from pieces of the content"
    )]
    MarkerOfUnknownOrigin {
        /// The marker's text.
        marker: String,
    },
}

fn at_line(line: Option<usize>) -> String {
    line.map_or_else(String::new, |line| format!(" line {line}"))
}

fn place(message: Option<usize>) -> String {
    message.map_or_else(|| "the tools".into(), |index| format!("message {index}"))
}

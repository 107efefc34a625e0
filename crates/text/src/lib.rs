#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod bytes;
mod chat;
mod encode_chat;
mod error;
mod markers;
mod spec;
mod split;
mod stop;
mod stream;
mod tokenizer;

pub use chat::{ChatTemplate, Message, RenderOptions};
pub use encode_chat::encode_chat;
pub use error::{Error, Result};
pub use spec::TokenizerSpec;
pub use stop::{StopOutput, StopStrings};
pub use stream::{Detokenizer, Utf8Stream};
pub use tokenizer::{SpecialTokens, TokenKind, Tokenizer};

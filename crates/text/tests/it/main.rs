//! The tokenizer and the templates against other implementations, and against hostile input.

mod chat;
mod demo;
mod forgery;
mod hostile;
mod spec;
mod stop;
mod stream;
mod tokenizer;

//! Fuzz target `chat_template`; its body is [`thalweg_fuzz::chat_template`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_fuzz::chat_template(data));

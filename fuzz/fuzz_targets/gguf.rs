//! Fuzz target `gguf`; its body is [`thalweg_fuzz::gguf`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_fuzz::gguf(data));

//! Fuzz target `detokenizer`; its body is [`thalweg_fuzz::detokenizer`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_fuzz::detokenizer(data));

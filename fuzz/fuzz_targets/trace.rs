//! Fuzz target `trace`; its body is [`thalweg_fuzz::trace`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_fuzz::trace(data));

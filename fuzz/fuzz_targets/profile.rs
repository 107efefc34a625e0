//! Fuzz target `profile`; its body is [`thalweg_fuzz::profile`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_fuzz::profile(data));

//! Fuzz target `splits`; its body is [`thalweg_fuzz::splits`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_fuzz::splits(data));

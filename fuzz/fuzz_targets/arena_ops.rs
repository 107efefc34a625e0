//! Fuzz target `arena_ops`; its body is [`thalweg_fuzz::arena_ops`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_fuzz::arena_ops(data));

//! Fuzz target `cache_ops`; its body is [`thalweg_fuzz::cache_ops`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_fuzz::cache_ops(data));

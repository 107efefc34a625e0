//! Fuzz target `base_logits`; its body is [`thalweg_fuzz::base_logits`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_fuzz::base_logits(data));

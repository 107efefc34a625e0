//! Fuzz target `sidecar`; its body is [`thalweg_fuzz::sidecar`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_fuzz::sidecar(data));

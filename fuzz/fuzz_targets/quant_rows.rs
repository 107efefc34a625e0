//! Fuzz target `quant_rows`; its body is [`thalweg_fuzz::quant_rows`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_fuzz::quant_rows(data));

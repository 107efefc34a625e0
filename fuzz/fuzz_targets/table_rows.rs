//! Fuzz target `table_rows`; its body is [`thalweg_fuzz::table_rows`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_fuzz::table_rows(data));

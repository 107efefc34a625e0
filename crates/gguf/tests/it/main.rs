//! Integration tests: files written by hand, by this crate and by others, good and bad.

mod files;
mod hostile;
mod metadata;
mod raw;
mod reference;
mod round_trip;
mod split;
mod writer;

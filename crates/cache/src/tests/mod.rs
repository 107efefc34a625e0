//! Suites that cross several modules: goldens, offline optimum, operation sequences.

mod belady;
mod driver;
mod goldens;
mod ops;
mod residents;

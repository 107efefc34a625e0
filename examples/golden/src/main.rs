//! golden
fn main() {}

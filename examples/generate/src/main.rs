//! generate
fn main() {}

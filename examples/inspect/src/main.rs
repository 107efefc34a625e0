//! inspect
fn main() {}

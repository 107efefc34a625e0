//! chat
fn main() {}

//! The `oncekey` program.
fn main() {}

//! Arguments, wiring, shutdown; nothing else.
fn main() {}

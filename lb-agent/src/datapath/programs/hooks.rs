//! The numbers of socket hooks.

/// A socket hook as bpf(2) numbers it.
pub(in crate::datapath) fn attach_type(name: &str) -> u32 {
    match name {
        "connect4" => 10,
        "connect6" => 11,
        "peername4" => 29,
        _ => 30,
    }
}

//! Attach types of the socket hooks.

/// Returns the attach type of a socket hook (`enum bpf_attach_type`).
pub(in crate::datapath) fn attach_type(name: &str) -> u32 {
    match name {
        "connect4" => 10,
        "connect6" => 11,
        "peername4" => 29,
        _ => 30,
    }
}

//! Names of the layout, its directories and the programs, and the kernel's numbers of socket hooks.

/// Name of the layout of maps and pins. It moves with every change of a shared type or a
/// map that old programs cannot read, but for counters.
pub const LAYOUT: &str = "v6";

/// The directory beside `maps` that says what the bytes in maps mean.
pub(super) const MEANINGS: &str = "meanings";

/// The socket hooks, named as the programs are.
pub const SOCKET_HOOKS: [&str; 4] = ["connect4", "connect6", "peername4", "peername6"];

/// The tc programs.
pub const CLASSIFIERS: [&str; 6] =
    ["pod_ingress", "pod_egress", "edge_ingress", "edge_egress", "host_ingress", "host_egress"];

/// The tc programs of interfaces without a link-layer header.
pub(super) const L3: [&str; 2] = ["l3_ingress", "l3_egress"];

/// The programs of the whole path, which the programs of all roles call by a tail call.
pub const PATHS: [&str; 2] = ["ingress_path", "egress_path"];

/// The program of the whole path at XDP, which the XDP program calls by a tail call.
pub const XDP_PATH: &str = "xdp_path";

/// The XDP program, loaded only with `acceleration`.
pub(super) const XDP: &str = "edge_xdp";

/// A socket hook as bpf(2) numbers it.
pub(super) fn attach_type(name: &str) -> u32 {
    match name {
        "connect4" => 10,
        "connect6" => 11,
        "peername4" => 29,
        _ => 30,
    }
}

//! Names of the layout, of its directories and of the programs, and the kernel's numbers of the socket hooks.

/// Name of the layout of maps and pins. It changes when a shared type or a map changes in a way that old programs
/// cannot read, except for counters.
pub const LAYOUT: &str = "v6";

/// The directory beside `maps` that records the fingerprints of the maps. Nodes have it under this name: without the
/// record, an upgrade copies no map of an earlier layout.
pub(super) const FINGERPRINTS: &str = "meanings";

/// The socket hooks; their programs have the same names.
pub const SOCKET_HOOKS: [&str; 4] = ["connect4", "connect6", "peername4", "peername6"];

/// The tc programs.
pub const CLASSIFIERS: [&str; 6] = [
    "pod_ingress",
    "pod_egress",
    "external_ingress",
    "external_egress",
    "host_ingress",
    "host_egress",
];

/// The tc programs of interfaces without a link-layer header.
pub(super) const L3: [&str; 2] = ["l3_ingress", "l3_egress"];

/// The tc programs of the whole path. The programs of all roles call them by a tail call.
pub const PATHS: [&str; 2] = ["ingress_path", "egress_path"];

/// The program of the whole path at XDP. The XDP program calls it by a tail call.
pub const XDP_PATH: &str = "xdp_path";

/// The XDP program, loaded only with `acceleration`.
pub(super) const XDP: &str = "external_xdp";

/// Returns the name of a program as the kernel keeps it: the first 15 characters (`BPF_OBJ_NAME_LEN`).
pub(super) fn kernel_name(program: &str) -> &str {
    program.get(..15).unwrap_or(program)
}

/// Returns the number of a socket hook in bpf(2) (`enum bpf_attach_type`).
pub(super) fn attach_type(name: &str) -> u32 {
    match name {
        "connect4" => 10,
        "connect6" => 11,
        "peername4" => 29,
        _ => 30,
    }
}

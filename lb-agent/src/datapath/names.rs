//! Names of the layout, of its directories and of the programs, and the kernel's numbers of the socket hooks.

use lb_common::forward::Stage;

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

/// The programs of the whole path at tc. The programs of all roles enter them by tail calls.
pub const PATHS: [(Stage, &str); Stage::COUNT] = [
    (Stage::Ingress, "ingress_path"),
    (Stage::Egress, "egress_path"),
    (Stage::Follow, "follow_path"),
    (Stage::Begin, "begin_path"),
    (Stage::Host, "host_path"),
    (Stage::HostBegin, "host_begin_path"),
    (Stage::Error, "error_path"),
];

/// The programs of the whole path at interfaces without a link-layer header. The attached ones run the first stages.
pub(super) const L3_PATHS: [(Stage, &str); 5] = [
    (Stage::Follow, "l3_follow_path"),
    (Stage::Begin, "l3_begin_path"),
    (Stage::Host, "l3_host_path"),
    (Stage::HostBegin, "l3_host_begin_path"),
    (Stage::Error, "l3_error_path"),
];

/// The programs of the whole path at XDP, where no packet goes out. The XDP program enters them by tail calls.
pub const XDP_PATHS: [(Stage, &str); 4] = [
    (Stage::Ingress, "xdp_path"),
    (Stage::Follow, "xdp_follow_path"),
    (Stage::Begin, "xdp_begin_path"),
    (Stage::Error, "xdp_error_path"),
];

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

//! The addresses and ports of random packets: few, so that packets often belong to the same flow.

use lb_common::addr::Protocol;

/// Frontends of Services, for both families.
pub(super) const FRONTENDS: [&[&str]; 2] = [
    &[
        "10.96.0.10:80",
        "10.96.0.11:80",
        "10.96.0.10:53",
        "198.51.100.1:80",
        "192.168.0.10:30080",
        "192.168.0.10:30053",
    ],
    &[
        "[fd00:96::10]:80",
        "[fd00:96::11]:80",
        "[fd00:96::10]:53",
        "[2001:db8:1::1]:80",
        "[fd00:c0::10]:30080",
        "[fd00:c0::10]:30053",
    ],
];
/// A backend without a route.
const NOWHERE: [&str; 2] = ["10.99.0.1:8080", "[fd00:99::1]:8080"];
/// Backends, for both families, and whether they are on this node.
pub(super) const BACKENDS: [&[(&str, bool)]; 2] = [
    &[
        ("10.1.0.5:8080", true),
        ("10.1.0.6:8080", true),
        ("10.2.0.7:8080", false),
        ("10.2.0.8:8081", false),
        ("192.168.0.10:8080", true),
        (NOWHERE[0], false),
    ],
    &[
        ("[fd00:1::5]:8080", true),
        ("[fd00:1::6]:8080", true),
        ("[fd00:2::7]:8080", false),
        ("[fd00:2::8]:8081", false),
        ("[fd00:c0::10]:8080", true),
        (NOWHERE[1], false),
    ],
];
/// Clients, for both families: pods, external clients, the node, the address that replaces a pod that reaches itself
/// (hairpin), and a frontend.
pub(super) const CLIENTS: [&[&str]; 2] = [
    &[
        "10.1.0.5:40000",
        "10.1.0.5:40001",
        "10.1.0.9:8080",
        "203.0.113.9:50000",
        "203.0.113.10:50000",
        "192.168.0.10:1024",
        "192.0.0.8:40000",
        "10.96.9.9:80",
    ],
    &[
        "[fd00:1::5]:40000",
        "[fd00:1::5]:40001",
        "[fd00:1::9]:8080",
        "[2001:db8::9]:50000",
        "[2001:db8::10]:50000",
        "[fd00:c0::10]:1024",
        "[100::8]:40000",
        "[fd00:96::99]:80",
    ],
];
/// A pod, and a ClusterIP and a `NodePort` to which it sends fragmented datagrams, for both families.
pub(super) const PIECES: [[&str; 3]; 2] = [
    ["10.1.0.5:40000", "10.96.0.10:80", "192.168.0.10:30080"],
    ["[fd00:1::5]:40000", "[fd00:96::10]:80", "[fd00:c0::10]:30080"],
];
/// The protocols of frontends.
pub(super) const PROTOCOLS: [Protocol; 3] = [Protocol::TCP, Protocol::UDP, Protocol::SCTP];

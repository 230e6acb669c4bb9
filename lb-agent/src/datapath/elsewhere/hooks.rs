//! Lists the programs at all hooks where this agent attaches. A hook that cannot be read counts as empty.
//!
//! The hooks are tcx and XDP of the interfaces of this namespace, tc filters there, and the socket hooks of a cgroup.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::datapath::attached::attached_programs;
use crate::datapath::names::{SOCKET_HOOKS, attach_type};
use crate::datapath::role::Direction;
use crate::netlink::{connect, find, list};
use crate::syscall;

/// `RTM_GETLINK`, the bytes of `struct ifinfomsg`, and the attributes `IFLA_IFNAME`, `IFLA_XDP`, `IFLA_XDP_PROG_ID`.
const GET_LINK: u16 = 18;
const OF_LINK: usize = 16;
const NAME: u16 = 3;
const XDP: u16 = 43;
const XDP_PROGRAM: u16 = 4;
/// `RTM_GETTFILTER`, the bytes of `struct tcmsg`, and the attributes `TCA_OPTIONS` and `TCA_BPF_ID`.
const GET_FILTER: u16 = 46;
const OF_FILTER: usize = 20;
const OPTIONS: u16 = 2;
const FILTER_PROGRAM: u16 = 11;
/// `TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)`, and the same of egress.
const CLSACT: [(Direction, u32); 2] =
    [(Direction::Ingress, 0xffff_fff2), (Direction::Egress, 0xffff_fff3)];

/// A hook, and the program at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OccupiedHook {
    pub(super) kind: HookKind,
    /// Id of its link, if the kernel reports one.
    pub(super) link: Option<u32>,
    pub(super) program: u32,
}

/// The place of a hook: an interface, or a socket call in the cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HookKind {
    Tcx {
        device: String,
    },
    Xdp {
        device: String,
    },
    /// A filter of a clsact queueing discipline.
    Filter {
        device: String,
        direction: Direction,
        priority: u16,
        handle: u32,
    },
    Socket {
        name: &'static str,
    },
}

impl OccupiedHook {
    pub(super) const fn is_of_tc(&self) -> bool {
        matches!(self.kind, HookKind::Tcx { .. } | HookKind::Filter { .. })
    }

    pub(super) const fn is_of_sockets(&self) -> bool {
        matches!(self.kind, HookKind::Socket { .. })
    }
}

impl fmt::Display for OccupiedHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            HookKind::Tcx { device } => write!(f, "interface {device}"),
            HookKind::Xdp { device } => write!(f, "interface {device} (XDP)"),
            HookKind::Filter { device, .. } => write!(f, "interface {device} (tc filter)"),
            HookKind::Socket { name } => write!(f, "socket hook {name}"),
        }
    }
}

/// Returns every program at the hooks of this namespace's interfaces and of a cgroup.
pub(super) fn all(cgroup: &Path) -> Vec<OccupiedHook> {
    let mut all = of_devices().unwrap_or_default();
    // A wrong `--cgroup` is reported where it is used.
    let Ok(cgroup) = File::open(cgroup) else { return all };
    for name in SOCKET_HOOKS {
        let hooked = syscall::attached_to_cgroup(cgroup.as_fd(), attach_type(name));
        // For a cgroup the kernel names programs and no links (`__cgroup_bpf_query` in kernel/bpf/cgroup.c).
        let hook = |program| OccupiedHook { kind: HookKind::Socket { name }, link: None, program };
        all.extend(hooked.unwrap_or_default().into_iter().map(hook));
    }
    all
}

/// Returns every program at the hooks of this namespace's interfaces.
pub(super) fn of_devices() -> io::Result<Vec<OccupiedHook>> {
    let socket = connect(NETLINK_ROUTE)?;
    let mut all = Vec::new();
    for (index, device, xdp) in devices(&socket)? {
        for direction in Direction::BOTH {
            // An interface may vanish during the walk; it then has no programs.
            let hooked = attached_programs(index, direction).unwrap_or_default();
            all.extend(hooked.into_iter().map(|hooked| OccupiedHook {
                kind: HookKind::Tcx { device: device.clone() },
                link: Some(hooked.link).filter(|link| *link != 0),
                program: hooked.program,
            }));
        }
        let kind = HookKind::Xdp { device: device.clone() };
        all.extend(xdp.map(|program| OccupiedHook { kind, link: None, program }));
        for (direction, parent) in CLSACT {
            let filter = |(priority, handle, program)| OccupiedHook {
                kind: HookKind::Filter { device: device.clone(), direction, priority, handle },
                link: None,
                program,
            };
            // Filters of older tools are not links, and `attached_programs` does not list them.
            let found = filters(&socket, index, parent).unwrap_or_default();
            all.extend(found.into_iter().map(filter));
        }
    }
    Ok(all)
}

/// Returns index, name and XDP program of each interface.
fn devices(socket: &Socket) -> io::Result<Vec<(u32, String, Option<u32>)>> {
    let device = |body: &[u8]| {
        let attributes = body.get(OF_LINK..)?;
        let name = find(attributes, NAME)?.split(|byte| *byte == 0).next()?;
        let xdp = find(attributes, XDP).and_then(|nested| find(nested, XDP_PROGRAM));
        let name = String::from_utf8_lossy(name).into_owned();
        Some((word(body, 4)?, name, xdp.and_then(|number| word(number, 0))))
    };
    let mut all = Vec::new();
    list(socket, GET_LINK, &[0; OF_LINK], |_, body| all.extend(device(body)))?;
    Ok(all)
}

/// Returns priority, handle and program of each eBPF filter at one side of an interface.
fn filters(socket: &Socket, index: u32, parent: u32) -> io::Result<Vec<(u16, u32, u32)>> {
    let [index, parent] = [index, parent].map(u32::to_ne_bytes);
    let body = [[0; 4], index, [0; 4], parent, [0; 4]].concat();
    let filter = |body: &[u8]| {
        let options = find(body.get(OF_FILTER..)?, OPTIONS)?;
        let program = word(find(options, FILTER_PROGRAM)?, 0)?;
        // The upper 16 bits of `tcm_info` are the priority.
        Some(((word(body, 16)? >> 16) as u16, word(body, 8)?, program))
    };
    let mut all = Vec::new();
    list(socket, GET_FILTER, &body, |_, body| all.extend(filter(body)))?;
    Ok(all)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

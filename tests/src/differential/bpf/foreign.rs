//! Programs of other owners, as neighbours of the agent's: what they return, and where they are attached.

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd as _, OwnedFd};

use lb_agent::syscall::attributes::bpf;

use super::{load, load_tc, number};

/// A tc program with a constant return code: -1 (`TC_ACT_UNSPEC`) passes a packet on to the next program, 0
/// (`TC_ACT_OK`) lets it skip all later programs.
pub fn load_verdict(verdict: i32) -> io::Result<OwnedFd> {
    let [a, b, c, d] = verdict.to_le_bytes();
    load_tc(&[[0xb7, 0, 0, 0, a, b, c, d], [0x95, 0, 0, 0, 0, 0, 0, 0]])
}

/// The place of a tc program among those of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Before all others, where the agent's belongs.
    First,
    /// Behind all others, as the kernel does by default.
    Appended,
}

/// Attaches a tc program at an interface of the caller's namespace, as long as the link is held.
pub fn attach_program(
    program: BorrowedFd<'_>,
    device: u32,
    is_egress: bool,
    place: Place,
) -> io::Result<OwnedFd> {
    /// `BPF_LINK_CREATE`, `BPF_TCX_INGRESS`, `BPF_TCX_EGRESS`, `BPF_F_BEFORE`.
    const LINK_CREATE: u32 = 28;
    const INGRESS: u32 = 46;
    const EGRESS: u32 = 47;
    const BEFORE: u32 = 1 << 3;
    #[repr(C)]
    struct Attributes {
        program: u32,
        device: u32,
        kind: u32,
        flags: u32,
        rest: [u64; 2],
    }
    let program = number(program);
    let kind = if is_egress { EGRESS } else { INGRESS };
    let flags = if place == Place::First { BEFORE } else { 0 };
    let mut attributes = Attributes { program, device, kind, flags, rest: [0; 2] };
    // SAFETY: as in `call`.
    let fd = unsafe { bpf(LINK_CREATE, &mut attributes) }?;
    // SAFETY: the kernel has just created this descriptor for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `BPF_CGROUP_INET4_CONNECT`.
const CONNECT4: u32 = 10;

/// Loads a program that lets every connect(2) of IPv4 pass.
pub fn load_connect4() -> io::Result<OwnedFd> {
    /// `BPF_PROG_TYPE_CGROUP_SOCK_ADDR`.
    const SOCK_ADDR: u32 = 18;
    load((SOCK_ADDR, CONNECT4), &[[0xb7, 0, 0, 0, 1, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]])
}

/// Attaches such a program to a cgroup, or detaches it, without `BPF_F_ALLOW_MULTI`: no other program can be attached
/// beside it.
pub fn occupy_connect4(
    cgroup: BorrowedFd<'_>,
    program: BorrowedFd<'_>,
    attaches: bool,
) -> io::Result<()> {
    /// `BPF_PROG_ATTACH`, `BPF_PROG_DETACH`.
    const ATTACH: u32 = 8;
    const DETACH: u32 = 9;
    #[repr(C)]
    struct Attributes {
        target: u32,
        program: u32,
        kind: u32,
        flags: u32,
    }
    let mut attributes =
        Attributes { target: number(cgroup), program: number(program), kind: CONNECT4, flags: 0 };
    // SAFETY: as in `call`.
    unsafe { bpf(if attaches { ATTACH } else { DETACH }, &mut attributes) }.map(drop)
}

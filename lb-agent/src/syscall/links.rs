//! Links, programs and pins: create, open, update, detach, query.

use std::ffi::CString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::expedite::expedite;
use super::{attributes, bpf, number, opened};

const PROG_LOAD: u32 = 5;
const OBJ_PIN: u32 = 6;
const OBJ_GET: u32 = 7;
const OBJ_GET_INFO_BY_FD: u32 = 15;
const LINK_CREATE: u32 = 28;
const LINK_UPDATE: u32 = 29;
const LINK_DETACH: u32 = 34;
/// `BPF_XDP` of `enum bpf_attach_type`.
const ATTACH_XDP: u32 = 37;
/// `XDP_FLAGS_DRV_MODE`: run by the driver, or not at all.
const DRIVER_MODE: u32 = 4;

/// The part of `union bpf_attr` for pins.
#[repr(C)]
struct PinAttributes {
    path: u64,
    fd: u32,
    flags: u32,
}

/// Opens a pinned link, map or program.
pub(crate) fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let path_at = path.as_ptr().addr() as u64;
    opened(OBJ_GET, &mut PinAttributes { path: path_at, fd: 0, flags: 0 })
}

/// Pins a program, a map or a link.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let path_at = path.as_ptr().addr() as u64;
    bpf(OBJ_PIN, &mut PinAttributes { path: path_at, fd: number(object), flags: 0 }).map(|_| ())
}

/// Makes a link of an XDP program on an interface, run by its driver. Linux 5.9.
pub(crate) fn link_xdp(program: BorrowedFd<'_>, device: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct XdpAttributes {
        program: u32,
        device: u32,
        kind: u32,
        flags: u32,
    }
    let program = number(program);
    let (kind, flags) = (ATTACH_XDP, DRIVER_MODE);
    opened(LINK_CREATE, &mut XdpAttributes { program, device, kind, flags })
}

/// Makes a link of a tc program on an interface, before all others there. The index names the interface: its name may
/// belong to another one by now. Linux 6.6.
pub(crate) fn link_tcx(program: BorrowedFd<'_>, device: u32, kind: u32) -> io::Result<OwnedFd> {
    /// `BPF_F_BEFORE`: without a relative, before all others.
    const BEFORE: u32 = 1 << 3;
    #[repr(C)]
    struct TcxAttributes {
        program: u32,
        device: u32,
        kind: u32,
        flags: u32,
        relative: u32,
        pad: u32,
        revision: u64,
    }
    let program = number(program);
    let mut attributes =
        TcxAttributes { program, device, kind, flags: BEFORE, relative: 0, pad: 0, revision: 0 };
    let _expedited = expedite();
    opened(LINK_CREATE, &mut attributes)
}

/// Loads a tc program that passes every packet on to the next one (`TCX_NEXT`).
pub(crate) fn load_idle() -> io::Result<OwnedFd> {
    /// `r0 = -1`, `exit`.
    const CODE: [[u8; 8]; 2] =
        [[0xb7, 0, 0, 0, 0xff, 0xff, 0xff, 0xff], [0x95, 0, 0, 0, 0, 0, 0, 0]];
    load_tc(*b"idle\0\0\0\0\0\0\0\0\0\0\0\0", &CODE)
}

/// Loads a tc program with these instructions.
pub(super) fn load_tc(name: [u8; 16], code: &[[u8; 8]]) -> io::Result<OwnedFd> {
    /// The beginning of `union bpf_attr` for loading a program, up to its name.
    #[repr(C)]
    struct LoadAttributes {
        kind: u32,
        count: u32,
        instructions: u64,
        license: u64,
        log: [u32; 2],
        buffer: u64,
        kernel: u32,
        flags: u32,
        name: [u8; 16],
    }
    /// `BPF_PROG_TYPE_SCHED_CLS`.
    const TC: u32 = 3;
    let mut attributes = LoadAttributes {
        kind: TC,
        count: code.len() as u32,
        instructions: code.as_ptr().addr() as u64,
        license: c"Dual MIT/GPL".as_ptr().addr() as u64,
        log: [0; 2],
        buffer: 0,
        kernel: 0,
        flags: 0,
        name,
    };
    opened(PROG_LOAD, &mut attributes)
}

/// Makes a link of a program on a cgroup, beside those that are attached. Linux 5.7.
pub(crate) fn link_cgroup(
    program: BorrowedFd<'_>,
    cgroup: BorrowedFd<'_>,
    kind: u32,
) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct CgroupAttributes {
        program: u32,
        cgroup: u32,
        kind: u32,
        flags: u32,
    }
    let (program, cgroup) = (number(program), number(cgroup));
    // The kernel attaches each link with `BPF_F_ALLOW_MULTI` (`cgroup_bpf_link_attach` in kernel/bpf/cgroup.c), so the
    // flags need not say it.
    opened(LINK_CREATE, &mut CgroupAttributes { program, cgroup, kind, flags: 0 })
}

/// Replaces the program of a link atomically. Linux 6.6 for tcx links, 5.7 for cgroup links.
pub(crate) fn update_link(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    #[repr(C)]
    struct UpdateAttributes {
        link: u32,
        program: u32,
        flags: u32,
        old_program: u32,
    }
    let (link, program) = (number(link), number(program));
    bpf(LINK_UPDATE, &mut UpdateAttributes { link, program, flags: 0, old_program: 0 }).map(|_| ())
}

/// Detaches a link before it returns; closing its last pin or descriptor would detach it some time later. Linux 5.9.
pub(crate) fn detach_link(link: BorrowedFd<'_>) -> io::Result<()> {
    #[repr(C)]
    struct DetachAttributes {
        link: u32,
    }
    // The kernel waits for a grace period under the lock of all network interfaces.
    let _expedited = expedite();
    bpf(LINK_DETACH, &mut DetachAttributes { link: number(link) }).map(|_| ())
}

/// The kernel's description of a link (`struct bpf_link_info`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LinkInfo {
    kind: u32,
    /// Id of the link.
    pub(crate) id: u32,
    /// Id of its program.
    pub(crate) program: u32,
    pad: u32,
    /// tcx: interface index and attach type; cgroup: id of the cgroup.
    target: u64,
    rest: [u64; 8],
}

impl LinkInfo {
    /// Returns the interface index of a tcx link; 0 if the interface is gone.
    pub(crate) const fn device(&self) -> u32 {
        self.target as u32
    }

    /// Returns the id of the cgroup, which is its inode number.
    pub(crate) const fn cgroup(&self) -> u64 {
        self.target
    }
}

/// Returns the description of a link.
pub(crate) fn link_info(link: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    let mut info = LinkInfo::default();
    let info_at = (&raw mut info).addr() as u64;
    let length = size_of::<LinkInfo>() as u32;
    let mut attributes = attributes::Info { object: number(link), length, info: info_at };
    bpf(OBJ_GET_INFO_BY_FD, &mut attributes)?;
    Ok(info)
}

pub(crate) fn program_id(program: BorrowedFd<'_>) -> io::Result<u32> {
    id(program)
}

pub(crate) fn map_id(map: BorrowedFd<'_>) -> io::Result<u32> {
    id(map)
}

/// The kernel's number of a program or a map, which no other of its kind has meanwhile (kernel 4.13).
fn id(object: BorrowedFd<'_>) -> io::Result<u32> {
    /// The beginning of `struct bpf_prog_info` and of `struct bpf_map_info`.
    #[repr(C)]
    struct ObjectInfo {
        kind: u32,
        id: u32,
    }
    let mut info = ObjectInfo { kind: 0, id: 0 };
    let (info_at, length) = ((&raw mut info).addr() as u64, size_of::<ObjectInfo>() as u32);
    let mut attributes = attributes::Info { object: number(object), length, info: info_at };
    bpf(OBJ_GET_INFO_BY_FD, &mut attributes)?;
    Ok(info.id)
}

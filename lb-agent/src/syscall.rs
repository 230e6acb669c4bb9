//! The few kernel calls that aya and nix lack, each one a safe function.
//!
//! Batches of map entries, links by their pin, XDP links, the driver of a device, the cookie of a network namespace,
//! the limit of open files. Only here the agent talks to the kernel by raw pointers.

use std::ffi::CString;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use aya::Pod;

pub mod attributes;

const MAP_LOOKUP: u32 = 1;
const MAP_UPDATE: u32 = 2;
const OBJ_PIN: u32 = 6;
const OBJ_GET: u32 = 7;
const OBJ_GET_INFO_BY_FD: u32 = 15;
const PROG_QUERY: u32 = 16;
const MAP_LOOKUP_BATCH: u32 = 24;
const MAP_UPDATE_BATCH: u32 = 26;
const MAP_DELETE_BATCH: u32 = 27;
const LINK_CREATE: u32 = 28;
const LINK_UPDATE: u32 = 29;
const LINK_DETACH: u32 = 34;
/// `BPF_XDP` of `enum bpf_attach_type`.
const ATTACH_XDP: u32 = 37;
/// `XDP_FLAGS_DRV_MODE`: by the driver, or not at all.
const DRIVER_MODE: u32 = 4;
/// `SO_NETNS_COOKIE`, Linux 5.14; neither nix nor libc name it for every target.
const SO_NETNS_COOKIE: i32 = 71;

/// Where a walk through a map stands. The kernel wants room for a key, or for a bucket's number.
pub(crate) type Position = [u8; 64];

/// A piece of a walk through a map.
pub(crate) struct Batch {
    /// Entries read.
    pub(crate) count: usize,
    /// Where to go on; nothing at the end of the map.
    pub(crate) next: Option<Position>,
}

/// Lets all threads take memory from one heap: what one gives back another takes, so less of it lies about in
/// holes. Call it before there are threads.
pub fn keep_one_heap() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: takes no pointers, and sets a limit that the allocator reads when it makes another heap.
        let _: i32 = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}

/// Gives memory that is not used any more back to the kernel, where the allocator would keep it: after lists
/// were read, that is most of what was ever taken.
pub(crate) fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: takes no pointers, and any thread may call it at any time.
        let _: i32 = unsafe { libc::malloc_trim(0) };
    }
}

/// Raises the soft limit of open files to the hard one; gives what it was, and is.
pub(crate) fn raise_open_files() -> io::Result<(u64, u64)> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one `rlimit` to where one is.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the kernel reads one `rlimit` from where one is.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((before, limit.rlim_cur))
}

/// Reads entries into `keys` and `values`, from the beginning or from a position. Linux 5.6.
///
/// An entry that is added or removed meanwhile may be missed. `ENOSPC` asks for longer slices.
pub(crate) fn lookup_batch<K: Pod, V: Pod>(
    map: BorrowedFd<'_>,
    from: Option<&Position>,
    keys: &mut [K],
    values: &mut [V],
) -> io::Result<Batch> {
    let mut next: Position = [0; 64];
    let mut attributes = attributes::Batch {
        from: from.map_or(0, |from| from.as_ptr().addr() as u64),
        to: next.as_mut_ptr().addr() as u64,
        keys: keys.as_mut_ptr().addr() as u64,
        values: values.as_mut_ptr().addr() as u64,
        count: keys.len().min(values.len()) as u32,
        map: number(map),
        ..attributes::Batch::default()
    };
    let result = bpf(MAP_LOOKUP_BATCH, &mut attributes);
    let count = attributes.count as usize;
    match result {
        Ok(_) => Ok(Batch { count, next: Some(next) }),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(Batch { count, next: None }),
        Err(error) => Err(error),
    }
}

/// Adds an entry that must not exist yet, or (`flags` 0) writes one.
pub(crate) fn update<K: Pod, V: Pod>(
    map: BorrowedFd<'_>,
    key: &K,
    value: &V,
    flags: u64,
) -> io::Result<()> {
    let (key, value): (*const K, *const V) = (key, value);
    let (key, value) = (key.addr() as u64, value.addr() as u64);
    let mut entry = attributes::Element { map: number(map), pad: 0, key, value, flags };
    bpf(MAP_UPDATE, &mut entry).map(|_| ())
}

/// Reads an entry of a map whose values have this size; `ENOENT` where there is none.
pub(crate) fn lookup<K: Pod, V: Pod>(
    map: BorrowedFd<'_>,
    key: &K,
    value: &mut V,
) -> io::Result<()> {
    let (key, value): (*const K, *mut V) = (key, value);
    let (key, value) = (key.addr() as u64, value.addr() as u64);
    let mut entry = attributes::Element { map: number(map), pad: 0, key, value, flags: 0 };
    bpf(MAP_LOOKUP, &mut entry).map(|_| ())
}

/// Writes entries; those that exist are replaced. Linux 5.6.
pub(crate) fn update_batch<K: Pod, V: Pod>(
    map: BorrowedFd<'_>,
    keys: &[K],
    values: &[V],
) -> io::Result<()> {
    let mut attributes = attributes::Batch {
        keys: keys.as_ptr().addr() as u64,
        values: values.as_ptr().addr() as u64,
        count: keys.len().min(values.len()) as u32,
        map: number(map),
        ..attributes::Batch::default()
    };
    if attributes.count == 0 { Ok(()) } else { bpf(MAP_UPDATE_BATCH, &mut attributes).map(|_| ()) }
}

/// Removes entries. One that is not there any more is skipped. Linux 5.6.
pub(crate) fn delete_batch<K: Pod>(map: BorrowedFd<'_>, keys: &[K]) -> io::Result<()> {
    let mut rest = keys;
    while !rest.is_empty() {
        let mut attributes = attributes::Batch {
            keys: rest.as_ptr().addr() as u64,
            count: rest.len() as u32,
            map: number(map),
            ..attributes::Batch::default()
        };
        match bpf(MAP_DELETE_BATCH, &mut attributes) {
            Ok(_) => break,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                rest = rest.get(attributes.count as usize + 1..).unwrap_or_default();
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns when no program that ran when this was called runs any more: programs run inside of RCU's read side, and
/// `MEMBARRIER_CMD_GLOBAL` waits for its grace period (some milliseconds, Linux 4.3). On one CPU it has nobody to wait
/// for: the kernel finished a packet before it came back to us.
pub(crate) fn wait_for_programs() {
    const GLOBAL: i32 = 1;
    // SAFETY: takes no pointers; it only waits.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) };
    if result != 0 {
        // A kernel with CPUs that take no interrupts refuses. No packet is this long in a program.
        let (began, enough) = (Instant::now(), Duration::from_millis(20));
        while began.elapsed() < enough {
            std::thread::park_timeout(enough);
        }
    }
}

/// The part of `union bpf_attr` that pins use.
#[repr(C)]
struct PinAttributes {
    path: u64,
    fd: u32,
    flags: u32,
}

/// Opens what is pinned at a path: a link, a map or a program.
pub(crate) fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let path_at = path.as_ptr().addr() as u64;
    opened(OBJ_GET, &mut PinAttributes { path: path_at, fd: 0, flags: 0 })
}

/// Makes a link of an XDP program on a device, run by its driver. Linux 5.9.
pub(crate) fn link_xdp(program: BorrowedFd<'_>, device: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        program: u32,
        device: u32,
        kind: u32,
        flags: u32,
    }
    let program = number(program);
    let (kind, flags) = (ATTACH_XDP, DRIVER_MODE);
    opened(LINK_CREATE, &mut Attributes { program, device, kind, flags })
}

/// Pins a program, a map or a link.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let path_at = path.as_ptr().addr() as u64;
    bpf(OBJ_PIN, &mut PinAttributes { path: path_at, fd: number(object), flags: 0 }).map(|_| ())
}

/// What `ETHTOOL_GDRVINFO` says of a device: its driver, and where its hardware is; nothing where there is none.
pub(crate) fn driver(device: &str) -> io::Result<(String, String)> {
    const GET_DRIVER: u32 = 3;
    #[repr(C)]
    struct Information {
        command: u32,
        driver: [u8; 32],
        version: [u8; 32],
        firmware: [u8; 32],
        bus: [u8; 32],
        expansion: [u8; 32],
        rest: [u8; 12],
        numbers: [u32; 5],
    }
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_else(|_| {
        // A namespace without a loopback device that is up.
        UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
    })?;
    // SAFETY: all zeroes is valid for plain numbers and bytes.
    let mut information: Information = unsafe { std::mem::zeroed() };
    information.command = GET_DRIVER;
    // SAFETY: all zeroes is a valid ifreq: an empty name and a null pointer.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays: names end with a zero.
    for (to, from) in request.ifr_name.iter_mut().take(15).zip(device.bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_data = (&raw mut information).cast();
    // SAFETY: the request names a device and points at a value that outlives the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let text = |bytes: &[u8; 32]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
    Ok((text(&information.driver), text(&information.bus)))
}

/// Makes a link run another program, at once and without a gap. tcx and cgroup links: Linux 6.6 and 5.7.
pub(crate) fn update_link(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        link: u32,
        program: u32,
        flags: u32,
        old_program: u32,
    }
    let (link, program) = (number(link), number(program));
    bpf(LINK_UPDATE, &mut Attributes { link, program, flags: 0, old_program: 0 }).map(|_| ())
}

/// Takes a link off what it is attached to, done when this returns; without its pin it would go some time later.
/// Linux 5.9.
pub(crate) fn detach_link(link: BorrowedFd<'_>) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        link: u32,
    }
    bpf(LINK_DETACH, &mut Attributes { link: number(link) }).map(|_| ())
}

/// What the kernel says about a link.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LinkInfo {
    kind: u32,
    /// Number of the link.
    pub(crate) id: u32,
    /// Number of its program.
    pub(crate) program: u32,
    pad: u32,
    /// tcx: interface index and attach type; cgroup: the cgroup's number.
    target: u64,
    rest: [u64; 8],
}

impl LinkInfo {
    /// Interface index of a tcx link; 0 when the interface is gone.
    pub(crate) const fn device(&self) -> u32 {
        self.target as u32
    }

    /// Number of the cgroup (its inode).
    pub(crate) const fn cgroup(&self) -> u64 {
        self.target
    }
}

/// Asks about a link.
pub(crate) fn link_info(link: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    let mut info = LinkInfo::default();
    let info_at = (&raw mut info).addr() as u64;
    let length = size_of::<LinkInfo>() as u32;
    let mut attributes = attributes::Info { object: number(link), length, info: info_at };
    let _: RawFd = bpf(OBJ_GET_INFO_BY_FD, &mut attributes)?;
    Ok(info)
}

/// A program that is attached somewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hooked {
    /// Number of the program.
    pub program: u32,
    /// Number of its link; 0 when it was attached without one.
    pub link: u32,
}

/// The part of `union bpf_attr` that asks what is attached.
#[repr(C)]
#[derive(Default)]
struct QueryAttributes {
    target: u32,
    kind: u32,
    flags: u32,
    attach_flags: u32,
    programs: u64,
    count: u32,
    pad: u32,
    program_flags: u64,
    links: u64,
    link_flags: u64,
    revision: u64,
}

/// Programs asked for at once; a kernel allows 64 at a place of a device, and as many in each cgroup.
const HOOKED: usize = 512;

/// What is attached to a device at a place, in the order in which it runs. Linux 6.6.
pub(crate) fn attached_to_device(index: u32, kind: u32) -> io::Result<Vec<Hooked>> {
    let mut programs = [0_u32; HOOKED];
    let mut links = [0_u32; HOOKED];
    let count = query(QueryAttributes {
        target: index,
        kind,
        programs: programs.as_mut_ptr().addr() as u64,
        links: links.as_mut_ptr().addr() as u64,
        ..QueryAttributes::default()
    })?;
    let hooked = programs
        .iter()
        .zip(&links)
        .map(|(program, link)| Hooked { program: *program, link: *link });
    Ok(hooked.take(count).collect())
}

/// The programs that run for sockets of a cgroup at a place, those of its ancestors included.
pub(crate) fn effective_in_cgroup(cgroup: BorrowedFd<'_>, kind: u32) -> io::Result<Vec<u32>> {
    const EFFECTIVE: u32 = 1;
    let mut programs = [0_u32; HOOKED];
    let count = query(QueryAttributes {
        target: number(cgroup),
        kind,
        flags: EFFECTIVE,
        programs: programs.as_mut_ptr().addr() as u64,
        ..QueryAttributes::default()
    })?;
    Ok(programs.into_iter().take(count).collect())
}

/// How many there are; what the slices of `attributes` have no room for is not told.
fn query(mut attributes: QueryAttributes) -> io::Result<usize> {
    attributes.count = HOOKED as u32;
    match bpf(PROG_QUERY, &mut attributes) {
        Ok(_) => Ok(attributes.count as usize),
        // Nothing was ever attached to the device there.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(0),
        Err(error) => Err(error),
    }
}

/// The cookie of the network namespace that a socket lives in. Linux 5.14.
pub(crate) fn netns_cookie(socket: impl AsFd) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut length = size_of_val(&cookie) as libc::socklen_t;
    // SAFETY: both pointers lead to live variables, and `length` says how large the first one is.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

/// A call whose result is a new descriptor.
fn opened<T>(command: u32, attributes: &mut T) -> io::Result<OwnedFd> {
    let fd = bpf(command, attributes)?;
    // SAFETY: the kernel just made this descriptor for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// bpf(2). Every caller passes a `repr(C)` prefix of `union bpf_attr` whose pointers outlive the call.
fn bpf<T>(command: u32, attributes: &mut T) -> io::Result<RawFd> {
    // SAFETY: the addresses inside lead to slices and values that the callers above borrow, as long as they say.
    unsafe { attributes::bpf(command, attributes) }
}

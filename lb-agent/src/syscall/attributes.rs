//! bpf(2) itself, and the parts of `union bpf_attr` that the agent and the differential tests use.

use std::io;
use std::os::fd::RawFd;

/// The attributes for batches of map entries.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Batch {
    /// Address of where to go on; 0 for the beginning.
    pub from: u64,
    /// Address of what is told of where to go on next.
    pub to: u64,
    /// Address of keys.
    pub keys: u64,
    /// Address of values.
    pub values: u64,
    /// Keys there is room for; then, those done.
    pub count: u32,
    /// Descriptor of the map.
    pub map: u32,
    /// As for one entry.
    pub element_flags: u64,
    /// None yet.
    pub flags: u64,
}

/// The attributes for one map entry.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Element {
    /// Descriptor of the map.
    pub map: u32,
    /// Zero.
    pub pad: u32,
    /// Address of the key.
    pub key: u64,
    /// Address of the value.
    pub value: u64,
    /// `BPF_ANY` 0, `BPF_NOEXIST` 1, `BPF_EXIST` 2.
    pub flags: u64,
}

/// The attributes for questions about a map, a program or a link.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Info {
    /// Its descriptor.
    pub object: u32,
    /// Bytes of the answer there is room for.
    pub length: u32,
    /// Address of the answer.
    pub info: u64,
}

/// bpf(2); returns what the kernel does, which for some commands is a new descriptor.
///
/// # Safety
///
/// `T` is a `repr(C)` prefix of `union bpf_attr` without padding, for this command. The memory that its addresses lead
/// to lives until the call returns, as long as lengths and counts say, and is writable where the command writes.
pub unsafe fn bpf<T>(command: u32, attributes: &mut T) -> io::Result<RawFd> {
    let attributes: *mut T = attributes;
    // SAFETY: the kernel reads (and for counts writes) `size_of::<T>()` bytes behind the pointer; the rest is the
    // caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as RawFd) }
}

//! bpf(2) itself, and the parts of `union bpf_attr` that the agent and the differential tests use.

use std::io;
use std::os::fd::RawFd;

/// Attributes of commands on batches of map entries.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Batch {
    /// Address of the position to start at; 0 for the beginning.
    pub from: u64,
    /// Address for the position to continue at.
    pub to: u64,
    /// Address of the keys.
    pub keys: u64,
    /// Address of the values.
    pub values: u64,
    /// Number of keys that fit; after the call, number of keys done.
    pub count: u32,
    /// Descriptor of the map.
    pub map: u32,
    /// Flags for each entry, as in [`Element::flags`].
    pub element_flags: u64,
    /// Flags of the batch; the kernel has none yet.
    pub flags: u64,
}

/// Attributes of commands on one map entry.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Element {
    /// Descriptor of the map.
    pub map: u32,
    /// Padding; zero.
    pub pad: u32,
    /// Address of the key.
    pub key: u64,
    /// Address of the value.
    pub value: u64,
    /// `BPF_ANY` 0, `BPF_NOEXIST` 1, `BPF_EXIST` 2.
    pub flags: u64,
}

/// Attributes of a query about a map, a program or a link.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Info {
    /// Descriptor of the object.
    pub object: u32,
    /// Size of the buffer for the answer, in bytes.
    pub length: u32,
    /// Address of that buffer.
    pub info: u64,
}

/// Calls bpf(2). Returns the kernel's result, which for some commands is a new descriptor.
///
/// # Safety
///
/// `T` is a `repr(C)` prefix of `union bpf_attr` without padding, for this command. The memory that its addresses lead
/// to lives until the call returns, is as long as lengths and counts say, and is writable where the command writes.
pub unsafe fn bpf<T>(command: u32, attributes: &mut T) -> io::Result<RawFd> {
    let attributes: *mut T = attributes;
    // SAFETY: the kernel reads (and for counts writes) `size_of::<T>()` bytes behind the pointer; the rest is the
    // caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as RawFd) }
}

//! The few kernel calls that aya and nix lack, each as a safe function.
//!
//! Only this module passes raw pointers to the kernel.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

pub mod attributes;
mod clock;
mod entries;
mod expedite;
mod grace;
mod hooked;
mod links;
mod net;
mod once;
mod process;
mod tables;

pub(crate) use clock::monotonic;
use entries::single;
pub(crate) use entries::{
    Position, delete_batch, lookup, lookup_batch, take, update, update_batch,
};
pub(crate) use grace::wait_for_programs;
pub use hooked::AttachedProgram;
pub(crate) use hooked::{attached_to_cgroup, attached_to_device, effective_in_cgroup};
pub(crate) use links::{
    LinkInfo, detach_link, link_cgroup, link_info, link_tcx, link_xdp, load_idle, map_id, open_pin,
    pin, program_id, update_link,
};
pub use net::netns_cookie;
pub(crate) use net::{device_index, device_name, driver};
pub(crate) use once::Once;
pub(crate) use process::{give_memory_back, raise_priority, raise_priority_most, unhurried};
pub use process::{keep_name, keep_one_heap, raise_open_files};
pub(crate) use tables::packet_filter_entries;

fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

/// Makes a call that returns a new descriptor.
fn opened<T>(command: u32, attributes: &mut T) -> io::Result<OwnedFd> {
    let fd = bpf(command, attributes)?;
    // SAFETY: the kernel just made this descriptor for us, and nothing else uses it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Calls bpf(2). Every caller passes a `repr(C)` prefix of `union bpf_attr` whose pointers outlive the call.
fn bpf<T>(command: u32, attributes: &mut T) -> io::Result<RawFd> {
    // SAFETY: the addresses inside lead to slices and values that the callers above borrow, with the lengths that they
    // state.
    unsafe { attributes::bpf(command, attributes) }
}

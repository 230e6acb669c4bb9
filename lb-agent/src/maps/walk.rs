//! Reading whole maps in batches, and copying a map into a larger or smaller one.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use aya::Pod;
use aya::maps::{MapData, MapType};
use lb_common::addr::Ip;
use lb_common::config::Device;
use lb_common::flow::{Affinity, Client, Flow, FlowKey, Fragment, Peer, Ports};
use lb_common::service::{Backend, Frontend, Service};

use super::Raw;
use super::shape::SourceKey;
use crate::syscall::{self, Position};

/// `BPF_NOEXIST`: an entry that is there stays.
const NO_EXIST: u64 = 1;

/// Entries per system call: a hash bucket must fit, and 4,096 flows are 425 KiB.
const BATCH: usize = 4_096;

/// Calls `see` for each entry of a map; false ends the walk.
pub(crate) fn walk<K: Pod, V: Pod>(
    map: &MapData,
    zero: (K, V),
    mut see: impl FnMut(&K, &V) -> bool,
) -> io::Result<()> {
    let mut length = BATCH;
    let mut keys = vec![zero.0; length];
    let mut values = vec![zero.1; length];
    let mut position: Option<Position> = None;
    loop {
        let fd = map.fd().as_fd();
        match syscall::lookup_batch(fd, position.as_ref(), &mut keys, &mut values) {
            Ok(batch) => {
                let mut entries = keys.iter().zip(&values).take(batch.count);
                let goes_on = entries.all(|(key, value)| see(key, value));
                position = batch.next;
                if position.is_none() || !goes_on {
                    return Ok(());
                }
            }
            // A bucket with more entries than room for them.
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) && length < 1 << 20 => {
                length *= 2;
                keys.resize(length, zero.0);
                values.resize(length, zero.1);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Copies the entries of a map by name into another of its shape. What is there stays, what does not fit is left.
pub(crate) fn copy(name: &str, from: &MapData, to: &MapData) -> io::Result<()> {
    match name {
        "SERVICES" => copy_as(from, to, (Raw::<Frontend>::default(), Raw::<Service>::default())),
        "SLOTS" => copy_as(from, to, (0_u32, [0_u8; 64])),
        "BACKENDS" => copy_as(from, to, (0_u32, Raw::<Backend>::default())),
        "FLOWS" => copy_as(from, to, (Raw::<FlowKey>::default(), Raw::<Flow>::default())),
        "AFFINITY" => copy_as(from, to, (Raw::<Client>::default(), Raw::<Affinity>::default())),
        "SOURCES" => copy_as(from, to, (SourceKey::default(), 0_u32)),
        "ADDRESSES" => copy_as(from, to, (Raw::<Ip>::default(), 0_u32)),
        "DEVICES" => copy_as(from, to, (0_u32, Raw::<Device>::default())),
        "SOCKETS" => copy_as(from, to, (0_u64, Raw::<Peer>::default())),
        "FRAGMENTS" => copy_as(from, to, (Raw::<Fragment>::default(), Raw::<Ports>::default())),
        _ => Err(io::Error::other("a map of this name is not copied")),
    }
}

fn copy_as<K: Pod, V: Pod>(from: &MapData, to: &MapData, zero: (K, V)) -> io::Result<()> {
    // An array has every element already: there, the content of the old one is put over it.
    let kind = to.info().and_then(|info| info.map_type());
    let flags = if kind.is_ok_and(|kind| kind == MapType::Array) { 0 } else { NO_EXIST };
    let fd = to.fd().as_fd();
    let mut left = 0;
    walk(from, zero, |key, value| {
        match syscall::update(fd, key, value, flags) {
            Err(error) if error.raw_os_error() != Some(libc::EEXIST) => left += 1,
            Ok(()) | Err(_) => {}
        }
        true
    })?;
    if left > 0 {
        tracing::warn!(entries = left, "entries found no room in a map of another size");
    }
    Ok(())
}

/// How many entries a map has.
pub(crate) fn count<K: Pod, V: Pod>(map: &MapData, zero: (K, V)) -> io::Result<usize> {
    let mut count = 0;
    walk(map, zero, |_, _| {
        count += 1;
        true
    })?;
    Ok(count)
}

/// Removes entries.
pub(crate) fn remove<K: Pod>(map: &MapData, keys: &[K]) -> io::Result<()> {
    let fd: BorrowedFd<'_> = map.fd().as_fd();
    keys.chunks(BATCH).try_for_each(|keys| syscall::delete_batch(fd, keys))
}

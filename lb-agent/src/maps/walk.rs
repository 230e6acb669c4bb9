//! Reading whole maps in batches, and copying a map into a larger or smaller one.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use aya::Pod;
use aya::maps::{MapData, MapType};
use lb_common::addr::Ip;
use lb_common::config::Device;
use lb_common::flow::{Affinity, Client, Flow, FlowKey, Fragment, Kind, Peer, Ports, Side};
use lb_common::service::{Backend, Frontend, Service};

use super::Raw;
use super::shape::SourceKey;
use crate::syscall::{self, Position};

/// `BPF_NOEXIST`: an entry that is there stays.
pub(super) const NO_EXIST: u64 = 1;
/// `BPF_EXIST`: only an entry that is there is written.
pub(super) const EXIST: u64 = 2;

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

/// Whose flow it is that both maps have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Newer {
    /// The one that is copied: no packet has begun a flow in the other map yet, and ports are used again.
    Theirs,
    /// The one that is there: questions meet the programs of that map already.
    Ours,
}

/// Copies the entries of a map by name into another of its shape. What is there stays, except for flows where
/// [`Newer`] says otherwise; what does not fit is left.
pub(crate) fn copy(name: &str, from: &MapData, to: &MapData, newer: Newer) -> io::Result<()> {
    match name {
        "SERVICES" => copy_as(from, to, (Raw::<Frontend>::default(), Raw::<Service>::default())),
        "SLOTS" => copy_as(from, to, (0_u32, [0_u8; 64])),
        "BACKENDS" => copy_as(from, to, (0_u32, Raw::<Backend>::default())),
        "FLOWS" => copy_flows(from, to, newer),
        "AFFINITY" => copy_as(from, to, (Raw::<Client>::default(), Raw::<Affinity>::default())),
        "SOURCES" => copy_as(from, to, (SourceKey::default(), 0_u32)),
        "ADDRESSES" => copy_as(from, to, (Raw::<Ip>::default(), 0_u32)),
        "DEVICES" => copy_as(from, to, (0_u32, Raw::<Device>::default())),
        "SOCKETS" => copy_as(from, to, (0_u64, Raw::<Peer>::default())),
        "ENDPOINTS" => copy_bits(from, to),
        "FRAGMENTS" => copy_as(from, to, (Raw::<Fragment>::default(), Raw::<Ports>::default())),
        _ => Err(io::Error::other("a map of this name is not copied")),
    }
}

fn copy_as<K: Pod, V: Pod>(from: &MapData, to: &MapData, zero: (K, V)) -> io::Result<()> {
    // An array has every element already: there, the content of the old one is put over it.
    let kind = to.info().and_then(|info| info.map_type());
    let is_array = kind.is_ok_and(|kind| kind == MapType::Array);
    copy_unless(from, to, zero, |_, _| !is_array)
}

/// Bits that are set in either are set.
fn copy_bits(from: &MapData, to: &MapData) -> io::Result<()> {
    let mut words = bits(to)?;
    words.iter_mut().zip(bits(from)?).for_each(|(word, more)| *word |= more);
    let keys: Vec<u32> = (0..words.len() as u32).collect();
    syscall::update_batch(to.fd().as_fd(), &keys, &words)
}

/// The words of `ENDPOINTS`.
pub(super) fn bits(map: &MapData) -> io::Result<Vec<u64>> {
    let mut words = Vec::new();
    walk(map, (0_u32, 0_u64), |_, word| {
        words.push(*word);
        true
    })?;
    Ok(words)
}

/// Sockets have programs of ours before devices do: their flows stay. Of a masquerade the one that has its source has
/// shown it to a backend, where programs of both maps are attached: it stands.
fn copy_flows(from: &MapData, to: &MapData, newer: Newer) -> io::Result<()> {
    let zero = (Raw::<FlowKey>::default(), Raw::<Flow>::default());
    if newer == Newer::Theirs {
        return copy_unless(from, to, zero, |key, _| key.0.side == Side::SOCKET);
    }
    let fd = to.fd().as_fd();
    let has_source =
        |flow: &Flow| flow.kind == Kind::MASQUERADE && flow.to.source != Ip::UNSPECIFIED;
    copy_unless(from, to, zero, |key, flow| {
        let mut there = zero.1;
        !has_source(&flow.0)
            || syscall::lookup(fd, key, &mut there).is_ok()
                && (there.0.kind != Kind::MASQUERADE || has_source(&there.0))
    })
}

/// Copies entries; of those that are there already only the ones that need not `stay`.
fn copy_unless<K: Pod, V: Pod>(
    from: &MapData,
    to: &MapData,
    zero: (K, V),
    stays: impl Fn(&K, &V) -> bool,
) -> io::Result<()> {
    let fd = to.fd().as_fd();
    let mut left = 0;
    walk(from, zero, |key, value| {
        let flags = if stays(key, value) { NO_EXIST } else { 0 };
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

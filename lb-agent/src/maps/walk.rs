//! Reading whole maps in batches, and copying a map into a larger or smaller one.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use aya::Pod;
use aya::maps::{MapData, MapType};
use lb_common::addr::Ip;
use lb_common::config::Device;
use lb_common::flow::{Affinity, Client, Flow, Flow4, FlowKey, FlowKey4, Fragment, Kind, Ports};
use lb_common::service::{Backend, Frontend, Line, Service};

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

/// Copies the entries of a map by name into another of its shape. Entries that are there
/// stay, except for flows that were seen later in the other; what does not fit is left.
/// `newer`: the map of transient flows beside `to`, if `to` is one of protected flows.
pub(crate) fn copy(
    name: &str,
    from: &MapData,
    to: &MapData,
    newer: Option<&MapData>,
) -> io::Result<()> {
    let left = match name {
        "SERVICES" => copy_as(from, to, (Raw::<Frontend>::default(), Raw::<Service>::default())),
        "SLOTS" => copy_as(from, to, (0_u32, [0_u8; 64])),
        "BACKENDS" => copy_as(from, to, (0_u32, Raw::<Backend>::default())),
        "FLOWS4" => {
            let whole = |flow: &Raw<Flow4>| flow.0.whole();
            copy_flows((from, to), newer, Raw::<FlowKey4>::default(), whole)
        }
        "FLOWS6" => {
            copy_flows((from, to), newer, Raw::<FlowKey>::default(), |flow: &Raw<Flow>| flow.0)
        }
        "AFFINITY" => copy_as(from, to, (Raw::<Client>::default(), Raw::<Affinity>::default())),
        "SOURCES" => copy_as(from, to, (SourceKey::default(), 0_u32)),
        "ADDRESSES" => copy_as(from, to, (Raw::<Ip>::default(), 0_u32)),
        "DEVICES" => copy_as(from, to, (0_u32, Raw::<Device>::default())),
        "TRANSIENT4" => copy_as(from, to, (Raw::<FlowKey4>::default(), Raw::<Flow4>::default())),
        "TRANSIENT6" => copy_as(from, to, (Raw::<FlowKey>::default(), Raw::<Flow>::default())),
        "INHERITED" => copy_as(from, to, (0_u64, 0_u32)),
        "ENDPOINTS" => copy_bits(from, to).map(|()| 0),
        "IN_USE" => copy_bytes(from, to).map(|()| 0),
        "FRAGMENTS" => copy_as(from, to, (Raw::<Fragment>::default(), Raw::<Ports>::default())),
        _ => Err(io::Error::other("unknown map name")),
    }?;
    if left > 0 {
        tracing::warn!(map = name, entries = left, "entries did not fit into the resized map");
    }
    Ok(())
}

fn copy_as<K: Pod, V: Pod>(from: &MapData, to: &MapData, zero: (K, V)) -> io::Result<u32> {
    // An array has every element already: there, the content of the old one is put over it.
    let kind = to.info().and_then(|info| info.map_type());
    let flags = if kind.is_ok_and(|kind| kind == MapType::Array) { 0 } else { NO_EXIST };
    copy_by(from, zero, |key, value| syscall::update(to.fd().as_fd(), key, value, flags))
}

/// Bits that are set in either are set.
fn copy_bits(from: &MapData, to: &MapData) -> io::Result<()> {
    let mut words = bits(to)?;
    words.iter_mut().zip(bits(from)?).for_each(|(word, more)| *word |= more);
    let keys: Vec<u32> = (0..words.len() as u32).collect();
    syscall::update_batch(to.fd().as_fd(), &keys, &words)
}

/// Bytes that are not 0 in either are not.
fn copy_bytes(from: &MapData, to: &MapData) -> io::Result<()> {
    let lines = |map| {
        let mut lines: Vec<Line> = Vec::new();
        walk(map, (0_u32, [0_u8; 64]), |_, line| {
            lines.push(*line);
            true
        })
        .map(|()| lines)
    };
    let mut written = lines(to)?;
    for (line, more) in written.iter_mut().zip(lines(from)?) {
        line.iter_mut().zip(more).for_each(|(byte, more)| *byte |= more);
    }
    let keys: Vec<u32> = (0..written.len() as u32).collect();
    syscall::update_batch(to.fd().as_fd(), &keys, &written)
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

fn copy_flows<K: Pod, V: Pod + Default>(
    (from, to): (&MapData, &MapData),
    newer: Option<&MapData>,
    zero: K,
    whole: impl Fn(&V) -> Flow,
) -> io::Result<u32> {
    let fd = to.fd().as_fd();
    copy_by(from, (zero, V::default()), |key, flow| {
        // Packets have begun the flow anew, or closed it: the protected entry, asked first, would hide that.
        let mut transient = V::default();
        let has_newer = newer.is_some_and(|map| {
            syscall::lookup(map.fd().as_fd(), key, &mut transient).is_ok()
                && whole(&transient).seen > whole(flow).seen
        });
        if has_newer {
            return Ok(());
        }
        let added = syscall::update(fd, key, flow, NO_EXIST);
        if !is_taken(&added) {
            return added;
        }
        let mut there = V::default();
        let is_there = syscall::lookup(fd, key, &mut there).is_ok();
        if is_there && !supersedes(&whole(flow), &whole(&there)) {
            return Ok(());
        }
        syscall::update(fd, key, flow, 0)
    })
}

/// Whether an entry that packets of other programs wrote takes the place of the one
/// that is there: packets met it last. A masquerade entry whose source is chosen
/// stays where programs of both maps are attached: a backend has seen that source.
fn supersedes(theirs: &Flow, ours: &Flow) -> bool {
    let has_source = |flow: &Flow| flow.to.source != Ip::UNSPECIFIED;
    let is_completed = theirs.kind == Kind::MASQUERADE
        && ours.kind == Kind::MASQUERADE
        && has_source(theirs)
        && !has_source(ours);
    is_completed || theirs.seen > ours.seen
}

/// Copies entries one by one; what is there already is no failure, what finds no room is counted. Says how many.
fn copy_by<K: Pod, V: Pod>(
    from: &MapData,
    zero: (K, V),
    put: impl Fn(&K, &V) -> io::Result<()>,
) -> io::Result<u32> {
    let mut left = 0;
    walk(from, zero, |key, value| {
        let put = put(key, value);
        left += u32::from(put.is_err() && !is_taken(&put));
        true
    })?;
    Ok(left)
}

/// Whether an entry was not added because there is one.
fn is_taken(added: &io::Result<()>) -> bool {
    added.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EEXIST))
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

/// Removes entries, of which some may be gone.
pub(crate) fn remove<K: Pod>(map: &MapData, keys: &[K]) -> io::Result<()> {
    let fd: BorrowedFd<'_> = map.fd().as_fd();
    keys.chunks(BATCH).try_for_each(|keys| syscall::delete_batch(fd, keys))
}

#[cfg(test)]
mod tests {
    use lb_common::flow::Tuple;

    use super::*;

    fn entry(kind: Kind, seen: u64) -> Flow {
        Flow::new(Tuple::NONE, kind, seen)
    }

    #[test]
    fn what_packets_met_last_stands() {
        let (early, late) = (entry(Kind::FORWARD, 1 << 20), entry(Kind::FORWARD, 1 << 21));
        assert!(supersedes(&late, &early));
        assert!(!supersedes(&early, &late) && !supersedes(&early, &early));
    }

    #[test]
    fn a_masquerade_that_showed_its_source_stands() {
        let without = entry(Kind::MASQUERADE, 1 << 21);
        let mut with = entry(Kind::MASQUERADE, 1 << 20);
        with.to.source = Ip::v4([192, 0, 2, 1]);
        assert!(supersedes(&with, &without));
    }
}

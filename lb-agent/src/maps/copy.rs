//! Copies a map into another of the same shape, at a resize or from another layout. The method follows from the content
//! type in the list of `lb_common::maps`.

use std::io;
use std::os::fd::AsFd as _;

use aya::Pod;
use aya::maps::lpm_trie::Key;
use aya::maps::{MapData, MapType};
use lb_common::addr::Ip;
use lb_common::flow::{Flow, Flow4, FlowKey, FlowKey4, Kind, Side};

use super::filter::{mark, unite};
use super::raw::Raw;
use super::walk::{NO_EXIST, remove, walk};
use crate::syscall;

/// Makes a key of zeros, by the kind of a map.
macro_rules! zero_key {
    (LpmTrie<$key:ty>) => {
        Key::new(0, Raw::<$key>::default())
    };
    ($kind:ident<$key:ty>) => {
        Raw::<$key>::default()
    };
}

pub(super) use zero_key;

/// Copies the entries of a map, by its content type. Returns how many did not fit.
macro_rules! copy_by_content {
    (Flows, $from:expr, $to:expr, $newer:expr, $key:expr, $value:ty) => {
        copy_flows::<_, $value>($from, $to, $newer, $key)
    };
    (Filter, $from:expr, $to:expr, $newer:expr, $key:expr, $value:ty) => {
        unite::<$value>($from, $to)
    };
    (Fixed, $from:expr, $to:expr, $newer:expr, $key:expr, $value:ty) => {
        Ok(0)
    };
    (Counters, $from:expr, $to:expr, $newer:expr, $key:expr, $value:ty) => {
        Ok(0)
    };
    ($table:ident, $from:expr, $to:expr, $newer:expr, $key:expr, $value:ty) => {
        copy_entries($from, $to, ($key, <$value>::default()))
    };
}

macro_rules! mark_by_content {
    (Filter, $map:expr, $entries:expr, $value:ty) => {
        mark::<$value>($map, $entries)
    };
    ($content:ident, $map:expr, $entries:expr, $value:ty) => {
        Ok(())
    };
}

macro_rules! copies {
    ($($name:ident($field:ident): $kind:ident<$key:ty, $value:ty>, $entries:expr,
        $content:ident by $author:ident, $holds:literal;)*) => {
        /// Copies the entries of a map, found by name, into another of the same shape.
        ///
        /// Existing entries stay, except flows that packets saw later in `from`. Entries that do not fit are counted
        /// and logged. `newer` is the map of transient flows that belongs to `to`, if `to` has protected flows.
        pub(crate) fn copy(
            name: &str,
            from: &MapData,
            to: &MapData,
            newer: Option<&MapData>,
        ) -> io::Result<()> {
            let left = match name {
                $(stringify!($name) => copy_by_content!(
                    $content, from, to, newer, zero_key!($kind<$key>), Raw<$value>
                ),)*
                _ => Err(io::Error::other("unknown map name")),
            }?;
            // This is not an error: a smaller map cannot hold everything, and the other flows start again with their
            // client's next packet.
            if left > 0 {
                tracing::warn!(map = name, entries = left, "entries did not fit into the resized map");
            }
            Ok(())
        }

        /// Sets every bit of a filter, found by name; other maps stay as they are.
        ///
        /// No record shows which bits another layout would have set. If all are set, every packet is looked up.
        pub(crate) fn mark_all(name: &str, map: &MapData) -> io::Result<()> {
            match name {
                $(stringify!($name) => mark_by_content!($content, map, $entries, Raw<$value>),)*
                _ => Err(io::Error::other("unknown map name")),
            }
        }
    };
}

lb_common::maps!(copies);

fn copy_entries<K: Pod, V: Pod>(from: &MapData, to: &MapData, zero: (K, V)) -> io::Result<u32> {
    // All elements of an array exist, so its content is overwritten.
    let kind = to.info().and_then(|info| info.map_type());
    let flags = if kind.is_ok_and(|kind| kind == MapType::Array) { 0 } else { NO_EXIST };
    copy_by(from, zero, |key, value| syscall::update(to.fd().as_fd(), key, value, flags))
}

/// The value of an entry of a table of flows, of either family.
trait FlowValue: Pod + Default {
    fn whole(&self) -> Flow;
}

impl FlowValue for Raw<Flow4> {
    fn whole(&self) -> Flow {
        self.0.whole()
    }
}

impl FlowValue for Raw<Flow> {
    fn whole(&self) -> Flow {
        self.0
    }
}

/// The key of an entry of a table of flows, of either family.
trait FlowKeyForm: Pod {
    fn of(key: &FlowKey) -> Self;
    fn whole(&self) -> FlowKey;
}

impl FlowKeyForm for Raw<FlowKey4> {
    fn of(key: &FlowKey) -> Self {
        Self(FlowKey4::of(key))
    }

    fn whole(&self) -> FlowKey {
        self.0.whole()
    }
}

impl FlowKeyForm for Raw<FlowKey> {
    fn of(key: &FlowKey) -> Self {
        Self(*key)
    }

    fn whole(&self) -> FlowKey {
        self.0
    }
}

/// Copies protected or transient flows. What does not fit is left out by whole flows: a client whose packets follow a
/// forward entry without its reply would get answers that are not translated back.
fn copy_flows<K: FlowKeyForm, V: FlowValue>(
    from: &MapData,
    to: &MapData,
    newer: Option<&MapData>,
    zero: K,
) -> io::Result<u32> {
    let fd = to.fd().as_fd();
    let left = copy_by(from, (zero, V::default()), |key, flow: &V| {
        // Packets have restarted or closed the flow since; the protected entry is looked up first and would hide that.
        let mut transient = V::default();
        let has_newer = newer.is_some_and(|map| {
            syscall::lookup(map.fd().as_fd(), key, &mut transient).is_ok()
                && transient.whole().seen > flow.whole().seen
        });
        if has_newer {
            return Ok(());
        }
        let added = syscall::update(fd, key, flow, NO_EXIST);
        // The entry is added only if there is none: packets of the new programs may have created the flow already.
        if !is_taken(&added) {
            return added;
        }
        let mut there = V::default();
        let is_there = syscall::lookup(fd, key, &mut there).is_ok();
        if is_there && !supersedes(&flow.whole(), &there.whole()) {
            return Ok(());
        }
        syscall::update(fd, key, flow, 0)
    })?;
    if left > 0 {
        remove_forwards_alone::<K, V>(to, newer, zero)?;
    }
    Ok(left)
}

/// Removes the forward entries whose flows lack another entry, so that the next packet begins them again.
fn remove_forwards_alone<K: FlowKeyForm, V: FlowValue>(
    map: &MapData,
    newer: Option<&MapData>,
    zero: K,
) -> io::Result<()> {
    let find = |key: &FlowKey| {
        let (key, mut flow) = (K::of(key), V::default());
        let in_map = |map: &MapData, flow: &mut V| syscall::lookup(map.fd().as_fd(), &key, flow);
        let is_there = in_map(map, &mut flow).is_ok()
            || newer.is_some_and(|newer| in_map(newer, &mut flow).is_ok());
        is_there.then(|| flow.whole())
    };
    let is_whole = |key: &FlowKey, flow: &Flow| {
        let masquerade = FlowKey::new(flow.to, key.protocol, Side::EGRESS);
        let has_source = |it: &Flow| it.to.source != Ip::UNSPECIFIED;
        find(&key.opposite(flow)).is_some()
            && (flow.flags & Flow::MASQUERADED == 0
                || find(&masquerade).is_some_and(|it| {
                    !has_source(&it) || find(&masquerade.opposite(&it)).is_some()
                }))
    };
    let mut alone = Vec::new();
    walk(map, (zero, V::default()), |key, flow| {
        let flow = flow.whole();
        if flow.is_forward() && !is_whole(&key.whole(), &flow) {
            alone.push(*key);
        }
        true
    })?;
    remove(map, &alone)
}

/// Reports whether an entry that packets of other programs wrote replaces ours: packets saw it later.
///
/// A masquerade entry with a chosen source stays even if ours was seen later, because a backend has already seen that
/// source.
fn supersedes(theirs: &Flow, ours: &Flow) -> bool {
    let has_source = |flow: &Flow| flow.to.source != Ip::UNSPECIFIED;
    let is_completed = theirs.kind == Kind::MASQUERADE
        && ours.kind == Kind::MASQUERADE
        && has_source(theirs)
        && !has_source(ours);
    is_completed || theirs.seen > ours.seen
}

/// Copies entries one by one with `put`. An existing entry is no failure. Returns how many did not fit.
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

/// Reports whether an entry was not added because it exists.
fn is_taken(added: &io::Result<()>) -> bool {
    added.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EEXIST))
}

#[cfg(test)]
mod tests {
    use lb_common::flow::Tuple;

    use super::*;

    fn entry(kind: Kind, seen: u64) -> Flow {
        Flow::new(Tuple::NONE, kind, seen)
    }

    #[test]
    fn entry_with_the_later_packet_supersedes() {
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

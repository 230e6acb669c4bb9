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
use super::walk::{NO_EXIST, count, walk};
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
    (State, $from:expr, $to:expr, $newer:expr, $key:expr, $value:ty) => {
        copy_state::<$value>($from, $to)
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

/// Copies the element of a map of one element.
fn copy_state<V: Pod + Default>(from: &MapData, to: &MapData) -> io::Result<u32> {
    let mut state = V::default();
    syscall::lookup(from.fd().as_fd(), &0_u32, &mut state)?;
    syscall::update(to.fd().as_fd(), &0_u32, &state, 0).map(|()| 0)
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

/// Copies protected or transient flows. A flow that does not fit is left out with all its entries: a client
/// whose packets follow a forward entry without its reply would get replies that are not translated back.
fn copy_flows<K: FlowKeyForm, V: FlowValue>(
    from: &MapData,
    to: &MapData,
    newer: Option<&MapData>,
    zero: K,
) -> io::Result<u32> {
    let fd = to.fd().as_fd();
    let put = |key: &K, flow: &V| {
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
    };
    if has_room(from, to, (zero, V::default()))? {
        return copy_by(from, (zero, V::default()), put);
    }
    let mut left = 0;
    walk(from, (zero, V::default()), |key, flow| {
        if flow.whole().is_forward() {
            // The forward entry is last: a packet that finds it finds the others, too.
            let mut entries = beside_forward(from, key, flow);
            entries.push((*key, *flow));
            let all_fit = entries.iter().all(|(key, flow)| {
                let put = put(key, flow);
                put.is_ok() || is_taken(&put)
            });
            left += u32::from(!all_fit);
        }
        true
    })?;
    // The rest belongs to no flow, such as connections of the node, is there already, or has no room.
    let rest = copy_by(from, (zero, V::default()), |key, flow| {
        if flow.whole().is_forward() { Ok(()) } else { put(key, flow) }
    })?;
    Ok(left + rest)
}

/// Reports whether a map has room for all entries of another one.
fn has_room<K: Pod, V: Pod>(from: &MapData, to: &MapData, zero: (K, V)) -> io::Result<bool> {
    let most = to.info().map_err(io::Error::other)?.max_entries();
    let together = count(from, zero)? + count(to, zero)?;
    Ok(u32::try_from(together).is_ok_and(|together| together <= most))
}

/// Returns the entries of a flow beside its forward one, as far as they are in the same map.
fn beside_forward<K: FlowKeyForm, V: FlowValue>(map: &MapData, key: &K, flow: &V) -> Vec<(K, V)> {
    let find = |key: &FlowKey| {
        let (key, mut flow) = (K::of(key), V::default());
        syscall::lookup(map.fd().as_fd(), &key, &mut flow).is_ok().then_some((key, flow))
    };
    let (key, flow) = (key.whole(), flow.whole());
    let mut found = Vec::from_iter(find(&key.opposite(&flow)));
    if flow.flags & Flow::MASQUERADED != 0 {
        let masquerade = FlowKey::new(flow.to, key.protocol, Side::EGRESS);
        if let Some(entry) = find(&masquerade) {
            found.extend(find(&masquerade.opposite(&entry.1.whole())));
            found.push(entry);
        }
    }
    found
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

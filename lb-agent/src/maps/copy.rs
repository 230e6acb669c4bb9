//! Copying a map into another of its shape, by the content that the list in `lb_common::maps` says: at a resize, and
//! from another layout.

use std::io;
use std::os::fd::AsFd as _;

use aya::Pod;
use aya::maps::lpm_trie::Key;
use aya::maps::{MapData, MapType};
use lb_common::addr::Ip;
use lb_common::flow::{Flow, Flow4, Kind};

use super::filter::{mark, unite};
use super::raw::Raw;
use super::walk::{NO_EXIST, walk};
use crate::syscall;

/// A key that is all zeros.
macro_rules! zero_key {
    (LpmTrie<$key:ty>) => {
        Key::new(0, Raw::<$key>::default())
    };
    ($kind:ident<$key:ty>) => {
        Raw::<$key>::default()
    };
}

pub(super) use zero_key;

/// The entries of a map in place, by its content; says how many did not fit.
macro_rules! copy_by_content {
    (Flows, $maps:expr, $newer:expr, $key:expr, $value:ty) => {
        copy_flows::<_, $value>($maps, $newer, $key)
    };
    (Filter, $maps:expr, $newer:expr, $key:expr, $value:ty) => {
        unite::<$value>($maps)
    };
    (Fixed, $maps:expr, $newer:expr, $key:expr, $value:ty) => {
        Ok(0)
    };
    (Counters, $maps:expr, $newer:expr, $key:expr, $value:ty) => {
        Ok(0)
    };
    ($table:ident, $maps:expr, $newer:expr, $key:expr, $value:ty) => {
        copy_entries($maps, ($key, <$value>::default()))
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
                $(stringify!($name) => copy_by_content!(
                    $content, (from, to), newer, zero_key!($kind<$key>), Raw<$value>
                ),)*
                _ => Err(io::Error::other("unknown map name")),
            }?;
            if left > 0 {
                tracing::warn!(map = name, entries = left, "entries did not fit into the resized map");
            }
            Ok(())
        }

        /// Sets every bit of a filter by name, for nothing says which ones another layout would have set: each packet
        /// is looked up. Another map stays as it is.
        pub(crate) fn mark_all(name: &str, map: &MapData) -> io::Result<()> {
            match name {
                $(stringify!($name) => mark_by_content!($content, map, $entries, Raw<$value>),)*
                _ => Err(io::Error::other("unknown map name")),
            }
        }
    };
}

lb_common::maps!(copies);

fn copy_entries<K: Pod, V: Pod>((from, to): (&MapData, &MapData), zero: (K, V)) -> io::Result<u32> {
    // An array has every element already: there, the content of the old one is put over it.
    let kind = to.info().and_then(|info| info.map_type());
    let flags = if kind.is_ok_and(|kind| kind == MapType::Array) { 0 } else { NO_EXIST };
    copy_by(from, zero, |key, value| syscall::update(to.fd().as_fd(), key, value, flags))
}

/// An entry of a table of flows.
trait Entry: Pod + Default {
    fn whole(&self) -> Flow;
}

impl Entry for Raw<Flow4> {
    fn whole(&self) -> Flow {
        self.0.whole()
    }
}

impl Entry for Raw<Flow> {
    fn whole(&self) -> Flow {
        self.0
    }
}

fn copy_flows<K: Pod, V: Entry>(
    (from, to): (&MapData, &MapData),
    newer: Option<&MapData>,
    zero: K,
) -> io::Result<u32> {
    let fd = to.fd().as_fd();
    copy_by(from, (zero, V::default()), |key, flow: &V| {
        // Packets have begun the flow anew, or closed it: the protected entry, asked first, would hide that.
        let mut transient = V::default();
        let has_newer = newer.is_some_and(|map| {
            syscall::lookup(map.fd().as_fd(), key, &mut transient).is_ok()
                && transient.whole().seen > flow.whole().seen
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
        if is_there && !supersedes(&flow.whole(), &there.whole()) {
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

//! The shape that each map must have. aya opens a pinned map by name and trusts it; this module compares first.

use std::fmt;

use aya::maps::{MapInfo, MapType};
use lb_common::addr::Ip;
use lb_common::config::{Device, SettingsPair};
use lb_common::event;
use lb_common::flow::{
    Affinity, Client, DIRECT, Flow, Flow4, FlowKey, FlowKey4, Fragment, HELD, Held, Ports,
};
use lb_common::hash::{BACKEND_LINES, ENDPOINT_BITS, LineOfPorts, REJECTIONS};
use lb_common::layout::{Plain, named, number};
use lb_common::service::{Backend, BackendId, Frontend, Line, Service, Source};

const NO_PREALLOC: u32 = 1;
/// The name that sets the size of both `FLOWS4` and `FLOWS6`.
const FLOWS: &str = "FLOWS";

/// Type, sizes and default capacity of one map.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Name of the map, its pin and its static in `lb-ebpf`.
    pub name: &'static str,
    pub(super) kind: MapType,
    pub(super) key: u32,
    pub(super) value: u32,
    flags: u32,
    /// Fingerprint of the types of keys and values, field by field: what bytes of these sizes mean.
    pub meaning: u64,
    /// Entries when nobody says otherwise.
    pub entries: u32,
    /// Whether the number of entries may be configured.
    pub is_sizable: bool,
    /// Whether it may get smaller: what the agent wrote must stay, what packets wrote may be forgotten.
    pub may_shrink: bool,
}

const fn shape<K: Plain, V: Plain>(
    name: &'static str,
    kind: MapType,
    flags: u32,
    entries: u32,
) -> Shape {
    let (key, value) = (size_of::<K>() as u32, size_of::<V>() as u32);
    let meaning = number(named(K::FINGERPRINT, name), V::FINGERPRINT);
    Shape { name, kind, key, value, flags, meaning, entries, is_sizable: true, may_shrink: false }
}

/// Written by packets.
const fn memory(shape: Shape) -> Shape {
    Shape { may_shrink: true, ..shape }
}

const fn fixed(shape: Shape) -> Shape {
    Shape { is_sizable: false, ..shape }
}

/// Length of a prefix, then the prefix: key of the trie, without padding between them.
pub(super) type SourceKey = [u32; 1 + size_of::<Source>() / size_of::<u32>()];

/// Every map of the data path.
pub const SHAPES: [Shape; 20] = [
    shape::<Frontend, Service>("SERVICES", MapType::Hash, NO_PREALLOC, 65_536),
    shape::<u32, Line>("SLOTS", MapType::Array, 0, 262_144),
    shape::<BackendId, Backend>("BACKENDS", MapType::Array, 0, 131_072),
    memory(shape::<FlowKey4, Flow4>("FLOWS4", MapType::Hash, NO_PREALLOC, 524_288)),
    memory(shape::<FlowKey, Flow>("FLOWS6", MapType::Hash, NO_PREALLOC, 524_288)),
    memory(shape::<FlowKey4, Flow4>("TRANSIENT4", MapType::LruHash, 0, 131_072)),
    memory(shape::<FlowKey, Flow>("TRANSIENT6", MapType::LruHash, 0, 131_072)),
    memory(shape::<Client, Affinity>("AFFINITY", MapType::LruHash, 0, 65_536)),
    shape::<SourceKey, u32>("SOURCES", MapType::LpmTrie, NO_PREALLOC, 65_536),
    shape::<Ip, u32>("ADDRESSES", MapType::Hash, NO_PREALLOC, 4_096),
    shape::<u32, Device>("DEVICES", MapType::Hash, NO_PREALLOC, 4_096),
    memory(shape::<Fragment, Ports>("FRAGMENTS", MapType::LruHash, 0, 32_768)),
    fixed(shape::<Fragment, Held>("HELD", MapType::LruHash, 0, HELD)),
    fixed(shape::<u32, LineOfPorts>("ENDPOINTS", MapType::Array, 0, ENDPOINT_BITS / 64)),
    fixed(shape::<u32, Line>("IN_USE", MapType::Array, 0, BACKEND_LINES)),
    fixed(shape::<u32, u64>("DIRECT", MapType::Array, 0, DIRECT)),
    memory(shape::<u64, u32>("INHERITED", MapType::Hash, NO_PREALLOC, 262_144)),
    fixed(shape::<u32, SettingsPair>("SETTINGS", MapType::Array, 0, 1)),
    fixed(shape::<u32, u64>("COUNTERS", MapType::PerCpuArray, 0, event::COUNTERS)),
    fixed(shape::<u32, u64>("REJECTIONS", MapType::PerCpuArray, 0, REJECTIONS)),
];

impl Shape {
    /// The shape of a map by name.
    pub fn of(name: &str) -> Option<&'static Self> {
        SHAPES.iter().find(|shape| shape.name == name)
    }

    /// Names by which the size of maps can be chosen.
    pub fn sizable() -> String {
        let names = SHAPES.iter().filter(|shape| shape.is_sizable).map(|shape| shape.name);
        names.chain([FLOWS]).collect::<Vec<_>>().join(", ")
    }

    /// Refuses names by which no size can be chosen.
    pub fn ensure_sizable(name: &str) -> Result<(), String> {
        if Self::sized_by(name).next().is_some() {
            return Ok(());
        }
        let all = Self::sizable();
        Err(format!("map {name} does not exist or has a fixed size; choose one of {all}"))
    }

    /// The maps whose size is chosen by a name: one, or the two of flows.
    pub fn sized_by(name: &str) -> impl Iterator<Item = &'static Self> + use<'_> {
        let is_meant = move |shape: &&Self| {
            shape.name == name || name == FLOWS && shape.name.starts_with(FLOWS)
        };
        SHAPES.iter().filter(|shape| shape.is_sizable).filter(is_meant)
    }

    /// Whether a map of the kernel has this shape; capacity aside, except where it is fixed.
    pub fn fits(&self, info: &MapInfo) -> bool {
        info.map_type().is_ok_and(|kind| kind == self.kind)
            && (info.key_size(), info.value_size()) == (self.key, self.value)
            && info.map_flags() == self.flags
            && (self.is_sizable || info.max_entries() == self.entries)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, key, value, flags, .. } = self;
        write!(f, "{} with keys of {key} and values of {value} bytes, flags {flags}", of(*kind))
    }
}

/// The shape of a map of the kernel, in words.
pub fn describe(info: &MapInfo) -> String {
    let kind = info.map_type().map_or("an unknown map", of);
    let (key, value, flags) = (info.key_size(), info.value_size(), info.map_flags());
    let entries = info.max_entries();
    format!(
        "{kind} of {entries} entries with keys of {key} and values of {value} bytes, flags {flags}"
    )
}

const fn of(kind: MapType) -> &'static str {
    words(kind).0
}

/// The kind of a map, as short as a column wants it.
pub(super) const fn kind(kind: MapType) -> &'static str {
    words(kind).1
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the kernel has thirty kinds, we have five")]
const fn words(kind: MapType) -> (&'static str, &'static str) {
    match kind {
        MapType::Hash => ("a hash", "hash"),
        MapType::LruHash => ("an LRU hash", "lru hash"),
        MapType::Array => ("an array", "array"),
        MapType::PerCpuArray => ("a per-CPU array", "per-cpu array"),
        MapType::LpmTrie => ("a longest-prefix trie", "lpm trie"),
        _ => ("a map of another kind", "other"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_name_stands_for_the_flows_of_both_families() {
        let names = |by| Shape::sized_by(by).map(|shape| shape.name).collect::<Vec<_>>();
        assert_eq!(names("FLOWS"), ["FLOWS4", "FLOWS6"]);
        assert_eq!(names("FLOWS6"), ["FLOWS6"]);
        assert!(names("FLOW").is_empty() && names("COUNTERS").is_empty());
    }
}

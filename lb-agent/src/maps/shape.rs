//! The shape that each map must have. aya opens a pinned map by name and trusts it; this module compares it first.

use std::fmt;

use aya::maps::{MapInfo, MapType};
use lb_common::layout::{Plain, named, number};
use lb_common::maps::{Author, Content};

const NO_PREALLOC: u32 = 1;
/// The name under which one size applies to both `FLOWS4` and `FLOWS6`.
const FLOWS: &str = "FLOWS";
/// The most entries that a map may have. The kernel makes no larger hash: it rounds the entries up to a power of two,
/// and takes 16 bytes for each, in all less than 2^32 (`htab_map_alloc` in kernel/bpf/hashtab.c). The other kinds have
/// no such bound, but no node has the memory.
const MOST: u32 = 1 << 27;

/// The shape of a map: type, sizes and default capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MapShape {
    /// Name of the map, of its pin and of its static in `lb-ebpf`.
    pub name: &'static str,
    pub(super) kind: MapType,
    pub(super) key: u32,
    pub(super) value: u32,
    flags: u32,
    /// Fingerprint of the key and value types, field by field: two maps with equal sizes may differ in it.
    pub fingerprint: u64,
    /// Default number of entries.
    pub entries: u32,
    pub content: Content,
    pub author: Author,
    /// Description of the entries, in a few words.
    pub holds: &'static str,
}

/// Returns the size of a key in bytes, with the prefix length of an LPM trie.
const fn key<K: Plain>(kind: MapType) -> u32 {
    let prefix = if matches!(kind, MapType::LpmTrie) { size_of::<u32>() } else { 0 };
    (prefix + size_of::<K>()) as u32
}

const fn flags(kind: MapType) -> u32 {
    if matches!(kind, MapType::Hash | MapType::LpmTrie) { NO_PREALLOC } else { 0 }
}

const fn fingerprint<K: Plain, V: Plain>(name: &str) -> u64 {
    number(named(K::FINGERPRINT, name), V::FINGERPRINT)
}

macro_rules! shapes {
    ($($name:ident($field:ident): $kind:ident<$key:ty, $value:ty>, $entries:expr,
        $content:ident by $author:ident, $holds:literal;)*) => {
        /// The shape of every map of the data path.
        pub const SHAPES: [MapShape; [$(stringify!($name)),*].len()] = [$(
            MapShape {
                name: stringify!($name),
                kind: MapType::$kind,
                key: key::<$key>(MapType::$kind),
                value: size_of::<$value>() as u32,
                flags: flags(MapType::$kind),
                fingerprint: fingerprint::<$key, $value>(stringify!($name)),
                entries: $entries,
                content: Content::$content,
                author: Author::$author,
                holds: $holds,
            }
        ),*];
    };
}

lb_common::maps!(shapes);

impl MapShape {
    /// Returns the shape of a map by name.
    pub fn of(name: &str) -> Option<&'static Self> {
        SHAPES.iter().find(|shape| shape.name == name)
    }

    /// Returns the names of maps with a configurable size, as a text.
    pub fn sizable() -> String {
        let names =
            SHAPES.iter().filter(|shape| shape.content.is_sizable()).map(|shape| shape.name);
        names.chain([FLOWS]).collect::<Vec<_>>().join(", ")
    }

    /// Refuses names of maps without a configurable size, and sizes that the kernel refuses.
    pub fn ensure_sizable(name: &str, entries: u32) -> Result<(), String> {
        if Self::sized_by(name).next().is_none() {
            let all = Self::sizable();
            return Err(format!(
                "map {name} does not exist or has a fixed size; choose one of {all}"
            ));
        }
        if entries > MOST {
            return Err(format!(
                "map {name} cannot have {entries} entries; at most {MOST} are allowed"
            ));
        }
        Ok(())
    }

    /// Returns the maps whose size a name sets: one, or both maps of protected flows.
    pub fn sized_by(name: &str) -> impl Iterator<Item = &'static Self> + use<'_> {
        let is_meant = move |shape: &&Self| {
            shape.name == name || name == FLOWS && shape.name.starts_with(FLOWS)
        };
        SHAPES.iter().filter(|shape| shape.content.is_sizable()).filter(is_meant)
    }

    /// Reports whether a kernel map has this shape. The capacity only matters if it is fixed.
    pub fn fits(&self, info: &MapInfo) -> bool {
        info.map_type().is_ok_and(|kind| kind == self.kind)
            && (info.key_size(), info.value_size()) == (self.key, self.value)
            && info.map_flags() == self.flags
            && (self.content.is_sizable() || info.max_entries() == self.entries)
    }
}

impl fmt::Display for MapShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, key, value, flags, .. } = self;
        write!(f, "{} with keys of {key} and values of {value} bytes, flags {flags}", of(*kind))
    }
}

/// Describes the shape of a kernel map for error messages.
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

/// Returns the short name of a kind of map, for a column.
pub(super) const fn kind(kind: MapType) -> &'static str {
    words(kind).1
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the kernel has thirty kinds, five are used")]
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
        let names = |by| MapShape::sized_by(by).map(|shape| shape.name).collect::<Vec<_>>();
        assert_eq!(names("FLOWS"), ["FLOWS4", "FLOWS6"]);
        assert_eq!(names("FLOWS6"), ["FLOWS6"]);
        assert!(names("FLOW").is_empty() && names("COUNTERS").is_empty());
    }
}

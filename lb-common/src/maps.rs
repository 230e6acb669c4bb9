//! Every pinned map, declared once (ADR 0041): name, kind, key, value, default size, content, author.
//!
//! `maps!` hands the list to a macro of its caller. `lb-ebpf` makes its statics of it, `lb-agent::maps` its handles,
//! shapes and copies, and a test there holds the table in `docs/concepts.md` to the list. Maps that live as long
//! as one load of the programs (working memory, tail calls), and those of sockets, are declared in `lb-ebpf/src/maps.rs`.

/// The content of a map. It decides what a resize and an upgrade to another layout do with the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Desired state, where every entry must stay: copied, and the map never shrinks.
    Desired,
    /// Entries that may be forgotten: copied as far as they fit.
    Memory,
    /// The same, but the entry of a flow that packets met last wins.
    Flows,
    /// Bits or bytes that are only ever set: a copy unites both sides. The size is fixed.
    Filter,
    /// State that a run leaves to the next one, in one element: copied. The size is fixed.
    State,
    /// Not copied to another map. The size is fixed.
    Fixed,
    /// Counters by position. A build that counts other events begins with a new map in the same layout.
    Counters,
}

impl Content {
    /// Whether the number of entries may be configured.
    pub const fn is_sizable(self) -> bool {
        matches!(self, Self::Desired) || self.may_shrink()
    }

    /// Whether the map may become smaller.
    pub const fn may_shrink(self) -> bool {
        matches!(self, Self::Memory | Self::Flows)
    }
}

/// The author of the entries of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    Agent,
    Programs,
}

/// Hands the list of all pinned maps to a macro: `NAME(field): Kind<Key, Value>, entries, Content by Author, text;`.
///
/// `Kind` is a kind of `aya::maps::MapType`. The key of an `LpmTrie` lacks the length of the prefix. `entries` is the
/// default, of the type `u32`.
#[macro_export]
macro_rules! maps {
    ($expand:ident) => {
        $expand! {
            SERVICES(services): Hash<$crate::service::Frontend, $crate::service::Service>,
                65_536, Desired by Agent, "the service of each frontend";
            MAGLEV(maglev): Array<u32, $crate::service::Line>,
                262_144, Desired by Agent, "members and Maglev slots of the sets, in lines of 64 bytes";
            BACKENDS(backends): Array<$crate::service::BackendId, $crate::service::Backend>,
                131_072, Desired by Agent, "the rows of backends; row 0 is never used";
            FLOWS4(flows4): Hash<$crate::flow::FlowKey4, $crate::flow::Flow4>,
                524_288, Flows by Programs, "entries of protected IPv4 flows; the agent removes expired ones";
            FLOWS6(flows6): Hash<$crate::flow::FlowKey, $crate::flow::Flow>,
                524_288, Flows by Programs, "the same for IPv6";
            TRANSIENT4(transient4): LruHash<$crate::flow::FlowKey4, $crate::flow::Flow4>,
                131_072, Memory by Programs, "entries of all other IPv4 flows: new ones displace the oldest";
            TRANSIENT6(transient6): LruHash<$crate::flow::FlowKey, $crate::flow::Flow>,
                131_072, Memory by Programs, "the same for IPv6";
            AFFINITY(affinity): LruHash<$crate::flow::Client, $crate::flow::Affinity>,
                65_536, Memory by Programs, "the backend of each client of a service with affinity";
            SOURCE_RANGES(source_ranges): LpmTrie<$crate::service::Source, u32>,
                65_536, Desired by Agent, "source ranges that a service accepts";
            ADDRESSES(addresses): Hash<$crate::addr::Ip, u32>,
                4_096, Desired by Agent, "the addresses of the node";
            DEVICES(devices): Hash<u32, $crate::config::Device>,
                4_096, Desired by Agent, "the interfaces that carry programs, by index";
            FRAGMENTS(fragments): LruHash<$crate::flow::Fragment, $crate::flow::Ports>,
                32_768, Memory by Programs, "the ports of fragmented packets";
            HELD_FRAGMENTS(held_fragments): LruHash<$crate::flow::Fragment, $crate::flow::Held>,
                $crate::flow::HELD_FRAGMENTS, Fixed by Programs, "fragments that wait for the first of their packet";
            BACKEND_FILTER(backend_filter): Array<u32, $crate::hash::EndpointBits>,
                $crate::hash::ENDPOINT_BITS / 64, Filter by Agent,
                "one bit for each address and port that a backend had";
            IN_USE(in_use): Array<u32, $crate::hash::BackendBytes>,
                $crate::hash::BACKEND_LINES, Filter by Programs,
                "one byte for each backend, set if a flow of this node goes or went to it";
            DIRECT_SEEN(direct_seen): Array<u32, u64>,
                $crate::flow::DIRECT_SEEN, Fixed by Programs, "hashes of packets that pods sent straight to a backend, and of such SYNs from outside";
            OWN_ANSWERS(own_answers): LruHash<u64, u32>,
                65_536, Memory by Programs,
                "hashes of answers to connections of this node whose source may be that of a frontend or of a translated packet, and of packets to an address that became a frontend meanwhile (ADR 0035)";
            INHERITED(inherited): Hash<u64, u32>,
                262_144, Memory by Agent, "hashes of tuples that netfilter translates since kube-proxy (ADR 0031)";
            SETTINGS(settings): Array<u32, $crate::config::SettingsPair>,
                1, State by Agent, "the settings of the node";
            COUNTERS(counters): PerCpuArray<u32, u64>,
                $crate::event::COUNTERS, Counters by Programs, "verdicts of each hook, then events";
            REJECT_LIMIT(reject_limit): PerCpuArray<u32, u64>,
                $crate::hash::REJECT_LIMIT, Fixed by Programs,
                "time up to which rejections were granted, in nanoseconds";
        }
    };
}

macro_rules! names {
    ($($name:ident($field:ident): $kind:ident<$key:ty, $value:ty>, $entries:expr,
        $content:ident by $author:ident, $holds:literal;)*) => {
        /// The names of the maps: of their pins, of the statics in `lb-ebpf`, and for operators.
        pub mod name {
            $(
                #[doc = $holds]
                pub const $name: &str = stringify!($name);
                const _: () = assert!($name.len() <= 15, "the kernel cuts longer names");
            )*
        }
    };
}

maps!(names);

#[cfg(test)]
mod tests {
    use super::Content;

    #[test]
    fn only_content_that_may_be_lost_may_shrink() {
        assert!(Content::Desired.is_sizable() && !Content::Desired.may_shrink());
        assert!(Content::Flows.is_sizable() && Content::Memory.may_shrink());
        let fixed = [Content::Filter, Content::State, Content::Fixed, Content::Counters];
        assert!(fixed.into_iter().all(|content| !content.is_sizable()));
    }
}

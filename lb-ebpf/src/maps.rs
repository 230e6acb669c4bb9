//! The maps of the programs: the pinned ones from the list in `lb_common::maps`, and those of this crate alone.
//!
//! The latter are declared here because only this crate knows their types or kinds. Hash maps allocate as they fill, so
//! their memory follows their content. The constant that is set at load is here as well.

use aya_ebpf::Global;
use aya_ebpf::bindings::BPF_F_NO_PREALLOC;
use aya_ebpf::btf_maps::{
    Array, HashMap, LpmTrie, LruHashMap, PerCpuArray, ProgramArray, SkStorage,
};
use aya_ebpf::macros::btf_map;
use lb_common::flow::{Flow, Flow4, FlowKey, FlowKey4, Held, Peer};
use lb_common::forward::{Choice, Scratch, Stage};

const GROWS: usize = BPF_F_NO_PREALLOC as usize;

const fn size(entries: u32) -> usize {
    entries as usize
}

/// The type of a map for its kind in the list.
macro_rules! map {
    (Hash<$key:ty, $value:ty>, $entries:expr) => {
        HashMap<$key, $value, { size($entries) }, GROWS>
    };
    (LruHash<$key:ty, $value:ty>, $entries:expr) => {
        LruHashMap<$key, $value, { size($entries) }>
    };
    (LpmTrie<$key:ty, $value:ty>, $entries:expr) => {
        LpmTrie<$key, $value, { size($entries) }>
    };
    (Array<$key:ty, $value:ty>, $entries:expr) => {
        Array<$value, { size($entries) }>
    };
    (PerCpuArray<$key:ty, $value:ty>, $entries:expr) => {
        PerCpuArray<$value, { size($entries) }>
    };
}

macro_rules! statics {
    ($($name:ident($field:ident): $kind:ident<$key:ty, $value:ty>, $entries:expr,
        $content:ident by $author:ident, $holds:literal;)*) => {$(
        #[doc = $holds]
        #[btf_map]
        pub(crate) static $name: map!($kind<$key, $value>, $entries) =
            <map!($kind<$key, $value>, $entries)>::new();
    )*};
}

lb_common::maps!(statics);

/// Keys and entries on their way to a map, in memory of this CPU: the stack has no room for them.
#[repr(C)]
pub(crate) struct Transit {
    pub(crate) key4: FlowKey4,
    pub(crate) flow4: Flow4,
    pub(crate) key: FlowKey,
    pub(crate) flow: Flow,
}

/// Keys and entries on their way to the tables of flows.
#[btf_map]
pub(crate) static TRANSIT: PerCpuArray<Transit, 1> = PerCpuArray::new();

/// The peers that processes named, for sockets that were redirected to a backend. Written by the socket hooks.
#[btf_map]
pub(crate) static PEERS: SkStorage<Peer> = SkStorage::new();

/// A fragment on its way to `HELD_FRAGMENTS`.
#[btf_map]
pub(crate) static HELD_SCRATCH: PerCpuArray<Held, 1> = PerCpuArray::new();

/// The programs of the whole path at tc, by [`Stage::index`]. The agent writes them at each load of the programs: the
/// kernel empties the map when neither a process nor a pin holds it.
#[btf_map]
pub(crate) static PATHS: ProgramArray<{ Stage::COUNT }> = ProgramArray::new();

/// The same for interfaces without a link-layer header. Written like [`PATHS`], when their programs are loaded.
#[btf_map]
pub(crate) static L3_PATHS: ProgramArray<{ Stage::COUNT }> = ProgramArray::new();

/// The same at XDP, which has no packets that go out; in a map of its own because an array holds programs of one type.
/// Written like [`PATHS`], when the XDP program is loaded.
#[btf_map]
pub(crate) static XDP_PATHS: ProgramArray<{ Stage::COUNT }> = ProgramArray::new();

/// Working memory for the packet that a CPU handles.
#[btf_map]
pub(crate) static SCRATCH: PerCpuArray<Scratch, 1> = PerCpuArray::new();

/// Working memory for socket calls, in the storage of their sockets.
#[btf_map]
pub(crate) static SOCKET_SCRATCH: SkStorage<Choice> = SkStorage::new();

/// Whether the verifier accepts map keys only on the stack and in maps, not in memory that a function is lent.
///
/// Set at load for Linux before 6.2. A constant of the programs, so that on later kernels the code for it is removed.
#[unsafe(no_mangle)]
pub(crate) static ASKS_FOR_MAPS: Global<u8> = Global::new(0);

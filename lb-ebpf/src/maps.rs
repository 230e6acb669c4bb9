//! Every map, on one screen. Sizes are what an object loads with when nobody says otherwise; the
//! agent sets them at load. Hash maps allocate as they fill: their memory follows what they hold.

use aya_ebpf::bindings::BPF_F_NO_PREALLOC;
use aya_ebpf::btf_maps::{
    Array, HashMap, LpmTrie, LruHashMap, PerCpuArray, ProgramArray, SkStorage,
};
use aya_ebpf::macros::btf_map;
use lb_common::addr::Ip;
use lb_common::config::{Device, SettingsPair};
use lb_common::event;
use lb_common::flow::{
    self, Affinity, Client, Flow, Flow4, FlowKey, FlowKey4, Fragment, Held, Peer, Ports,
};
use lb_common::forward::Choice;
use lb_common::hash;
use lb_common::scratch::Scratch;
use lb_common::service::{Backend, Frontend, Line, Service, Source};

use crate::flows::Transit;

const GROWS: usize = BPF_F_NO_PREALLOC as usize;

/// Frontend to service. Written by the agent.
#[btf_map]
pub(crate) static SERVICES: HashMap<Frontend, Service, 65_536, GROWS> = HashMap::new();

/// Selection tables in lines of 64 bytes. Written by the agent.
#[btf_map]
pub(crate) static SLOTS: Array<Line, 65_536> = Array::new();

/// Backend rows. Row 0 is never used. Written by the agent.
#[btf_map]
pub(crate) static BACKENDS: Array<Backend, 65_536> = Array::new();

/// Entries of IPv4 flows whose two ends have spoken. Written by the data path, swept by the agent.
#[btf_map]
pub(crate) static FLOWS4: HashMap<FlowKey4, Flow4, 262_144, GROWS> = HashMap::new();

/// Entries of all other IPv4 flows: new ones displace the oldest. Written by the data path.
#[btf_map]
pub(crate) static TRANSIENT4: LruHashMap<FlowKey4, Flow4, 131_072> = LruHashMap::new();

/// Keys and entries on their way to the tables of flows.
#[btf_map]
pub(crate) static TRANSIT: PerCpuArray<Transit, 1> = PerCpuArray::new();

/// Entries of IPv6 flows, as `FLOWS4`.
#[btf_map]
pub(crate) static FLOWS6: HashMap<FlowKey, Flow, 262_144, GROWS> = HashMap::new();

/// The same as `TRANSIENT4`.
#[btf_map]
pub(crate) static TRANSIENT6: LruHashMap<FlowKey, Flow, 131_072> = LruHashMap::new();

/// One byte for each backend, by `hash::backend_byte`: not 0 where a
/// flow of this node goes or went to it. Written by the data path.
#[btf_map]
pub(crate) static IN_USE: Array<Line, { hash::BACKEND_LINES as usize }> = Array::new();

/// Clients and the backends they stick to. Written by the data path.
#[btf_map]
pub(crate) static AFFINITY: LruHashMap<Client, Affinity, 65_536> = LruHashMap::new();

/// Source prefixes allowed for a service. Written by the agent.
#[btf_map]
pub(crate) static SOURCES: LpmTrie<Source, u32, 65_536> = LpmTrie::new();

/// The node's addresses. Written by the agent.
#[btf_map]
pub(crate) static ADDRESSES: HashMap<Ip, u32, 1_024, GROWS> = HashMap::new();

/// The devices that carry programs, by interface index. Written by the agent.
#[btf_map]
pub(crate) static DEVICES: HashMap<u32, Device, 4_096, GROWS> = HashMap::new();

/// One bit for each address and port that a backend had, by `hash::endpoint`, and for each address that flows leave
/// with, as port 0. Written by the agent.
#[btf_map]
pub(crate) static ENDPOINTS: Array<u64, { hash::ENDPOINT_BITS as usize / 64 }> = Array::new();

/// Hashes of packets that pods sent straight to a backend. Written by the data path.
#[btf_map]
pub(crate) static DIRECT: Array<u64, { flow::DIRECT as usize }> = Array::new();

/// Hashes of tuples by which netfilter translates what kube-proxy began (ADR 0031): of datagrams to frontends, and of
/// the answers of backends. Written by the agent.
#[btf_map]
pub(crate) static INHERITED: HashMap<u64, u32, 65_536, GROWS> = HashMap::new();

/// The peers that processes named, with the sockets that were sent to a backend. Written by the socket hooks.
#[btf_map]
pub(crate) static PEERS: SkStorage<Peer> = SkStorage::new();

/// Ports of datagrams in pieces. Written by the data path.
#[btf_map]
pub(crate) static FRAGMENTS: LruHashMap<Fragment, Ports, 32_768> = LruHashMap::new();

/// Fragments that wait for the first of their datagram. Written by the data path.
#[btf_map]
pub(crate) static HELD: LruHashMap<Fragment, Held, { flow::HELD as usize }> = LruHashMap::new();

/// A fragment on its way there.
#[btf_map]
pub(crate) static HOLDING: PerCpuArray<Held, 1> = PerCpuArray::new();

/// Settings of the node. Written by the agent.
#[btf_map]
pub(crate) static SETTINGS: Array<SettingsPair, 1> = Array::new();

/// Verdicts by hook, then events; see `lb_common::event`.
#[btf_map]
pub(crate) static COUNTERS: PerCpuArray<u64, { event::COUNTERS as usize }> = PerCpuArray::new();

/// Virtual time up to which rejections have been granted, per CPU, nanoseconds.
#[btf_map]
pub(crate) static REJECTIONS: PerCpuArray<u64, { hash::REJECTIONS as usize }> = PerCpuArray::new();

/// The programs of the whole path: `ingress_path`, then `egress_path`. Written by the agent, for each load of the
/// programs anew: the kernel empties it when no process and no pin holds it.
#[btf_map]
pub(crate) static PATHS: ProgramArray<2> = ProgramArray::new();

/// Working memory of the packet a CPU handles.
#[btf_map]
pub(crate) static SCRATCH: PerCpuArray<Scratch, 1> = PerCpuArray::new();

/// Working memory of socket calls, with their sockets.
#[btf_map]
pub(crate) static SOCKET_SCRATCH: SkStorage<Choice> = SkStorage::new();

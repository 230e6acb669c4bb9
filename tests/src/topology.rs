//! A cluster in network namespaces: nodes with pods, an external client, and a segment between them.
//!
//! ```text
//!            segment1: 192.168.50.0/24, fd00:50::/64          (and segment2, if asked for)
//!    ┌───────────────┬───────────────┬───────────────┐
//!  client .100     node-a .11      node-b .12     gateway .1
//!                  │     │         │     │
//!                pod-a1 pod-a2   pod-b1 pod-b2       10.244.<node>.<10+pod>, fd00:244:<node>::<10+pod>
//! ```
//!
//! To its agent, every node is a separate machine: it has its own namespace, cgroup and bpf filesystem. Every member
//! contains a process that sends and answers questions for the test ([`Member::peer`]).

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};

pub mod address;
mod fabric;
mod firewall;
mod guest;
pub mod leftovers;
mod member;
mod node;
mod offload;
mod overlay;
mod pod;
mod tunnel;
mod wire;

pub use address::{Addresses, Family, Segment, cluster_ip};
use fabric::Fabric;
use leftovers::Namespaces;
pub use member::Member;
pub use node::{Node, Pod};
pub use pod::Shape;
pub use tunnel::Tunnel;
pub use wire::Wire;

use crate::netns::Netns;

/// The number of the first node.
const FIRST: u8 = 1;

/// A cluster without agents: all members are routed to each other, and no Service is served.
#[derive(Debug)]
pub struct Topology {
    // Dropped in this order: the members, the network between them, and the names that they use.
    client: Member,
    tunnel: Option<Tunnel>,
    nodes: Vec<Node>,
    fabric: Fabric,
    namespaces: Namespaces,
    builder: Builder,
}

/// The parameters of a topology.
#[derive(Debug, Clone)]
pub struct Builder {
    pub(crate) shape: Shape,
    pub(crate) wire: Wire,
    nodes: u8,
    pub(crate) pods: u8,
    pub(crate) segments: Vec<Segment>,
    mtu_between: Option<u16>,
    pub(crate) overlay: Option<Overlay>,
    pub(crate) rp_filter: u8,
    pub(crate) checksum_offload: bool,
    pub(crate) polls: bool,
    pub(crate) firewall: bool,
    name: Option<String>,
}

/// The path of packets between pods of different nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Overlay {
    Vxlan,
    /// A tunnel between interfaces without a link-layer header.
    Tunnel,
}

impl Topology {
    /// Starts with two nodes with two pods each.
    pub const fn builder(shape: Shape) -> Builder {
        Builder {
            shape,
            wire: Wire::Veth,
            nodes: 2,
            pods: 2,
            segments: Vec::new(),
            mtu_between: None,
            overlay: None,
            rp_filter: 1,
            checksum_offload: true,
            polls: false,
            firewall: false,
            name: None,
        }
    }

    /// Returns node `index`, counted from 0.
    pub fn node(&self, index: usize) -> Result<&Node> {
        self.nodes.get(index).with_context(|| format!("the topology has no node {index}"))
    }

    /// Returns all nodes, in order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the external client.
    pub const fn client(&self) -> &Member {
        &self.client
    }

    /// Returns the namespace of the segments.
    pub const fn fabric(&self) -> &Netns {
        self.fabric.netns()
    }

    /// Enables or disables polling at the other end of a node's interface: see [`Builder::polling`].
    pub fn poll(&self, node: &Node, device: &str, polls: bool) -> Result<()> {
        offload::switch_polling(self.fabric(), &format!("{device}-{}", node.name()), polls)
    }

    /// Returns a directory that lives as long as the topology.
    pub fn directory(&self, name: &str) -> Result<std::path::PathBuf> {
        self.namespaces.directory(name)
    }

    /// Adds a pod to node `index` (counted from 0) at run time, as a CNI plugin does.
    pub fn add_pod(&mut self, index: usize) -> Result<&Pod> {
        let node = self.nodes.get_mut(index).with_context(|| format!("no node {index}"))?;
        node.add_pod(&self.namespaces, &self.builder)?;
        node.until_wired()?;
        node.pods().last().context("the pod that was added")
    }

    /// Recreates the wire of pod `pod` of node `node` (both counted from 0), as a CNI plugin does for a pod that
    /// restarts: with the same names, and with this interface index if one is given.
    pub fn rewire(&self, node: usize, pod: usize, number: Option<u32>) -> Result<()> {
        let node = self.nodes.get(node).with_context(|| format!("no node {node}"))?;
        node.rewire(pod, number, &self.builder)?;
        node.until_wired()
    }

    /// Adds routes to the pods of every node on all members.
    fn connect_pod_ranges(&mut self) -> Result<()> {
        if self.builder.overlay == Some(Overlay::Tunnel) {
            self.tunnel = Some(Tunnel::between(&self.nodes)?);
        }
        for node in &self.nodes {
            let others = self.nodes.iter().filter(|other| other.number() != node.number());
            let others: Vec<&Node> = others.collect();
            if self.builder.overlay == Some(Overlay::Vxlan) {
                overlay::install(node, &others)?;
            }
            for other in others.into_iter().filter(|_| self.tunnel.is_none()) {
                node::route_to(node, other, &self.builder)?;
            }
            let [pods4, pods6] = node.pod_ranges();
            let routes = |Addresses { v4, v6 }| {
                format!("route add {pods4} via {v4}\nroute add {pods6} via {v6}")
            };
            let gateway = self.builder.segment_between(FIRST, node.number());
            let by_router = gateway.map(Segment::gateway).transpose()?;
            self.client.netns().ip(&routes(by_router.unwrap_or_else(|| node.addresses())))?;
            self.fabric().ip(&routes(node.addresses()))?;
        }
        Ok(())
    }

    /// Returns all members: the client, then each node followed by its pods.
    pub fn members(&self) -> Vec<&Member> {
        let of_node = |node| -> Vec<&Member> {
            let node: &Node = node;
            let pods = node.pods().iter().map(|pod| -> &Member { pod });
            std::iter::once(node.host()).chain(pods).collect()
        };
        std::iter::once(&self.client).chain(self.nodes.iter().flat_map(of_node)).collect()
    }
}

impl Builder {
    /// Sets the number of nodes, which are named `node-a`, `node-b` and so on.
    #[must_use]
    pub const fn nodes(mut self, nodes: u8) -> Self {
        self.nodes = nodes;
        self
    }

    /// Sets the number of pods on each node, which are named `pod-a1`, `pod-a2` and so on.
    #[must_use]
    pub const fn pods(mut self, pods: u8) -> Self {
        self.pods = pods;
        self
    }

    /// Connects pods by another kind of interface pair than a veth.
    #[must_use]
    pub const fn wire(mut self, wire: Wire) -> Self {
        self.wire = wire;
        self
    }

    /// Gives nodes and client a second interface, on a second segment.
    #[must_use]
    pub fn two_segments(mut self) -> Self {
        self.segments = vec![Segment::First, Segment::Second];
        self
    }

    /// Puts all nodes but the first on the second segment, behind a router with this MTU, which is smaller than that of
    /// every wire.
    #[must_use]
    pub fn narrow_between(mut self, mtu: u16) -> Self {
        self.mtu_between = Some(mtu);
        self.two_segments()
    }

    /// The segments of node `number`, its main one first.
    pub(crate) fn segments_of(&self, number: u8) -> &[Segment] {
        match self.mtu_between {
            None => &self.segments,
            Some(_) if number == FIRST => &[Segment::First],
            Some(_) => &[Segment::Second],
        }
    }

    /// The segment of node `from` whose gateway leads to node `to`, if the nodes are on different segments.
    pub(crate) fn segment_between(&self, from: u8, to: u8) -> Option<Segment> {
        let (from, to) = (self.segments_of(from).first()?, self.segments_of(to).first()?);
        (from != to).then_some(*from)
    }

    /// Routes packets of pods between nodes through a vxlan. Packets of pods to nodes do not use it, so it needs the
    /// masquerade of [`Builder::firewall`]; otherwise answers would arrive on another interface than the one that the
    /// question left by.
    #[must_use]
    pub const fn overlay(mut self) -> Self {
        self.overlay = Some(Overlay::Vxlan);
        self.firewall()
    }

    /// Routes packets of pods between nodes through a tunnel without link-layer headers. It needs [`Builder::firewall`]
    /// for the same reason.
    #[must_use]
    pub const fn tunnel(mut self) -> Self {
        self.overlay = Some(Overlay::Tunnel);
        self.firewall()
    }

    /// Sets the reverse path filter of the nodes (`rp_filter`): 0 off, 1 strict (the default), 2 loose.
    #[must_use]
    pub const fn rp_filter(mut self, mode: u8) -> Self {
        self.rp_filter = mode;
        self
    }

    /// Makes all members send complete checksums, as on a physical wire.
    #[must_use]
    pub const fn without_checksum_offload(mut self) -> Self {
        self.checksum_offload = false;
        self
    }

    /// Makes the other ends of the nodes' interfaces poll, so that they accept frames that XDP redirects.
    #[must_use]
    pub const fn polling(mut self) -> Self {
        self.polls = true;
        self
    }

    /// Gives nodes the netfilter rules of a CNI plugin: FORWARD drops by default, packets of pods to the outside are
    /// masqueraded.
    #[must_use]
    pub const fn firewall(mut self) -> Self {
        self.firewall = true;
        self
    }

    /// Gives the namespaces a readable name, and keeps everything when the value is dropped.
    #[must_use]
    pub fn kept_as(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Builds the topology; all members can reach each other by plain routing when this returns.
    pub fn build(mut self) -> Result<Topology> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if self.segments.is_empty() {
            self.segments.push(Segment::First);
        }
        let namespaces = match &self.name {
            Some(name) => Namespaces::named(name)?,
            None => Namespaces::numbered(NUMBER.fetch_add(1, Ordering::Relaxed))?,
        };
        let mut fabric = Fabric::new(&namespaces, &self.segments, self.mtu_between)?;
        if namespaces.kept {
            fabric.keep();
        }
        let nodes: Vec<Node> = (1..=self.nodes)
            .map(|number| Node::new(&namespaces, &self, &fabric, number))
            .collect::<Result<_>>()?;
        let client = self.client(&namespaces, &fabric)?;
        let mut topology =
            Topology { client, tunnel: None, nodes, fabric, namespaces, builder: self };
        topology.connect_pod_ranges()?;
        topology.members().into_iter().try_for_each(Member::until_wired)?;
        Ok(topology)
    }

    fn client(&self, namespaces: &Namespaces, fabric: &Fabric) -> Result<Member> {
        let netns = Netns::new(&namespaces.netns("client"))?;
        let segments = self.segments_of(FIRST);
        for segment in segments {
            fabric.connect(&netns, "client", *segment, segment.host(address::CLIENT)?)?;
        }
        Fabric::route_by(&netns, Segment::First)?;
        if !self.checksum_offload {
            for segment in segments {
                offload::switch_checksum_offload_off(&netns, segment.device())?;
            }
        }
        let addresses = Segment::First.host(address::CLIENT)?;
        Member::new(namespaces, "client", netns, addresses, None)
    }
}

//! A node: a namespace that forwards packets, a cgroup, a bpf filesystem, and pods.

use std::ops::Deref;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use lb_agent::datapath::{Direction, attached_programs};

use super::address::{self, Addresses};
use super::fabric::Fabric;
use super::leftovers::Namespaces;
use super::member::Member;
use super::offload::{switch_checksum_offload_off, switch_polling};
use super::{Builder, Overlay, Shape, firewall};
use crate::netns::{NAMES, Netns};

/// One machine of the cluster. Dereferences to its host, which stands for processes on the node itself.
#[derive(Debug)]
pub struct Node {
    pods: Vec<Pod>,
    host: Member,
    number: u8,
    directory: PathBuf,
    bpf: PathBuf,
    cgroup: PathBuf,
}

/// One pod. Dereferences to its member.
#[derive(Debug)]
pub struct Pod {
    member: Member,
    node: String,
    device: String,
}

impl Node {
    /// Creates node `number` (counted from 1) and its pods.
    pub(crate) fn new(
        namespaces: &Namespaces,
        builder: &Builder,
        fabric: &Fabric,
        number: u8,
    ) -> Result<Self> {
        let letter = char::from(b'a' + number - 1);
        let name = format!("node-{letter}");
        let netns = forwarding_netns(&namespaces.netns(&name), builder)?;
        let segments = builder.segments_of(number);
        for segment in segments {
            let addresses = segment.host(address::node(number))?;
            fabric.connect(&netns, &name, *segment, addresses)?;
            if builder.polls {
                switch_polling(fabric.netns(), &format!("{}-{name}", segment.device()), true)?;
            }
        }
        let home = *segments.first().context("a node is on a segment")?;
        Fabric::route_by(&netns, home)?;
        builder.shape.prepare(&netns, number)?;
        if builder.firewall {
            firewall::install(&netns, number)?;
        }
        let cgroup = namespaces.cgroup(&name)?;
        if !builder.checksum_offload {
            switch_checksum_offload_off(&netns, home.device())?;
        }
        let addresses = home.host(address::node(number))?;
        let host_cgroup = namespaces.cgroup(&format!("{name}/host"))?;
        let host = Member::new(namespaces, &name, netns, addresses, Some(host_cgroup))?;
        let (directory, bpf) = (namespaces.directory(&name)?, namespaces.bpffs(&name)?);
        let pods = Vec::new();
        let mut node = Self { pods, host, number, directory, bpf, cgroup };
        (0..builder.pods).try_for_each(|_| node.add_pod(namespaces, builder))?;
        Ok(node)
    }

    /// Adds the next pod, with the same kind of wire as the others.
    pub(crate) fn add_pod(&mut self, namespaces: &Namespaces, builder: &Builder) -> Result<()> {
        let index = self.pods.len() as u8 + 1;
        let short = format!("{}{index}", self.host.name().trim_start_matches("node-"));
        let (name, device) = (format!("pod-{short}"), format!("veth-{short}"));
        let addresses = address::pod(self.number, index)?;
        let cgroup = namespaces.cgroup(&format!("{}/pods", self.host.name()))?;
        let netns = self.wired(namespaces, builder, (&name, &device), builder.shape, addresses)?;
        let member = Member::new(namespaces, &name, netns, addresses, Some(cgroup))?;
        let node = self.host.name().to_owned();
        self.pods.push(Pod { member, node, device });
        Ok(())
    }

    /// Creates a routed member that is no pod, in no cgroup of the node.
    pub(crate) fn guest(
        &self,
        namespaces: &Namespaces,
        builder: &Builder,
        name: &str,
        addresses: Addresses,
    ) -> Result<Member> {
        let device = format!("veth-{name}");
        let netns = self.wired(namespaces, builder, (name, &device), Shape::Routed, addresses)?;
        Member::new(namespaces, name, netns, addresses, None)
    }

    /// Creates the namespace of a member, and its wire to the node.
    fn wired(
        &self,
        namespaces: &Namespaces,
        builder: &Builder,
        (name, device): (&str, &str),
        shape: Shape,
        addresses: Addresses,
    ) -> Result<Netns> {
        let netns = Netns::new(&namespaces.netns(name))?;
        builder.wire.connect(self.host.netns(), device, &netns)?;
        shape.connect(self.host.netns(), self.number, &netns, device, addresses)?;
        if !builder.checksum_offload {
            switch_checksum_offload_off(&netns, "eth0")?;
        }
        Ok(netns)
    }

    /// Recreates the wire of a pod with the same names, and with this interface index if one is given.
    pub(crate) fn rewire(
        &self,
        index: usize,
        number: Option<u32>,
        builder: &Builder,
    ) -> Result<()> {
        let (pod, host) = (self.pod(index)?, self.host.netns());
        let (device, netns) = (pod.device(), pod.netns());
        host.ip(&format!("link delete {device}"))?;
        match number {
            None => builder.wire.connect(host, device, netns)?,
            Some(number) => {
                let name = netns.name();
                host.ip(&format!(
                    "link add {device} index {number} type veth peer name eth0 netns {name}"
                ))?;
            }
        }
        builder.shape.connect(host, self.number, netns, device, pod.addresses())
    }

    /// Returns pod `index`, counted from 0.
    pub fn pod(&self, index: usize) -> Result<&Pod> {
        self.pods.get(index).with_context(|| format!("{} has no pod {index}", self.host.name()))
    }

    /// Returns its pods.
    pub fn pods(&self) -> &[Pod] {
        &self.pods
    }

    /// Returns its host, which stands for processes on the node itself, in the node's cgroup.
    pub const fn host(&self) -> &Member {
        &self.host
    }

    /// Returns the number in its addresses, counted from 1.
    pub(crate) const fn number(&self) -> u8 {
        self.number
    }

    /// Returns the pod ranges of the node, IPv4 and IPv6.
    pub fn pod_ranges(&self) -> [String; 2] {
        address::pod_ranges(self.number)
    }

    /// Returns a directory for logs and manifests that lives as long as the node.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the node's traces on the machine: the file of its namespace's name, its cgroup, its directory.
    pub fn traces(&self) -> [PathBuf; 3] {
        let name = Path::new(NAMES).join(self.host.netns().name());
        [name, self.cgroup.clone(), self.directory.clone()]
    }

    /// Returns the mount point of the node's bpf filesystem.
    pub fn bpf(&self) -> &Path {
        &self.bpf
    }

    /// The ids of the tcx links on an interface of the node in one direction, in their order.
    pub fn links_at(&self, index: u32, direction: Direction) -> Result<Vec<u32>> {
        let hooked = self.netns().run_in(|| attached_programs(index, direction))??;
        Ok(hooked.into_iter().map(|hooked| hooked.link).collect())
    }

    /// Returns the cgroup with the processes of the host and of the pods.
    pub fn cgroup(&self) -> &Path {
        &self.cgroup
    }
}

impl Pod {
    /// Returns the name of the pod's node.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Returns the interface of the pod's wire on the node.
    pub fn device(&self) -> &str {
        &self.device
    }
}

impl Deref for Node {
    type Target = Member;

    fn deref(&self) -> &Member {
        &self.host
    }
}

impl Deref for Pod {
    type Target = Member;

    fn deref(&self) -> &Member {
        &self.member
    }
}

/// Creates a namespace that forwards packets. The settings are made before any interface exists, because interfaces
/// inherit them when they are created.
fn forwarding_netns(name: &str, builder: &Builder) -> Result<Netns> {
    let netns = Netns::new(name)?;
    netns.sysctl("net.ipv4.ip_forward", "1")?;
    netns.sysctl("net.ipv6.conf.all.forwarding", "1")?;
    netns.sysctl("net.ipv6.conf.default.forwarding", "1")?;
    // ICMP errors and redirects share a rate limit for each host (inet_peer_xrlim_allow): a packet forwarded a second
    // ago would suppress an error that a test waits for.
    netns.report_every_error()?;
    for which in ["all", "default"] {
        let rp_filter = builder.rp_filter.to_string();
        netns.sysctl(&format!("net.ipv4.conf.{which}.rp_filter"), &rp_filter)?;
    }
    Ok(netns)
}

/// Adds routes to the pods of `other`: over the overlay or through the router if there is one, else directly.
pub(crate) fn route_to(node: &Node, other: &Node, builder: &Builder) -> Result<()> {
    let Addresses { v4, v6 } = if builder.overlay == Some(Overlay::Vxlan) {
        address::overlay(other.number())?
    } else if let Some(segment) = builder.segment_between(node.number(), other.number()) {
        segment.gateway()?
    } else {
        other.addresses()
    };
    let [pods4, pods6] = other.pod_ranges();
    node.netns().ip(&format!(
        "route add {pods4} via {v4}
         route add {pods6} via {v6}"
    ))
}

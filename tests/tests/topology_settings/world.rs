//! One rig with one setting: every Service has one backend, so that the expected server is known before the question.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result};
use lb_tests::manifest::{Endpoint, Service};
use lb_tests::rig::{Rig, TARGET};
use lb_tests::topology::{Addresses, Family, Member, Pod, Shape, Topology};
use lb_tests::traffic::Protocol;

/// `NodePort`s of the Services in [`World::served`].
pub(crate) const NODE_PORTS: [u16; 3] = [30_080, 30_081, 30_082];
/// The ports of these Services' external IP.
const PORTS: [u16; 3] = [80, 81, 82];

/// A client.
#[derive(Clone, Copy)]
pub(crate) struct Asker<'a> {
    pub(crate) member: &'a Member,
    /// The index of its node; `None` for the external client.
    pub(crate) node: Option<usize>,
    pub(crate) is_host: bool,
}

/// A Service with its only backend.
pub(crate) struct Served {
    pub(crate) service: Service,
    pub(crate) backend: &'static str,
    node: usize,
    is_host: bool,
    index: usize,
}

/// A path to a Service: the address to use, the node that translates, and whether the address is an external one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServicePath {
    pub(crate) to: SocketAddr,
    pub(crate) node: usize,
    is_outer: bool,
}

pub(crate) struct World {
    pub(crate) rig: Rig,
    shape: Shape,
    /// Whether the setting contains `masquerade: kube-proxy`.
    is_as_kube_proxy: bool,
    /// Whether the setting contains `socketLB: all`.
    serves_sockets_of_pods: bool,
    external: Addresses,
    /// A load balancer address whose source ranges exclude all members.
    pub(crate) closed: Addresses,
    /// The Services: with a pod of the client's node, a pod of the other node, and the host of the other node as
    /// backend.
    pub(crate) served: [Served; 3],
    pub(crate) empty: Service,
}

impl World {
    /// Starts agents that know all Services.
    pub(crate) fn start(shape: Shape, setting: &str) -> Result<Self> {
        let builder = Topology::builder(shape);
        let has_xdp = setting.contains("native");
        // XDP leaves packets with a partial checksum to tc, and redirects only where the other end of a veth polls.
        let builder = if has_xdp { builder.without_checksum_offload().polling() } else { builder };
        let mut rig = Rig::build(builder)?;
        let external = Addresses::parse("198.51.100.7", "fd00:198::7")?;
        let closed = Addresses::parse("198.51.100.8", "fd00:198::8")?;
        let served = {
            let service = |name: &str, index: usize, endpoint| -> Result<Service> {
                let (port, node_port) = (PORTS[index], NODE_PORTS[index]);
                let service = Service::new(name, 10 + index as u8)?.port(port, TARGET);
                let service = service.node_port(node_port).external_ips(&external.both());
                Ok(service.endpoints([endpoint]))
            };
            let near = service("near", 0, Endpoint::pod(rig.pod(0, 1)?))?;
            let far = service("far", 1, Endpoint::pod(rig.pod(1, 1)?))?;
            let host = service("host", 2, Endpoint::host(rig.node(1)?))?;
            [
                Served { service: near, backend: "pod-a2", node: 0, is_host: false, index: 0 },
                Served { service: far, backend: "pod-b2", node: 1, is_host: false, index: 1 },
                Served { service: host, backend: "node-b", node: 1, is_host: true, index: 2 },
            ]
        };
        let empty = Service::new("empty", 13)?.port(80, TARGET);
        let vip = Service::new("closed", 14)?.port(80, TARGET).pods(&rig.pods());
        let vip = vip.load_balancer(&closed.both(), &["203.0.113.0/24", "2001:db8::/32"]);
        let node = rig.node(0)?.addresses();
        for to in [&external, &closed] {
            rig.client().netns().ip(&format!(
                "route add {}/32 via {}\nroute add {}/128 via {}",
                to.v4, node.v4, to.v6, node.v6
            ))?;
        }
        for service in served.iter().map(|it| &it.service).chain([&empty, &vip]) {
            rig.manifests().apply(service)?;
        }
        let config = rig.configuration(setting)?;
        rig.start_agents(&[&config])?;
        let is_as_kube_proxy = setting.contains("masquerade: kube-proxy");
        let serves_sockets_of_pods = setting.contains("socketLB: all");
        Ok(Self {
            rig,
            shape,
            is_as_kube_proxy,
            serves_sockets_of_pods,
            external,
            closed,
            served,
            empty,
        })
    }

    /// A pod and the host of each node, and the external client.
    pub(crate) fn askers(&self) -> Result<Vec<Asker<'_>>> {
        let mut askers = vec![Asker { member: self.rig.client(), node: None, is_host: false }];
        for node in [0, 1] {
            let [pod, host]: [&Member; 2] = [self.rig.pod(node, 0)?, self.rig.node(node)?.host()];
            askers.push(Asker { member: pod, node: Some(node), is_host: false });
            askers.push(Asker { member: host, node: Some(node), is_host: true });
        }
        Ok(askers)
    }

    /// All paths of a client to a Service.
    pub(crate) fn paths(
        &self,
        asker: Asker<'_>,
        to: &Served,
        family: Family,
    ) -> Result<Vec<ServicePath>> {
        let mut paths = Vec::new();
        if let Some(node) = asker.node {
            let to = to.service.frontend(family);
            paths.push(ServicePath { to, node, is_outer: false });
        }
        for node in [0, 1] {
            let to = self.rig.node(node)?.addresses().socket(family, NODE_PORTS[to.index]);
            paths.push(ServicePath { to, node, is_outer: true });
        }
        let external = self.external.socket(family, PORTS[to.index]);
        // The route of the external client leads to node-a.
        paths.push(ServicePath { to: external, node: asker.node.unwrap_or(0), is_outer: true });
        Ok(paths)
    }

    /// The source address that the backend sees (contract 3.3, ADR 0011).
    pub(crate) fn source(
        &self,
        asker: Asker<'_>,
        path: ServicePath,
        served: &Served,
        family: Family,
    ) -> Result<IpAddr> {
        let is_here = served.node == path.node;
        let is_masqueraded = if self.is_as_kube_proxy {
            // A packet to a process of the translating node does not pass POSTROUTING.
            path.is_outer && !(is_here && served.is_host)
        } else {
            // Without masquerade, the answer would not return through the node that translates.
            asker.node != Some(path.node) && !is_here
        };
        if is_masqueraded {
            return self.towards(path.node, served, family);
        }
        match asker.node.filter(|_| asker.is_host) {
            Some(node) => self.towards(node, served, family),
            None => Ok(asker.member.ip(family)),
        }
    }

    /// The source address that a pod of node-a sees which is its own backend.
    pub(crate) fn source_of_itself(
        &self,
        pod: &Pod,
        family: Family,
        protocol: Protocol,
    ) -> Result<IpAddr> {
        let [near, ..] = &self.served;
        if self.is_as_kube_proxy {
            return self.towards(0, near, family);
        }
        // This connection never leaves the pod.
        if self.serves_sockets_of_pods && protocol == Protocol::Tcp {
            return Ok(pod.ip(family));
        }
        Ok(Addresses::parse("192.0.0.8", "100::8")?.of(family))
    }

    /// The address of a node on the path to a backend.
    fn towards(&self, node: usize, served: &Served, family: Family) -> Result<IpAddr> {
        if self.shape == Shape::Bridged && served.node == node && !served.is_host {
            let number = node + 1;
            let bridge =
                Addresses::parse(&format!("10.244.{number}.1"), &format!("fd00:244:{number}::1"))?;
            return Ok(bridge.of(family));
        }
        Ok(self.rig.node(node).context("the node on the way")?.ip(family))
    }
}

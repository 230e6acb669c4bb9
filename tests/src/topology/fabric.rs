//! The network outside the nodes: one or two segments, each a bridge that is the default gateway of its members.

use anyhow::Result;

use super::address::{Addresses, GATEWAY, Segment};
use super::leftovers::Namespaces;
use crate::netns::Netns;

/// The network namespace that contains the segments.
#[derive(Debug)]
pub(crate) struct Fabric {
    netns: Netns,
}

impl Fabric {
    /// Creates the namespace and its segments.
    pub(crate) fn new(
        namespaces: &Namespaces,
        segments: &[Segment],
        mtu_between: Option<u16>,
    ) -> Result<Self> {
        let netns = Netns::new(&namespaces.netns("fabric"))?;
        // The fabric routes between the segments: the answer to a packet may take another segment.
        netns.sysctl("net.ipv4.ip_forward", "1")?;
        netns.sysctl("net.ipv6.conf.all.forwarding", "1")?;
        for segment in segments {
            let (bridge, gateway) = (segment.bridge(), segment.host(GATEWAY)?);
            netns.ip(&format!(
                "link add {bridge} type bridge
                 address add {v4}/24 dev {bridge}
                 address add {v6}/64 dev {bridge} nodad
                 link set {bridge} up",
                v4 = gateway.v4,
                v6 = gateway.v6
            ))?;
            // Routed packets obey the MTU of the bridge, bridged packets that of its ports.
            if let Some(mtu) = mtu_between {
                netns.ip(&format!("link set {bridge} mtu {mtu}"))?;
            }
        }
        if mtu_between.is_some() {
            netns.report_every_error()?;
        }
        Ok(Self { netns })
    }

    /// Connects `member` to `segment` with these addresses; `label` is part of the name of the bridge port.
    pub(crate) fn connect(
        &self,
        member: &Netns,
        label: &str,
        segment: Segment,
        addresses: Addresses,
    ) -> Result<()> {
        let (device, bridge) = (segment.device(), segment.bridge());
        let port = format!("{device}-{label}");
        member.ip(&format!(
            "link add {device} type veth peer name {port} netns {fabric}
             address add {v4}/24 dev {device}
             address add {v6}/64 dev {device} nodad
             link set {device} up",
            fabric = self.netns.name(),
            v4 = addresses.v4,
            v6 = addresses.v6,
        ))?;
        self.netns.ip(&format!("link set {port} master {bridge} up"))?;
        Ok(())
    }

    /// Adds a default route to `member` by a segment that it is connected to.
    pub(crate) fn route_by(member: &Netns, segment: Segment) -> Result<()> {
        let gateway = segment.host(GATEWAY)?;
        member.ip(&format!(
            "route add default via {v4}
             route add default via {v6}",
            v4 = gateway.v4,
            v6 = gateway.v6
        ))
    }

    /// Returns the namespace of the fabric.
    pub(crate) const fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Keeps the segments when the value is dropped.
    pub(crate) const fn keep(&mut self) {
        self.netns.keep();
    }
}

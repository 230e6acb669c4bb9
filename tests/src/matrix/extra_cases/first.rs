//! Statements about the Services as they are first published.

use anyhow::Result;

use super::Expect::{By, Refused, Silence};
use super::frontends::{SECOND_VIPS, SHADOWED};
use super::{BOTH, Cases, Expect, HERE, THERE};
use crate::matrix::question::{Case, Destination, FIRST, PORT, Source, node_port};
use crate::matrix::setup::Setup;
use crate::topology::address::{self, Segment};
use crate::topology::{Addresses, Family};
use crate::traffic::Protocol;

/// The clients that use every Service: a pod, a process of the node, an external client.
pub(super) const ASKERS: [Source; 3] = [Source::Pod, Source::Host, Source::Outside];
/// The destinations that `externalTrafficPolicy` governs.
const OUTWARD: [Destination; 3] =
    [Destination::NodePort, Destination::ExternalIp, Destination::Vip];

/// Services that all clients use at all destinations, and the servers that answer.
const PLAIN: [(u8, Expect); 21] = [
    (100, HERE),
    (101, BOTH),
    (102, BOTH),
    (103, HERE),
    (105, BOTH),
    (111, BOTH),
    (112, BOTH),
    (113, BOTH),
    (114, THERE),
    (115, BOTH),
    (116, HERE),
    (117, Refused),
    (118, HERE),
    (123, By(&["pod-a2", "pod-b1"])),
    (129, BOTH),
    (132, BOTH),
    (142, BOTH),
    (143, BOTH),
    (144, BOTH),
    (145, BOTH),
    (146, BOTH),
];

pub(super) fn cases(setup: &Setup) -> Result<Vec<Case>> {
    let mut all = Cases::of(setup);
    for source in ASKERS {
        for destination in [Destination::ClusterIp].into_iter().chain(OUTWARD) {
            for (number, expect) in PLAIN {
                all.add(source, destination, number, expect)?;
            }
            for family in Family::ALL {
                all.one(family, Protocol::Tcp, source, destination, 124, HERE)?;
                all.one(family, Protocol::Udp, source, destination, 124, THERE)?;
            }
        }
        kinds(&mut all, source)?;
    }
    policies(&mut all)?;
    ranges(&mut all)?;
    Ok(all.cases)
}

fn kinds(all: &mut Cases<'_>, source: Source) -> Result<()> {
    for destination in [Destination::ClusterIp, Destination::ExternalIp, Destination::Vip] {
        all.add(source, destination, 120, BOTH)?;
        for protocol in Protocol::ALL {
            all.one(Family::V4, protocol, source, destination, 119, BOTH)?;
        }
    }
    for protocol in Protocol::ALL {
        all.one(Family::V4, protocol, source, Destination::NodePort, 119, BOTH)?;
        all.one(Family::V6, protocol, source, Destination::NodePort, 119, Refused)?;
    }
    all.add(source, Destination::ClusterIp, 133, BOTH)?;
    all.add(source, Destination::ClusterIp, 121, BOTH)?;
    let short = if source == Source::Outside { HERE } else { BOTH };
    all.add(source, Destination::ExternalIp, 121, short)?;
    all.add(source, Destination::ClusterIp, 130, Silence)?;
    all.add(source, Destination::NodePort, 130, Refused)?;
    let own = Segment::First.host(address::node(1))?;
    all.to("an external IP that is the node's own", source, own, 8_443, THERE);
    // External IPs take precedence over `NodePorts` (contract 3.2).
    let port = node_port(SHADOWED);
    all.to("an external IP and port that is a NodePort", source, own, port, THERE);
    all.add(source, Destination::ClusterIp, SHADOWED, HERE)?;
    for (_, second) in SECOND_VIPS.into_iter().take(1) {
        all.add(source, Destination::Vip, second, BOTH)?;
    }
    all.to(
        "a ClusterIP with a port that no Service has",
        source,
        address::cluster_ip(100)?,
        81,
        Refused,
    );
    all.to("a ClusterIP that no Service has", source, address::cluster_ip(250)?, PORT, Silence);
    Ok(())
}

fn policies(all: &mut Cases<'_>) -> Result<()> {
    // Contract 13: `NodePorts` on loopback are served only with the setting for them.
    let loopback = Addresses::parse("127.0.0.1", "::1")?;
    let there = if all.setup.has("localhostNodePorts: true") { BOTH } else { Refused };
    all.to("node-port on loopback", Source::Host, loopback, node_port(FIRST), there);
    for destination in OUTWARD {
        for (source, zones, nowhere, external) in [
            (Source::Outside, HERE, Silence, Silence),
            (Source::OtherNode, HERE, Silence, Silence),
            (Source::Pod, THERE, HERE, THERE),
            (Source::Host, THERE, HERE, THERE),
        ] {
            all.add(source, destination, 104, zones)?;
            all.add(source, destination, 110, nowhere)?;
            all.add(source, destination, 128, external)?;
            all.add(source, destination, 127, THERE)?;
        }
        all.add(Source::Outside, destination, 125, HERE)?;
        all.add(Source::Pod, destination, 125, BOTH)?;
    }
    for source in ASKERS {
        all.add(source, Destination::ClusterIp, 104, HERE)?;
        all.add(source, Destination::ClusterIp, 110, Silence)?;
        all.add(source, Destination::ClusterIp, 127, Silence)?;
        all.add(source, Destination::ClusterIp, 128, THERE)?;
        all.add(source, Destination::ClusterIp, 125, BOTH)?;
    }
    Ok(())
}

/// `loadBalancerSourceRanges` (contract 3.8).
fn ranges(all: &mut Cases<'_>) -> Result<()> {
    const NODES: [Source; 3] = [Source::Outside, Source::Host, Source::OtherNode];
    let vip = Destination::Vip;
    for source in Source::ALL {
        let of_client = if source == Source::Outside { BOTH } else { Silence };
        all.add(source, vip, 106, of_client)?;
        let [_, (two, second)] = SECOND_VIPS;
        all.add(source, vip, two, of_client)?;
        all.add(source, vip, second, of_client)?;
        all.add(source, vip, 108, if NODES.contains(&source) { BOTH } else { Silence })?;
        for number in [106, 108] {
            for other in [Destination::ClusterIp, Destination::NodePort, Destination::ExternalIp] {
                all.add(source, other, number, BOTH)?;
            }
        }
    }
    for source in ASKERS {
        let (v4, nobody) = if source == Source::Pod { (BOTH, Refused) } else { (Silence, Silence) };
        all.add(source, vip, 109, nobody)?;
        for protocol in Protocol::ALL {
            all.one(Family::V4, protocol, source, vip, 107, v4)?;
            all.one(Family::V6, protocol, source, vip, 107, BOTH)?;
        }
    }
    Ok(())
}

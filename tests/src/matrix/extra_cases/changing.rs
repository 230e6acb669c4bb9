//! Services that change while clients use them: their `NodePort`, port, type, source ranges and external addresses.

use anyhow::Result;
use serde_json::{Value, json};

use super::frontends::of_client;
use super::published::Objects;
use crate::matrix::objects::{PORTS, SlicePort, a2, b2};
use crate::matrix::question::{PORT, node_port};
use crate::rig::TARGET;

/// The numbers of these Services.
pub(super) const CHANGING: [u8; 5] = [142, 143, 144, 145, 146];
/// The port and the `NodePort` that some of them change to.
pub(super) const OTHER: (u16, u16) = (81, 30_005);

pub(super) fn objects(all: &mut Objects) -> Result<()> {
    let both = [a2(&json!({}))?, b2(&json!({}))?];
    CHANGING.into_iter().try_for_each(|number| all.add(number, &name(number), &json!({}), &both))
}

fn name(number: u8) -> String {
    format!("changing-{number}")
}

/// The changes: the name of the Service, and the fields to set.
pub(super) fn changes() -> [(String, Value); 5] {
    let ports = |port: u16, node_port: u16| {
        let port = |(name, protocol, _): SlicePort<'_>| {
            json!({
                "name": name, "protocol": protocol.name(), "port": port, "targetPort": TARGET,
                "nodePort": node_port,
            })
        };
        json!({"spec": {"ports": PORTS.map(port)}})
    };
    let (port, other) = OTHER;
    let [of_node_port, of_port, of_type, of_ranges, of_addresses] = CHANGING;
    [
        (of_node_port, ports(PORT, other)),
        (of_port, ports(port, node_port(of_port))),
        (of_type, json!({"spec": {"type": "ClusterIP"}})),
        (of_ranges, json!({"spec": {"loadBalancerSourceRanges": of_client()}})),
        (of_addresses, json!({"spec": {"externalIPs": null}})),
    ]
    .map(|(number, change)| (name(number), change))
}

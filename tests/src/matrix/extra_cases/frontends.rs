//! Services with two frontends of one kind, and Services that share a frontend: load balancers with two addresses, and
//! an external IP with a port that is the `NodePort` of another Service.

use anyhow::Result;
use serde_json::{Value, json};

use super::published::Objects;
use crate::matrix::objects::{PORTS, SlicePort, a2, b2};
use crate::matrix::question::{Destination, addresses, node_port};
use crate::topology::address::{self, Segment};

/// The Services whose load balancer has two addresses, and the number of the second address.
pub(super) const SECOND_VIPS: [(u8, u8); 2] = [(129, 229), (131, 231)];
/// The Service whose `NodePort` is the port of another Service's external IP.
pub(super) const SHADOWED: u8 = 135;

pub(super) fn objects(all: &mut Objects) -> Result<()> {
    let plain = json!({});
    let both = [a2(&plain)?, b2(&plain)?];
    for ((number, second), ranges) in SECOND_VIPS.into_iter().zip([json!(null), of_client()]) {
        let first = addresses(Destination::Vip, number)?.both();
        let all_of_it = first.into_iter().chain(addresses(Destination::Vip, second)?.both());
        let ingress: Vec<Value> = all_of_it.map(|ip| json!({"ip": ip})).collect();
        let more = json!({
            "spec": {"loadBalancerSourceRanges": ranges},
            "status": {"loadBalancer": {"ingress": ingress}},
        });
        all.add(number, &format!("vips-{number}"), &more, &both)?;
    }
    let own = Segment::First.host(address::node(1))?.both();
    let port = |(name, protocol, _): SlicePort<'_>| {
        let (number, own) = (node_port(SHADOWED), node_port(134));
        json!({"name": name, "protocol": protocol.name(), "port": number, "nodePort": own})
    };
    let shadow = json!({"spec": {"externalIPs": own, "ports": PORTS.map(port)}});
    all.add(134, "shadow", &shadow, &[b2(&plain)?])?;
    all.add(SHADOWED, "shadowed", &plain, &[a2(&plain)?])
}

/// `loadBalancerSourceRanges` that contain only the external client.
pub(super) fn of_client() -> Value {
    json!(["192.168.50.100/32", "fd00:50::100/128"])
}

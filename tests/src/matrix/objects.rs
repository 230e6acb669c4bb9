//! Services and slices with unusual fields: hints, source ranges, unexpected forms of slices.

use anyhow::Result;
use serde_json::{Value, json};

use super::question::{Destination, PORT, addresses, node_port};
use crate::control_plane::kube_proxy::merge;
use crate::rig::TARGET;
use crate::topology::{Addresses, Family, address};
use crate::traffic::Protocol;

/// A port of a slice: name, transport and number.
pub(super) type SlicePort<'a> = (&'a str, Protocol, u16);

/// The ports of the slices of a [`service`].
pub(super) const PORTS: [SlicePort<'static>; 2] =
    [("tcp", Protocol::Tcp, TARGET), ("udp", Protocol::Udp, TARGET)];

/// A dual-stack load balancer with every kind of address, merged with the fields of `more`.
pub(super) fn service(name: &str, number: u8, more: &Value) -> Result<Value> {
    let cluster = addresses(Destination::ClusterIp, number)?;
    let vips = addresses(Destination::Vip, number)?.both();
    let port = |(name, protocol, _): SlicePort<'_>| {
        json!({
            "name": name, "protocol": protocol.name(), "port": PORT, "targetPort": TARGET,
            "nodePort": node_port(number),
        })
    };
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "type": "LoadBalancer",
            "clusterIP": cluster.v4, "clusterIPs": cluster.both(),
            "ipFamilies": Family::ALL.map(Family::name), "ipFamilyPolicy": "RequireDualStack",
            "externalIPs": addresses(Destination::ExternalIp, number)?.both(),
            "ports": PORTS.map(port),
        },
        "status": {"loadBalancer": {"ingress": vips.map(|ip| json!({"ip": ip}))}},
    });
    merge(&mut service, more);
    Ok(service)
}

/// A ready endpoint, merged with the fields of `more`.
pub(super) fn endpoint(at: Addresses, node: &str, more: &Value) -> (Addresses, Value) {
    let mut endpoint = json!({"conditions": {"ready": true}, "nodeName": node});
    merge(&mut endpoint, more);
    (at, endpoint)
}

/// `pod-a2`, the endpoint on `node-a`.
pub(super) fn a2(more: &Value) -> Result<(Addresses, Value)> {
    Ok(endpoint(address::pod(1, 2)?, "node-a", more))
}

/// `pod-b2`, the endpoint on `node-b`.
pub(super) fn b2(more: &Value) -> Result<(Addresses, Value)> {
    Ok(endpoint(address::pod(2, 2)?, "node-b", more))
}

/// The slices of a service, one of each family.
pub(super) fn slices(
    name: &str,
    service: &str,
    ports: &[SlicePort<'_>],
    endpoints: &[(Addresses, Value)],
) -> Vec<Value> {
    let ports: Vec<Value> = ports
        .iter()
        .map(|(name, protocol, port)| {
            json!({"name": name, "protocol": protocol.name(), "port": port})
        })
        .collect();
    let slice = |family: Family| {
        let endpoint = |(at, more): &(Addresses, Value)| {
            let mut endpoint = json!({"addresses": [at.of(family)]});
            merge(&mut endpoint, more);
            endpoint
        };
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{name}-{}", family.name().to_lowercase()), "namespace": "default",
                "labels": {"kubernetes.io/service-name": service},
            },
            "addressType": family.name(),
            "ports": ports,
            "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(),
        })
    };
    Family::ALL.map(slice).into()
}

//! Objects in the form in which an API server stores them, with the fields that it fills in.

use std::net::Ipv4Addr;

use anyhow::{Result, bail};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::store::Store;
use super::{NAMESPACE, PORT, slice};
use crate::rig::TARGET;

/// The address of service 0; each further service has the next address. Lower addresses belong to the part of a large
/// range that is assigned only on request.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 96, 2, 0);
/// The first of the replacement addresses, for services whose own address is taken.
const SPARE: Ipv4Addr = Ipv4Addr::new(10, 96, 240, 0);
/// The number of replacement addresses; each service starts its search at another one.
const SPARES: u32 = 4_000;

/// Stores a Service without selector, its endpoints and the claim to its address; returns the address.
pub(super) async fn put(store: &Store, number: u32, backends: &[String]) -> Result<Ipv4Addr> {
    let usual = Ipv4Addr::from(u32::from(FIRST) + number);
    let spares = (number..number + 3).map(|at| Ipv4Addr::from(u32::from(SPARE) + at % SPARES));
    for address in std::iter::once(usual).chain(spares) {
        if store.put_new(&objects(number, address, backends)?).await? {
            return Ok(address);
        }
    }
    bail!("no address is free for service {number}")
}

/// The objects with their keys, the claim first: an API server also writes the claim together with the Service, so that
/// no other Service gets the address.
fn objects(number: u32, address: Ipv4Addr, backends: &[String]) -> Result<[(String, Value); 3]> {
    let name = format!("service-{number}");
    // The API server would remove a claim older than a minute whose Service it has not seen yet.
    let created = Timestamp::now().to_string();
    let metadata = |kind: u32| {
        json!({
            "name": name, "namespace": NAMESPACE, "uid": format!("{kind:08x}-0000-4000-8000-{number:012x}"),
            "creationTimestamp": created,
        })
    };
    let claim = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
        "metadata": {
            "name": address, "uid": format!("00000003-0000-4000-8000-{number:012x}"), "creationTimestamp": created,
            "generation": 1,
            "labels": {
                "ipaddress.kubernetes.io/ip-family": "IPv4",
                "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
            },
        },
        "spec": {"parentRef": {"group": "", "resource": "services", "namespace": NAMESPACE, "name": name}},
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata(1),
        "spec": {
            "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address],
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            "sessionAffinity": "None", "internalTrafficPolicy": "Cluster",
            "ports": [{"name": "http", "protocol": "TCP", "port": PORT, "targetPort": TARGET}],
        },
        "status": {"loadBalancer": {}},
    });
    let mut endpoints = serde_json::to_value(slice(&name, "http", "TCP", backends)?)?;
    if let (Value::Object(into), Value::Object(more)) = (&mut endpoints["metadata"], metadata(2)) {
        into.extend(more);
    }
    Ok([
        (format!("/registry/ipaddresses/{address}"), claim),
        (format!("/registry/services/specs/{NAMESPACE}/{name}"), service),
        (format!("/registry/endpointslices/{NAMESPACE}/{name}"), endpoints),
    ])
}

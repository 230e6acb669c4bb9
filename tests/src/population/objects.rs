//! Objects in the form in which an API server stores them, with the fields that it fills in.

use std::net::Ipv4Addr;

use anyhow::{Result, bail};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::store::Store;
use super::{NAMESPACE, PORT, slice};
use crate::rig::TARGET;

/// The address of service 0; the numbers after it have the addresses after it. Below it are those that a large range
/// gives only to a Service that names them.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 96, 2, 0);
/// Where addresses are that replace one which somebody has.
const SPARE: Ipv4Addr = Ipv4Addr::new(10, 96, 240, 0);
/// So many, each number beginning at another one.
const SPARES: u32 = 4_000;

/// Puts a Service without selector, its endpoints and its claim to an address; returns that.
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

/// With their keys, the claim first: an API server makes it with the Service, for nobody else to have the address.
fn objects(number: u32, address: Ipv4Addr, backends: &[String]) -> Result<[(String, Value); 3]> {
    let name = format!("service-{number}");
    // A claim that is older than a minute and whose Service is not heard of yet would be removed.
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
    let mut endpoints = serde_json::to_value(slice(&name, ("http", "TCP"), backends)?)?;
    if let (Value::Object(into), Value::Object(more)) = (&mut endpoints["metadata"], metadata(2)) {
        into.extend(more);
    }
    Ok([
        (format!("/registry/ipaddresses/{address}"), claim),
        (format!("/registry/services/specs/{NAMESPACE}/{name}"), service),
        (format!("/registry/endpointslices/{NAMESPACE}/{name}"), endpoints),
    ])
}

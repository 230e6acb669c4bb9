//! The Services and slices that exist from the start.

use anyhow::Result;
use serde_json::{Value, json};

use super::{OTHER_TARGET, changing, frontends};
use crate::control_plane::kube_proxy::merge;
use crate::matrix::objects::{PORTS, SlicePort, a2, b2, endpoint, service, slices};
use crate::matrix::question::{Destination, PORT, addresses, node_port};
use crate::rig::TARGET;
use crate::topology::address::{self, POD_RANGES, Segment};
use crate::topology::{Addresses, Family};
use crate::traffic::Protocol;

/// The label by which a Service selects another proxy.
pub(super) const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// The Service with `ClientIP` affinity.
pub const STICKY: u8 = 126;
/// The Service with `ClientIP` affinity of one second.
pub const BRIEFLY_STICKY: u8 = 139;
/// The Service whose load balancer address is also an address of the node (contract 3.8).
pub(in crate::matrix) const BOUND: u8 = 108;
/// SCTP Services with one endpoint each: the first on `node-a`, the second on `node-b`.
pub const SCTP: [u8; 2] = [137, 138];
/// The label of slices that belong to a headless Service.
pub(super) const HEADLESS: &str = "service.kubernetes.io/headless";
/// Health checks (contract 6.1): the port, and the number of local endpoints of IPv4 and of IPv6.
pub const HEALTH_CHECKS: [(u16, [u64; 2]); 3] =
    [(30_080, [1, 1]), (30_081, [0, 0]), (30_030, [1, 0])];

/// A list of objects under construction.
#[derive(Default)]
pub(super) struct Objects(pub(super) Vec<Value>);

impl Objects {
    pub(super) fn add(
        &mut self,
        number: u8,
        name: &str,
        more: &Value,
        endpoints: &[(Addresses, Value)],
    ) -> Result<()> {
        self.0.push(service(name, number, more)?);
        self.slices(name, name, &PORTS, endpoints);
        Ok(())
    }

    pub(super) fn slices(
        &mut self,
        name: &str,
        of: &str,
        ports: &[SlicePort<'_>],
        endpoints: &[(Addresses, Value)],
    ) {
        self.0.extend(slices(name, of, ports, endpoints));
    }
}

pub(super) fn objects() -> Result<Vec<Value>> {
    let mut all = Objects::default();
    frontends::objects(&mut all)?;
    changing::objects(&mut all)?;
    sctp(&mut all)?;
    hints(&mut all)?;
    ranges(&mut all)?;
    policies(&mut all)?;
    kinds(&mut all)?;
    strange_slices(&mut all)?;
    Ok(all.0)
}

fn draining(more: &Value) -> Value {
    let mut all = json!({"conditions": {"ready": false, "serving": true, "terminating": true}});
    merge(&mut all, more);
    all
}

fn hints(all: &mut Objects) -> Result<()> {
    let plain = json!({});
    let zone = |zone: &str| json!({"hints": {"forZones": [{"name": zone}]}});
    let node = |node: &str| json!({"hints": {"forNodes": [{"name": node}]}});
    let local = |port: u16| {
        json!({"spec": {
            "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local",
            "healthCheckNodePort": port,
        }})
    };
    let [(one, _), (none, _), (of_one_family, _)] = HEALTH_CHECKS;
    all.add(100, "zones", &plain, &[a2(&zone("zone-a"))?, b2(&zone("zone-b"))?])?;
    all.add(101, "zones-incomplete", &plain, &[a2(&zone("zone-a"))?, b2(&plain)?])?;
    all.add(102, "zones-elsewhere", &plain, &[a2(&zone("zone-c"))?, b2(&zone("zone-c"))?])?;
    all.add(103, "nodes", &plain, &[a2(&node("node-a"))?, b2(&node("node-b"))?])?;
    all.add(104, "zones-local", &local(one), &[a2(&zone("zone-b"))?, b2(&zone("zone-a"))?])?;
    let terminating = draining(&zone("zone-b"));
    all.add(105, "zones-draining", &plain, &[a2(&terminating)?, b2(&terminating)?])?;
    let nowhere = endpoint(address::pod(1, 2)?, "node-a", &json!({"nodeName": null}));
    all.add(110, "no-node", &local(none), &[nowhere])?;
    // The IPv4 endpoint is on this node, the IPv6 endpoint on the other.
    all.0.push(service("health", 136, &local(of_one_family))?);
    let [here, there] =
        [a2(&plain)?, b2(&plain)?].map(|it| slices("health", "health", &PORTS, &[it]));
    all.0.extend(here.into_iter().take(1).chain(there.into_iter().skip(1)));
    Ok(())
}

fn ranges(all: &mut Objects) -> Result<()> {
    let both = [a2(&json!({}))?, b2(&json!({}))?];
    let of = |ranges: &[&str]| json!({"spec": {"loadBalancerSourceRanges": ranges}});
    all.add(106, "ranges", &of(&[" 192.168.50.100/32", "fd00:50::100/128 "]), &both)?;
    all.add(107, "ranges-v4", &of(&[POD_RANGES[0]]), &both)?;
    all.add(BOUND, "ranges-node", &of(&["192.168.50.0/24", "fd00:50::/64"]), &both)?;
    all.add(109, "ranges-nobody", &of(&POD_RANGES), &[])
}

fn policies(all: &mut Objects) -> Result<()> {
    let plain = json!({});
    let remote = [b2(&plain)?];
    all.add(114, "policy", &plain, &remote)?;
    let internal = json!({"spec": {"internalTrafficPolicy": "Local"}});
    all.add(127, "internal-local", &internal, &remote)?;
    let external = json!({"spec": {"externalTrafficPolicy": "Local"}});
    all.add(128, "external-local", &external, &remote)?;
    let sticky = json!({"spec": {"sessionAffinity": "ClientIP"}});
    all.add(STICKY, "sticky", &sticky, &[a2(&plain)?, b2(&plain)?])?;
    let briefly = json!({"spec": {
        "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 1}},
    }});
    all.add(BRIEFLY_STICKY, "briefly-sticky", &briefly, &[a2(&plain)?, b2(&plain)?])
}

fn kinds(all: &mut Objects) -> Result<()> {
    let plain = json!({});
    let both = [a2(&plain)?, b2(&plain)?];
    for (number, name) in [(111, "labelled"), (112, "named"), (113, "deleted"), (115, "withdrawn")]
    {
        all.add(number, name, &plain, &both)?;
    }
    let label = json!({"metadata": {"labels": {PROXY_NAME: ""}}});
    all.add(130, "labelled-empty", &label, &both)?;
    // Slices that the next step labels as those of a headless Service, and a Service with an address that has this
    // label from the start.
    all.add(132, "relabelled", &plain, &[])?;
    all.slices("relabelled-here", "relabelled", &PORTS, &[a2(&plain)?]);
    all.slices("relabelled-there", "relabelled", &PORTS, &[b2(&plain)?]);
    let label = json!({"metadata": {"labels": {HEADLESS: ""}}});
    all.add(133, "labelled-headless", &label, &both)?;
    let single = json!({"spec": {
        "clusterIPs": [address::cluster_ip(119)?.v4], "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack",
        "externalIPs": [addresses(Destination::ExternalIp, 119)?.v4],
    }});
    all.add(119, "single", &single, &both)?;
    let ports = |number: u16, node_port: Option<u16>| {
        PORTS.map(|(name, protocol, _)| {
            json!({
                "name": name, "protocol": protocol.name(), "port": number, "nodePort": node_port,
            })
        })
    };
    let none =
        json!({"spec": {"allocateLoadBalancerNodePorts": false, "ports": ports(PORT, None)}});
    all.add(120, "no-node-ports", &none, &both)?;
    let external = json!({"status": null, "spec": {
        "type": "ClusterIP", "externalTrafficPolicy": "Local", "ports": ports(PORT, None),
    }});
    all.add(121, "external-only", &external, &both)?;
    let own = Segment::First.host(address::node(1))?.both();
    let of_node =
        json!({"spec": {"externalIPs": own, "ports": ports(8_443, Some(node_port(122)))}});
    all.add(122, "on-the-node", &of_node, &[b2(&plain)?])
}

fn strange_slices(all: &mut Objects) -> Result<()> {
    let plain = json!({});
    all.add(118, "no-conditions", &plain, &[a2(&json!({"conditions": null}))?])?;
    // Slices with FQDNs provide no endpoints (contract 1.5).
    all.0.push(json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "FQDN",
        "metadata": {
            "name": "no-conditions-fqdn", "namespace": "default",
            "labels": {"kubernetes.io/service-name": "no-conditions"},
        },
        "ports": PORTS.map(|(name, protocol, port)| {
            json!({"name": name, "protocol": protocol.name(), "port": port})
        }),
        "endpoints": [{"addresses": ["elsewhere.example"], "nodeName": "node-b"}],
    }));
    // Named ports: endpoints with different numbers, and names that no port has.
    all.add(123, "names", &plain, &[a2(&plain)?])?;
    let other = PORTS.map(|(name, protocol, _)| (name, protocol, OTHER_TARGET));
    let b1 = endpoint(address::pod(2, 1)?, "node-b", &plain);
    all.slices("names-other", "names", &other, &[b1]);
    let [(_, tcp, number), (_, udp, _)] = PORTS;
    let unknown = [("x-tcp", tcp, number), ("x-udp", udp, number)];
    all.slices("names-unknown", "names", &unknown, &[b2(&plain)?]);
    // One port number with two transports, which have different endpoints.
    all.add(124, "transports", &plain, &[])?;
    let [tcp, udp]: [SlicePort<'_>; 2] = PORTS;
    debug_assert_eq!(tcp.1, Protocol::Tcp);
    all.slices("transports-tcp", "transports", &[tcp], &[a2(&plain)?]);
    all.slices("transports-udp", "transports", &[udp], &[b2(&plain)?]);
    // One endpoint in two slices: the one that is not terminating counts.
    let local = json!({"spec": {"externalTrafficPolicy": "Local"}});
    all.add(125, "twice", &local, &[a2(&draining(&plain))?])?;
    all.slices("twice-again", "twice", &PORTS, &[a2(&plain)?, b2(&plain)?]);
    // A slice that the next step moves to another Service.
    all.add(116, "moved-from", &plain, &[])?;
    all.add(117, "moved-to", &plain, &[])?;
    all.slices("moves", "moved-from", &PORTS, &[a2(&plain)?]);
    Ok(())
}

/// Adds Services with an SCTP port only; slices of other Services have no such port.
fn sctp(all: &mut Objects) -> Result<()> {
    let plain = json!({});
    for (number, (at, _)) in SCTP.into_iter().zip([a2(&plain)?, b2(&plain)?]) {
        let name = format!("sctp-{number}");
        let ports = json!([{
            "name": "sctp", "protocol": "SCTP", "port": PORT, "nodePort": node_port(number),
        }]);
        let more = json!({"metadata": {"name": name}, "spec": {"ports": ports}});
        all.0.push(service(&name, number, &more)?);
        for family in Family::ALL {
            let node = if number == SCTP[0] { "node-a" } else { "node-b" };
            all.0.push(json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {
                    "name": format!("{name}-{}", family.name().to_lowercase()),
                    "namespace": "default", "labels": {"kubernetes.io/service-name": name},
                },
                "addressType": family.name(),
                "ports": [{"name": "sctp", "protocol": "SCTP", "port": TARGET}],
                "endpoints": [{"addresses": [at.of(family)], "nodeName": node}],
            }));
        }
    }
    Ok(())
}

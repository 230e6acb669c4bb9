//! An `EndpointSlice` reduced to the fields in use (contract 1.5).

use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use lb_common::addr::Protocol;

use super::address::{address, link_local, special};
use super::finding::{Finding, Findings, quoted};
use super::names::{Hints, Interner};
use super::object::{Endpoint, EndpointHints, EndpointPort, EndpointSlice};
use super::service::{port_number, protocol};
use crate::plan::Family;

/// The namespace and name of an `EndpointSlice`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceName {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
}

/// The fields of an `EndpointSlice` in use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SliceSpec {
    pub name: SliceName,
    /// The Service it belongs to, in the same namespace. `None` if the label is missing or empty, or if the slice is
    /// labelled as one of a headless Service.
    pub service: Option<Arc<str>>,
    /// `addressType`. `None` (and no endpoints) for all types other than IPv4 and IPv6.
    pub family: Option<Family>,
    /// Ports with a name, a number and a known protocol.
    pub ports: Box<[SlicePort]>,
    /// Endpoints with a valid address of the family.
    pub endpoints: Box<[EndpointSpec]>,
    /// The time of the change that led to this state, if the slice has it.
    pub triggered: Option<Timestamp>,
    /// Fields that were left out because they are invalid; `status` and an Event name them.
    pub problems: Box<[Finding]>,
}

/// The port at which every endpoint of a slice serves one port of the Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SlicePort {
    /// The name; empty if unnamed.
    pub name: Arc<str>,
    pub protocol: Protocol,
    /// The port number at the endpoint, in host byte order.
    pub port: u16,
}

/// One endpoint of a slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndpointSpec {
    /// `addresses[0]`.
    pub ip: IpAddr,
    /// `conditions.ready`, default true.
    pub ready: bool,
    /// `conditions.serving`, default true.
    pub serving: bool,
    /// `conditions.terminating`, default false.
    pub terminating: bool,
    pub node: Option<Arc<str>>,
    /// `hints`, if there are any.
    pub hints: Option<Arc<Hints>>,
}

impl SliceSpec {
    /// Reduces an `EndpointSlice` to the fields in use. `None` if it has no name.
    pub(crate) fn of(object: &EndpointSlice, interner: &mut Interner) -> Option<Self> {
        let meta = &object.metadata;
        let name = Some(&*meta.name).filter(|name| !name.is_empty())?;
        let namespace = &*meta.namespace;
        let owner = meta.labels.service_name.as_ref().filter(|_| meta.labels.headless.is_none());
        let stamp = meta.annotations.trigger_time.as_ref();
        let mut findings = Findings::of("EndpointSlice", namespace, name);
        let family = match object.address_type.as_str() {
            "IPv4" => Some(Family::V4),
            "IPv6" => Some(Family::V6),
            // `FQDN` is a valid type as well, but names are no addresses (contract 1.5).
            _ => None,
        };
        let listed = object.endpoints.iter().enumerate();
        let endpoints = family.map(|family| {
            listed.filter_map(|(at, e)| endpoint(e, at, family, interner, &mut findings)).collect()
        });
        Some(Self {
            endpoints: endpoints.unwrap_or_default(),
            name: SliceName { namespace: interner.text(namespace), name: Arc::from(name) },
            service: owner.filter(|owner| !owner.is_empty()).map(|owner| interner.text(owner)),
            family,
            ports: ports(&object.ports, interner, &mut findings),
            triggered: stamp.and_then(|stamp| stamp.parse().ok()),
            problems: findings.into_list().into(),
        })
    }
}

fn ports(
    listed: &[EndpointPort],
    interner: &mut Interner,
    findings: &mut Findings,
) -> Box<[SlicePort]> {
    let mut ports = Vec::with_capacity(listed.len());
    for (at, port) in listed.iter().enumerate() {
        // A missing number means "all ports", which no service proxy supports. A port without a name matches no
        // Service.
        let (Some(name), Some(number @ (..=-1 | 1..))) = (&port.name, port.port) else {
            continue;
        };
        let field = format_args!("ports[{at}]");
        let Some(number) = port_number(number, format_args!("{field}.port"), findings) else {
            continue;
        };
        let spelled = port.protocol.as_deref();
        if let Some(protocol) = protocol(spelled, format_args!("{field}.protocol"), findings) {
            ports.push(SlicePort { name: interner.text(name), protocol, port: number });
        }
    }
    ports.into()
}

fn endpoint(
    listed: &Endpoint,
    at: usize,
    family: Family,
    interner: &mut Interner,
    findings: &mut Findings,
) -> Option<EndpointSpec> {
    // Only the first address counts, as for kube-proxy (contract 1.5).
    let text = listed.addresses.first()?;
    let ip = address(text);
    let problem = match ip {
        None => Some("is not an address"),
        Some(ip) if Family::of(ip) != family => Some("is not of the slice's addressType"),
        Some(ip) if link_local(ip) => Some("is a link-local address"),
        Some(ip) => special(ip),
    };
    if let Some(problem) = problem {
        findings.wrong(
            format_args!("endpoints[{at}].addresses[0]"),
            format_args!("{} {problem}; the endpoint is left out", quoted(text)),
            "write the address of a pod or a host",
        );
        return None;
    }
    let conditions = &listed.conditions;
    Some(EndpointSpec {
        ip: ip?,
        // The defaults of the API for conditions that are unset.
        ready: conditions.ready.unwrap_or(true),
        serving: conditions.serving.unwrap_or(true),
        terminating: conditions.terminating.unwrap_or(false),
        node: listed.node_name.as_deref().filter(|n| !n.is_empty()).map(|n| interner.text(n)),
        hints: hints(&listed.hints, interner),
    })
}

fn hints(listed: &EndpointHints, interner: &mut Interner) -> Option<Arc<Hints>> {
    let (zones, nodes) = (&listed.for_zones, &listed.for_nodes);
    if zones.is_empty() && nodes.is_empty() {
        return None;
    }
    let zones = zones.iter().map(|zone| interner.text(&zone.name)).collect();
    let nodes = nodes.iter().map(|node| interner.text(&node.name)).collect();
    Some(interner.hints(Hints { zones, nodes }))
}

#[cfg(test)]
mod tests;

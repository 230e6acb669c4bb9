//! The usable ports of a Service; each key and each number occurs once.

use std::collections::BTreeSet;
use std::fmt;

use lb_common::addr::Protocol;

use super::{PortSpec, ServiceKind};
use crate::snapshot::finding::{Findings, quoted};
use crate::snapshot::object::{ServiceBody as Spec, ServicePort};

/// Reads a port number.
pub(crate) fn port_number(
    number: i32,
    field: impl fmt::Display,
    findings: &mut Findings,
) -> Option<u16> {
    let valid = u16::try_from(number).ok().filter(|number| *number != 0);
    if valid.is_none() {
        findings.wrong(field, format_args!("{number} is not a port"), "write 1 to 65535");
    }
    valid
}

/// Reads a protocol. A missing one is TCP.
pub(crate) fn protocol(
    text: Option<&str>,
    field: impl fmt::Display,
    findings: &mut Findings,
) -> Option<Protocol> {
    match text {
        None | Some("" | "TCP") => Some(Protocol::TCP),
        Some("UDP") => Some(Protocol::UDP),
        Some("SCTP") => Some(Protocol::SCTP),
        Some(other) => {
            findings.wrong(
                field,
                format_args!("{} is not a protocol; the port is left out", quoted(other)),
                "write TCP, UDP or SCTP",
            );
            None
        }
    }
}

/// Returns the usable ports of a Service.
pub(super) fn ports(spec: &Spec, kind: ServiceKind, findings: &mut Findings) -> Box<[PortSpec]> {
    let listed = &spec.ports;
    let mut taken = Taken::default();
    let usable = |(at, port)| one(port, at, kind, &mut taken, findings);
    listed.iter().enumerate().filter_map(usable).collect()
}

/// The names and numbers of the ports so far. Sets, because a Service may have thousands of ports.
#[derive(Debug, Default)]
struct Taken<'a> {
    names: BTreeSet<(Protocol, &'a str)>,
    numbers: BTreeSet<(Protocol, u16)>,
    node_ports: BTreeSet<(Protocol, u16)>,
}

fn one<'a>(
    listed: &'a ServicePort,
    at: usize,
    kind: ServiceKind,
    taken: &mut Taken<'a>,
    findings: &mut Findings,
) -> Option<PortSpec> {
    let field = format_args!("spec.ports[{at}]");
    let port = port_number(listed.port, format_args!("{field}.port"), findings)?;
    let spelled = listed.protocol.as_deref();
    let protocol = protocol(spelled, format_args!("{field}.protocol"), findings)?;
    let name = listed.name.as_deref().unwrap_or_default();
    // Name and protocol identify a service port (contract 1.3): the endpoints of two with the same could not be told
    // apart.
    if taken.names.contains(&(protocol, name)) {
        findings.wrong(
            format_args!("{field}.name"),
            format_args!("{} is taken by an earlier port; this one is left out", quoted(name)),
            "give each port its own name",
        );
        return None;
    }
    if !taken.numbers.insert((protocol, port)) {
        findings.wrong(
            format_args!("{field}.port"),
            format_args!("{port} is taken by an earlier port; this one is left out"),
            "give each port of one protocol its own number",
        );
        return None;
    }
    // A port that is left out because of its number does not take its name from a later one.
    taken.names.insert((protocol, name));
    let number = listed.node_port.filter(|number| *number != 0);
    let mut node_port = number
        .and_then(|number| port_number(number, format_args!("{field}.nodePort"), findings))
        .unwrap_or(0);
    if node_port != 0 && !taken.node_ports.insert((protocol, node_port)) {
        findings.wrong(
            format_args!("{field}.nodePort"),
            format_args!("{node_port} is taken by an earlier port; this one has none"),
            "give each port of one protocol its own node port",
        );
        node_port = 0;
    }
    // The API server allocates one, so only a manifest lacks it. A LoadBalancer may do without
    // (`allocateLoadBalancerNodePorts`).
    if number.is_none() && kind == ServiceKind::NodePort {
        findings.wrong(
            format_args!("{field}.nodePort"),
            "is missing; the port is served on its other addresses only",
            "write the node port out",
        );
    }
    Some(PortSpec { name: name.into(), protocol, port, node_port })
}

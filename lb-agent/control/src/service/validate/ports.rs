//! Validation of the ports of a Service.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::check;
use crate::field::Cause;
use crate::service::model::{Port, Service, Target};

/// Checks that a Service has ports, unless it is headless or an `ExternalName`.
pub(super) fn presence(new: &Service) -> Option<Cause> {
    let is_needed = !new.is_headless() && !new.is_external_name();
    (new.spec.ports.is_empty() && is_needed).then(|| Cause::required("spec.ports", ""))
}

/// Checks each port, and that names are set and differ if there are several.
pub(super) fn each(new: &Service) -> Vec<Cause> {
    let ports = &new.spec.ports;
    let mut causes = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let field = format!("spec.ports[{index}]");
        let is_again = !seen.insert(port.name.as_str());
        causes.extend(name(port, &field, ports.len() > 1, is_again));
        causes.extend(numbers(port, &field));
    }
    causes
}

fn name(port: &Port, field: &str, is_required: bool, is_again: bool) -> Vec<Cause> {
    let field = format!("{field}.name");
    if port.name.is_empty() {
        return is_required.then(|| Cause::required(field, "")).into_iter().collect();
    }
    let faults = check::dns_label(&port.name).into_iter();
    let faults = faults.map(|it| Cause::invalid(field.as_str(), port.name.as_str(), &it));
    let again = is_again.then(|| Cause::duplicate(field.as_str(), port.name.as_str()));
    faults.chain(again).collect()
}

fn numbers(port: &Port, field: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    let invalid = |name: &str, value: Value, faults: check::Faults| -> Vec<Cause> {
        let field = format!("{field}.{name}");
        let faults = faults.into_iter();
        faults.map(|it| Cause::invalid(field.as_str(), value.clone(), &it)).collect()
    };
    causes.extend(invalid("port", port.port.into(), check::port_number(port.port.into())));
    let protocols = ["SCTP", "TCP", "UDP"];
    if !protocols.contains(&port.protocol.as_str()) {
        let (field, value) = (format!("{field}.protocol"), port.protocol.as_str());
        causes.push(Cause::not_supported(field, value, &protocols));
    }
    causes.extend(match &port.target_port {
        Target::Number(it) => invalid("targetPort", (*it).into(), check::port_number((*it).into())),
        Target::Name(it) => invalid("targetPort", it.as_str().into(), check::port_name(it)),
    });
    if let Some(name) = &port.app_protocol {
        causes.extend(invalid("appProtocol", name.as_str().into(), check::label_key(name)));
    }
    causes
}

/// Checks node ports: none for type `ClusterIP`, and each only once for a protocol.
pub(super) fn node_ports(new: &Service) -> Vec<Cause> {
    let ports = &new.spec.ports;
    let mut causes = Vec::new();
    let field = |index: usize| format!("spec.ports[{index}].nodePort");
    for (index, _) in ports.iter().enumerate().filter(|it| it.1.node_port != 0) {
        if new.spec.kind == "ClusterIP" {
            let detail = "may not be used when `type` is 'ClusterIP'";
            causes.push(Cause::forbidden(field(index), detail));
        }
    }
    let mut seen = BTreeSet::new();
    for (index, port) in ports.iter().enumerate().filter(|it| it.1.node_port != 0) {
        if !seen.insert((port.node_port, port.protocol.as_str())) {
            causes.push(Cause::duplicate(field(index), port.node_port));
        }
    }
    causes
}

/// Checks that no two ports have the same number and protocol.
pub(super) fn twice(new: &Service) -> Vec<Cause> {
    let ports = &new.spec.ports;
    let mut causes = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        if !seen.insert((port.port, port.protocol.as_str())) {
            // Upstream prints a port struct with these two fields, under their Go names.
            let value = format!(
                r#"{{"Name":"","Protocol":{:?},"AppProtocol":null,"Port":{},"TargetPort":0,"NodePort":0}}"#,
                port.protocol, port.port
            );
            causes.push(Cause::duplicate_text(format!("spec.ports[{index}]"), &value));
        }
    }
    causes
}

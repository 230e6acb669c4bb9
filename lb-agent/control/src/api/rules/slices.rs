//! Rules for `EndpointSlice`s, written by clients or by controllers. Limits as in upstream's
//! `pkg/apis/discovery/validation`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::check;
use crate::field::Cause;
use crate::meta::NameRule;

/// Largest number of endpoints in one slice.
const ENDPOINTS: usize = 1_000;
/// Largest number of addresses of one endpoint.
const ADDRESSES: usize = 100;
/// Largest number of ports in one slice.
const PORTS: usize = 20_000;
/// Largest number of zone hints of one endpoint.
const HINTS: usize = 8;

/// Fills in the defaults of ports: an empty name and protocol TCP.
pub(crate) fn defaults(value: &mut Value) {
    let ports = value.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
        port.entry("name").or_insert_with(|| "".into());
        port.entry("protocol").or_insert_with(|| "TCP".into());
    }
}

/// Validates a slice; `old` is the stored one. The address type is immutable, because consumers keep one set for each
/// type.
pub(crate) fn validate(value: &Value, old: Option<&Value>) -> Vec<Cause> {
    let kinds = ["FQDN", "IPv4", "IPv6"];
    let kind = value.get("addressType").and_then(Value::as_str).unwrap_or_default();
    let mut causes = Vec::new();
    if kind.is_empty() {
        causes.push(Cause::required("addressType", ""));
    } else if !kinds.contains(&kind) {
        causes.push(Cause::not_supported("addressType", kind, &kinds));
    }
    let before = old.and_then(|it| it.get("addressType")).and_then(Value::as_str);
    if before.is_some_and(|it| it != kind) {
        causes.push(Cause::invalid("addressType", kind, "field is immutable"));
    }
    causes.extend(endpoints(list(value, "endpoints"), kind));
    causes.extend(ports(list(value, "ports")));
    causes
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn endpoints(all: &[Value], kind: &str) -> Vec<Cause> {
    if all.len() > ENDPOINTS {
        return vec![Cause::too_many("endpoints", all.len(), ENDPOINTS)];
    }
    all.iter()
        .enumerate()
        .flat_map(|(index, it)| endpoint(it, &format!("endpoints[{index}]"), kind))
        .collect()
}

fn endpoint(value: &Value, field: &str, kind: &str) -> Vec<Cause> {
    let (all, field_of) = (list(value, "addresses"), format!("{field}.addresses"));
    let mut causes = Vec::new();
    if all.is_empty() {
        causes.push(Cause::required(field_of.as_str(), "must contain at least 1 address"));
    } else if all.len() > ADDRESSES {
        causes.push(Cause::too_many(field_of.as_str(), all.len(), ADDRESSES));
    }
    for (index, address) in all.iter().enumerate() {
        let text = address.as_str().unwrap_or_default();
        causes.extend(one_address(text, &format!("{field_of}[{index}]"), kind));
    }
    let hints = value.get("hints").map_or(&[][..], |it| list(it, "forZones"));
    if hints.len() > HINTS {
        let detail = format!("{field}.hints.forZones");
        causes.push(Cause::too_many(detail, hints.len(), HINTS));
    }
    let rules: [(&str, NameRule); 2] =
        [("nodeName", check::dns_subdomain), ("hostname", check::dns_label)];
    for (name, rule) in rules {
        if let Some(text) = value.get(name).and_then(Value::as_str) {
            let faults: check::Faults = rule(text);
            let field = format!("{field}.{name}");
            causes.extend(faults.iter().map(|it| Cause::invalid(field.as_str(), text, it)));
        }
    }
    causes
}

fn one_address(text: &str, field: &str, kind: &str) -> Vec<Cause> {
    let is_of = |wanted: bool| check::sloppy(text).is_some_and(|it| it.is_ipv4() == wanted);
    match kind {
        "IPv4" if !is_of(true) => vec![Cause::invalid(field, text, "must be an IPv4 address")],
        "IPv6" if !is_of(false) => vec![Cause::invalid(field, text, "must be an IPv6 address")],
        "IPv4" | "IPv6" => {
            // One message per address: its form is judged first, then its meaning.
            let faults = check::legacy_ip(field, text, &[]);
            if faults.is_empty() { check::endpoint_address(text, field) } else { faults }
        }
        "FQDN" => {
            let faults = check::dns_subdomain(text);
            faults.iter().map(|it| Cause::invalid(field, text, it)).collect()
        }
        _ => Vec::new(),
    }
}

fn ports(all: &[Value]) -> Vec<Cause> {
    if all.len() > PORTS {
        return vec![Cause::too_many("ports", all.len(), PORTS)];
    }
    let mut causes = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, port) in all.iter().enumerate() {
        let field = format!("ports[{index}]");
        let own = port.get("name").and_then(Value::as_str).unwrap_or_default();
        if !own.is_empty() {
            let faults = check::dns_label(own);
            let field = format!("{field}.name");
            causes.extend(faults.iter().map(|it| Cause::invalid(field.as_str(), own, it)));
        }
        if !seen.insert(own) {
            causes.push(Cause::duplicate(format!("{field}.name"), own));
        }
        let protocols = ["SCTP", "TCP", "UDP"];
        let protocol = port.get("protocol").and_then(Value::as_str).unwrap_or_default();
        if !protocols.contains(&protocol) {
            causes.push(Cause::not_supported(
                format!("{field}.protocol"),
                json!(protocol),
                &protocols,
            ));
        }
        if let Some(number) = port.get("port").and_then(Value::as_i64) {
            let faults = check::port_number(number);
            let field = format!("{field}.port");
            causes.extend(faults.iter().map(|it| Cause::invalid(field.as_str(), number, it)));
        }
    }
    causes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::sentence;

    #[test]
    fn statement_13_ports_have_a_name_and_a_protocol() {
        let mut slice = json!({"ports": [{"port": 80}]});
        defaults(&mut slice);
        assert_eq!(slice["ports"][0], json!({"port": 80, "name": "", "protocol": "TCP"}));
    }

    #[test]
    fn the_most_ports_are_compared() {
        let port =
            |index: usize| json!({"name": format!("p{}", index % 19_999), "protocol": "TCP"});
        let ports: Vec<Value> = (0..PORTS).map(port).collect();
        let text = sentence(&validate(&json!({"addressType": "IPv4", "ports": ports}), None));
        assert_eq!(text, "ports[19999].name: Duplicate value: \"p0\"");
        let same = json!({"name": "_", "protocol": "TCP"});
        let causes = validate(&json!({"addressType": "IPv4", "ports": vec![same; PORTS]}), None);
        assert_eq!(causes.len(), 2 * PORTS - 1);
        assert!(sentence(&causes).ends_with("ports[19999].name: Duplicate value: \"_\"]"));
    }

    #[test]
    fn statement_40_slices() {
        let of = |value: Value| sentence(&validate(&value, None));
        let endpoint =
            |address: &str| json!({"addressType": "IPv4", "endpoints": [{"addresses": [address]}]});
        assert_eq!(validate(&endpoint("10.0.0.1"), None), []);
        assert_eq!(of(json!({})), "addressType: Required value");
        assert!(of(endpoint("fd00::1")).contains("must be an IPv4 address"));
        assert!(of(endpoint("127.0.0.1")).contains("loopback"));
        let many: Vec<Value> = (0..1_001).map(|_| json!({"addresses": ["10.0.0.1"]})).collect();
        assert_eq!(
            of(json!({"addressType": "IPv4", "endpoints": many})),
            "endpoints: Too many: 1001: must have at most 1000 items"
        );
        let old = json!({"addressType": "IPv6"});
        let changed = validate(&json!({"addressType": "IPv4"}), Some(&old));
        assert_eq!(sentence(&changed), "addressType: Invalid value: \"IPv4\": field is immutable");
    }
}

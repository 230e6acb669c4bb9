//! Columns and cells of each kind, as `kubectl get` prints them.

use serde_json::{Value, json};

use super::age;
use crate::kind::Kind;

/// A column of a table.
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    /// 0: always shown; larger: only with `-o wide`.
    pub(super) priority: i32,
}

const fn text(name: &'static str) -> Column {
    Column { name, kind: "string", priority: 0 }
}

const fn wide(name: &'static str) -> Column {
    Column { name, kind: "string", priority: 1 }
}

const SERVICES: [Column; 7] = [
    text("Name"),
    text("Type"),
    text("Cluster-IP"),
    text("External-IP"),
    text("Port(s)"),
    text("Age"),
    wide("Selector"),
];
const SLICES: [Column; 5] =
    [text("Name"), text("AddressType"), text("Ports"), text("Endpoints"), text("Age")];
const PODS: [Column; 7] = [
    text("Name"),
    text("Ready"),
    text("Status"),
    text("Restarts"),
    text("Age"),
    wide("IP"),
    wide("Node"),
];
const NODES: [Column; 5] =
    [text("Name"), text("Status"), text("Roles"), text("Age"), text("Version")];
const NAMESPACES: [Column; 3] = [text("Name"), text("Status"), text("Age")];
const EVENTS: [Column; 5] =
    [text("Last Seen"), text("Type"), text("Reason"), text("Object"), text("Message")];
const LEASES: [Column; 3] = [text("Name"), text("Holder"), text("Age")];
const ADDRESSES: [Column; 3] = [text("Name"), text("ParentRef"), text("Age")];
const CIDRS: [Column; 3] = [text("Name"), text("CIDRs"), text("Age")];

/// Returns the columns of a kind.
pub(super) const fn columns(kind: &Kind) -> &'static [Column] {
    match kind.resource.as_bytes() {
        b"services" => &SERVICES,
        b"endpointslices" => &SLICES,
        b"pods" => &PODS,
        b"nodes" => &NODES,
        b"events" => &EVENTS,
        b"leases" => &LEASES,
        b"ipaddresses" => &ADDRESSES,
        b"servicecidrs" => &CIDRS,
        _ => &NAMESPACES,
    }
}

/// Returns the cells of one object, one for each column.
pub(super) fn cells(kind: &Kind, value: &Value) -> Vec<Value> {
    let of = |path: &str| value.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let name = of("/metadata/name");
    let age = age::since(value.pointer("/metadata/creationTimestamp").and_then(Value::as_str));
    let cells: Vec<String> = match kind.resource {
        "services" => return service(value, name, &age),
        "endpointslices" => {
            let ports = of_list(value, "/ports").map(|it| match it.get("port") {
                Some(port) => port.to_string(),
                None => it.get("name").and_then(Value::as_str).unwrap_or("*").to_owned(),
            });
            let addresses = of_list(value, "/endpoints").flat_map(|it| of_list(it, "/addresses"));
            let addresses = addresses.map(|it| it.as_str().unwrap_or_default().to_owned());
            vec![name.into(), of("/addressType").into(), few(ports), few(addresses), age]
        }
        "pods" => return pod(value, name, &age),
        "nodes" => {
            let is_ready = condition(value, "Ready") == Some("True");
            let version = of("/status/nodeInfo/kubeletVersion");
            let status = if is_ready { "Ready" } else { "NotReady" };
            vec![name.into(), status.into(), "<none>".into(), age, version.into()]
        }
        "events" => {
            let regarding = ["involvedObject", "regarding"].map(|it| value.get(it));
            let regarding = regarding.into_iter().flatten().next().cloned().unwrap_or_default();
            let part = |name: &str| regarding.get(name).and_then(Value::as_str).unwrap_or_default();
            let object = format!("{}/{}", part("kind").to_lowercase(), part("name"));
            // Events of the two APIs have different fields for the time and the object.
            let seen = ["/lastTimestamp", "/deprecatedLastTimestamp", "/eventTime"];
            let seen = seen.into_iter().find_map(|it| value.pointer(it).and_then(Value::as_str));
            let message = if of("/message").is_empty() { of("/note") } else { of("/message") };
            vec![age::since(seen), of("/type").into(), of("/reason").into(), object, message.into()]
        }
        "leases" => vec![name.into(), of("/spec/holderIdentity").into(), age],
        "ipaddresses" => {
            let part = |name: &str| of(&format!("/spec/parentRef/{name}")).to_owned();
            let parent = [part("resource"), part("namespace"), part("name")].join("/");
            vec![name.into(), parent, age]
        }
        "servicecidrs" => {
            let all = of_list(value, "/spec/cidrs").filter_map(Value::as_str);
            vec![name.into(), all.collect::<Vec<_>>().join(","), age]
        }
        _ => vec![name.into(), of("/status/phase").into(), age],
    };
    cells.into_iter().map(Value::from).collect()
}

fn of_list<'a>(value: &'a Value, path: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    value.pointer(path).and_then(Value::as_array).into_iter().flatten()
}

/// Joins the first three items and adds how many more there are.
fn few(all: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = all.collect();
    let shown = all.get(..3).unwrap_or(&all).join(",");
    match all.len() {
        0 => "<unset>".into(),
        1..4 => shown,
        many => format!("{shown} + {} more...", many - 3),
    }
}

fn condition<'a>(value: &'a Value, kind: &str) -> Option<&'a str> {
    let mut all = of_list(value, "/status/conditions");
    let found = all.find(|it| it.get("type").and_then(Value::as_str) == Some(kind));
    found?.get("status")?.as_str()
}

fn service(value: &Value, name: &str, age: &str) -> Vec<Value> {
    let of = |path: &str| value.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let kind = of("/spec/type");
    let cluster = value.pointer("/spec/clusterIPs/0").and_then(Value::as_str).unwrap_or("<none>");
    let own = of_list(value, "/spec/externalIPs").filter_map(Value::as_str);
    let own: Vec<String> = own.map(str::to_owned).collect();
    let given = of_list(value, "/status/loadBalancer/ingress").filter_map(|it| {
        let part = |name: &str| it.get(name).and_then(Value::as_str).filter(|it| !it.is_empty());
        part("ip").or_else(|| part("hostname")).map(str::to_owned)
    });
    let mut given: Vec<String> = given.collect();
    // As kubectl prints them: load balancer addresses sorted, without duplicates, before the external IPs.
    given.sort();
    given.dedup();
    let external = match kind {
        "ExternalName" => of("/spec/externalName").to_owned(),
        "LoadBalancer" if own.is_empty() && given.is_empty() => "<pending>".into(),
        "LoadBalancer" => [given, own].concat().join(","),
        _ if own.is_empty() => "<none>".into(),
        _ => own.join(","),
    };
    let ports = of_list(value, "/spec/ports").map(|it| {
        let number = |name: &str| it.get(name).and_then(Value::as_i64).unwrap_or(0);
        let protocol = it.get("protocol").and_then(Value::as_str).unwrap_or_default();
        match number("nodePort") {
            0 => format!("{}/{protocol}", number("port")),
            node_port => format!("{}:{node_port}/{protocol}", number("port")),
        }
    });
    let none = |text: String| if text.is_empty() { "<none>".to_owned() } else { text };
    let ports = none(ports.collect::<Vec<_>>().join(","));
    let selector = value.pointer("/spec/selector").and_then(Value::as_object);
    let selector = selector.into_iter().flatten();
    let selector = selector.map(|(key, it)| format!("{key}={}", it.as_str().unwrap_or_default()));
    let selector = none(selector.collect::<Vec<_>>().join(","));
    vec![
        json!(name),
        json!(kind),
        json!(cluster),
        json!(external),
        json!(ports),
        json!(age),
        json!(selector),
    ]
}

fn pod(value: &Value, name: &str, age: &str) -> Vec<Value> {
    let of = |path: &str| value.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let all = of_list(value, "/spec/containers").count();
    // The condition of the Pod decides: either all containers count as ready, or none.
    let ready = if condition(value, "Ready") == Some("True") { all } else { 0 };
    let is_ending = value.pointer("/metadata/deletionTimestamp").is_some();
    let status = if is_ending { "Terminating" } else { of("/status/phase") };
    let none = |text: &str| if text.is_empty() { "<none>".to_owned() } else { text.to_owned() };
    let (address, node) = (none(of("/status/podIP")), none(of("/spec/nodeName")));
    let ready = format!("{ready}/{all}");
    vec![
        json!(name),
        json!(ready),
        json!(status),
        json!("0"),
        json!(age),
        json!(address),
        json!(node),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(spec: &Value, status: &Value) -> Vec<String> {
        let kind = Kind::find("", "services").unwrap();
        let value = json!({"metadata": {"name": "x"}, "spec": spec, "status": status});
        let cells = cells(kind, &value).into_iter();
        cells.map(|it| it.as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn statement_88_services() {
        let ports = json!([{"port": 80, "nodePort": 30_426, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]);
        let spec = json!({"type": "LoadBalancer", "clusterIPs": ["10.96.0.9"], "ports": ports, "selector": {"a": "b"}});
        assert_eq!(
            row(&spec, &json!({})),
            [
                "x",
                "LoadBalancer",
                "10.96.0.9",
                "<pending>",
                "80:30426/TCP,53/UDP",
                "<unknown>",
                "a=b"
            ]
        );
        let given = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}});
        assert_eq!(row(&spec, &given)[3], "192.0.2.1");
        let headless = row(&json!({"type": "ClusterIP", "clusterIPs": ["None"]}), &json!({}));
        assert_eq!(headless[2..5], ["None", "<none>", "<none>"]);
        let name = row(&json!({"type": "ExternalName", "externalName": "a.example"}), &json!({}));
        assert_eq!(name[2..4], ["<none>", "a.example"]);
    }

    #[test]
    fn statement_88_slices() {
        let kind = Kind::find("discovery.k8s.io", "endpointslices").unwrap();
        let endpoints: Vec<Value> =
            (1..6).map(|it| json!({"addresses": [format!("10.0.0.{it}")]})).collect();
        let value = json!({"addressType": "IPv4", "ports": [{"port": 80}], "endpoints": endpoints});
        assert_eq!(cells(kind, &value)[3], "10.0.0.1,10.0.0.2,10.0.0.3 + 2 more...");
        assert_eq!(cells(kind, &json!({}))[2], "<unset>");
    }
}

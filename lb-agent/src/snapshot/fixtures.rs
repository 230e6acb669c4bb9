//! Objects for tests, written as briefly as they can be read.

use std::sync::Arc;

use lb_common::addr::Protocol;
use serde_json::{Value, json};

use super::*;
use crate::plan::Family;

/// Makes the Service `default/web` with this spec.
pub(crate) fn web(spec: impl Into<Value>) -> ServiceSpec {
    named("web", spec, json!({}))
}

/// Makes the Service `default/web` with this spec and these load balancer addresses.
pub(crate) fn web_with_vips(spec: impl Into<Value>, vips: &[&str]) -> ServiceSpec {
    let ingress: Vec<_> = vips.iter().map(|ip| json!({ "ip": ip })).collect();
    named("web", spec, json!({ "loadBalancer": { "ingress": ingress } }))
}

/// Makes the Service `default/NAME`.
pub(crate) fn named(name: &str, spec: impl Into<Value>, status: impl Into<Value>) -> ServiceSpec {
    let object = json!({
        "metadata": { "namespace": "default", "name": name, "uid": format!("uid-of-{name}") },
        "spec": spec.into(),
        "status": status.into(),
    });
    ServiceSpec::of(&serde_json::from_value(object).expect("a Service")).expect("a name")
}

/// Returns the name of a slice in the namespace `default`.
pub(crate) fn slice_name(name: &str) -> SliceName {
    SliceName { namespace: Arc::from("default"), name: Arc::from(name) }
}

/// A slice of `default/web` with one unnamed TCP port, 8080. Each endpoint is an address and words:
/// `@NODE`, `draining`, `unready`, `gone`, `zones=A,B`, `nodes=A,B`.
pub(crate) fn slice(name: &str, endpoints: &[&str]) -> SliceSpec {
    let endpoints: Box<[_]> = endpoints.iter().map(|words| endpoint(words)).collect();
    SliceSpec {
        name: slice_name(name),
        service: Some(Arc::from("web")),
        family: Some(endpoints.first().map_or(Family::V4, |endpoint| Family::of(endpoint.ip))),
        ports: Box::new([port("", Protocol::TCP, 8080)]),
        endpoints,
        triggered: None,
        problems: Box::default(),
    }
}

/// Makes a port of a slice.
pub(crate) fn port(name: &str, protocol: Protocol, port: u16) -> SlicePort {
    SlicePort { name: Arc::from(name), protocol, port }
}

fn endpoint(words: &str) -> EndpointSpec {
    let mut words = words.split_whitespace();
    let mut endpoint = EndpointSpec {
        ip: words.next().and_then(address).expect("an address"),
        ready: true,
        serving: true,
        terminating: false,
        node: None,
        hints: None,
    };
    let mut hints = Hints::default();
    let list = |list: &str| list.split(',').map(Arc::from).collect();
    for word in words {
        match word.split_once('=').unwrap_or((word, "")) {
            ("draining", _) => (endpoint.ready, endpoint.terminating) = (false, true),
            ("unready", _) => (endpoint.ready, endpoint.serving) = (false, false),
            ("starting", _) => endpoint.ready = false,
            ("gone", _) => {
                (endpoint.ready, endpoint.serving, endpoint.terminating) = (false, false, true);
            }
            ("zones", zones) => hints.zones = list(zones),
            ("nodes", nodes) => hints.nodes = list(nodes),
            (node, _) => endpoint.node = Some(Arc::from(node.trim_start_matches('@'))),
        }
    }
    endpoint.hints = (hints != Hints::default()).then(|| Arc::new(hints));
    endpoint
}

/// Returns this node in the tests: `here`, in zone `z1`, with 192.168.0.1 and `fd00:192::1`.
pub(crate) fn here() -> NodeContext {
    NodeContext {
        zone: Some(Arc::from("z1")),
        ipv4: address("192.168.0.1"),
        ipv6: address("fd00:192::1"),
        ..NodeContext::named("here")
    }
}

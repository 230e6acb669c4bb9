//! The configuration as `config view` and `/configz` show it: each value with its origin.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::agent::{ACCELERATION, ECHO, MASQUERADE, SOCKET_LB};
use super::effect::patterns;
use super::kube_proxy::{LOG_FORMATS, MODES};
use super::{AGENT, Config, KUBE_PROXY, NodePortAddresses, Origin, Setting, values};

/// A flag only: no file has it.
pub(super) const MASTER: &str = "master";

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Ours, not kube-proxy's.
    pub is_ours: bool,
    /// The field, dotted.
    pub field: String,
    /// The value.
    pub value: Value,
    /// Where it comes from.
    pub origin: Origin,
}

impl Config {
    /// Every value with its origin.
    pub fn entries(&self) -> Vec<Entry> {
        let mut all = self.proxy_entries();
        all.extend(self.our_entries());
        all
    }

    #[expect(clippy::too_many_lines, reason = "a line for each value")]
    fn proxy_entries(&self) -> Vec<Entry> {
        let entry = |field: &str, value, origin| Entry {
            is_ours: false,
            field: field.to_owned(),
            value,
            origin,
        };
        let cidrs: Vec<String> = self.cluster_cidr.value.iter().map(ToString::to_string).collect();
        let listener = |it: Option<SocketAddr>| it.map(|it| it.to_string()).unwrap_or_default();
        let timeouts = &self.timeouts;
        let mode = if self.mode.value == "nftables" { "nftables" } else { "iptables" };
        let period = if self.mode.value == "ipvs" { "ipvs" } else { mode };
        let seconds = |time: Duration| json!(values::shown(time));
        vec![
            entry("mode", json!(self.mode.value), self.mode.origin),
            entry("hostnameOverride", json!(self.hostname.value), self.hostname.origin),
            entry("bindAddress", json!(self.bind_address.value), self.bind_address.origin),
            entry(
                "bindAddressHardFail",
                json!(self.bind_hard_fail.value),
                self.bind_hard_fail.origin,
            ),
            entry("healthzBindAddress", json!(listener(self.healthz.value)), self.healthz.origin),
            entry("metricsBindAddress", json!(listener(self.metrics.value)), self.metrics.origin),
            entry(
                "clientConnection.kubeconfig",
                json!(self.kubeconfig.value),
                self.kubeconfig.origin,
            ),
            entry(MASTER, json!(self.master.value), self.master.origin),
            entry("clusterCIDR", json!(cidrs.join(",")), self.cluster_cidr.origin),
            entry("detectLocalMode", word(&MODES, &self.detect_local), self.detect_local.origin),
            entry(
                "detectLocal.bridgeInterface",
                json!(self.bridge_interface.value),
                self.bridge_interface.origin,
            ),
            entry(
                "detectLocal.interfaceNamePrefix",
                json!(self.interface_name_prefix.value),
                self.interface_name_prefix.origin,
            ),
            entry(
                &format!("{mode}.masqueradeAll"),
                json!(self.masquerade_all.value),
                self.masquerade_all.origin,
            ),
            entry(
                &format!("{period}.syncPeriod"),
                seconds(self.sync_period.value),
                self.sync_period.origin,
            ),
            entry(
                "nodePortAddresses",
                node_ports(&self.node_port_addresses.value),
                self.node_port_addresses.origin,
            ),
            entry("logging.format", word(&LOG_FORMATS, &self.log_format), self.log_format.origin),
            entry("logging.verbosity", json!(self.verbosity.value), self.verbosity.origin),
            entry("oomScoreAdj", json!(self.oom_score_adj.value), self.oom_score_adj.origin),
            entry(
                "conntrack.tcpEstablishedTimeout",
                seconds(timeouts.tcp_established.value),
                timeouts.tcp_established.origin,
            ),
            entry(
                "conntrack.tcpCloseWaitTimeout",
                seconds(timeouts.tcp_close_wait.value),
                timeouts.tcp_close_wait.origin,
            ),
            entry("conntrack.udpTimeout", seconds(timeouts.udp.value), timeouts.udp.origin),
            entry(
                "conntrack.udpStreamTimeout",
                seconds(timeouts.udp_stream.value),
                timeouts.udp_stream.origin,
            ),
        ]
    }

    fn our_entries(&self) -> Vec<Entry> {
        let entry = |field: &str, value, origin| Entry {
            is_ours: true,
            field: field.to_owned(),
            value,
            origin,
        };
        let (external, pods) = (&self.external_devices, &self.pod_devices);
        let localhost = &self.localhost_node_ports;
        let mut all = vec![
            entry("masquerade", word(&MASQUERADE, &self.masquerade), self.masquerade.origin),
            entry("socketLB", word(&SOCKET_LB, &self.socket_lb), self.socket_lb.origin),
            entry(
                "acceleration",
                word(&ACCELERATION, &self.acceleration),
                self.acceleration.origin,
            ),
            entry("echo", word(&ECHO, &self.echo), self.echo.origin),
            entry("localhostNodePorts", json!(localhost.value), localhost.origin),
            entry("externalDevices", json!(patterns(&external.value)), external.origin),
            entry("podDevices", json!(patterns(&pods.value)), pods.origin),
            entry("bpfDir", json!(self.bpf_dir.value), self.bpf_dir.origin),
            entry("cgroup", json!(self.cgroup.value), self.cgroup.origin),
            entry(
                "serviceProxyName",
                json!(self.service_proxy_name.value),
                self.service_proxy_name.origin,
            ),
        ];
        let sizes = self.map_sizes.iter();
        all.extend(sizes.map(|(name, size)| {
            entry(&format!("mapSizes.{name}"), json!(size.value), size.origin)
        }));
        all
    }

    /// As two documents in one JSON object, the way `/configz` of Kubernetes components has it.
    pub fn configz(&self) -> Value {
        let document = |(version, kind): (&str, &str), ours: bool| {
            let mut map = Map::new();
            drop(map.insert("apiVersion".into(), json!(version)));
            drop(map.insert("kind".into(), json!(kind)));
            for entry in self
                .entries()
                .into_iter()
                .filter(|entry| entry.is_ours == ours && entry.field != MASTER)
            {
                put(&mut map, &entry.field, entry.value);
            }
            Value::Object(map)
        };
        json!({
            "kubeproxy.config.k8s.io": document(KUBE_PROXY, false),
            "lb.dev": document(AGENT, true),
        })
    }

    /// The two documents as a file that `--config` reads. JSON is YAML.
    pub fn documents(&self) -> String {
        let configz = self.configz();
        let parts =
            ["kubeproxy.config.k8s.io", "lb.dev"].map(|name| format!("{:#}\n", configz[name]));
        parts.join("---\n")
    }

    /// A line for each value: field, value, origin.
    pub fn table(&self) -> String {
        let entries = self.entries();
        let width = |of: fn(&Entry) -> usize| entries.iter().map(of).max().unwrap_or(0);
        let first = width(|entry| entry.field.len());
        let second = width(|entry| entry.value.to_string().len());
        let line = |entry: &Entry| {
            let value = entry.value.to_string();
            format!("{:first$}  {value:second$}  {}\n", entry.field, entry.origin)
        };
        entries.iter().map(line).collect()
    }
}

/// Puts a value under a dotted name.
pub(super) fn put(map: &mut Map<String, Value>, field: &str, value: Value) {
    match field.split_once('.') {
        None => drop(map.insert(field.into(), value)),
        Some((head, rest)) => {
            let inner = map.entry(head).or_insert_with(|| json!({}));
            if let Value::Object(inner) = inner {
                put(inner, rest, value);
            }
        }
    }
}

fn word<T: PartialEq + Debug>(words: &[(&str, T)], setting: &Setting<T>) -> Value {
    let found = words.iter().find(|(_, value)| *value == setting.value);
    json!(found.map_or("", |(word, _)| word))
}

fn node_ports(addresses: &NodePortAddresses) -> Value {
    let words = [("primary", addresses.primary), ("all", addresses.all)];
    let words = words.iter().filter(|(_, is_set)| *is_set).map(|(word, _)| (*word).to_owned());
    let all: Vec<String> = words.chain(addresses.cidrs.iter().map(ToString::to_string)).collect();
    json!(all)
}

//! The configuration in the forms of `config view` and `/configz`: each value with its origin.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::agent::{ACCELERATION, BYPASS, ECHO, MASQUERADE, SOCKET_LB};
use super::kube_proxy::{LOG_FORMATS, MODES};
use super::{
    AGENT, Config, DetectLocalMode, KUBE_PROXY, NodePortAddresses, Pattern, Setting, SettingOrigin,
    values,
};

/// Name of a setting that only exists as a flag, not in a file.
const MASTER: &str = "master";

/// An entry of the configuration, to be shown: a field with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigEntry {
    /// Whether the setting belongs to `AgentConfiguration`.
    pub is_ours: bool,
    /// Dotted path of the field.
    pub field: String,
    pub value: Value,
    /// Origin of the value.
    pub origin: SettingOrigin,
}

impl Config {
    /// Returns all values with their origins.
    pub fn entries(&self) -> Vec<ConfigEntry> {
        let mut all = self.proxy_entries();
        all.extend(self.our_entries());
        all
    }

    fn proxy_entries(&self) -> Vec<ConfigEntry> {
        let listener =
            |at: &Option<SocketAddr>| json!(at.map(|at| at.to_string()).unwrap_or_default());
        let timeouts = &self.timeouts;
        // In mode ipvs, kube-proxy reads `masqueradeAll` from the section of iptables.
        let (mode, period) = match &*self.mode.value {
            "nftables" => ("nftables", "nftables"),
            "ipvs" => ("iptables", "ipvs"),
            _ => ("iptables", "iptables"),
        };
        vec![
            plain("mode", &self.mode),
            plain("featureGates.AllowServiceExternalIPs", &self.external_ips),
            plain("hostnameOverride", &self.hostname),
            plain("bindAddress", &self.bind_address),
            plain("bindAddressHardFail", &self.bind_hard_fail),
            entry("healthzBindAddress", &self.healthz, listener),
            entry("metricsBindAddress", &self.metrics, listener),
            plain("clientConnection.kubeconfig", &self.kubeconfig),
            plain(MASTER, &self.master),
            entry("clusterCIDR", &self.cluster_cidr, |cidrs| json!(texts(cidrs).join(","))),
            entry("detectLocalMode", &self.detect_local, word(&MODES)),
            plain("detectLocal.bridgeInterface", &self.bridge_interface),
            plain("detectLocal.interfaceNamePrefix", &self.interface_name_prefix),
            plain(&format!("{mode}.masqueradeAll"), &self.masquerade_all),
            entry(&format!("{period}.syncPeriod"), &self.sync_period, seconds),
            entry("nodePortAddresses", &self.node_port_addresses, node_ports),
            entry("logging.format", &self.log_format, word(&LOG_FORMATS)),
            plain("logging.verbosity", &self.verbosity),
            plain("oomScoreAdj", &self.oom_score_adj),
            entry("conntrack.tcpEstablishedTimeout", &timeouts.tcp_established, seconds),
            entry("conntrack.tcpCloseWaitTimeout", &timeouts.tcp_close_wait, seconds),
            entry("conntrack.udpTimeout", &timeouts.udp, seconds),
            entry("conntrack.udpStreamTimeout", &timeouts.udp_stream, seconds),
        ]
    }

    fn our_entries(&self) -> Vec<ConfigEntry> {
        let patterns = |list: &Vec<Pattern>| json!(texts(list));
        let mut all = vec![
            entry("masquerade", &self.masquerade, word(&MASQUERADE)),
            entry("socketLB", &self.socket_lb, word(&SOCKET_LB)),
            entry("acceleration", &self.acceleration, word(&ACCELERATION)),
            entry("bypass", &self.bypass, word(&BYPASS)),
            entry("echo", &self.echo, word(&ECHO)),
            plain("localhostNodePorts", &self.localhost_node_ports),
            entry("externalDevices", &self.external_devices, patterns),
            entry("podDevices", &self.pod_devices, patterns),
            plain("bpfDir", &self.bpf_dir),
            plain("cgroup", &self.cgroup),
            plain("serviceProxyName", &self.service_proxy_name),
            entry("sctpTimeout", &self.timeouts.sctp, seconds),
        ];
        let sizes = self.map_sizes.iter();
        all.extend(sizes.map(|(name, size)| plain(&format!("mapSizes.{name}"), size)));
        all.into_iter().map(|entry| ConfigEntry { is_ours: true, ..entry }).collect()
    }

    /// Returns both documents in one JSON object, in the form of Kubernetes components' `/configz`.
    pub fn configz(&self) -> Value {
        json!({
            "kubeproxy.config.k8s.io": self.document(KUBE_PROXY, |_| true),
            "lb.dev": self.document(AGENT, |_| true),
        })
    }

    /// Returns one of the two documents with the values that `is_wanted` selects.
    pub(super) fn document(&self, api: (&str, &str), is_wanted: fn(&ConfigEntry) -> bool) -> Value {
        let mut map = Map::new();
        drop(map.insert("apiVersion".into(), json!(api.0)));
        drop(map.insert("kind".into(), json!(api.1)));
        for entry in self.entries() {
            // `--master` is a flag only; the file format has no field for it.
            if entry.is_ours == (api == AGENT) && entry.field != MASTER && is_wanted(&entry) {
                put(&mut map, &entry.field, entry.value);
            }
        }
        Value::Object(map)
    }

    /// Returns the two documents as a file for `--config`, in JSON, which is valid YAML.
    pub fn documents(&self) -> String {
        let mut configz = self.configz();
        // A file that names the detector, even as empty, asks for kube-proxy's default one (`defaults.rs`).
        if self.detect_local.value == DetectLocalMode::Unset
            && let Some(document) = configz["kubeproxy.config.k8s.io"].as_object_mut()
        {
            drop(document.remove("detectLocalMode"));
            if self.cluster_cidr.value.is_empty() {
                drop(document.remove("clusterCIDR"));
            }
        }
        let parts =
            ["kubeproxy.config.k8s.io", "lb.dev"].map(|name| format!("{:#}\n", configz[name]));
        parts.join("---\n")
    }

    /// Returns a table: field, value, origin.
    pub fn table(&self) -> String {
        let entries = self.entries();
        let width = |of: fn(&ConfigEntry) -> usize| entries.iter().map(of).max().unwrap_or(0);
        let first = width(|entry| entry.field.len());
        let second = width(|entry| entry.value.to_string().len());
        let line = |entry: &ConfigEntry| {
            let value = entry.value.to_string();
            format!("{:first$}  {value:second$}  {}\n", entry.field, entry.origin)
        };
        entries.iter().map(line).collect()
    }
}

/// Makes an entry whose JSON is the value's own.
fn plain<T: Serialize>(field: &str, setting: &Setting<T>) -> ConfigEntry {
    entry(field, setting, |value| json!(value))
}

/// Makes an entry whose value is in the notation of the file; [`Config::entries`] marks those of `AgentConfiguration`.
fn entry<T>(field: &str, setting: &Setting<T>, to_json: impl Fn(&T) -> Value) -> ConfigEntry {
    let (field, value) = (field.to_owned(), to_json(&setting.value));
    ConfigEntry { is_ours: false, field, value, origin: setting.origin }
}

/// Inserts a value at a dotted path.
fn put(map: &mut Map<String, Value>, field: &str, value: Value) {
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

fn word<T: PartialEq>(words: &[(&str, T)]) -> impl Fn(&T) -> Value {
    move |value| {
        let found = words.iter().find(|(_, known)| known == value);
        json!(found.map_or("", |(word, _)| word))
    }
}

fn seconds(time: &Duration) -> Value {
    json!(values::format_duration(*time))
}

fn texts<T: ToString>(list: &[T]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

fn node_ports(addresses: &NodePortAddresses) -> Value {
    let words = [("primary", addresses.primary), ("all", addresses.all)];
    let words = words.iter().filter(|(_, is_set)| *is_set).map(|(word, _)| (*word).to_owned());
    let all: Vec<String> = words.chain(texts(&addresses.cidrs)).collect();
    json!(all)
}

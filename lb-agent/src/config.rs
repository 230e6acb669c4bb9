//! The configuration of the agent: kube-proxy's file and flags, and those of this project, as one struct. Each value
//! knows its origin.
//!
//! Parsing here does not depend on the machine. Only `derive` reads the file that the flags name, and finds the cgroup
//! v2 mount. As in kube-proxy, its own flags count only without `--config`, except `--hostname-override` and
//! `--master`; flags that kube-proxy does not have take precedence over the file.

mod agent;
mod defaults;
pub mod derive;
pub mod enums;
pub mod flags;
mod kube_proxy;
mod location;
pub mod migrate;
mod pattern;
mod problem;
mod section;
mod setting;
mod tree;
pub mod values;
pub mod view;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

pub use self::enums::{
    Acceleration, Bypass, DetectLocalMode, Echo, LogFormat, Masquerade, NodePortAddresses,
    SocketLb, Timeouts,
};
pub use self::location::Location;
pub use self::pattern::Pattern;
pub use self::problem::{Error, Problem};
use self::section::Section;
pub use self::setting::{Setting, SettingOrigin};

/// The API of the first document.
pub const KUBE_PROXY: (&str, &str) = ("kubeproxy.config.k8s.io/v1alpha1", "KubeProxyConfiguration");
/// The API of the second document.
pub const AGENT: (&str, &str) = ("lb.dev/v1alpha1", "AgentConfiguration");

/// Default of `--bpf-dir`, below the usual mount point of the bpffs.
pub const DEFAULT_BPF_DIR: &str = "/sys/fs/bpf/lb";

/// The whole configuration, each setting with its origin.
#[derive(Clone, Debug)]
pub struct Config {
    /// The path given with `--config`.
    pub file: Option<PathBuf>,
    /// The text of that file.
    pub text: Option<String>,
    /// `clientConnection.kubeconfig`.
    pub kubeconfig: Setting<Option<PathBuf>>,
    pub master: Setting<Option<String>>,
    /// `hostnameOverride`; without one, the host's name in lower case.
    pub hostname: Setting<Option<String>>,
    /// `bindAddress`: when specific, the node's primary address of its family.
    pub bind_address: Setting<IpAddr>,
    /// `bindAddressHardFail`: the agent exits if a listener cannot bind.
    pub bind_hard_fail: Setting<bool>,
    /// `healthzBindAddress`; `None` disables.
    pub healthz: Setting<Option<SocketAddr>>,
    /// `metricsBindAddress`; `None` disables.
    pub metrics: Setting<Option<SocketAddr>>,
    /// `mode`: selects the section whose `masqueradeAll` and `syncPeriod` count. The data path is eBPF in any case.
    pub mode: Setting<String>,
    /// `featureGates.AllowServiceExternalIPs`: whether `spec.externalIPs` of Services are served.
    pub external_ips: Setting<bool>,
    /// `clusterCIDR`, up to one of each family.
    pub cluster_cidr: Setting<Vec<IpNet>>,
    pub detect_local: Setting<DetectLocalMode>,
    /// Number of documents in the file.
    pub documents: usize,
    /// Whether the file contains a `KubeProxyConfiguration`.
    pub has_kube_proxy_document: bool,
    /// Whether that document contains `detectLocalMode` or `clusterCIDR`, even empty: as in kube-proxy, an empty one
    /// then means that there is no detector.
    pub is_detection_named: bool,
    /// `detectLocal.bridgeInterface`.
    pub bridge_interface: Setting<String>,
    /// `detectLocal.interfaceNamePrefix`.
    pub interface_name_prefix: Setting<String>,
    /// `iptables.masqueradeAll` or `nftables.masqueradeAll`.
    pub masquerade_all: Setting<bool>,
    /// `syncPeriod` of kube-proxy's mode. It only determines after which time `/healthz` fails.
    pub sync_period: Setting<Duration>,
    pub node_port_addresses: Setting<NodePortAddresses>,
    /// Whether `NodePorts` are served on loopback addresses.
    pub localhost_node_ports: Setting<bool>,
    /// Whether that value is one of kube-proxy's field or flag: then it also needs an entry of `nodePortAddresses`.
    pub is_localhost_of_kube_proxy: bool,
    pub oom_score_adj: Setting<i64>,
    pub masquerade: Setting<Masquerade>,
    pub socket_lb: Setting<SocketLb>,
    pub acceleration: Setting<Acceleration>,
    pub bypass: Setting<Bypass>,
    pub echo: Setting<Echo>,
    /// `mapSizes`: entries by upper-case name of the map.
    pub map_sizes: BTreeMap<String, Setting<u32>>,
    /// `externalDevices`; empty means detected.
    pub external_devices: Setting<Vec<Pattern>>,
    /// `podDevices`; empty means detected.
    pub pod_devices: Setting<Vec<Pattern>>,
    /// `bpfDir`.
    pub bpf_dir: Setting<PathBuf>,
    /// `cgroup`; without one, the host's below `/host`, else the first in `/proc/mounts`.
    pub cgroup: Setting<Option<PathBuf>>,
    /// `serviceProxyName`: serves the Services whose `service-proxy-name` label has this value, in place of those
    /// without the label.
    pub service_proxy_name: Setting<Option<String>>,
    /// Idle timeouts: `conntrack.*`, `timeouts.*`, `sctpTimeout`.
    pub timeouts: Timeouts,
    /// `logging.format`.
    pub log_format: Setting<LogFormat>,
    /// `logging.verbosity`: 0 to 2 info, 3 and 4 debug, 5 and more trace.
    pub verbosity: Setting<u8>,
    /// Settings without effect, or with an unexpected one; the agent logs them once.
    pub warnings: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        Self {
            file: None,
            text: None,
            kubeconfig: Setting::default(),
            master: Setting::default(),
            hostname: Setting::default(),
            bind_address: Setting::new(any),
            bind_hard_fail: Setting::default(),
            healthz: Setting::new(Some(SocketAddr::new(any, values::HEALTHZ))),
            metrics: Setting::new(Some(SocketAddr::new(
                Ipv4Addr::LOCALHOST.into(),
                values::METRICS,
            ))),
            mode: Setting::default(),
            external_ips: Setting::new(true),
            cluster_cidr: Setting::default(),
            detect_local: Setting::default(),
            documents: 0,
            has_kube_proxy_document: false,
            is_detection_named: false,
            bridge_interface: Setting::default(),
            interface_name_prefix: Setting::default(),
            masquerade_all: Setting::default(),
            sync_period: Setting::new(Duration::from_secs(30)),
            node_port_addresses: Setting::default(),
            localhost_node_ports: Setting::default(),
            is_localhost_of_kube_proxy: false,
            oom_score_adj: Setting::new(-999),
            masquerade: Setting::default(),
            socket_lb: Setting::default(),
            acceleration: Setting::default(),
            bypass: Setting::default(),
            echo: Setting::default(),
            map_sizes: BTreeMap::new(),
            external_devices: Setting::default(),
            pod_devices: Setting::default(),
            bpf_dir: Setting::new(PathBuf::from(DEFAULT_BPF_DIR)),
            cgroup: Setting::default(),
            service_proxy_name: Setting::default(),
            timeouts: Timeouts::default(),
            log_format: Setting::default(),
            verbosity: Setting::new(2),
            warnings: Vec::new(),
        }
    }
}

impl Config {
    /// Applies the documents of a file to the current values.
    fn read(&mut self, text: &str) -> Result<(), Vec<Problem>> {
        let documents = tree::documents(text).map_err(|problem| vec![problem])?;
        let mut problems = Vec::new();
        let mut sections = Vec::new();
        for document in documents {
            // A file may begin or end with a document marker, which makes an empty document.
            if matches!(document.value, tree::YamlValue::Null) {
                continue;
            }
            self.documents += 1;
            let mut section = Section::of(&document);
            let version = section.text("apiVersion").map(|found| found.value).unwrap_or_default();
            let kind = section.text("kind").map(|found| found.value).unwrap_or_default();
            sections.push((version, kind, document.location, section));
        }
        // The agent's own fields take precedence, whatever the order.
        sections.sort_by_key(|(version, kind, ..)| (version.as_str(), kind.as_str()) == AGENT);
        for (version, kind, location, mut section) in sections {
            match (version.as_str(), kind.as_str()) {
                KUBE_PROXY => kube_proxy::read(self, &mut section),
                AGENT => agent::read(self, &mut section),
                other => {
                    let message = format!(
                        "{} {} is not known; allowed: {} {}, {} {}",
                        other.0, other.1, KUBE_PROXY.0, KUBE_PROXY.1, AGENT.0, AGENT.1
                    );
                    problems.push(Problem { location, field: "kind".into(), message });
                    continue;
                }
            }
            // The rest of the keys is unknown and becomes warnings. All documents are read, so that one attempt shows
            // all problems.
            let diagnostics = section.finish();
            problems.extend(diagnostics.problems);
            self.warnings.extend(diagnostics.warnings);
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }
}

#[cfg(test)]
mod tests;

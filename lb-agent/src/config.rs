//! The configuration of the agent: kube-proxy's file and flags, and ours, as one struct in which each value knows
//! where it comes from.
//!
//! Texts become values here without a look at the machine; only `derive` reads the file named and asks where cgroup
//! v2 is. As upstream, kube-proxy's own flags count only without `--config`, except `--hostname-override` and
//! `--master`; flags that kube-proxy does not have win over the file.

mod agent;
mod defaults;
pub mod derive;
pub mod enums;
pub mod flags;
mod kube_proxy;
pub mod migrate;
mod pattern;
mod place;
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
    Acceleration, DetectLocalMode, Echo, LogFormat, Masquerade, NodePortAddresses, ShortCuts,
    SocketLb, Timeouts,
};
pub use self::pattern::Pattern;
pub use self::place::Place;
pub use self::problem::{Error, Problem};
use self::section::Section;
pub use self::setting::{Origin, Setting};

/// The API of the first document.
pub const KUBE_PROXY: (&str, &str) = ("kubeproxy.config.k8s.io/v1alpha1", "KubeProxyConfiguration");
/// The API of the second document.
pub const AGENT: (&str, &str) = ("lb.dev/v1alpha1", "AgentConfiguration");

/// Where pins lie if nobody says.
pub const DEFAULT_BPF_DIR: &str = "/sys/fs/bpf/lb";

/// The whole configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// `--config`.
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
    /// `bindAddressHardFail`: a listener that cannot be had ends the agent.
    pub bind_hard_fail: Setting<bool>,
    /// `healthzBindAddress`; `None` disables.
    pub healthz: Setting<Option<SocketAddr>>,
    /// `metricsBindAddress`; `None` disables.
    pub metrics: Setting<Option<SocketAddr>>,
    /// `mode`: accepted, and without effect.
    pub mode: Setting<String>,
    /// `clusterCIDR`, up to one of each family.
    pub cluster_cidr: Setting<Vec<IpNet>>,
    pub detect_local: Setting<DetectLocalMode>,
    /// The file is one of kube-proxy's.
    pub has_kube_proxy_document: bool,
    /// That file names `detectLocalMode` or `clusterCIDR`, be they empty: what is empty is none, as with kube-proxy.
    pub is_detection_named: bool,
    /// `detectLocal.bridgeInterface`.
    pub bridge_interface: Setting<String>,
    /// `detectLocal.interfaceNamePrefix`.
    pub interface_name_prefix: Setting<String>,
    /// `iptables.masqueradeAll` or `nftables.masqueradeAll`.
    pub masquerade_all: Setting<bool>,
    /// `syncPeriod` of kube-proxy's mode: by it only the patience of `/healthz` is measured.
    pub sync_period: Setting<Duration>,
    pub node_port_addresses: Setting<NodePortAddresses>,
    /// `NodePorts` on loopback.
    pub localhost_node_ports: Setting<bool>,
    pub oom_score_adj: Setting<i64>,
    pub masquerade: Setting<Masquerade>,
    pub socket_lb: Setting<SocketLb>,
    pub acceleration: Setting<Acceleration>,
    pub short_cuts: Setting<ShortCuts>,
    pub echo: Setting<Echo>,
    /// `mapSizes`, by upper-case name.
    pub map_sizes: BTreeMap<String, Setting<u32>>,
    /// `externalDevices`; empty: found.
    pub external_devices: Setting<Vec<Pattern>>,
    /// `podDevices`; empty: found.
    pub pod_devices: Setting<Vec<Pattern>>,
    /// `bpfDir`.
    pub bpf_dir: Setting<PathBuf>,
    /// `cgroup`; without one, the host's below `/host`, else the first in `/proc/mounts`.
    pub cgroup: Setting<Option<PathBuf>>,
    /// `serviceProxyName`: serve the Services with this label value, instead of those without.
    pub service_proxy_name: Setting<Option<String>>,
    /// `conntrack.*`, `timeouts.*`.
    pub timeouts: Timeouts,
    /// `logging.format`.
    pub log_format: Setting<LogFormat>,
    /// `logging.verbosity`: 0 to 2 information, 3 and 4 debug, 5 and more everything.
    pub verbosity: Setting<u8>,
    /// Settings without effect, or with another than expected. To be logged once.
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
            healthz: Setting::new(Some(SocketAddr::new(any, 10_256))),
            metrics: Setting::new(Some(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 10_249))),
            mode: Setting::default(),
            cluster_cidr: Setting::default(),
            detect_local: Setting::default(),
            has_kube_proxy_document: false,
            is_detection_named: false,
            bridge_interface: Setting::default(),
            interface_name_prefix: Setting::default(),
            masquerade_all: Setting::default(),
            sync_period: Setting::new(Duration::from_secs(30)),
            node_port_addresses: Setting::default(),
            localhost_node_ports: Setting::default(),
            oom_score_adj: Setting::new(-999),
            masquerade: Setting::default(),
            socket_lb: Setting::default(),
            acceleration: Setting::default(),
            short_cuts: Setting::default(),
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
    /// Reads the documents of a file over what is there already.
    fn read(&mut self, text: &str) -> Result<(), Vec<Problem>> {
        let documents = tree::documents(text).map_err(|problem| vec![problem])?;
        let mut problems = Vec::new();
        for document in documents {
            if matches!(document.value, tree::Value::Null) {
                continue;
            }
            let place = document.place;
            let mut section = Section::of(&document);
            let version = section.text("apiVersion").map(|found| found.value).unwrap_or_default();
            let kind = section.text("kind").map(|found| found.value).unwrap_or_default();
            match (version.as_str(), kind.as_str()) {
                KUBE_PROXY => kube_proxy::read(self, &mut section),
                AGENT => agent::read(self, &mut section),
                other => {
                    let message = format!(
                        "{} {} is not known; allowed: {} {}, {} {}",
                        other.0, other.1, KUBE_PROXY.0, KUBE_PROXY.1, AGENT.0, AGENT.1
                    );
                    problems.push(Problem { place, field: "kind".into(), message });
                    continue;
                }
            }
            let notes = section.finish();
            problems.extend(notes.problems);
            self.warnings.extend(notes.warnings);
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }
}

#[cfg(test)]
mod tests;

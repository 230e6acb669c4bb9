//! Derives flags and prefixes of the data path's settings from a configuration.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use lb_common::addr::Ip;
use lb_common::config::{Prefix, Settings};
use lb_common::flow::Lifetimes;

use super::flags::Run;
use super::{
    Acceleration, Bypass, Config, DetectLocalMode, Echo, Error, Masquerade, SocketLb, flags, values,
};
use crate::datapath::find_cgroup2;
use crate::plan::Family;
use crate::snapshot::NodeSpec;

/// Number of bits by which the cluster's pod range is assumed to be wider than that of one node, IPv4 first.
///
/// By default clusters have a /16 with a /24 for each node. An IPv6 site has at most a /48, with a /64 for each node.
const NODES_BITS: [u8; 2] = [8, 32];

impl Config {
    /// Reads the flags, and the file that they name. Errors: an unreadable file, or invalid values.
    pub fn load(run: &Run) -> Result<Self, Error> {
        let text = match run.config_file() {
            None => None,
            Some(file) => Some(
                std::fs::read_to_string(file)
                    .map_err(|source| Error::Unreadable { file: file.to_owned(), source })?,
            ),
        };
        Self::of(run, text.as_deref())
    }

    /// Reads the flags, and `text` as the file that they name.
    pub fn of(run: &Run, text: Option<&str>) -> Result<Self, Error> {
        let mut config = Self {
            file: run.config_file().map(PathBuf::from),
            text: text.map(str::to_owned),
            ..Self::default()
        };
        if let Some(text) = text {
            let file = config.file.clone().unwrap_or_default();
            config.read(text).map_err(|problems| Error::File { file, problems })?;
        }
        // Flags are applied after the file, because they replace its values; defaults come last, because they depend on
        // both.
        flags::apply(&mut config, run).map_err(Error::Flag)?;
        config.apply_defaults()?;
        Ok(config)
    }

    /// Reports whether packets of known flows may bypass the stack. With kube-proxy's masquerade they may not: the
    /// programs at pods' interfaces masquerade them.
    pub fn has_bypass(&self) -> bool {
        self.bypass.value == Bypass::On && self.masquerade.value != Masquerade::KubeProxy
    }

    /// Returns the flags of `Settings` that depend on the configuration alone.
    pub fn flags(&self) -> u32 {
        // This mode without a prefix has no detector, for which the matrix has rows of its own (contract 3.3, 3.4).
        let no_detector = self.detect_local.value == DetectLocalMode::ClusterCidr
            && self.cluster_cidr.value.is_empty();
        let all = [
            (Settings::ANSWER_ECHO, self.echo.value == Echo::Answer),
            (Settings::LOOPBACK_NODE_PORTS, self.localhost_node_ports.value),
            (Settings::MASQUERADE_KUBE_PROXY, self.masquerade.value == Masquerade::KubeProxy),
            (Settings::MASQUERADE_ALL, self.masquerade_all.value),
            (Settings::NO_DETECTOR, no_detector),
            (Settings::LOCAL_BY_PREFIX, self.is_local_by_prefix()),
            (Settings::LOCAL_BY_DEVICE, self.is_local_by_device()),
            (Settings::REDIRECTS, self.acceleration.value == Acceleration::Native),
        ];
        all.iter().filter(|(_, is_set)| *is_set).fold(0, |flags, (flag, _)| flags | flag)
    }

    /// Returns the flag of `Settings` that says which sockets are served.
    pub const fn socket_mode(&self) -> u32 {
        match self.socket_lb.value {
            SocketLb::Off => Settings::SOCKETS_OFF,
            SocketLb::Host => Settings::SOCKETS_HOST,
            SocketLb::All => Settings::SOCKETS_ALL,
        }
    }

    const fn is_local_by_prefix(&self) -> bool {
        let has_cidr = !self.cluster_cidr.value.is_empty();
        match self.detect_local.value {
            DetectLocalMode::Unset | DetectLocalMode::ClusterCidr => has_cidr,
            DetectLocalMode::NodeCidr => true,
            DetectLocalMode::BridgeInterface | DetectLocalMode::InterfaceNamePrefix => false,
        }
    }

    const fn is_local_by_device(&self) -> bool {
        matches!(
            self.detect_local.value,
            DetectLocalMode::BridgeInterface | DetectLocalMode::InterfaceNamePrefix
        )
    }

    /// Returns the prefixes of local sources, one of each family (contract 3.4).
    pub fn local(&self, node: Option<&NodeSpec>) -> [Prefix; 2] {
        let cidrs = if self.detect_local.value == DetectLocalMode::NodeCidr {
            node.map(|node| &*node.pod_cidrs).unwrap_or_default()
        } else if self.is_local_by_prefix() {
            &*self.cluster_cidr.value
        } else {
            &[]
        };
        prefixes(cidrs)
    }

    /// Returns the prefixes of the whole cluster's pods, one of each family: the configured ones, else prefixes around
    /// the ranges of this node.
    pub fn pods(&self, node: Option<&NodeSpec>) -> [Prefix; 2] {
        if !self.cluster_cidr.value.is_empty() {
            return prefixes(&self.cluster_cidr.value);
        }
        let around = |own: &IpNet| {
            let [v4, v6] = NODES_BITS;
            let wider = if own.addr().is_ipv4() { v4 } else { v6 };
            // Controllers cut the ranges of nodes from one prefix; its length is not known, so a usual one is assumed.
            let bits = own.prefix_len().saturating_sub(wider);
            IpNet::new(own.addr(), bits).unwrap_or(*own)
        };
        let own = node.map(|node| &*node.pod_cidrs).unwrap_or_default();
        prefixes(&own.iter().map(around).collect::<Vec<_>>())
    }

    /// Returns how long a change may wait until `/healthz` fails: twice `syncPeriod` (contract 6.2).
    pub const fn patience(&self) -> Duration {
        self.sync_period.value.saturating_mul(2)
    }

    /// Returns the idle timeouts of flows, in seconds.
    pub fn lifetimes(&self) -> Lifetimes {
        let all = &self.timeouts;
        Lifetimes {
            unreplied: seconds(all.udp.value),
            stream: seconds(all.udp_stream.value),
            open: seconds(all.tcp_established.value),
            half_closed: seconds(all.tcp_close_wait.value),
            sctp: seconds(all.sctp.value),
        }
    }

    /// Returns the cgroup for the socket hooks.
    pub fn cgroup(&self) -> PathBuf {
        let found = || find_cgroup2().unwrap_or_else(|| PathBuf::from("/sys/fs/cgroup"));
        self.cgroup.value.clone().unwrap_or_else(found)
    }

    /// Returns the name of this node's Node object.
    pub fn node(&self) -> String {
        let host = || {
            let name = nix::sys::utsname::uname();
            // The kubelet registers the node by the host's name in lower case.
            name.map(|name| name.nodename().to_string_lossy().to_lowercase()).unwrap_or_default()
        };
        self.hostname.value.clone().filter(|name| !name.is_empty()).unwrap_or_else(host)
    }

    /// Returns the configured map sizes, in entries, by name.
    pub fn sizes(&self) -> std::collections::BTreeMap<String, u32> {
        self.map_sizes.iter().map(|(name, size)| (name.clone(), size.value)).collect()
    }
}

/// Returns whole seconds, the unit of the data path, and at least one.
fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX).max(1)
}

/// Returns the first prefix of each family; a default one that matches nothing if there is none.
fn prefixes(cidrs: &[IpNet]) -> [Prefix; 2] {
    Family::ALL.map(|family| {
        let cidr = cidrs.iter().find(|cidr| values::family(cidr) == family);
        cidr.map_or_else(Prefix::default, |cidr| Prefix {
            ip: Ip::from(cidr.network()),
            mask: match cidr.netmask() {
                // In v4-mapped form the prefix includes the 96 bits before the IPv4 address.
                IpAddr::V4(mask) => {
                    let bits = u128::from(u32::from(mask)) | (u128::MAX << 32);
                    Ip::v6(bits.to_be_bytes())
                }
                IpAddr::V6(mask) => Ip::v6(mask.octets()),
            },
        })
    })
}

//! Reads `KubeProxyConfiguration` v1alpha1 (contract 8.1), fields without a meaning here included.
//!
//! A field that is empty, null or `0s` counts as absent: kubeadm writes all fields that way. The timeouts of TCP are
//! null there, and `0s` has a meaning.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::section::{FileValue, Section};
use super::{Config, DetectLocalMode, LogFormat, NodePortAddresses, values};
use crate::snapshot::{address, prefix};

pub(super) const MODES: [(&str, DetectLocalMode); 4] = [
    ("ClusterCIDR", DetectLocalMode::ClusterCidr),
    ("NodeCIDR", DetectLocalMode::NodeCidr),
    ("BridgeInterface", DetectLocalMode::BridgeInterface),
    ("InterfaceNamePrefix", DetectLocalMode::InterfaceNamePrefix),
];

/// Words of `logging.format`, with their meaning.
pub(super) const LOG_FORMATS: [(&str, LogFormat); 2] =
    [("text", LogFormat::Text), ("json", LogFormat::Json)];

/// The feature gate (`pkg/features` of Kubernetes) of external IPs.
pub(super) const EXTERNAL_IPS_GATE: &str = "AllowServiceExternalIPs";

/// The timeouts of established and half-closed connections that the kernel has where kube-proxy leaves them unchanged,
/// because its own is zero (`tcp_timeouts` in `net/netfilter/nf_conntrack_proto_tcp.c`).
pub(super) const UNCHANGED_TCP_TIMEOUTS: [Duration; 2] =
    [Duration::from_hours(5 * 24), Duration::from_mins(1)];

/// The bit of the mark by which kube-proxy masquerades.
const MASQUERADE_BIT: (&str, i64, i64) = ("masqueradeBit", 0, 31);

/// Reads the document into the configuration.
pub(super) fn read(config: &mut Config, section: &mut Section) {
    config.has_kube_proxy_document = true;
    // The default of the detector depends on whether the file names one (`defaults.rs`).
    config.is_detection_named = section.names("clusterCIDR") || section.names("detectLocalMode");
    config.hostname.file(section.text("hostnameOverride").map(some));
    config.bind_address.file(
        section.parse("bindAddress", "an address", |text| address(text).ok_or_else(String::new)),
    );
    let listener = |port| move |text: &str| values::listener(text, port).map(Some);
    let allowed = "an address with or without port";
    config.healthz.file(section.parse("healthzBindAddress", allowed, listener(values::HEALTHZ)));
    config.metrics.file(section.parse("metricsBindAddress", allowed, listener(values::METRICS)));
    let modes = [("iptables", "iptables"), ("ipvs", "ipvs"), ("nftables", "nftables")];
    config.mode.file(
        section
            .word("mode", &modes)
            .map(|found| FileValue { value: found.value.to_owned(), location: found.location }),
    );
    let detect_local = section.word("detectLocalMode", &MODES);
    let mode = detect_local.as_ref().map_or(DetectLocalMode::ClusterCidr, |found| found.value);
    config.detect_local.file(detect_local);
    // As in kube-proxy, a text that is not valid is an error only where the mode uses it.
    let is_used = mode == DetectLocalMode::ClusterCidr;
    config.cluster_cidr.file(section.cidr_pair("clusterCIDR", is_used));
    section.sub("detectLocal", |section| {
        config.bridge_interface.file(section.text("bridgeInterface"));
        config.interface_name_prefix.file(section.text("interfaceNamePrefix"));
    });
    node_port_addresses(config, section);
    config.oom_score_adj.file(section.integer("oomScoreAdj", -1_000, 1_000));
    section.sub("clientConnection", |section| {
        config.kubeconfig.file(section.path("kubeconfig").map(some));
        // These concern kube-proxy's own client.
        section.ignored_flags(&["acceptContentTypes", "contentType", "qps"]);
        section.integers(&[("burst", 0, i64::from(i32::MAX))]);
    });
    modes_of_kube_proxy(config, section);
    conntrack(config, section);
    section.durations(&["configSyncPeriod"]);
    section.sub("logging", |section| {
        config.log_format.file(section.word("format", &LOG_FORMATS));
        // Zero counts as absent, and any verbosity above 255 means everything.
        let verbosity = section.integer("verbosity", 0, i64::from(u32::MAX));
        let verbosity = verbosity.filter(|found| found.value > 0);
        config.verbosity.file(verbosity.map(|found| FileValue {
            value: u8::try_from(found.value).unwrap_or(u8::MAX),
            location: found.location,
        }));
        section.ignored_flags(&["flushFrequency", "vmodule", "options"]);
    });
    config.bind_hard_fail.file(section.flag("bindAddressHardFail"));
    section.sub("featureGates", |section| {
        config.external_ips.file(section.flag(EXTERNAL_IPS_GATE));
        section.ignored_rest();
    });
    section.ignored_flags(&[
        "enableProfiling",
        "portRange",
        "showHiddenMetricsForVersion",
        "udpIdleTimeout",
        "windowsRunAsService",
        "winkernel",
    ]);
}

/// Reads the sections of kube-proxy's modes. Only fields of the mode in use take effect.
fn modes_of_kube_proxy(config: &mut Config, section: &mut Section) {
    let mode = &config.mode.value;
    let (is_nftables, is_ipvs) = (mode == "nftables", mode == "ipvs");
    let is_iptables = !is_nftables && !is_ipvs;
    section.sub("iptables", |section| {
        // In kube-proxy, mode ipvs masquerades by this field as well.
        let all = section.where_it_counts("masqueradeAll", !is_nftables, Section::flag);
        config.masquerade_all.file(all);
        let localhost = section.flag("localhostNodePorts");
        config.is_localhost_of_kube_proxy |= localhost.is_some();
        config.localhost_node_ports.file(localhost);
        let period = section.where_it_counts("syncPeriod", is_iptables, Section::duration);
        config.sync_period.file(period);
        section.durations(&["minSyncPeriod"]);
        section.ignored_flags(&["snatNodeInternalIP"]);
        section.integers(&[MASQUERADE_BIT]);
    });
    section.sub("nftables", |section| {
        let all = section.where_it_counts("masqueradeAll", is_nftables, Section::flag);
        config.masquerade_all.file(all);
        let period = section.where_it_counts("syncPeriod", is_nftables, Section::duration);
        config.sync_period.file(period);
        section.durations(&["minSyncPeriod"]);
        section.integers(&[MASQUERADE_BIT]);
    });
    section.sub("ipvs", |section| {
        let period = section.where_it_counts("syncPeriod", is_ipvs, Section::duration);
        config.sync_period.file(period);
        section.durations(&["minSyncPeriod"]);
        section.ignored_flags(&[
            "excludeCIDRs",
            "scheduler",
            "strictARP",
            "tcpFinTimeout",
            "tcpTimeout",
            "udpTimeout",
        ]);
    });
}

fn conntrack(config: &mut Config, section: &mut Section) {
    section.sub("conntrack", |section| {
        let timeouts = &mut config.timeouts;
        let [established, close_wait] = UNCHANGED_TCP_TIMEOUTS;
        timeouts.tcp_established.file(section.duration_or("tcpEstablishedTimeout", established));
        timeouts.tcp_close_wait.file(section.duration_or("tcpCloseWaitTimeout", close_wait));
        timeouts.udp.file(section.duration("udpTimeout"));
        timeouts.udp_stream.file(section.duration("udpStreamTimeout"));
        section.ignored_flags(&["tcpBeLiberal"]);
        section.integers(&["maxPerCore", "min"].map(|key| (key, 0, i64::from(i32::MAX))));
    });
}

fn node_port_addresses(config: &mut Config, section: &mut Section) {
    const KEY: &str = "nodePortAddresses";
    let Some(list) = section.texts(KEY) else { return };
    let Some(first) = list.first().map(|found| found.location) else { return };
    let mut wanted = Vec::new();
    for (at, found) in list.iter().enumerate() {
        match node_port_address(&found.value) {
            Ok(address) => wanted.push(address),
            Err(message) => section.wrong(found.location, &format!("{KEY}[{at}]"), message),
        }
    }
    config.node_port_addresses.file(Some(FileValue { value: accepted(&wanted), location: first }));
}

/// The prefixes that the word `localhost` stands for.
const LOOPBACK: [IpNet; 2] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128)),
];

/// An entry of `nodePortAddresses`.
#[derive(Clone, Copy, Debug)]
pub(super) enum Accepted {
    Primary,
    All,
    Localhost,
    Within(IpNet),
}

pub(super) fn node_port_address(text: &str) -> Result<Accepted, String> {
    match text {
        "primary" => Ok(Accepted::Primary),
        "all" => Ok(Accepted::All),
        "localhost" => Ok(Accepted::Localhost),
        text => prefix(text).map(Accepted::Within).ok_or_else(|| {
            let value = crate::snapshot::quoted(text);
            format!("{value} is not allowed; allowed: a prefix, primary, all, localhost")
        }),
    }
}

/// Combines all entries of the list.
pub(super) fn accepted(wanted: &[Accepted]) -> NodePortAddresses {
    let mut addresses = NodePortAddresses { primary: false, ..NodePortAddresses::default() };
    for entry in wanted {
        match entry {
            Accepted::Primary => addresses.primary = true,
            Accepted::All => addresses.all = true,
            Accepted::Localhost => {
                addresses.localhost = true;
                // A family without an entry would be served on all its addresses (contract 3.5): both get one.
                addresses.cidrs.extend(LOOPBACK);
            }
            Accepted::Within(cidr) => {
                // The prefix of length 0 names every address, loopback addresses among them.
                addresses.localhost |= cidr.addr().is_loopback() || cidr.prefix_len() == 0;
                addresses.cidrs.push(*cidr);
            }
        }
    }
    addresses.localhost |= addresses.all;
    addresses
}

pub(super) fn some<T>(found: FileValue<T>) -> FileValue<Option<T>> {
    FileValue { value: Some(found.value), location: found.location }
}

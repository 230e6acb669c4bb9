//! Files and flags as people write them, valid and invalid, and the configuration that follows.

mod fields;
mod upstream;

use std::path::Path;

use clap::Parser as _;
use lb_common::addr::Ip;
use lb_common::config::{Device, Prefix, Settings};

use super::flags::Run;
use super::*;
use crate::cli::{Cli, Command};
use crate::plan::Family;
use crate::snapshot::NodeSpec;

fn run(arguments: &[&str]) -> Run {
    let all = ["lb-agent", "run"].iter().chain(arguments);
    let command = Cli::try_parse_from(all).unwrap().command;
    let Command::Run(start) = command else { panic!("{command:?}") };
    start.run
}

fn with(arguments: &[&str], text: &str) -> Result<Config, Error> {
    let all: Vec<&str> = ["--config", "c"].into_iter().chain(arguments.iter().copied()).collect();
    Config::of(&run(&all), Some(text))
}

/// Makes a file with these lines of kube-proxy's document.
fn file(lines: &str) -> Result<Config, Error> {
    with(&[], &format!("apiVersion: {}\nkind: {}\n{lines}\n", KUBE_PROXY.0, KUBE_PROXY.1))
}

fn agent(lines: &str) -> Result<Config, Error> {
    with(&[], &format!("apiVersion: {}\nkind: {}\n{lines}\n", AGENT.0, AGENT.1))
}

fn flags(arguments: &[&str]) -> Result<Config, Error> {
    Config::of(&run(arguments), None)
}

/// The content that kubeadm 1.36 writes into the `ConfigMap` `kube-proxy`.
const KUBEADM: &str = include_str!("kubeadm.yaml");

#[test]
fn file_of_kubeadm_is_read_without_a_warning() {
    let config = with(&["--hostname-override", "node-a"], KUBEADM).unwrap();
    assert_eq!(config.warnings, Vec::<String>::new());
    assert_eq!(config.node(), "node-a");
    let kubeconfig = config.kubeconfig.value.unwrap();
    assert_eq!(kubeconfig.to_str(), Some("/var/lib/kube-proxy/kubeconfig.conf"));
    assert_eq!(config.cluster_cidr.value[0].to_string(), "10.244.0.0/16");
    assert_eq!(config.healthz.value.unwrap().to_string(), "0.0.0.0:10256");
    assert_eq!(config.healthz.origin, SettingOrigin::Default, "empty is not set");
    assert_eq!(config.timeouts, Timeouts::default());
    assert!(!config.localhost_node_ports.value, "on loopback only if configured");
}

#[test]
fn both_documents_are_one_configuration() {
    let text = format!(
        "{KUBEADM}\n---\napiVersion: lb.dev/v1alpha1\nkind: AgentConfiguration\n\
         masquerade: kube-proxy\nsocketLB: all\necho: reject\nmapSizes: {{flows: 4096}}\n\
         externalDevices: ['eth*']\nlocalhostNodePorts: false\ntimeouts: {{udp: 10s}}\n"
    );
    let config = with(&[], &text).unwrap();
    assert_eq!(config.warnings, Vec::<String>::new());
    let expected = Settings::MASQUERADE_KUBE_PROXY | Settings::LOCAL_BY_PREFIX;
    assert_eq!(config.flags(), expected);
    assert_eq!(config.socket_mode(), Settings::SOCKETS_ALL);
    assert_eq!(config.sizes()["FLOWS"], 4096);
    assert_eq!(config.lifetimes().unreplied, 10);
    assert!(config.external_devices.value[0].matches("eth0"));
    let (first, second) = text.split_once("\n---\n").unwrap();
    let turned = with(&[], &format!("{second}\n---\n{first}")).unwrap();
    let values =
        |config: &Config| config.entries().into_iter().map(|entry| (entry.field, entry.value));
    assert!(values(&turned).eq(values(&config)), "in any order");
}

#[test]
fn on_and_off_need_no_quotes() {
    let config = agent("acceleration: off\nbypass: on\nsocketLB: off").unwrap();
    assert_eq!(config.acceleration.value, Acceleration::Off);
    assert_eq!(config.bypass.value, Bypass::On);
    assert_eq!(config.socket_mode(), Settings::SOCKETS_OFF);
    assert!(agent("echo: off").is_err(), "it has no such word");
}

#[test]
fn bypass_beside_kube_proxys_masquerade_is_a_warning() {
    let warnings = |text| agent(text).unwrap().warnings;
    let expected = "bypass: ignored because masquerade is kube-proxy".to_owned();
    assert_eq!(warnings("bypass: on\nmasquerade: kube-proxy"), [expected]);
    assert_eq!(warnings("bypass: on"), Vec::<String>::new());
}

#[test]
fn former_name_of_bypass_is_read_with_a_warning() {
    let config = agent("shortCuts: on").unwrap();
    assert_eq!(config.bypass.value, Bypass::On);
    assert_eq!(config.warnings, ["shortCuts: this is the former name of bypass; rename it"]);
    let text = agent("bypass: on\nshortCuts: on").unwrap_err().to_string();
    assert!(text.contains("shortCuts: is the former name of bypass"), "{text}");
    assert!(agent("shortCuts: perhaps").is_err(), "it has no such word");
}

#[test]
fn error_names_place_field_and_allowed_values() {
    let text = agent("timeouts:\n  udp: soon\nmasquerade: always").unwrap_err().to_string();
    assert!(text.contains("line 4, column 8: timeouts.udp: \"soon\" is not allowed"), "{text}");
    let all = "line 5, column 13: masquerade: \"always\" is not allowed; allowed: edge, kube-proxy";
    assert!(text.contains(all), "both are named at once: {text}");
    let text = agent("mapSizes:\n  flow: 9").unwrap_err().to_string();
    let all =
        "line 4, column 9: mapSizes.flow: map FLOW does not exist or has a fixed size; choose";
    assert!(text.contains(all), "{text}");
    let text = agent("mapSizes:\n  services: 134217729").unwrap_err().to_string();
    let all = "mapSizes.services: map SERVICES cannot have 134217729 entries; at most 134217728";
    assert!(text.contains(all), "{text}");
    let text = file("oomScoreAdj: 5000").unwrap_err().to_string();
    assert!(text.contains("5000 is not allowed; allowed: -1000 to 1000"), "{text}");
    let text = file("nodePortAddresses: [primary, here]").unwrap_err().to_string();
    assert!(text.contains("nodePortAddresses[1]: \"here\""), "{text}");
    let text = with(&[], "a: [").unwrap_err().to_string();
    assert!(text.starts_with("--config c: line "), "{text}");
    let text = with(&[], "apiVersion: v1\nkind: Service\n").unwrap_err().to_string();
    assert!(text.contains("v1 Service is not known; allowed: kubeproxy.config"), "{text}");
}

#[test]
fn unknown_and_meaningless_fields_are_named() {
    let config =
        file("frob: 1\nconntrack:\n  min: 5\n  frob: 2\niptables: {masqueradeBit: 14}").unwrap();
    let expected = [
        "line 5, column 8: conntrack.min: has no effect here, ignored",
        "line 6, column 9: conntrack.frob: unknown field, ignored",
        "line 3, column 7: frob: unknown field, ignored",
    ];
    for warning in expected {
        assert!(config.warnings.iter().any(|it| it == warning), "{:#?}", config.warnings);
    }
}

#[test]
fn last_value_of_a_key_that_is_written_twice_counts() {
    let config =
        file("clusterCIDR: 10.1.0.0/16\nconntrack: {min: 1, min: 2}\nclusterCIDR: 10.2.0.0/16")
            .unwrap();
    assert_eq!(config.cluster_cidr.value, ["10.2.0.0/16".parse().unwrap()]);
    let expected = [
        "line 3, column 14: clusterCIDR: written twice, the last value counts",
        "line 4, column 18: conntrack.min: written twice, the last value counts",
    ];
    for warning in expected {
        assert!(config.warnings.iter().any(|it| it == warning), "{:#?}", config.warnings);
    }
}

#[test]
fn local_is_detected_as_configured_and_else_by_device() {
    let config = flags(&[]).unwrap();
    assert_eq!(config.flags() & (Settings::NO_DETECTOR | Settings::LOCAL_BY_PREFIX), 0);
    let none = file("detectLocalMode: ClusterCIDR").unwrap();
    assert_ne!(none.flags() & Settings::NO_DETECTOR, 0);
    assert_eq!(none.warnings.len(), 1);
    let empty = file("clusterCIDR: \"\"").unwrap();
    assert_ne!(empty.flags() & Settings::NO_DETECTOR, 0, "named, and empty: as with kube-proxy");
    let silent = file("nodePortAddresses: [primary]").unwrap();
    assert_eq!(silent.flags() & Settings::NO_DETECTOR, 0, "by device");
    let document =
        format!("apiVersion: {}\nkind: {}\nmode: nftables\n", KUBE_PROXY.0, KUBE_PROXY.1);
    let ours = format!("apiVersion: {}\nkind: {}\nmasquerade: kube-proxy\n", AGENT.0, AGENT.1);
    let exact = with(&[], &format!("{document}---\n{ours}")).unwrap();
    assert_ne!(exact.flags() & Settings::NO_DETECTOR, 0, "exactly as kube-proxy");
    let alone = with(&[], &ours).unwrap();
    assert_eq!(alone.flags() & Settings::NO_DETECTOR, 0, "without a file of kube-proxy");
    let bridge =
        file("detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}").unwrap();
    assert_eq!(bridge.bridge_interface.value, "cni0");
    assert_ne!(bridge.flags() & Settings::LOCAL_BY_DEVICE, 0);
    assert!(file("detectLocalMode: InterfaceNamePrefix").is_err());
}

#[test]
fn prefixes_of_the_cluster_or_of_the_node_are_those_of_the_data_path() {
    let ip = |text: &str| Ip::from(text.parse::<IpAddr>().unwrap());
    let config = file("clusterCIDR: 10.244.0.0/16,fd00:10::/32").unwrap();
    let [v4, v6] = config.local(None);
    assert!(v4.contains(&ip("10.244.9.1")) && !v4.contains(&ip("10.245.0.1")));
    assert!(!v4.contains(&ip("::10.244.9.1")), "no IPv6 address is an IPv4 one");
    assert!(v6.contains(&ip("fd00:10:7::1")) && !v6.contains(&ip("fd01::1")));
    let config = file("detectLocalMode: NodeCIDR").unwrap();
    let node =
        NodeSpec { pod_cidrs: ["10.1.2.0/24".parse().unwrap()].into(), ..NodeSpec::default() };
    let [v4, v6] = config.local(Some(&node));
    assert!(v4.contains(&ip("10.1.2.3")));
    assert!(!v6.contains(&ip("fd00::1")));
    let _: u32 = Device::LOCAL_CLIENTS;
}

#[test]
fn pods_of_the_cluster_are_in_its_range_or_around_that_of_the_node() {
    let ip = |text: &str| Ip::from(text.parse::<IpAddr>().unwrap());
    let pod_cidrs = ["10.1.2.0/24", "fd00:1:2:3::/64"].map(|cidr| cidr.parse().unwrap());
    let node = NodeSpec { pod_cidrs: pod_cidrs.into(), ..NodeSpec::default() };
    let [v4, v6] = file("").unwrap().pods(Some(&node));
    assert!(v4.contains(&ip("10.1.9.1")) && !v4.contains(&ip("10.2.2.1")));
    assert!(v6.contains(&ip("fd00:1:9::1")) && !v6.contains(&ip("fd00:2:2:3::1")));
    let [v4, v6] = file("clusterCIDR: 10.244.0.0/14").unwrap().pods(Some(&node));
    assert!(v4.contains(&ip("10.247.0.1")) && !v4.contains(&ip("10.1.2.1")));
    assert!(!v6.contains(&ip("fd00:1:2:3::1")), "the configuration names one family");
    assert_eq!(file("").unwrap().pods(None), [Prefix::default(); 2]);
}

#[test]
fn node_ports_are_served_where_the_list_says() {
    let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
    let primary = Some(ip("192.168.1.5"));
    let accepts = |list: &str, address: &str, primary| {
        let config = file(&format!("nodePortAddresses: {list}")).unwrap();
        config.node_port_addresses.value.accepts(ip(address), primary)
    };
    assert!(accepts("null", "192.168.1.5", primary));
    assert!(!accepts("null", "172.16.0.9", primary));
    assert!(accepts("[all]", "172.16.0.9", primary));
    assert!(accepts("[172.16.0.0/12]", "172.16.0.9", primary));
    assert!(!accepts("[172.16.0.0/12]", "192.168.1.5", primary));
    assert!(accepts("[172.16.0.0/12]", "fd00::1", None), "of IPv6 the list says nothing");
    assert!(!accepts("[0.0.0.0/0]", "127.0.0.1", primary), "loopback is for the socket hooks");
    for (address, primary) in [("192.168.1.5", primary), ("172.16.0.9", None), ("fd00::1", None)] {
        assert!(!accepts("[localhost]", address, primary), "{address} is no loopback");
    }
    assert!(accepts("[localhost, 172.16.0.0/12]", "172.16.0.9", primary));
    assert!(accepts("[127.0.0.0/8]", "fd00::1", None), "of IPv6 this list says nothing");
    let local = file("nodePortAddresses: [localhost]").unwrap();
    for family in Family::ALL {
        assert!(!local.node_port_addresses.value.is_all(family, None), "{family:?}");
    }
    let written = with(&[], &local.documents()).unwrap();
    assert_eq!(written.node_port_addresses.value, local.node_port_addresses.value);
    assert!(!file("nodePortAddresses: [primary]").unwrap().localhost_node_ports.value);
    assert!(file("nodePortAddresses: [localhost]").unwrap().localhost_node_ports.value);
    assert!(!file("mode: iptables").unwrap().localhost_node_ports.value, "contract 13");
    let asked = file("iptables: {localhostNodePorts: true}").unwrap();
    assert!(asked.localhost_node_ports.value);
}

/// Contract 3.6: kube-proxy's field counts only if the list of addresses contains loopback.
#[test]
fn list_of_addresses_limits_only_kube_proxys_localhost_node_ports() {
    let theirs = "iptables: {localhostNodePorts: true}\n";
    for (list, expected) in [
        ("[192.168.50.0/24]", false),
        ("[primary]", false),
        ("[192.168.50.0/24, 127.0.0.0/8]", true),
        ("[0.0.0.0/0]", true),
    ] {
        let text = format!("{theirs}nodePortAddresses: {list}");
        assert_eq!(file(&text).unwrap().localhost_node_ports.value, expected, "{list}");
    }
    let flag = flags(&["--iptables-localhost-nodeports", "--nodeport-addresses=primary"]).unwrap();
    assert!(!flag.localhost_node_ports.value);
    let ours = format!("apiVersion: {}\nkind: {}\nlocalhostNodePorts: true", AGENT.0, AGENT.1);
    let both = file(&format!("{theirs}nodePortAddresses: [primary]\n---\n{ours}")).unwrap();
    assert!(both.localhost_node_ports.value);
}

#[test]
fn a_specific_bind_address_is_read() {
    let config = file("bindAddress: 10.0.0.9").unwrap();
    assert_eq!(config.bind_address.value, "10.0.0.9".parse::<IpAddr>().unwrap());
}

#[test]
fn pins_lie_where_the_flag_says_also_where_that_is_the_default() {
    let elsewhere = format!("apiVersion: {}\nkind: {}\nbpfDir: /elsewhere\n", AGENT.0, AGENT.1);
    let dir = |given: &[&str]| with(given, &elsewhere).unwrap().bpf_dir;
    assert_eq!(dir(&[]).value, Path::new("/elsewhere"));
    let typed = dir(&["--bpf-dir", "/sys/fs/bpf/lb"]);
    assert_eq!(
        (&*typed.value, typed.origin),
        (Path::new(DEFAULT_BPF_DIR), SettingOrigin::Flag("bpf-dir"))
    );
    assert_eq!(flags(&[]).unwrap().bpf_dir, Setting::new(DEFAULT_BPF_DIR.into()));
}

/// `pkg/proxy/apis/config/validation/validation.go` refuses these, too.
#[test]
fn numbers_without_an_effect_are_validated() {
    for wrong in [
        "iptables: {masqueradeBit: 32}",
        "nftables: {masqueradeBit: -1}",
        "conntrack: {maxPerCore: -1}",
        "conntrack: {min: many}",
        "clientConnection: {burst: -1}",
    ] {
        assert!(file(wrong).is_err(), "{wrong}");
    }
    let right = file("iptables: {masqueradeBit: 31}\nconntrack: {min: 1}").unwrap();
    assert_eq!(right.warnings.len(), 2, "{:?}", right.warnings);
}

#[test]
fn written_configuration_reads_back_the_same() {
    let before = with(&["--hostname-override", "n"], KUBEADM).unwrap();
    let again = with(&[], &before.documents()).unwrap();
    assert_eq!(again.warnings, Vec::<String>::new());
    assert_eq!(again.configz(), before.configz());
    let defaults = flags(&[]).unwrap();
    let again = with(&[], &defaults.documents()).unwrap();
    assert_eq!(again.configz(), defaults.configz(), "without a detector");
    for mode in ["iptables", "nftables"] {
        let lines = format!("mode: {mode}\n{mode}: {{masqueradeAll: true, syncPeriod: 2500ms}}");
        let before = file(&lines).unwrap();
        let again = with(&[], &before.documents()).unwrap();
        assert_eq!((again.configz(), again.patience()), (before.configz(), before.patience()));
        assert!(again.masquerade_all.value, "{mode}");
    }
    assert!(before.table().contains("clusterCIDR"));
    assert!(before.table().contains("flag --hostname-override"));
}

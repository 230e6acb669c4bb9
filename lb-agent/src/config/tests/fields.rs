//! Each field of `KubeProxyConfiguration` that the parser knows is in `config view` and in the migrated file, or is
//! named as ignored. None is dropped silently.

use super::*;
use crate::config::migrate::migrate;

/// Every field with a value that is not its default, as a file writes it.
const FIELDS: [(&str, &str); 59] = [
    ("bindAddress", "10.0.0.9"),
    ("bindAddressHardFail", "true"),
    ("clientConnection.acceptContentTypes", "application/json"),
    ("clientConnection.burst", "7"),
    ("clientConnection.contentType", "application/json"),
    ("clientConnection.kubeconfig", "/etc/kubeconfig"),
    ("clientConnection.qps", "5"),
    ("clusterCIDR", "10.244.0.0/16"),
    ("configSyncPeriod", "7m"),
    ("conntrack.maxPerCore", "1000"),
    ("conntrack.min", "1000"),
    ("conntrack.tcpBeLiberal", "true"),
    ("conntrack.tcpCloseWaitTimeout", "7m"),
    ("conntrack.tcpEstablishedTimeout", "7h"),
    ("conntrack.udpStreamTimeout", "77s"),
    ("conntrack.udpTimeout", "7s"),
    ("detectLocal.bridgeInterface", "cni0"),
    ("detectLocal.interfaceNamePrefix", "cali"),
    ("detectLocalMode", "NodeCIDR"),
    ("enableProfiling", "true"),
    ("featureGates.AllowServiceExternalIPs", "false"),
    ("featureGates.Other", "true"),
    ("healthzBindAddress", "127.0.0.1:7"),
    ("hostnameOverride", "node-z"),
    ("iptables.localhostNodePorts", "true"),
    ("iptables.masqueradeAll", "true"),
    ("iptables.masqueradeBit", "7"),
    ("iptables.minSyncPeriod", "7s"),
    ("iptables.snatNodeInternalIP", "true"),
    ("iptables.syncPeriod", "7s"),
    ("ipvs.excludeCIDRs", "[10.0.0.0/8]"),
    ("ipvs.minSyncPeriod", "7s"),
    ("ipvs.scheduler", "rr"),
    ("ipvs.strictARP", "true"),
    ("ipvs.syncPeriod", "7s"),
    ("ipvs.tcpFinTimeout", "7s"),
    ("ipvs.tcpTimeout", "7s"),
    ("ipvs.udpTimeout", "7s"),
    ("logging.flushFrequency", "7s"),
    ("logging.format", "json"),
    ("logging.options", "{json: {splitStream: true}}"),
    ("logging.verbosity", "7"),
    ("logging.vmodule", "[{filePattern: a, verbosity: 7}]"),
    ("metricsBindAddress", "127.0.0.1:7"),
    ("mode", "nftables"),
    ("mode", "ipvs"),
    ("nftables.masqueradeAll", "true"),
    ("nftables.masqueradeBit", "7"),
    ("nftables.minSyncPeriod", "7s"),
    ("nftables.syncPeriod", "7s"),
    ("nodePortAddresses", "[primary, 10.0.0.0/8]"),
    ("oomScoreAdj", "-7"),
    ("portRange", "1-7"),
    ("showHiddenMetricsForVersion", "1.7"),
    ("udpIdleTimeout", "7s"),
    ("windowsRunAsService", "true"),
    ("winkernel.enableDSR", "true"),
    ("winkernel.networkName", "seven"),
    ("winkernel.sourceVip", "10.0.0.7"),
];

/// Makes a file with one field, in a mode of kube-proxy.
fn text(mode: &str, (field, value): (&str, &str)) -> String {
    let field = match field.split_once('.') {
        Some((section, field)) => format!("{section}: {{{field}: {value}}}"),
        None => format!("{field}: {value}"),
    };
    let mode = if field.starts_with("mode:") { String::new() } else { format!("mode: {mode}\n") };
    format!("apiVersion: {}\nkind: {}\n{mode}{field}\n", KUBE_PROXY.0, KUBE_PROXY.1)
}

/// Returns the entries that are set, except the mode.
fn set(config: &Config) -> Vec<(String, String)> {
    let entries = config.entries().into_iter();
    let set =
        entries.filter(|entry| entry.origin != SettingOrigin::Default && entry.field != "mode");
    // A mode that is left out is the default one.
    let name = |field: &str| field.replace("nftables.", "iptables.").replace("ipvs.", "iptables.");
    set.map(|entry| (name(&entry.field), entry.value.to_string())).collect()
}

/// Reports whether one of the warnings is about a field, or about all fields of Windows.
fn names(warnings: &[String], field: &str) -> bool {
    let name = if field.starts_with("winkernel.") { "winkernel" } else { field };
    let is_named =
        |warning: &String| warning.starts_with(name) || warning.contains(&format!(" {name}:"));
    warnings.iter().any(is_named)
}

#[test]
fn each_field_is_kept_or_named() {
    let mut wrong = Vec::new();
    for mode in ["iptables", "nftables", "ipvs"] {
        for field in FIELDS {
            let text = text(mode, field);
            let read = with(&[], &text).unwrap();
            let unknown = read.warnings.iter().any(|it| it.contains("unknown field"));
            let is_shown =
                if field.0 == "mode" { read.mode.value == field.1 } else { !set(&read).is_empty() };
            if unknown || !(is_shown ^ names(&read.warnings, field.0)) && field.0 != "mode" {
                wrong.push(format!("mode {mode}, view of {field:?}: {:?}", read.warnings));
            }
            let migrated = migrate("c", &text).unwrap();
            let again = with(&[], &migrated.documents).unwrap();
            let is_kept = is_shown && set(&again) == set(&read);
            let is_named = names(&migrated.warnings, field.0);
            if !is_named && (field.0 == "mode" || !is_kept) {
                wrong.push(format!("mode {mode}, migrate of {field:?}: {:?}", migrated.warnings));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The table above is complete: it has each name in the source of the parser.
#[test]
fn each_name_in_the_parser_is_in_the_table() {
    let source = include_str!("../kube_proxy.rs").split("fn node_port_address(").next().unwrap();
    let is_name = |word: &&str| {
        word.starts_with(|letter: char| letter.is_ascii_lowercase())
            && word.chars().all(|letter| letter.is_ascii_alphanumeric())
    };
    let words = source.split('"').skip(1).step_by(2).filter(is_name);
    let known = |word: &str| FIELDS.iter().any(|(field, _)| field.split('.').any(|it| it == word));
    // Values of `logging.format` and modes.
    let values = ["text", "json"];
    let missing: Vec<&str> = words.filter(|word| !known(word) && !values.contains(word)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

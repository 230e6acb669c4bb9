//! kube-proxy's flags and fields in each accepted spelling: their meaning here, and which of them takes precedence.

use super::*;

#[test]
fn listeners_are_of_the_family_of_a_files_bind_address() {
    let listeners = |config: Config| {
        let text = |it: Setting<Option<SocketAddr>>| it.value.map(|it| it.to_string());
        [text(config.healthz), text(config.metrics)].map(Option::unwrap_or_default)
    };
    let v4 = ["0.0.0.0:10256", "127.0.0.1:10249"];
    for six in ["'::'", "'fd00::5'"] {
        let both = listeners(file(&format!("bindAddress: {six}")).unwrap());
        assert_eq!(both, ["[::]:10256", "[::1]:10249"], "{six}");
    }
    assert_eq!(listeners(file("bindAddress: 10.0.0.9").unwrap()), v4);
    assert_eq!(listeners(flags(&["--bind-address=::"]).unwrap()), v4, "a flag comes too late");
    let own = file("bindAddress: '::'\nmetricsBindAddress: 127.0.0.1").unwrap();
    assert_eq!(listeners(own), ["[::]:10256", "127.0.0.1:10249"]);
}

#[test]
fn empty_flags_are_unset_and_booleans_read_as_in_go() {
    let plain = flags(&[]).unwrap();
    let empty =
        ["--kubeconfig=", "--config=", "--master=", "--bind-address=", "--hostname-override="];
    assert_eq!(flags(&empty).unwrap().table(), plain.table());
    assert_eq!(Config::load(&run(&["--config", ""])).unwrap().table(), plain.table());
    let error = flags(&["--bind-address=here"]).unwrap_err().to_string();
    assert!(error.contains("--bind-address: \"here\" is not an address"), "{error}");
    for (text, expected) in [("=1", true), ("=T", true), ("=TRUE", true), ("", true), ("=F", false)]
    {
        let config = flags(&[&format!("--masquerade-all{text}")]).unwrap();
        assert_eq!(config.masquerade_all.value, expected, "{text}");
    }
    let wrong = Cli::try_parse_from(["lb-agent", "run", "--masquerade-all=yes"]);
    assert!(wrong.unwrap_err().to_string().contains("write true or false"));
}

#[test]
fn ports_of_listeners_are_for_addresses_without_one_and_zero_is_no_listener() {
    let healthz = |given: &[&str]| flags(given).unwrap().healthz.value.map(|it| it.to_string());
    assert_eq!(healthz(&["--healthz-port=0"]), None);
    assert_eq!(healthz(&["--healthz-port=0", "--healthz-bind-address=10.0.0.1:9"]), None);
    let own = healthz(&["--healthz-port=9", "--healthz-bind-address=10.0.0.1"]);
    assert_eq!(own.as_deref(), Some("10.0.0.1:9"));
    assert_eq!(healthz(&["--healthz-port=9"]).as_deref(), Some("0.0.0.0:10256"), "as kube-proxy");
    assert_eq!(flags(&["--metrics-port=0"]).unwrap().metrics.value, None);
    let ignored = with(&["--metrics-port=0"], KUBEADM).unwrap();
    assert!(ignored.metrics.value.is_some(), "--config is given");
}

#[test]
fn the_log_is_as_kube_proxys_file_and_flags_say() {
    let log = |config: Config| (config.log_format.value, config.verbosity.value);
    assert_eq!(log(flags(&[]).unwrap()), (LogFormat::Text, 2));
    assert_eq!(log(flags(&["--logging-format=json", "-v=4"]).unwrap()), (LogFormat::Json, 4));
    let lines = "logging: {format: json, verbosity: 1000}";
    let parsed = file(lines).unwrap();
    assert_eq!(parsed.warnings, Vec::<String>::new());
    assert_eq!(log(with(&[], &parsed.documents()).unwrap()), (LogFormat::Json, u8::MAX));
    assert_eq!(log(parsed), (LogFormat::Json, u8::MAX));
    let both = format!("apiVersion: {}\nkind: {}\n{lines}\n", KUBE_PROXY.0, KUBE_PROXY.1);
    let typed = with(&["--log-format=text", "--v=5"], &both).unwrap();
    assert_eq!(log(typed), (LogFormat::Text, 5), "flags win, as with kube-proxy");
    assert!(file("logging: {format: xml}").is_err());
    for name in ["boot-id-file", "machine-id-file"] {
        let config = flags(&[&format!("--{name}=/etc/x")]).unwrap();
        assert_eq!(config.warnings, [format!("--{name}: has no effect here, ignored")]);
    }
}

#[test]
fn the_name_of_the_node_is_trimmed_and_lowered() {
    assert_eq!(flags(&["--hostname-override= Node-A "]).unwrap().node(), "node-a");
    assert_eq!(file("hostnameOverride: NODE-B").unwrap().node(), "node-b");
    let host = flags(&[]).unwrap().node();
    assert_eq!(flags(&["--hostname-override="]).unwrap().node(), host, "empty is not set");
    let named =
        format!("apiVersion: {}\nkind: {}\nhostnameOverride: c", KUBE_PROXY.0, KUBE_PROXY.1);
    assert_eq!(
        with(&["--hostname-override="], &named).unwrap().node(),
        "c",
        "nor in a file's place"
    );
    let error = flags(&["--hostname-override=  "]).unwrap_err().to_string();
    assert!(error.contains("hostname override"), "{error}");
}

#[test]
fn patience_is_twice_the_sync_period_of_the_mode() {
    let seconds = |config: Config| config.patience().as_secs();
    assert_eq!(seconds(file("").unwrap()), 60);
    let all = "iptables: {syncPeriod: 5s}\nnftables: {syncPeriod: 6s}\nipvs: {syncPeriod: 7s}";
    for (mode, expected) in [("\"\"", 10), ("iptables", 10), ("nftables", 12), ("ipvs", 14)] {
        assert_eq!(seconds(file(&format!("mode: {mode}\n{all}")).unwrap()), expected, "{mode}");
    }
    assert_eq!(seconds(file("mode: nftables\niptables: {syncPeriod: 5s}").unwrap()), 60);
    assert_eq!(seconds(flags(&["--iptables-sync-period=1m"]).unwrap()), 120);
    assert!(file("iptables: {syncPeriod: soon}").is_err());
}

#[test]
fn kube_proxys_flags_count_without_a_file() {
    let config = flags(&[
        "--cluster-cidr=10.244.0.0/16,fd00::/48",
        "--masquerade-all",
        "--healthz-bind-address=",
        "--nodeport-addresses=192.168.0.0/16,localhost",
        "--conntrack-udp-timeout-stream=0s",
        "--ipvs-strict-arp",
        "--profiling=true",
        "--feature-gates",
        "A=true",
    ])
    .unwrap();
    assert_eq!(config.healthz.value, None);
    assert_eq!(config.masquerade.value, Masquerade::KubeProxy, "masqueradeAll requires it");
    assert!(config.localhost_node_ports.value);
    assert_eq!(config.timeouts, Timeouts::default(), "zero leaves it alone");
    assert_eq!(config.warnings.len(), 3, "{:?}", config.warnings);
    let empty = flags(&["--nodeport-addresses=", "--init-only=false"]).unwrap();
    assert!(empty.node_port_addresses.value.primary && !empty.node_port_addresses.is_set());
    for wrong in
        ["--detect-local-mode=Cluster", "--nodeport-addresses=x", "--metrics-bind-address=x:1"]
    {
        let error = flags(&[wrong]).unwrap_err().to_string();
        assert!(error.starts_with(wrong.split('=').next().unwrap()), "{error}");
    }
}

#[test]
fn flag_for_all_flows_overrides_file_sizes_of_one_family() {
    let file = "apiVersion: lb.dev/v1alpha1\nkind: AgentConfiguration\n\
                mapSizes: {FLOWS4: 2048, flows6: 1024, AFFINITY: 512}\n";
    let sizes = |given: &[&str]| with(given, file).unwrap().sizes().into_iter().collect::<Vec<_>>();
    let is = |sizes: &[(&str, u32)]| -> Vec<(String, u32)> {
        sizes.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect()
    };
    assert_eq!(sizes(&["--map-size", "FLOWS=9"]), is(&[("AFFINITY", 512), ("FLOWS", 9)]));
    assert_eq!(
        sizes(&["--map-size", "FLOWS4=7", "--map-size", "FLOWS=9"]),
        is(&[("AFFINITY", 512), ("FLOWS", 9), ("FLOWS4", 7)])
    );
    assert_eq!(
        sizes(&["--map-size", "FLOWS4=7"]),
        is(&[("AFFINITY", 512), ("FLOWS4", 7), ("FLOWS6", 1024)])
    );
}

#[test]
fn file_disables_flags_of_kube_proxy_but_not_of_the_agent() {
    let given =
        ["--hostname-override", "b", "--cluster-cidr", "10.0.0.0/8", "--map-size", "flows=8"];
    let given = [&given[..], &["--proxy-mode", "ipvs", "--masquerade-all"]].concat();
    let config = with(&given, KUBEADM).unwrap();
    assert_eq!(config.cluster_cidr.value[0].to_string(), "10.244.0.0/16");
    assert_eq!((config.node().as_str(), config.sizes()["FLOWS"]), ("b", 8));
    let expected = [
        "--cluster-cidr: ignored because --config is given",
        "--masquerade-all: ignored because --config is given",
        "--proxy-mode: has no effect here, ignored",
    ];
    assert_eq!(config.warnings, expected);
}

#[test]
fn gate_of_external_ips_counts_in_file_and_flag() {
    assert!(flags(&[]).unwrap().external_ips.value);
    let parsed = file("featureGates: {AllowServiceExternalIPs: false, Other: true}").unwrap();
    assert!(!parsed.external_ips.value);
    assert!(names_only(&parsed, "featureGates.Other"), "{:?}", parsed.warnings);
    let given = flags(&["--feature-gates=Other=true,AllowServiceExternalIPs=F"]).unwrap();
    assert!(!given.external_ips.value);
    assert!(names_only(&given, "--feature-gates: Other"), "{:?}", given.warnings);
    let wrong = Cli::try_parse_from(["lb-agent", "run", "--feature-gates=Other"]);
    assert!(wrong.unwrap_err().to_string().contains("write GATE=true"));
}

fn names_only(config: &Config, what: &str) -> bool {
    matches!(&*config.warnings, [warning] if warning.contains(what))
}

#[test]
fn zero_leaves_the_kernels_timeouts_of_tcp() {
    let timeouts = |config: Config| {
        let all = config.timeouts;
        [all.tcp_established, all.tcp_close_wait, all.udp].map(|setting| setting.value.as_secs())
    };
    let zeros = "conntrack: {tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s, udpTimeout: 0s}";
    assert_eq!(timeouts(file(zeros).unwrap()), [432_000, 60, 30]);
    let zeros = ["--conntrack-tcp-timeout-established=0", "--conntrack-udp-timeout=0"];
    assert_eq!(timeouts(flags(&zeros).unwrap()), [432_000, 3_600, 30]);
    assert_eq!(timeouts(file("conntrack: {tcpCloseWaitTimeout: null}").unwrap())[1], 3_600);
}

#[test]
fn prefixes_of_the_cluster_are_checked_where_they_are_used() {
    const PAIR: &str = "10.244.0.0/16,10.245.0.0/16";
    assert!(file(&format!("clusterCIDR: {PAIR}")).is_err());
    let other = file(&format!("clusterCIDR: {PAIR}\ndetectLocalMode: NodeCIDR")).unwrap();
    assert!(other.cluster_cidr.value.is_empty());
    assert!(names_only(&other, "clusterCIDR: has no effect here"), "{:?}", other.warnings);
    let cidr = format!("--cluster-cidr={PAIR}");
    assert!(flags(&[&cidr]).is_err());
    let other = flags(&[&cidr, "--detect-local-mode=NodeCIDR"]).unwrap();
    assert!(names_only(&other, "--cluster-cidr: has no effect here"), "{:?}", other.warnings);
}

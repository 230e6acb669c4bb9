//! Flags, which override the file. The module `proxy` has the flags of kube-proxy, `run` the agent's own.

use std::path::PathBuf;
use std::time::Duration;

use super::kube_proxy::{
    EXTERNAL_IPS_GATE, MODES, UNCHANGED_TCP_TIMEOUTS, accepted, node_port_address,
};
use super::{Config, DetectLocalMode, Setting, SettingOrigin, values};
use crate::maps::MapShape;
use crate::snapshot::address;

mod ignored;
mod proxy;
mod run;

pub use ignored::IgnoredFlags;
pub use proxy::ProxyFlags;
pub use run::{Log, Run};
pub(crate) use run::{named, path};

/// Applies flags to settings, and collects those that `--config` overrides.
struct Taking {
    with_file: bool,
    ignored: Vec<&'static str>,
}

impl Taking {
    fn flag<T>(
        &mut self,
        setting: &mut Setting<T>,
        name: &'static str,
        value: Option<impl Into<T>>,
    ) {
        if value.is_some() && self.with_file {
            self.ignored.push(name);
        } else {
            setting.flag(name, value);
        }
    }
}

/// Applies the flags to the configuration. Errors: an invalid value.
pub(super) fn apply(config: &mut Config, run: &Run) -> Result<(), String> {
    let proxy = &run.proxy;
    // As in kube-proxy, most flags are ignored together with a file; the warnings at the end name them.
    let mut taking = Taking { with_file: config.file.is_some(), ignored: Vec::new() };
    let t = &mut taking;
    let given = proxy.bind_address.as_ref().filter(|text| !text.is_empty());
    let wrong =
        |text| format!("--bind-address: {} is not an address", crate::snapshot::quoted(text));
    let bind = given.map(|text| address(text).ok_or_else(|| wrong(text))).transpose()?;
    t.flag(&mut config.bind_address, "bind-address", bind);
    t.flag(&mut config.bind_hard_fail, "bind-address-hard-fail", proxy.bind_address_hard_fail);
    let (text, port) = (proxy.healthz_bind_address.as_ref(), proxy.healthz_port);
    let healthz = listener("healthz-bind-address", text, port.unwrap_or(values::HEALTHZ))?;
    t.flag(&mut config.healthz, "healthz-bind-address", healthz);
    // The port comes after the address: with the value 0 it turns the listener off.
    t.flag(&mut config.healthz, "healthz-port", none_at_zero(port));
    let (text, port) = (proxy.metrics_bind_address.as_ref(), proxy.metrics_port);
    let metrics = listener("metrics-bind-address", text, port.unwrap_or(values::METRICS))?;
    t.flag(&mut config.metrics, "metrics-bind-address", metrics);
    t.flag(&mut config.metrics, "metrics-port", none_at_zero(port));
    let mode = detect_local_mode(proxy)?;
    cluster_cidr(t, config, proxy, mode)?;
    t.flag(&mut config.detect_local, "detect-local-mode", mode);
    t.flag(
        &mut config.bridge_interface,
        "pod-bridge-interface",
        proxy.pod_bridge_interface.clone(),
    );
    let prefix = proxy.pod_interface_name_prefix.clone();
    t.flag(&mut config.interface_name_prefix, "pod-interface-name-prefix", prefix);
    let list = proxy.nodeport_addresses.iter().flatten().filter(|text| !text.is_empty());
    let wanted: Result<Vec<_>, _> = list.map(|text| node_port_address(text)).collect();
    let wanted = wanted.map_err(|error| format!("--nodeport-addresses: {error}"))?;
    // As in kube-proxy, an empty list counts as absent.
    let accepted = (!wanted.is_empty()).then(|| accepted(&wanted));
    t.flag(&mut config.node_port_addresses, "nodeport-addresses", accepted);
    t.flag(&mut config.masquerade_all, "masquerade-all", proxy.masquerade_all);
    let localhost = proxy.iptables_localhost_nodeports;
    t.flag(&mut config.localhost_node_ports, "iptables-localhost-nodeports", localhost);
    // Zero counts as absent.
    let period = proxy.iptables_sync_period.filter(|period| !period.is_zero());
    t.flag(&mut config.sync_period, "iptables-sync-period", period);
    t.flag(&mut config.oom_score_adj, "oom-score-adj", proxy.oom_score_adj);
    timeouts(t, config, proxy);
    feature_gates(t, config, proxy);
    // Together with a file, the flag counts only if the file names no kubeconfig.
    let kubeconfig = run.kubeconfig_file().map(PathBuf::from);
    if config.kubeconfig.is_set() && kubeconfig.is_some() {
        taking.ignored.push("kubeconfig");
    } else {
        config.kubeconfig.flag("kubeconfig", kubeconfig.map(Some));
    }
    // The file has no such field; kube-proxy, too, reads this flag beside it (`createClient` in
    // cmd/kube-proxy/app/server.go).
    config.master.flag("master", run.master.clone().filter(|url| !url.is_empty()).map(Some));
    // This flag counts beside a file (contract 8.1): all nodes may share one file.
    let hostname = run.hostname_override.clone().filter(|name| !name.is_empty());
    config.hostname.flag("hostname-override", hostname.map(Some));
    config.log_format.flag("log-format", run.log.log_format);
    config.verbosity.flag("v", run.log.v);
    ours(config, run);
    let ignored =
        taking.ignored.iter().map(|name| format!("--{name}: ignored because --config is given"));
    config.warnings.extend(ignored);
    let ignored = &proxy.ignored_flags.0;
    config
        .warnings
        .extend(ignored.iter().map(|name| format!("--{name}: has no effect here, ignored")));
    Ok(())
}

fn timeouts(t: &mut Taking, config: &mut Config, proxy: &ProxyFlags) {
    let unchanged = |time: Option<Duration>, unchanged: Duration| {
        time.map(|time| if time.is_zero() { unchanged } else { time })
    };
    let all = &mut config.timeouts;
    let [established, close_wait] = UNCHANGED_TCP_TIMEOUTS;
    let open = unchanged(proxy.conntrack_tcp_timeout_established, established);
    t.flag(&mut all.tcp_established, "conntrack-tcp-timeout-established", open);
    let closed = unchanged(proxy.conntrack_tcp_timeout_close_wait, close_wait);
    t.flag(&mut all.tcp_close_wait, "conntrack-tcp-timeout-close-wait", closed);
    // Zero counts as absent.
    let some = |time: Option<Duration>| time.filter(|time| !time.is_zero());
    t.flag(&mut all.udp, "conntrack-udp-timeout", some(proxy.conntrack_udp_timeout));
    let stream = some(proxy.conntrack_udp_timeout_stream);
    t.flag(&mut all.udp_stream, "conntrack-udp-timeout-stream", stream);
}

fn feature_gates(t: &mut Taking, config: &mut Config, proxy: &ProxyFlags) {
    let gates = proxy.feature_gates.iter().flatten();
    let ignored = gates.clone().filter(|(name, _)| name != EXTERNAL_IPS_GATE);
    let ignored =
        ignored.map(|(name, _)| format!("--feature-gates: {name}: has no effect here, ignored"));
    config.warnings.extend(ignored);
    // The last value of a gate that is given twice counts, as with Go's flags.
    let allowed = gates.rev().find(|(name, _)| name == EXTERNAL_IPS_GATE).map(|(_, is_on)| *is_on);
    t.flag(&mut config.external_ips, "feature-gates", allowed);
}

/// Applies the pod prefixes of the cluster. As in kube-proxy, a text that is not valid is an error only where the mode
/// uses it.
fn cluster_cidr(
    t: &mut Taking,
    config: &mut Config,
    proxy: &ProxyFlags,
    mode: Option<DetectLocalMode>,
) -> Result<(), String> {
    let Some(text) = proxy.cluster_cidr.as_ref().filter(|text| !text.is_empty()) else {
        return Ok(());
    };
    let is_used = mode.is_none_or(|mode| mode == DetectLocalMode::ClusterCidr);
    match values::cidr_pair(text) {
        Ok(pair) => t.flag(&mut config.cluster_cidr, "cluster-cidr", Some(pair)),
        Err(error) if is_used => return Err(format!("--cluster-cidr: {error}")),
        Err(error) => {
            config.warnings.push(format!("--cluster-cidr: has no effect here, ignored: {error}"));
        }
    }
    Ok(())
}

/// Applies the flags that kube-proxy does not have: they take precedence over the file.
fn ours(config: &mut Config, run: &Run) {
    let external = (!run.external_device.is_empty()).then(|| run.external_device.clone());
    config.external_devices.flag("external-device", external);
    let pods = (!run.pod_device.is_empty()).then(|| run.pod_device.clone());
    config.pod_devices.flag("pod-device", pods);
    config.cgroup.flag("cgroup", run.cgroup.clone().map(Some));
    config.bpf_dir.flag("bpf-dir", run.bpf_dir.clone());
    // A flag replaces the file's sizes of all maps that it covers: `FLOWS` also replaces `FLOWS4` and `FLOWS6`.
    for shape in run.map_size.iter().flat_map(|(name, _)| MapShape::sized_by(name)) {
        config.map_sizes.remove(shape.name);
    }
    for (name, entries) in &run.map_size {
        let setting = Setting { value: *entries, origin: SettingOrigin::Flag("map-size") };
        config.map_sizes.insert(name.clone(), setting);
    }
}

fn detect_local_mode(proxy: &ProxyFlags) -> Result<Option<DetectLocalMode>, String> {
    let Some(text) = proxy.detect_local_mode.as_ref().filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let found = MODES.iter().find(|(word, _)| word == text);
    let allowed = MODES.map(|(word, _)| word).join(", ");
    let refusal = || format!("--detect-local-mode: {text:?} is not allowed; allowed: {allowed}");
    found.map(|(_, mode)| Some(*mode)).ok_or_else(refusal)
}

/// Returns "no listener" for port 0. As in kube-proxy, any other port only completes an address without one.
fn none_at_zero(port: Option<u16>) -> ListenerFlag {
    port.filter(|port| *port == 0).map(|_| None)
}

/// The address of a listener from flags: `None` without a flag, `Some(None)` for no listener.
type ListenerFlag = Option<Option<std::net::SocketAddr>>;

fn listener(flag: &str, text: Option<&String>, port: u16) -> Result<ListenerFlag, String> {
    match text {
        None => Ok(None),
        // As in kube-proxy, an empty address turns the listener off.
        Some(text) if text.is_empty() => Ok(Some(None)),
        Some(text) => {
            let address = values::listener(text, port);
            address.map(|it| Some(Some(it))).map_err(|error| format!("--{flag}: {text:?}: {error}"))
        }
    }
}

//! Checks and defaults that involve several values, applied when all values are read.

use std::net::Ipv6Addr;

use super::{Bypass, Config, DetectLocalMode, Error, Masquerade, Setting, SettingOrigin};

impl Config {
    /// Applies the defaults. Errors: a detector without the name that it needs, or an unusable host name.
    pub(super) fn apply_defaults(&mut self) -> Result<(), Error> {
        self.adapt_listeners();
        self.normalize_hostname()?;
        let wanting = match self.detect_local.value {
            DetectLocalMode::BridgeInterface if self.bridge_interface.value.is_empty() => {
                Some("detectLocalMode BridgeInterface needs detectLocal.bridgeInterface")
            }
            DetectLocalMode::InterfaceNamePrefix if self.interface_name_prefix.value.is_empty() => {
                Some("detectLocalMode InterfaceNamePrefix needs detectLocal.interfaceNamePrefix")
            }
            DetectLocalMode::Unset
            | DetectLocalMode::ClusterCidr
            | DetectLocalMode::NodeCidr
            | DetectLocalMode::BridgeInterface
            | DetectLocalMode::InterfaceNamePrefix => None,
        };
        if let Some(wanting) = wanting {
            return Err(Error::Flag(wanting.into()));
        }
        // `masqueradeAll` only makes sense with kube-proxy's masquerade. An explicit `masquerade: edge` is more
        // specific and wins.
        if self.masquerade_all.value && !self.masquerade.is_set() {
            let origin = self.masquerade_all.origin;
            self.masquerade = Setting { value: Masquerade::KubeProxy, origin };
        } else if self.masquerade_all.value && self.masquerade.value == Masquerade::Edge {
            self.warnings.push("masqueradeAll: ignored because masquerade is edge".into());
        }
        if self.bypass.value == Bypass::On && !self.has_bypass() {
            self.warnings.push("bypass: ignored because masquerade is kube-proxy".into());
        }
        // kube-proxy's default mode is ClusterCIDR, which without a prefix detects nothing (contract 3.4). It applies
        // if the file names a detector or asks for kube-proxy's masquerade; otherwise interfaces determine which
        // clients are local.
        let is_as_kube_proxy = self.is_detection_named
            || self.has_kube_proxy_document && self.masquerade.value == Masquerade::KubeProxy;
        let is_open = self.detect_local.value == DetectLocalMode::Unset;
        if is_open && self.cluster_cidr.value.is_empty() && is_as_kube_proxy {
            self.detect_local.value = DetectLocalMode::ClusterCidr;
        }
        let (list, localhost) = (&self.node_port_addresses, &self.localhost_node_ports);
        // kube-proxy ignores its own setting if the list leaves loopback out (contract 3.6).
        let is_theirs =
            self.is_localhost_of_kube_proxy || matches!(localhost.origin, SettingOrigin::Flag(_));
        let is_left_out = localhost.value && is_theirs && !list.value.localhost;
        if list.is_set() && (!localhost.is_set() || is_left_out) {
            let (value, origin) = (list.value.localhost, list.origin);
            self.localhost_node_ports = Setting { value, origin };
        }
        if self.detect_local.value == DetectLocalMode::ClusterCidr
            && self.cluster_cidr.value.is_empty()
        {
            self.warnings.push(
                "detectLocalMode ClusterCIDR without clusterCIDR: local pods are not detected"
                    .into(),
            );
        }
        if !matches!(self.mode.value.as_str(), "" | "iptables" | "nftables") {
            self.warnings.push(format!(
                "mode {}: has no effect on the data path, which is eBPF",
                self.mode.value
            ));
        }
        Ok(())
    }

    /// Adapts the default listeners to the family of the file's `bindAddress`, as kube-proxy does for files only
    /// (contract 8.1).
    fn adapt_listeners(&mut self) {
        let is_of_file = matches!(self.bind_address.origin, SettingOrigin::File(_));
        if !is_of_file || self.bind_address.value.is_ipv4() {
            return;
        }
        for (listener, ip) in
            [(&mut self.healthz, Ipv6Addr::UNSPECIFIED), (&mut self.metrics, Ipv6Addr::LOCALHOST)]
        {
            // A configured address stays as it is.
            if let (false, Some(address)) = (listener.is_set(), &mut listener.value) {
                address.set_ip(ip.into());
            }
        }
    }

    /// Trims the Node's name and converts it to lower case, as kube-proxy does.
    fn normalize_hostname(&mut self) -> Result<(), Error> {
        let Some(name) = &mut self.hostname.value else { return Ok(()) };
        let trimmed = name.trim().to_lowercase();
        if trimmed.is_empty() && !name.is_empty() {
            let wrong = format!(
                "hostname override: {name:?} is not a valid name; give the name of this Node, or \
                 remove it"
            );
            return Err(Error::Flag(wrong));
        }
        *name = trimmed;
        Ok(())
    }
}

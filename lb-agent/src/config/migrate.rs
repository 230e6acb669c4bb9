//! `config migrate`: kube-proxy's `ConfigMap`, or the file in it, becomes the two documents that `--config` reads.
//!
//! Only values that are set are written, so that defaults can still change. Warnings name the fields that are left out;
//! the unset settings of `AgentConfiguration` follow as comments.

use std::net::SocketAddr;

use super::problem::{Problem, joined};
use super::tree::{self, YamlNode, YamlValue};
use super::values::HEALTHZ;
use super::{AGENT, Config, DetectLocalMode, KUBE_PROXY, Location, Setting, SettingOrigin};

/// Keys of the configuration file in kube-proxy's `ConfigMap`: as kubeadm writes it, and as EKS does.
const KEYS: [&str; 2] = ["config.conf", "config"];
/// Mount point of the host's cgroups in `deploy/daemonset.yaml`. In a pod the agent finds it without the setting.
const HOST_CGROUP: &str = "/host/cgroup";

/// The converted configuration, and what could not be converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// Two YAML documents.
    pub documents: String,
    /// The settings that are left out, and why.
    pub warnings: Vec<String>,
}

/// An error that leaves nothing to migrate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file has invalid fields.
    #[error("{file}: {}", joined(problems))]
    Problems {
        file: String,
        /// All invalid fields of kube-proxy's file.
        problems: Vec<Problem>,
    },
    /// The `ConfigMap` has none of the keys.
    #[error(
        "{file}: the ConfigMap has no data.{}; give kube-proxy's ConfigMap",
        KEYS.join(" and no data.")
    )]
    NoKey { file: String },
    /// Two values contradict each other.
    #[error("{file}: {source}")]
    Together { file: String, source: super::Error },
    /// The documents cannot be written as YAML.
    #[error("write yaml")]
    Yaml(#[from] serde_saphyr::ser::Error),
}

/// Converts a configuration to the two documents. `file` names it in messages.
pub fn migrate(file: &str, text: &str) -> Result<Migrated, Error> {
    let refuse = |file: &str, problems| Error::Problems { file: file.to_owned(), problems };
    let documents = tree::documents(text).map_err(|problem| refuse(file, vec![problem]))?;
    // Operators have either the `ConfigMap`, from kubectl, or the file inside it.
    let config_map = documents.iter().find(|document| is_text(document, "kind", "ConfigMap"));
    let (file, text) = match config_map {
        None => (file.to_owned(), text.to_owned()),
        Some(map) => {
            let of_key = |key| {
                let value = &entry(entry(map, "data")?, key)?.value;
                if let YamlValue::Text(text) = value { Some((key, text.clone())) } else { None }
            };
            let Some((key, inner)) = KEYS.into_iter().find_map(of_key) else {
                return Err(Error::NoKey { file: file.to_owned() });
            };
            (format!("{file}, {key}"), inner)
        }
    };
    let mut config = Config::default();
    config.read(&text).map_err(|problems| refuse(&file, problems))?;
    config.apply_defaults().map_err(|source| Error::Together { file, source })?;
    // An empty field of the detector is not written, and without one the agent would detect pods by their interfaces.
    if config.is_detection_named && config.detect_local.value == DetectLocalMode::ClusterCidr {
        config.detect_local.origin = SettingOrigin::File(Location::default());
    }
    if config.kubeconfig.is_set() {
        config.kubeconfig = Setting::default();
        config.warnings.push(
            "clientConnection.kubeconfig: left out; a pod uses its ServiceAccount, elsewhere give \
             --kubeconfig"
                .into(),
        );
    }
    if config.mode.is_set() {
        config.mode = Setting::default();
        // An unknown mode has a warning already.
        let has_warning = config.warnings.iter().any(|warning| warning.starts_with("mode "));
        if !has_warning {
            config.warnings.push("mode: left out; the data path is eBPF".into());
        }
    }
    if !config.healthz.value.is_some_and(is_probed) {
        config.warnings.push(format!(
            "healthzBindAddress: the probes of deploy/daemonset.yaml ask port {HEALTHZ} of the pod's address, and the \
             kubelet ends a container that does not answer there; change the probes, or leave the field out"
        ));
    }
    let documents = [document(&config, KUBE_PROXY)?, document(&config, AGENT)?];
    let documents = documents.join("---\n") + &unset(&config);
    Ok(Migrated { documents, warnings: config.warnings })
}

fn document(config: &Config, api: (&str, &str)) -> Result<String, Error> {
    let document = config.document(api, |entry| entry.origin != SettingOrigin::Default);
    let text = serde_saphyr::to_string(&document)?;
    Ok(text.trim_end().to_owned() + "\n")
}

/// Returns the unset settings of `AgentConfiguration` as comments, with their defaults or an example.
fn unset(config: &Config) -> String {
    let entries = config.entries().into_iter();
    let ours = entries.filter(|entry| entry.is_ours && entry.origin == SettingOrigin::Default);
    let lines = ours.map(|entry| match &*entry.field {
        "cgroup" => {
            format!("# cgroup: {HOST_CGROUP}  # in a pod, as deploy/daemonset.yaml mounts it\n")
        }
        "serviceProxyName" => "# serviceProxyName: \"\"\n".to_owned(),
        field => format!("# {field}: {}\n", entry.value),
    });
    let lines: String = lines.collect();
    let sizes = if config.map_sizes.is_empty() { "# mapSizes: {}\n" } else { "" };
    format!("# Not set; each line shows a default or an example:\n{lines}{sizes}")
}

/// Reports whether a server at an address answers the probes of `deploy/daemonset.yaml`, which ask the node's address.
const fn is_probed(address: SocketAddr) -> bool {
    address.port() == HEALTHZ && !address.ip().is_loopback()
}

fn entry<'a>(node: &'a YamlNode, key: &str) -> Option<&'a YamlNode> {
    let YamlValue::Map(entries) = &node.value else { return None };
    entries.iter().find(|(name, _)| name == key).map(|(_, node)| node)
}

fn is_text(node: &YamlNode, key: &str, expected: &str) -> bool {
    let value = entry(node, key).map(|node| &node.value);
    matches!(value, Some(YamlValue::Text(text)) if text == expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUBEADM: &str = include_str!("kubeadm.yaml");

    fn config_map(text: &str) -> String {
        let lines = text.replace('\n', "\n    ");
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: kube-proxy, namespace: kube-system}}\n\
             data:\n  config.conf: |-\n    {lines}\n  kubeconfig.conf: \"kind: Config\"\n"
        )
    }

    fn read(text: &str) -> Config {
        let mut config = Config::default();
        config.read(text).unwrap();
        config.apply_defaults().unwrap();
        config
    }

    #[test]
    fn a_config_map_and_the_file_in_it_come_to_the_same() {
        let migrated = migrate("cm.yaml", &config_map(KUBEADM)).unwrap();
        assert_eq!(migrate("c.yaml", KUBEADM).unwrap(), migrated);
        insta::assert_snapshot!(migrated.documents);
        assert_eq!(migrated.warnings.len(), 1, "{:?}", migrated.warnings);
        let again = read(&migrated.documents);
        assert_eq!(again.warnings, Vec::<String>::new());
        assert_eq!(again.cluster_cidr.value, read(KUBEADM).cluster_cidr.value);
    }

    /// EKS writes another key, and kube-proxy's defaults into every field.
    #[test]
    fn config_map_of_another_installer_is_read_and_keeps_its_detector() {
        let text =
            format!("apiVersion: {}\nkind: {}\nclusterCIDR: \"\"\n", KUBE_PROXY.0, KUBE_PROXY.1);
        let map = config_map(&text).replace("config.conf:", "config:");
        let migrated = migrate("cm.yaml", &map).unwrap();
        assert_eq!(migrated, migrate("c.yaml", &text).unwrap());
        let (before, after) = (read(&text), read(&migrated.documents));
        assert_eq!(after.flags(), before.flags(), "{}", migrated.documents);
        assert_eq!(after.detect_local.value, DetectLocalMode::ClusterCidr);
    }

    #[test]
    fn everything_that_has_a_meaning_survives_and_the_rest_is_named() {
        let text = format!(
            "apiVersion: {}\nkind: {}\nmode: ipvs\nclusterCIDR: 10.0.0.0/8,fd00::/48\n\
             iptables: {{masqueradeAll: true, masqueradeBit: 14}}\nipvs: {{strictARP: true}}\n\
             nodePortAddresses: [primary, 10.1.0.0/16]\noomScoreAdj: -500\n\
             detectLocalMode: InterfaceNamePrefix\ndetectLocal: {{interfaceNamePrefix: cali}}\n\
             conntrack: {{udpTimeout: 45s, min: 131072}}\nhealthzBindAddress: 127.0.0.1:9\n",
            KUBE_PROXY.0, KUBE_PROXY.1
        );
        let migrated = migrate("c.yaml", &text).unwrap();
        insta::assert_snapshot!(migrated.documents);
        insta::assert_snapshot!(migrated.warnings.join("\n"));
        let (mut before, after) = (read(&text), read(&migrated.documents));
        before.mode = Setting::default();
        assert_eq!(after.configz(), before.configz());
        assert_eq!((after.flags(), after.sizes()), (before.flags(), before.sizes()));
        assert_eq!(after.warnings, Vec::<String>::new());
    }

    /// Every setting of this agent, with a value that is not its default.
    const OURS: &str = "masquerade: kube-proxy\nsocketLB: 'off'\nacceleration: native\nbypass: 'on'\necho: reject\n\
        localhostNodePorts: true\nexternalDevices: [eth*]\npodDevices: [cali*]\nbpfDir: /sys/fs/bpf/x\n\
        cgroup: /host/cgroup/unified\nserviceProxyName: other\nmapSizes: {FLOWS: 4096}\n\
        timeouts: {tcpEstablished: 2h, tcpCloseWait: 3m, udp: 10s, udpStream: 40s}\nsctpTimeout: 5m\n";

    #[test]
    fn migration_keeps_every_setting_of_the_agent() {
        let text = format!("{KUBEADM}---\napiVersion: {}\nkind: {}\n{OURS}", AGENT.0, AGENT.1);
        let before = read(&text);
        let all_are_set = before
            .entries()
            .iter()
            .all(|entry| !entry.is_ours || { entry.origin != SettingOrigin::Default });
        assert!(all_are_set, "a setting of the agent is missing in OURS");
        for migrated in [migrate("c.yaml", &text), migrate("cm.yaml", &config_map(&text))] {
            let documents = migrated.unwrap().documents;
            let after = read(&documents);
            assert_eq!(after.configz()["lb.dev"], before.configz()["lb.dev"], "{documents}");
            assert_eq!(after.lifetimes(), before.lifetimes(), "{documents}");
            // The warning is about a setting in OURS; the other settings cause none.
            assert_eq!(after.warnings, ["bypass: ignored because masquerade is kube-proxy"]);
        }
    }

    #[test]
    fn migration_lists_unset_settings_with_their_defaults() {
        let documents = migrate("c.yaml", KUBEADM).unwrap().documents;
        let said: String = documents
            .lines()
            .map(|line| line.strip_prefix("# ").filter(|line| !line.starts_with("Not")))
            .zip(documents.lines())
            .map(|(said, line)| said.unwrap_or(line).to_owned() + "\n")
            .collect();
        let (mut with_defaults, without) = (read(&said), read(&documents));
        assert_eq!(with_defaults.cgroup.value, Some(HOST_CGROUP.into()));
        with_defaults.cgroup = Setting::default();
        assert_eq!(with_defaults.configz(), without.configz(), "{said}");
        assert_eq!(with_defaults.warnings, Vec::<String>::new());
    }

    #[test]
    fn migration_refuses_invalid_input_and_names_the_place() {
        let cases = [
            ("kind: ConfigMap\ndata: {a: b}\n", "has no data.config.conf and no data.config;"),
            ("a: [", "c.yaml: line "),
            (
                &config_map(&KUBEADM.replace("oomScoreAdj: null", "oomScoreAdj: 5000")),
                "config.conf: line",
            ),
            ("kind: Service\napiVersion: v1\n", "v1 Service is not known"),
        ];
        for (text, expected) in cases {
            let error = migrate("c.yaml", text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}

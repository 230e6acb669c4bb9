//! `service list` and `service show`: the programmed and the refused service ports by name.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use lb_common::service::ServiceId;
use serde::Serialize;

use super::Error;
use super::list::{
    self, DRAINING, LEFT, ListedFrontend, NO_BACKENDS, NO_LOCAL_BACKENDS, SERVED, tone,
};
use super::print::{self, Row, Tone};
use crate::cli::{Format, Output, Scope};
use crate::datapath::open;
use crate::state_file::StateFile;
use crate::words;

/// One service port in one family.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedPort {
    /// `namespace/name:port`, or `#id` if the name is not known.
    service: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<ServiceId>,
    state: &'static str,
    kinds: Vec<&'static str>,
    backends: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    frontends: Vec<ListedFrontend>,
}

/// Returns the service ports as text.
pub fn list(bpf_dir: &Path, scope: &Scope, format: Format) -> Result<String, Error> {
    let (mut entries, state_file) = list::entries(&open(bpf_dir)?, bpf_dir)?;
    entries.retain(|entry| scope.has_family(entry.is_v4));
    let mut ports = ports(entries, &state_file);
    ports.retain(|port| scope.has(Some(&port.service)));
    print::print(&ports, format)
}

/// Returns everything about the ports of one Service.
pub fn show(
    bpf_dir: &Path,
    name: &str,
    namespace: Option<&str>,
    format: Format,
) -> Result<String, Error> {
    let (entries, state_file) = list::entries(&open(bpf_dir)?, bpf_dir)?;
    let mut ports = ports(entries, &state_file);
    ports.retain(|port| {
        matches(name, namespace, port.id, (!port.service.starts_with('#')).then_some(&port.service))
    });
    if ports.is_empty() {
        return Err(unknown(name, &state_file));
    }
    match format.output {
        Output::Table | Output::Wide => Ok(ports.iter().map(page).collect::<Vec<_>>().join("\n")),
        Output::Json | Output::Yaml | Output::Name => print::print(&ports, format),
    }
}

/// Returns the error for a name without a match.
pub(super) fn unknown(name: &str, state_file: &StateFile) -> Error {
    let hint = if state_file.names.is_empty() {
        ": the last run saved no names, so services are listed by number"
    } else {
        ""
    };
    Error::NoService { name: name.to_owned(), hint }
}

/// Reports whether `[NAMESPACE/]NAME[:PORT]` or a number selects a service port.
pub(super) fn matches(
    wanted: &str,
    namespace: Option<&str>,
    id: Option<ServiceId>,
    name: Option<&str>,
) -> bool {
    if let Ok(number) = wanted.trim_start_matches('#').parse::<ServiceId>()
        && id == Some(number)
    {
        return true;
    }
    let Some((own_namespace, own)) = name.and_then(|name| name.split_once('/')) else {
        return false;
    };
    // A namespace in the name takes precedence over the one of the flag.
    let (namespace, wanted) = match wanted.split_once('/') {
        Some((namespace, wanted)) => (Some(namespace), wanted),
        None => (namespace, wanted),
    };
    let own_name = own.split_once(':').map_or(own, |(name, _)| name);
    namespace.is_none_or(|namespace| namespace == own_namespace)
        && (wanted == own || wanted == own_name)
}

fn ports(entries: Vec<ListedFrontend>, state_file: &StateFile) -> Vec<ListedPort> {
    let mut by_id: BTreeMap<ServiceId, Vec<ListedFrontend>> = BTreeMap::new();
    for entry in entries {
        by_id.entry(entry.id).or_default().push(entry);
    }
    let programmed = by_id.into_iter().map(|(id, frontends)| {
        let name = state_file.names.get(&id).map(String::as_str);
        let mut kinds: Vec<&'static str> = frontends.iter().map(|entry| entry.kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let live = || frontends.iter().filter(|entry| !entry.is_draining);
        // The worst frontend counts: one without backends is reported although another has some.
        let worst = [NO_BACKENDS, NO_LOCAL_BACKENDS, LEFT, SERVED]
            .into_iter()
            .find(|state| live().any(|entry| entry.state == *state));
        let state = worst.unwrap_or(DRAINING);
        let backends = live().map(|entry| entry.used().len()).max().unwrap_or(0);
        let refused = name.and_then(|name| state_file.refused.get(name)).cloned();
        let service = words::service(id, name);
        ListedPort { service, id: Some(id), state, kinds, backends, refused, frontends }
    });
    let mut all: Vec<ListedPort> = programmed.collect();
    let named: Vec<&String> = state_file.names.values().collect();
    // A refused port without any row in the maps would otherwise be missing in the list.
    let refused = state_file.refused.iter().filter(|(name, _)| !named.contains(name));
    all.extend(refused.map(|(name, map)| ListedPort {
        service: name.clone(),
        id: None,
        state: "refused",
        kinds: Vec::new(),
        backends: 0,
        refused: Some(map.clone()),
        frontends: Vec::new(),
    }));
    all.sort_by(|left, right| (&left.service, left.id).cmp(&(&right.service, right.id)));
    all
}

impl Row for ListedPort {
    const HEADINGS: (&'static [&'static str], &'static [&'static str]) =
        (&["SERVICE", "STATE", "KINDS", "FRONTEND", "BACKENDS"], &["ID", "FRONTENDS"]);
    const NONE: &'static str = "no services";

    fn cells(&self) -> Vec<String> {
        let mut all = self.frontends.iter().map(|entry| entry.frontend.as_str());
        // NodePorts sort first but say the least about the Service.
        let cluster = self.frontends.iter().find(|entry| entry.kind == "ClusterIP");
        let first = cluster.map(|entry| entry.frontend.as_str()).or_else(|| all.clone().next());
        let more = self.frontends.len().saturating_sub(1);
        let shown = match (first, more) {
            (None, _) => String::new(),
            (Some(first), 0) => first.to_owned(),
            (Some(first), more) => format!("{first} +{more}"),
        };
        let joined = all.by_ref().collect::<Vec<_>>().join(" ");
        vec![
            self.service.clone(),
            self.state.into(),
            self.kinds.join(","),
            shown,
            self.backends.to_string(),
            self.id.map(|id| id.to_string()).unwrap_or_default(),
            joined,
        ]
    }

    fn name(&self) -> String {
        self.service.clone()
    }

    fn tone(&self) -> Tone {
        tone(self.state)
    }
}

/// Returns all details of a service port, one below the other.
fn page(port: &ListedPort) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        if writeln!(text, "{name:<12} {value}").is_err() {
            // Writing to a string cannot fail.
        }
    };
    line("Service", &port.service);
    line("Number", &port.id.map_or_else(|| "-".to_owned(), |id| id.to_string()));
    line("State", port.state);
    if let Some(map) = &port.refused {
        line("Refused", &words::full(map));
    }
    for entry in &port.frontends {
        let affinity = match entry.affinity_seconds {
            0 => String::new(),
            seconds => format!(", affinity {seconds}s"),
        };
        let state = match entry.state {
            DRAINING | LEFT | NO_LOCAL_BACKENDS => format!(", {}", entry.state),
            _ => String::new(),
        };
        line("", "");
        line(entry.kind, &entry.frontend);
        line("  Policy", &format!("{}{affinity}{state}", entry.policy));
        if let Some(sources) = entry.sources() {
            line("  Sources", &sources);
        }
        for (policy, backends) in [("Cluster", &entry.cluster), ("Local", &entry.local)] {
            // An empty set matters only under the policy that applies; the other set is empty for most frontends.
            if backends.is_empty() && (policy != entry.policy || entry.is_draining) {
                continue;
            }
            let backends: Vec<String> =
                backends.iter().map(list::ListedBackend::in_table).collect();
            let shown = if backends.is_empty() { "(none)".to_owned() } else { backends.join(" ") };
            line(&format!("  {policy}"), &shown);
        }
    }
    text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_meant_by_any_of_its_names() {
        let meant = |wanted: &str, namespace: Option<&str>| {
            matches(wanted, namespace, Some(7), Some("shop/web:http"))
        };
        for wanted in ["web", "web:http", "shop/web", "shop/web:http", "7", "#7"] {
            assert!(meant(wanted, None), "{wanted}");
        }
        for wanted in ["we", "web:https", "other/web", "8", "shop", "http"] {
            assert!(!meant(wanted, None), "{wanted}");
        }
        assert!(meant("web", Some("shop")) && !meant("web", Some("default")));
        assert!(matches("7", None, Some(7), None) && !matches("web", None, Some(7), None));
    }

    #[test]
    fn service_ports_are_grouped_and_the_refused_are_named() {
        let state_file = StateFile {
            names: BTreeMap::from([(1, "default/web:http".to_owned())]),
            refused: BTreeMap::from([("default/big".to_owned(), "MAGLEV".to_owned())]),
            ..StateFile::default()
        };
        let all = ports(list::samples(&state_file.names), &state_file);
        insta::assert_snapshot!(print::print(&all, print::PLAIN).unwrap());
        let wide = Format { output: Output::Wide, ..print::PLAIN };
        insta::assert_snapshot!(print::print(&all, wide).unwrap());
        insta::assert_snapshot!(all.iter().map(page).collect::<Vec<_>>().join("\n"));
    }
}

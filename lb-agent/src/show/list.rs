//! `lb list`: what the kernel maps hold, frontend by frontend.

use std::collections::BTreeMap;
use std::path::Path;

use comfy_table::Table;
use lb_common::service::{Backend, Flags, Frontend, Line, MEMBERS_PER_LINE, Service, Set};
use serde::Serialize;

use super::{Error, open, words};
use crate::cli::Output;
use crate::maps::Maps;
use crate::program::Actual;
use crate::run::Known;

/// One frontend.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    frontend: String,
    kind: &'static str,
    id: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<String>,
    policy: &'static str,
    affinity_seconds: u32,
    generation: u32,
    leaving: bool,
    source_ranges: bool,
    cluster: Vec<Endpoint>,
    local: Vec<Endpoint>,
}

/// One backend of a frontend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    address: String,
    id: u32,
    epoch: u32,
    on_this_node: bool,
}

/// Every frontend in the maps, as text.
pub fn list(bpf_dir: &Path, output: Output) -> Result<String, Error> {
    let maps = open(bpf_dir)?;
    let entries = entries(&maps, &Known::read(bpf_dir))?;
    match output {
        Output::Json => Ok(serde_json::to_string_pretty(&entries)? + "\n"),
        Output::Table => Ok(table(&entries)),
    }
}

fn entries(maps: &Maps, known: &Known) -> Result<Vec<Entry>, Error> {
    let services = maps.services()?;
    let lines = maps.lines(Actual::lines_in_use(&services))?;
    let backends = maps.backends()?;
    let shown = services.iter().filter(|(_, service)| !service.flags.has(Flags::ADDRESS));
    let entry = |(frontend, service): &(Frontend, Service)| {
        entry(frontend, service, &known.names, |set| members(set, &lines, &backends))
    };
    Ok(shown.map(entry).collect())
}

fn entry(
    frontend: &Frontend,
    service: &Service,
    names: &BTreeMap<u32, String>,
    members: impl Fn(Set) -> Vec<Endpoint>,
) -> Entry {
    let flags = service.flags;
    Entry {
        frontend: words::frontend(frontend),
        kind: words::kind(flags),
        id: service.id,
        service: names.get(&service.id).cloned(),
        policy: if flags.has(Flags::LOCAL_POLICY) { "Local" } else { "Cluster" },
        affinity_seconds: service.affinity,
        generation: service.generation,
        leaving: flags.has(Flags::LEAVING),
        source_ranges: flags.has(Flags::SOURCES),
        cluster: members(service.cluster),
        local: members(service.local),
    }
}

fn members(set: Set, lines: &[Line], backends: &[Backend]) -> Vec<Endpoint> {
    let member = |index: u32| {
        let line = lines.get((set.line + index / MEMBERS_PER_LINE) as usize)?;
        let (words, _) = line.as_chunks::<4>();
        let id = u32::from_ne_bytes(*words.get((index % MEMBERS_PER_LINE) as usize)?);
        let row = backends.get(id as usize)?;
        Some(Endpoint {
            address: words::endpoint(row.ip, row.port).to_string(),
            id,
            epoch: row.epoch,
            on_this_node: row.flags & Backend::LOCAL != 0,
        })
    };
    (0..set.members).filter_map(member).collect()
}

fn table(entries: &[Entry]) -> String {
    if entries.is_empty() {
        return "no services\n".into();
    }
    let mut table = Table::new();
    let _: &mut Table = table
        .load_style(comfy_table::presets::NOTHING)
        .set_header(["FRONTEND", "KIND", "SERVICE", "POLICY", "AFFINITY", "BACKENDS"]);
    for entry in entries {
        let used = if entry.policy == "Local" { &entry.local } else { &entry.cluster };
        let name = entry.service.clone().unwrap_or_else(|| format!("#{}", entry.id));
        let affinity = match entry.affinity_seconds {
            0 => "-".to_owned(),
            seconds => format!("{seconds}s"),
        };
        let backends = match (entry.leaving, used.as_slice()) {
            (true, _) => "(leaving)".to_owned(),
            (false, []) => "(none)".to_owned(),
            (false, used) => used.iter().map(Endpoint::in_table).collect::<Vec<_>>().join(" "),
        };
        let row = [
            entry.frontend.clone(),
            entry.kind.into(),
            name,
            entry.policy.into(),
            affinity,
            backends,
        ];
        let _: &mut Table = table.add_row(row);
    }
    for column in table.column_iter_mut() {
        let _: &mut comfy_table::Column = column.set_padding((0, 2));
    }
    let lines = table.lines().map(|line| line.trim_end().to_owned() + "\n");
    lines.collect()
}

impl Endpoint {
    /// The address; a star marks one on this node.
    fn in_table(&self) -> String {
        format!("{}{}", self.address, if self.on_this_node { "*" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_common::addr::{Ip, Port, Protocol};

    #[test]
    fn the_table_reads_at_a_glance() {
        let backend = |host: u8, flags| Backend {
            ip: Ip::v4([10, 244, 0, host]),
            port: Port::new(8080),
            flags,
            epoch: 1,
            service: 1,
            ..Backend::default()
        };
        let backends = [Backend::default(), backend(2, Backend::LOCAL), backend(3, 0)];
        let mut line: Line = [0; 64];
        line[..8].copy_from_slice(&[1_u32.to_ne_bytes(), 2_u32.to_ne_bytes()].concat());
        let cluster = Set { line: 0, members: 2, slots: 0 };
        let service = Service { id: 1, affinity: 60, cluster, ..Service::default() };
        let node_port = Service { flags: Flags::NODE_PORT.with(Flags::EXTERNAL), ..service };
        let gone = Service { id: 2, flags: Flags::LEAVING, ..Service::default() };
        let ip = Ip::v4([10, 96, 0, 1]);
        let rows = [
            (Frontend::node_port(ip, Port::new(30_080), Protocol::TCP), node_port),
            (Frontend::new(ip, Port::new(80), Protocol::TCP), service),
            (Frontend::new(Ip::v6([0xfd; 16]), Port::new(53), Protocol::UDP), gone),
        ];
        let names = BTreeMap::from([(1, "default/web:http".to_owned())]);
        let all: Vec<Entry> = rows
            .iter()
            .map(|(key, value)| entry(key, value, &names, |set| members(set, &[line], &backends)))
            .collect();
        insta::assert_snapshot!(table(&all));
    }
}

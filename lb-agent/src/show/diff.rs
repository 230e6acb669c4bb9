//! `lb diff`: the desired state of the source compared with the maps.
//!
//! Both are compared by their effect on packets, not by their positions: numbers of services, rows and lines may
//! differ.
//!
//! Node-wide settings are not compared, as they depend on interfaces that only the agent watches.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use lb_common::config::Settings;
use lb_common::service::{Backend, Flags, Frontend, Line, Service, Set, Source};
use serde::Serialize;

use super::Error;
use super::list;
use super::print::{self, Row, Tone};
use crate::cli::Format;
use crate::datapath::open;
use crate::reconcile::{Actual, Change, Limits, Op, Reconciler};
use crate::state_file::StateFile;
use crate::words;

/// A difference between the desired state and the maps.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StateDifference {
    frontend: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<String>,
    what: String,
}

/// The treatment of a packet to a frontend, as text.
#[derive(Debug, Default, PartialEq, Eq)]
struct Treatment {
    service: u32,
    rules: BTreeSet<String>,
}

/// Returns the differences as text, and whether there are none.
pub fn diff(bpf_dir: &Path, wanted: Vec<Change>, format: Format) -> Result<(String, bool), Error> {
    let maps = open(bpf_dir)?;
    let actual = maps.actual()?;
    // Names are read after rows, as in `list::entries`.
    let state_file = StateFile::read(bpf_dir);
    let differences = compare(maps.limits()?, wanted, &actual, &state_file);
    Ok((print::print(&differences, format)?, differences.is_empty()))
}

fn compare(
    limits: Limits,
    wanted: Vec<Change>,
    actual: &Actual,
    state_file: &StateFile,
) -> Vec<StateDifference> {
    let mut reconciler = Reconciler::new(limits);
    let mut image = Image::default();
    // The agent's own code makes the maps of the desired state, in memory.
    reconciler.plan(Duration::ZERO, wanted).iter().for_each(|op| image.apply(op));
    let names: BTreeMap<u32, String> =
        reconciler.names().map(|(id, key)| (id, key.to_string())).collect();
    let (wanted, held) = (treatments(&image.actual()), treatments(actual));
    let frontends: BTreeSet<&Frontend> = wanted.keys().chain(held.keys()).collect();
    let mut all = Vec::new();
    for frontend in frontends {
        let (want, hold) = (wanted.get(frontend), held.get(frontend));
        let service = want.and_then(|want| names.get(&want.service));
        // The desired state has numbers of its own; those of the maps are named in the state file.
        let service = service.or_else(|| state_file.names.get(&hold?.service)).cloned();
        let mut add = |what: String| {
            let (frontend, service) = (words::frontend(frontend), service.clone());
            all.push(StateDifference { frontend, service, what });
        };
        match (want, hold) {
            (Some(want), Some(hold)) => {
                for rule in want.rules.difference(&hold.rules) {
                    add(format!("missing: {rule}"));
                }
                for rule in hold.rules.difference(&want.rules) {
                    add(format!("not wanted: {rule}"));
                }
            }
            (Some(_), None) => add(format!("missing: {}", what(frontend))),
            (None, Some(_)) => add(format!("not wanted: {}", what(frontend))),
            (None, None) => {}
        }
    }
    all
}

/// Returns the type of an entry: a frontend, or the marker of an address whose other ports are refused.
fn what(frontend: &Frontend) -> &'static str {
    if words::is_marker(frontend) {
        "ClusterIP marker (other ports are refused)"
    } else {
        "the frontend"
    }
}

/// The content of the maps after a number of operations.
#[derive(Debug, Default)]
struct Image {
    services: BTreeMap<Frontend, Service>,
    backends: BTreeMap<u32, Backend>,
    lines: Vec<Line>,
    sources: BTreeSet<(u32, Source)>,
}

impl Image {
    fn apply(&mut self, op: &Op) {
        match op {
            Op::PutSettings(_) | Op::ForgetClients { .. } => {}
            Op::PutBackend { id, row } => {
                self.backends.insert(*id, *row);
            }
            Op::WriteLines { line, lines } => {
                let (from, to) = (*line as usize, *line as usize + lines.len());
                self.lines.resize(self.lines.len().max(to), [0; 64]);
                for (place, line) in self.lines.iter_mut().skip(from).zip(lines) {
                    *place = *line;
                }
            }
            Op::PutSource { bits, source } => {
                self.sources.insert((*bits, *source));
            }
            Op::RemoveSource { bits, source } => {
                self.sources.remove(&(*bits, *source));
            }
            Op::PutService { frontend, service } => {
                self.services.insert(*frontend, *service);
            }
            Op::RemoveService { frontend } => {
                self.services.remove(frontend);
            }
        }
    }

    fn actual(self) -> Actual {
        let rows = self.backends.last_key_value().map_or(0, |(last, _)| last + 1);
        let row = |id| self.backends.get(&id).copied().unwrap_or_default();
        Actual {
            backends: (0..rows).map(row).collect(),
            services: self.services.into_iter().collect(),
            lines: self.lines,
            sources: self.sources.into_iter().collect(),
            settings: Settings::default(),
        }
    }
}

fn treatments(actual: &Actual) -> BTreeMap<Frontend, Treatment> {
    let sources = list::sources(&actual.sources);
    // Draining entries serve only known flows, so they are not a difference.
    let is_live = |(_, service): &&(Frontend, Service)| !service.flags.has(Flags::DRAINING);
    let treatment = |(frontend, service): &(Frontend, Service)| {
        let mut rules: BTreeSet<String> = BTreeSet::new();
        if !service.flags.has(Flags::ADDRESS) {
            rules.extend(flags(service.flags));
            rules.extend((service.affinity > 0).then(|| format!("affinity {}s", service.affinity)));
            for (set, which) in [(service.cluster, "cluster"), (service.local, "local")] {
                rules.extend(members(actual, service.id, set, which));
            }
            if service.flags.has(Flags::SOURCE_RANGES) {
                let ranges = sources.get(&service.id).into_iter().flatten();
                rules.extend(ranges.map(|range| format!("source {range}")));
            }
        }
        (*frontend, Treatment { service: service.id, rules })
    };
    actual.services.iter().filter(is_live).map(treatment).collect()
}

fn flags(flags: Flags) -> impl Iterator<Item = String> {
    let names = [
        (Flags::EXTERNAL, "external traffic policy"),
        (Flags::LOCAL_POLICY, "policy Local"),
        (Flags::SOURCE_RANGES, "only listed sources"),
        (Flags::ANYWHERE, "endpoints elsewhere"),
        (Flags::NODE_PORT, "NodePort"),
    ];
    names.into_iter().filter(move |(flag, _)| flags.has(*flag)).map(|(_, name)| name.to_owned())
}

/// Returns the backends of a set, or a note that its lines are damaged.
fn members(actual: &Actual, id: u32, set: Set, which: &str) -> BTreeSet<String> {
    let Some(rows) = actual.sound_members(id, set) else {
        return BTreeSet::from([format!("{which} selection table (damaged)")]);
    };
    let row = |row: &u32| actual.backends.get(*row as usize);
    let word = |row: &Backend| {
        let place = if row.flags & Backend::LOCAL == 0 { "" } else { ", on this node" };
        format!("{which} backend {}{place}", words::endpoint(row.ip, row.port))
    };
    rows.iter().filter_map(row).map(word).collect()
}

impl Row for StateDifference {
    const HEADINGS: (&'static [&'static str], &'static [&'static str]) =
        (&["FRONTEND", "SERVICE", "DIFFERENCE"], &[]);
    const NONE: &'static str = "no differences";

    fn cells(&self) -> Vec<String> {
        let service = self.service.clone().unwrap_or_default();
        vec![self.frontend.clone(), service, self.what.clone()]
    }

    fn name(&self) -> String {
        self.frontend.clone()
    }

    fn tone(&self) -> Tone {
        Tone::Bad
    }
}

#[cfg(test)]
mod tests;

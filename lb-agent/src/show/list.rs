//! `lb list`: the content of the kernel maps, one frontend a line.

mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use lb_common::service::{
    Backend, Flags, Frontend, Line, MEMBERS_PER_LINE, Service, ServiceId, Set, Source,
};
use serde::Serialize;

pub(super) use self::table::tone;
use super::{Error, print};
use crate::cli::{Format, Scope};
use crate::datapath::open;
use crate::maps::Maps;
use crate::reconcile::Actual;
use crate::state_file::StateFile;
use crate::words;

/// The state of a frontend whose packets reach a backend.
pub(super) const SERVED: &str = "served";
/// The state of a frontend without a backend under its policy.
pub(super) const NO_BACKENDS: &str = "no backends";
/// The state of a frontend under the policy `Local` whose backends are all on other nodes: packets of clients outside
/// are dropped, those of pods and processes may be served.
pub(super) const NO_LOCAL_BACKENDS: &str = "no local backends";
/// The state of a frontend whose packets a process of this node gets, because it listens there.
pub(super) const LEFT: &str = "left to a process";
/// The state of a frontend that was removed.
pub(super) const DRAINING: &str = "draining";

/// A frontend, as lists show it.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedFrontend {
    #[serde(skip)]
    pub(super) is_v4: bool,
    pub(super) frontend: String,
    pub(super) kind: &'static str,
    pub(super) id: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) service: Option<String>,
    pub(super) policy: &'static str,
    pub(super) affinity_seconds: u32,
    generation: u32,
    /// One of [`SERVED`], [`NO_BACKENDS`], [`NO_LOCAL_BACKENDS`], [`LEFT`] and [`DRAINING`].
    pub(super) state: &'static str,
    #[serde(rename = "draining")]
    pub(super) is_draining: bool,
    /// `loadBalancerSourceRanges` of the family, as the maps have them; none if every source is allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) source_ranges: Option<Vec<String>>,
    pub(super) cluster: Vec<ListedBackend>,
    pub(super) local: Vec<ListedBackend>,
}

/// A backend of a frontend, as lists show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedBackend {
    pub(super) address: String,
    id: u32,
    epoch: u32,
    on_this_node: bool,
}

/// Returns all frontends in the maps as text.
pub fn list(bpf_dir: &Path, scope: &Scope, format: Format) -> Result<String, Error> {
    let (mut entries, _state_file) = entries(&open(bpf_dir)?, bpf_dir)?;
    entries.retain(|entry| entry.is_in(scope));
    print::print(&entries, format)
}

/// Returns all frontends in the maps, and the state file with their names.
///
/// The state file is read after the rows, because the agent writes a name before its rows.
pub(super) fn entries(
    maps: &Maps,
    bpf_dir: &Path,
) -> Result<(Vec<ListedFrontend>, StateFile), Error> {
    let services = maps.services()?;
    let state_file = StateFile::read(bpf_dir);
    let lines = maps.lines(Actual::lines_in_use(&services))?;
    let backends = maps.backends()?;
    let sources = sources(&maps.sources()?);
    let shown = services.iter().filter(|(_, service)| !service.flags.has(Flags::ADDRESS));
    let entry = |(frontend, service): &(Frontend, Service)| {
        entry(frontend, service, &state_file.names, &sources, |set| members(set, &lines, &backends))
    };
    let entries = shown.map(entry).collect();
    Ok((entries, state_file))
}

/// Returns the number of backends of the frontends in `services`. Each is counted once per service port.
pub(super) fn backends(maps: &Maps, services: &[(Frontend, Service)]) -> Result<usize, Error> {
    let lines = maps.lines(Actual::lines_in_use(services))?;
    let live = services.iter().filter(|(_, service)| !service.flags.has(Flags::DRAINING));
    let sets = live.flat_map(|(_, service)| [service.cluster, service.local]);
    let ids: BTreeSet<u32> = sets.flat_map(|set| rows(set, &lines).collect::<Vec<_>>()).collect();
    Ok(ids.len())
}

/// Returns the source ranges of each service port, sorted.
pub(super) fn sources(rows: &[(u32, Source)]) -> BTreeMap<ServiceId, Vec<String>> {
    let mut rows = rows.to_vec();
    rows.sort_unstable_by_key(|(bits, source)| (*source, *bits));
    let mut sources: BTreeMap<ServiceId, Vec<String>> = BTreeMap::new();
    for (bits, source) in &rows {
        sources.entry(source.service).or_default().push(words::source_range(*bits, source));
    }
    sources
}

fn entry(
    frontend: &Frontend,
    service: &Service,
    names: &BTreeMap<u32, String>,
    sources: &BTreeMap<ServiceId, Vec<String>>,
    members: impl Fn(Set) -> Vec<ListedBackend>,
) -> ListedFrontend {
    let flags = service.flags;
    let is_local = flags.has(Flags::LOCAL_POLICY);
    let (cluster, local) = (members(service.cluster), members(service.local));
    let state = if flags.has(Flags::DRAINING) {
        DRAINING
    } else if flags.has(Flags::HOST) {
        LEFT
    } else if !(if is_local { &local } else { &cluster }).is_empty() {
        SERVED
    } else if is_local && service.has_endpoints() {
        NO_LOCAL_BACKENDS
    } else {
        NO_BACKENDS
    };
    ListedFrontend {
        is_v4: frontend.ip.is_v4(),
        frontend: words::frontend(frontend),
        kind: words::kind(flags),
        id: service.id,
        service: names.get(&service.id).cloned(),
        policy: if is_local { "Local" } else { "Cluster" },
        affinity_seconds: service.affinity,
        generation: service.generation,
        state,
        is_draining: flags.has(Flags::DRAINING),
        source_ranges: flags
            .has(Flags::SOURCE_RANGES)
            .then(|| sources.get(&service.id).cloned().unwrap_or_default()),
        cluster,
        local,
    }
}

/// Returns the rows of a set's members.
fn rows(set: Set, lines: &[Line]) -> impl Iterator<Item = u32> {
    (0..set.members).filter_map(move |index| {
        let line = lines.get((set.line + index / MEMBERS_PER_LINE) as usize)?;
        let (words, _) = line.as_chunks::<4>();
        Some(u32::from_ne_bytes(*words.get((index % MEMBERS_PER_LINE) as usize)?))
    })
}

fn members(set: Set, lines: &[Line], backends: &[Backend]) -> Vec<ListedBackend> {
    let member = |id: u32| {
        let row = backends.get(id as usize)?;
        Some(ListedBackend {
            address: words::endpoint(row.ip, row.port).to_string(),
            id,
            epoch: row.epoch,
            on_this_node: row.flags & Backend::LOCAL != 0,
        })
    };
    rows(set, lines).filter_map(member).collect()
}

impl ListedFrontend {
    /// Returns the source ranges; none if every source is allowed.
    pub(super) fn sources(&self) -> Option<String> {
        let ranges = self.source_ranges.as_ref()?;
        Some(if ranges.is_empty() { "(none)".to_owned() } else { ranges.join(" ") })
    }

    /// Reports whether the scope includes the frontend.
    pub(super) fn is_in(&self, scope: &Scope) -> bool {
        scope.has(self.service.as_deref()) && scope.has_family(self.is_v4)
    }

    /// Returns the backends under the policy that applies.
    pub(super) fn used(&self) -> &[ListedBackend] {
        if self.policy == "Local" { &self.local } else { &self.cluster }
    }
}

#[cfg(test)]
pub(super) fn samples(names: &BTreeMap<u32, String>) -> Vec<ListedFrontend> {
    use lb_common::addr::{Ip, Port, Protocol};
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
    let left = Service { id: 3, flags: Flags::HOST, affinity: 0, ..service };
    let gone = Service { id: 2, flags: Flags::DRAINING, ..Service::default() };
    let elsewhere = Flags::LOCAL_POLICY.with(Flags::ANYWHERE).with(Flags::EXTERNAL);
    let ranges = Flags::SOURCE_RANGES.with(elsewhere);
    let far = Service { id: 4, flags: ranges, affinity: 0, ..service };
    let none = Service { id: 5, flags: Flags::LOCAL_POLICY, ..Service::default() };
    let ip = Ip::v4([10, 96, 0, 1]);
    let rows = [
        (Frontend::node_port(ip, Port::new(30_080), Protocol::TCP), node_port),
        (Frontend::new(ip, Port::new(80), Protocol::TCP), service),
        (Frontend::new(Ip::v4([10, 96, 0, 10]), Port::new(53), Protocol::UDP), left),
        (Frontend::new(Ip::v6([0xfd; 16]), Port::new(53), Protocol::UDP), gone),
        (Frontend::new(Ip::v4([198, 51, 100, 4]), Port::new(80), Protocol::TCP), far),
        (Frontend::new(Ip::v4([198, 51, 100, 5]), Port::new(80), Protocol::TCP), none),
    ];
    let range = |bits: u32, ip| (32 + 96 + bits, Source::new(4, Ip::v4(ip)));
    let sources = sources(&[range(24, [203, 0, 113, 0]), range(8, [10, 0, 0, 0])]);
    let members = |set| members(set, &[line], &backends);
    rows.iter().map(|(key, value)| entry(key, value, names, &sources, members)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_reads_at_a_glance() {
        let all = samples(&BTreeMap::from([(1, "default/web:http".to_owned())]));
        insta::assert_snapshot!(print::print(&all, print::PLAIN).unwrap());
        let wide = Format { output: crate::cli::Output::Wide, ..print::PLAIN };
        insta::assert_snapshot!(print::print(&all, wide).unwrap());
    }

    #[test]
    fn only_a_wide_table_shows_thousands_of_backends() {
        let mut all = samples(&BTreeMap::new());
        let many = all[0].cluster[1].clone();
        all[0].cluster = vec![many; 5_000];
        let found = print::print(&all[..1], print::PLAIN).unwrap();
        let expected = format!("{} +4992 more\n", ["10.244.0.3:8080"; 8].join(" "));
        assert!(found.ends_with(&expected), "{found}");
        let wide = Format { output: crate::cli::Output::Wide, ..print::PLAIN };
        let found = print::print(&all[..1], wide).unwrap();
        assert_eq!(found.matches("10.244.0.3:8080").count(), 5_000);
        assert_eq!(found.lines().count(), 2, "no line is wrapped");
    }
}

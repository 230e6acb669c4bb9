//! The maps, in memory.

use std::collections::{BTreeMap, BTreeSet};

use lb_common::addr::Endpoint;
use lb_common::config::Settings;
use lb_common::service::{Backend, Flags, Frontend, Line, NARROW, Service, Set, Source};

use super::super::{Actual, Limits, Op, selection};

/// The content of the maps.
#[derive(Clone, Debug)]
pub(super) struct Maps {
    pub(super) services: BTreeMap<Frontend, Service>,
    pub(super) backends: Vec<Backend>,
    pub(super) lines: Vec<Line>,
    pub(super) sources: BTreeSet<(u32, Source)>,
    pub(super) settings: Settings,
}

/// The treatment of a packet to a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) flags: Flags,
    pub(super) affinity: u32,
    pub(super) cluster: Vec<Endpoint>,
    pub(super) local: Vec<Endpoint>,
}

impl Maps {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            services: BTreeMap::new(),
            backends: vec![Backend::default(); limits.backends as usize],
            lines: vec![[0; 64]; limits.lines as usize],
            sources: BTreeSet::new(),
            settings: Settings::default(),
        }
    }

    pub(super) fn apply(&mut self, op: &Op) {
        match op {
            Op::PutSettings(settings) => self.settings = **settings,
            Op::PutBackend { id, row } => self.backends[*id as usize] = *row,
            Op::WriteLines { line, lines } => {
                self.lines[*line as usize..][..lines.len()].copy_from_slice(lines);
            }
            Op::PutSource { bits, source } => assert!(self.sources.insert((*bits, *source))),
            Op::RemoveSource { bits, source } => assert!(self.sources.remove(&(*bits, *source))),
            Op::PutService { frontend, service } => {
                self.services.insert(*frontend, *service);
            }
            Op::RemoveService { frontend } => assert!(self.services.remove(frontend).is_some()),
            // Entries that packets create do not exist here.
            Op::ForgetClients { .. } => {}
        }
    }

    fn members(&self, service: &Service, set: Set) -> Vec<Endpoint> {
        let lines = &self.lines[set.line as usize..];
        let ids = selection::members(set, lines);
        assert_eq!(ids.len() as u32, set.members);
        let slots = lines[set.member_lines() as usize..].as_flattened();
        for slot in 0..set.slots as usize {
            let member = match set.members {
                ..=NARROW => u32::from(slots[slot]),
                _ => u32::from(u16::from_ne_bytes([slots[2 * slot], slots[2 * slot + 1]])),
            };
            assert!(member < set.members, "slot of a member that is not there");
        }
        let row = |id: &u32| {
            let row = self.backends[*id as usize];
            assert_eq!(row.service, service.id, "row {id} belongs to another service");
            assert_ne!(row.epoch, 0);
            Endpoint::new(row.ip, row.port)
        };
        ids.iter().map(row).collect()
    }

    pub(super) fn see(&self, service: &Service) -> Seen {
        Seen {
            flags: service.flags,
            affinity: service.affinity,
            cluster: self.members(service, service.cluster),
            local: self.members(service, service.local),
        }
    }

    /// Returns the treatment of a packet to a frontend. Draining frontends do not exist for new packets.
    pub(super) fn look_up(&self, frontend: &Frontend) -> Option<Seen> {
        let service = self.services.get(frontend)?;
        (!service.flags.has(Flags::DRAINING)).then(|| self.see(service))
    }

    pub(super) fn check_settings(&self) {
        for (frontend, service) in &self.services {
            if service.flags.has(Flags::NODE_PORT) {
                let range = self.settings.services.node_port_low.get()
                    ..=self.settings.services.node_port_high.get();
                assert!(range.contains(&frontend.port.get()));
            } else if service.flags.has(Flags::EXTERNAL) {
                assert!(self.settings.services.may_be_vip(&frontend.ip));
            } else {
                let cover =
                    self.settings.services.cluster_ip_cover[usize::from(!frontend.ip.is_v4())];
                assert!(cover.covers(&frontend.ip));
                assert!(self.settings.services.contain(&frontend.ip));
            }
        }
    }

    pub(super) fn actual(&self) -> Actual {
        let services: Vec<_> = self.services.iter().map(|(key, value)| (*key, *value)).collect();
        Actual {
            lines: self.lines[..Actual::lines_in_use(&services) as usize].to_vec(),
            services,
            backends: self.backends.clone(),
            sources: self.sources.iter().copied().collect(),
            settings: self.settings,
        }
    }
}

//! A node with its services: the tables that fixtures, the fuzzer and the benchmark start from.

use std::vec;
use std::vec::Vec;

use super::build::DEVICE_HARDWARE;
use super::{Fake, KnownRoute, at, ip};
use crate::addr::{Endpoint, Ip, Port, Protocol};
use crate::config::{Device, NodeSettings, Prefix, ServiceRanges, Settings, address};
use crate::hash;
use crate::maglev;
use crate::route::Route;
use crate::service::{
    Backend, BackendId, Flags, Frontend, LINE, MEMBERS_PER_LINE, NARROW, Service, ServiceId, Set,
    Source,
};

pub const CLUSTER4: &str = "10.96.0.10:80";
/// A ClusterIP of the other family.
pub const CLUSTER6: &str = "[fd00:96::10]:80";
/// A pod of this node.
pub const POD4: &str = "10.1.0.5:40000";
/// The same pod.
pub const POD6: &str = "[fd00:1::5]:40000";
/// A backend on this node.
pub const LOCAL4: &str = "10.1.0.6:8080";
/// A backend on this node.
pub const LOCAL6: &str = "[fd00:1::6]:8080";
/// A backend on another node.
pub const REMOTE4: &str = "10.2.0.7:8080";
/// A backend on another node.
pub const REMOTE6: &str = "[fd00:2::7]:8080";
/// A client outside.
pub const CLIENT4: &str = "203.0.113.9:50000";
/// A client outside.
pub const CLIENT6: &str = "[2001:db8::9]:50000";
/// The node's address and a `NodePort`.
pub const NODE4: &str = "192.168.0.10:30080";
/// The node's address and a `NodePort`.
pub const NODE6: &str = "[fd00:c0::10]:30080";

/// The prefix of an address.
pub fn prefix(network: &str, bits: u32) -> Prefix {
    let network = ip(network);
    let bits = if network.is_v4() { bits + 96 } else { bits };
    let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
    Prefix { ip: network, mask: Ip::v6(mask.to_be_bytes()) }
}

/// Index of the interface by which every route leads.
pub const OUT: u32 = 2;
/// Link-layer address of that interface.
pub const OUT_HARDWARE: [u8; 6] = [2, 0, 0, 0, 0, 0x22];
/// Link-layer address of every next hop.
pub const HOP_HARDWARE: [u8; 6] = [2, 0, 0, 0, 0, 0x23];
/// MTU of that interface: the least that IPv6 allows.
pub const OUT_MTU: u16 = 1_280;
/// The networks of that interface's addresses: no other interface has addresses in them.
pub const OUT_NETWORKS: [&str; 2] = ["192.168.9.10/24", "fd00:c9::10/64"];
/// Destinations of routes, and whether the next hop is known. No other destination is reachable.
pub const ROUTES: [(&str, bool); 10] = [
    ("10.1.0.5", true),
    ("10.1.0.6", true),
    ("fd00:1::6", true),
    ("fd00:1::5", true),
    ("10.2.0.7", true),
    ("10.2.0.8", false),
    ("203.0.113.9", true),
    ("fd00:2::7", true),
    ("fd00:2::8", false),
    ("2001:db8::9", true),
];

/// [`ROUTES`] as the kernel's routes.
fn routes() -> impl Iterator<Item = (Ip, KnownRoute)> {
    let [a, b, c, d, e, f] = HOP_HARDWARE;
    let [g, h, i, j, k, l] = OUT_HARDWARE;
    let hardware = [[a, b, c, d], [e, f, g, h], [i, j, k, l]].map(u32::from_ne_bytes);
    let route = Route { device: OUT, hardware, ..Route::default() };
    ROUTES.into_iter().map(move |(to, is_known)| {
        let to = ip(to);
        let (mtu, route) = (OUT_MTU, is_known.then_some(route));
        (to, KnownRoute { mtu, route, device: OUT, source: out_source(to.is_v4()) })
    })
}

/// The address of a family that [`OUT`] has.
pub fn out_source(v4: bool) -> Ip {
    let [network4, network6] = OUT_NETWORKS;
    let (address, _) = (if v4 { network4 } else { network6 }).split_once('/').unwrap_or_default();
    ip(address)
}

impl Fake {
    /// A node without services: addresses, one interface (index 1) and one more that packets only leave by, service
    /// ranges, and ports for translated sources.
    pub fn node() -> Self {
        let mut node = Self::default();
        let (node4, node6) = (at(NODE4).ip, at(NODE6).ip);
        node.settings.node = NodeSettings {
            hairpin4: ip("192.0.0.8"),
            hairpin6: ip("100::8"),
            address4: node4,
            address6: node6,
            source_port_low: Port::new(61000),
            source_port_high: Port::new(65000),
            answer_port_low: Port::new(61000),
            answer_port_high: Port::new(65000),
            flags: Settings::ANSWER_ECHO,
            socket_mode: Settings::SOCKETS_ALL,
            ..NodeSettings::default()
        };
        let cover = [prefix("10.96.0.0", 16), prefix("fd00:96::", 112)];
        let services = &mut node.settings.services;
        *services = ServiceRanges {
            node_port_low: Port::new(30000),
            node_port_high: Port::new(32767),
            cluster_ip_cover: cover,
            known: 1,
            ..ServiceRanges::default()
        };
        [services.ranges[0], services.ranges[1]] = cover;
        for own in [node4, node6] {
            node.addresses.insert(own, address::NODE | address::NODE_PORTS);
            node.settings.node.own.add(&own);
        }
        let own = Device {
            source4: node4,
            source6: node6,
            hardware: DEVICE_HARDWARE,
            ..Device::default()
        };
        let out = Device { flags: Device::TAKES_FRAMES, hardware: OUT_HARDWARE, ..own };
        node.devices = [(1, own), (OUT, out)].into();
        node.routes = routes().collect();
        node.backends.push(Backend::default());
        node
    }

    /// Adds a backend row, a member of both sets as far as its place allows.
    pub fn add_backend(&mut self, end: Endpoint, local: bool, service: ServiceId) -> BackendId {
        let place = if local { Backend::LOCAL | Backend::IN_LOCAL_SET } else { 0 };
        let flags = place | Backend::IN_CLUSTER_SET;
        let id = self.backends.len() as BackendId;
        let epoch = 100 + id;
        self.endpoints.insert(hash::endpoint(&end.ip, end.port));
        self.backends.push(Backend { ip: end.ip, port: end.port, flags, epoch, service, pad: 0 });
        id
    }

    /// Writes a selection table and returns its position.
    pub fn add_set(&mut self, members: &[BackendId]) -> Set {
        let end = |id: &BackendId| {
            let row = self.backends.get(*id as usize).copied().unwrap_or_default();
            Endpoint::new(row.ip, row.port)
        };
        let mut members = members.to_vec();
        members.sort_by_key(end);
        let ends: Vec<Endpoint> = members.iter().map(end).collect();
        let count = members.len() as u32;
        let mut slots = vec![0; maglev::size(count) as usize];
        maglev::fill(&ends, &mut slots, &mut vec![0; members.len()]);

        let line = self.lines.len() as u32;
        for members in members.chunks(MEMBERS_PER_LINE as usize) {
            self.push_line(members.iter().flat_map(|id| id.to_ne_bytes()));
        }
        let narrow = count <= NARROW;
        for slots in slots.chunks(if narrow { LINE } else { LINE / 2 }) {
            if narrow {
                self.push_line(slots.iter().map(|slot| *slot as u8));
            } else {
                self.push_line(slots.iter().flat_map(|slot| slot.to_ne_bytes()));
            }
        }
        Set { line, members: count, slots: slots.len() as u32 }
    }

    fn push_line(&mut self, bytes: impl Iterator<Item = u8>) {
        let mut line = [0; LINE];
        line.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
        self.lines.push(line);
    }

    /// Adds a service with its backends (and whether each is on this node). Its frontends are added afterwards.
    pub fn add_service(&mut self, id: ServiceId, backends: &[(&str, bool)]) -> Service {
        let add = |(end, local): &(&str, bool)| (self.add_backend(at(end), *local, id), *local);
        let rows: Vec<(BackendId, bool)> = backends.iter().map(add).collect();
        let all: Vec<BackendId> = rows.iter().map(|(id, _)| *id).collect();
        let local: Vec<BackendId> =
            rows.iter().filter(|(_, local)| *local).map(|(id, _)| *id).collect();
        let flags = if all.is_empty() { Flags::default() } else { Flags::ANYWHERE };
        Service {
            id,
            flags,
            affinity: 0,
            generation: 1,
            cluster: self.add_set(&all),
            local: self.add_set(&local),
        }
    }

    /// Adds a frontend of a service at an address inside the cluster.
    pub fn cluster_ip(&mut self, frontend: &str, protocol: Protocol, service: Service) {
        let Endpoint { ip, port, .. } = at(frontend);
        self.services.insert(Frontend::new(ip, port, protocol), service);
        let marker = Service { id: service.id, flags: Flags::ADDRESS, ..Service::default() };
        self.services.insert(Frontend::cluster_address(ip), marker);
    }

    /// Adds a `NodePort` of a service.
    pub fn node_port(&mut self, frontend: &str, protocol: Protocol, service: Service) {
        let Endpoint { ip, port, .. } = at(frontend);
        let flags = service.flags.with(Flags::EXTERNAL).with(Flags::NODE_PORT);
        let key = Frontend::node_port(ip, port, protocol);
        self.services.insert(key, Service { flags, ..service });
    }

    /// Adds a frontend of a service at an external address or VIP.
    pub fn external(&mut self, frontend: &str, protocol: Protocol, service: Service) {
        let Endpoint { ip, port, .. } = at(frontend);
        let flags = service.flags.with(Flags::EXTERNAL);
        self.settings.services.vip_filter.add(&ip);
        let key = Frontend::new(ip, port, protocol);
        self.services.insert(key, Service { flags, ..service });
    }

    /// Allows a source prefix for a service that lists its sources.
    pub fn allow(&mut self, service: ServiceId, network: &str, bits: u32) {
        let network = ip(network);
        let bits = 32 + bits + if network.is_v4() { 96 } else { 0 };
        self.sources.push((bits, Source::new(service, network)));
    }
}

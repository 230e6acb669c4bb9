//! Random tables of a node: its Services, endpoints and settings.

use lb_common::addr::{Port, Protocol};
use lb_common::config::{Device, Settings};
use lb_common::fake::{Fake, at, world};
use lb_common::flow::{Fragment, Ports, Side, Tuple};
use lb_common::hash;
use lb_common::service::{Flags, Service};

use super::Random;
use super::ends::{BACKENDS, CLIENTS, FRONTENDS, PIECES, PROTOCOLS};

/// Changes some modes of the node, and whether the ranges of Services are known.
const fn toggle(random: &mut Random, settings: &mut Settings) {
    let toggled = random.next() as u32 & 0xff & random.next() as u32;
    settings.node.flags ^= toggled >> 1;
    settings.services.known ^= toggled & 1;
}

/// Makes random tables of a node, with capacity for this number of flow entries.
pub(super) fn tables(random: &mut Random, capacity: usize) -> Fake {
    let mut tables = Fake::node();
    tables.flow_capacity = capacity;
    toggle(random, &mut tables.settings);
    if random.one_in(4) {
        tables.settings.node.source_port_high = Port::new(61000 + random.below(4) as u16);
    }
    if random.one_in(5) {
        tables.devices.clear();
    }
    if random.one_in(2) {
        add_networks(random, &mut tables);
    }
    let [local4, local6] = &mut tables.settings.node.local;
    *local4 = world::prefix("10.1.0.0", 16);
    *local6 = world::prefix("fd00:1::", 32);
    if random.one_in(40) {
        tables.settings.node.source_port_high = Port::new(0);
    }
    for flag in [Settings::REDIRECTS, Settings::ACCELERATED] {
        tables.settings.node.flags |= if random.one_in(2) { flag } else { 0 };
    }
    hand_over(random, &mut tables);
    if random.one_in(2) {
        open(random, &mut tables);
    }
    tables.rejects.set(!random.one_in(8));
    for id in 1..=random.below(10) as u32 {
        let family = random.below(2);
        let count = random.below(5);
        let backends: Vec<(&str, bool)> = (0..count).map(|_| random.of(BACKENDS[family])).collect();
        let service = tables.add_service(id, &backends);
        let service = flavour(random, service);
        if service.flags.has(Flags::SOURCE_RANGES) && random.one_in(2) {
            let (network, bits) =
                if family == 0 { ("203.0.113.8", 29) } else { ("2001:db8::", 64) };
            tables.allow(id, network, bits);
        }
        for _ in 0..=random.below(10) {
            let (frontend, protocol) = (random.of(FRONTENDS[family]), random.of(&PROTOCOLS));
            match frontend {
                port if port.contains(":30") => tables.node_port(port, protocol, service),
                vip if vip.contains("198.51") || vip.contains("db8:1") => {
                    tables.external(vip, protocol, service);
                }
                ip => tables.cluster_ip(ip, protocol, service),
            }
        }
    }
    if random.one_in(3) {
        chain(random, &mut tables);
    }
    // A row whose owner has changed since the tables of its services were written.
    if random.one_in(4) && tables.backends.len() > 1 {
        let row = 1 + random.below(tables.backends.len() - 1);
        tables.backends[row].epoch = random.of(&[0, 7]);
    }
    if random.one_in(4) {
        lose_a_fragment(random, &tables);
    }
    tables
}

/// Makes an address of a possible backend a frontend as well.
fn chain(random: &mut Random, tables: &mut Fake) {
    for (id, ends) in (21..).zip(BACKENDS) {
        let (frontend, _) = random.of(ends);
        let service = tables.add_service(id, &[random.of(ends)]);
        for protocol in PROTOCOLS {
            tables.external(frontend, protocol, service);
        }
    }
}

/// Sets the flag of a take-over with conversations that netfilter translates, or the flag of a drain.
fn hand_over(random: &mut Random, tables: &mut Fake) {
    if random.one_in(16) {
        tables.settings.node.flags |= Settings::DRAIN;
    }
    if !random.one_in(8) {
        return;
    }
    tables.settings.node.flags |= Settings::TAKE_OVER;
    for (clients, frontends) in CLIENTS.into_iter().zip(FRONTENDS) {
        for _ in 0..random.below(20) {
            let tuple = Tuple::new(at(random.of(clients)), at(random.of(frontends)));
            tables.inherited.insert(hash::whole(&tuple, random.of(&PROTOCOLS)));
        }
    }
}

/// Enables the stack bypass at tc, on some interfaces.
fn open(random: &mut Random, tables: &mut Fake) {
    tables.settings.node.flags |= Settings::BYPASSES;
    for device in tables.devices.values_mut() {
        if !random.one_in(4) {
            device.flags |= Device::BYPASS;
        }
    }
    if random.one_in(4)
        && tables.devices.remove(&world::OUT).is_some()
        && let Some(device) = tables.devices.values_mut().next()
    {
        device.bridge = world::OUT;
    }
}

/// Gives interfaces addresses of several networks, with or without a bridge as the interface of the routes. Answers to
/// the second address are known or not.
fn add_networks(random: &mut Random, tables: &mut Fake) {
    let bridge = random.of(&[0, world::OUT]);
    for device in tables.devices.values_mut() {
        device.flags |= Device::SOURCES4 | Device::SOURCES6;
        device.bridge = bridge;
    }
    for v4 in [true, false] {
        if !random.one_in(4) {
            tables.settings.node.own.add(&world::out_source(v4));
        }
    }
}

/// Adds a datagram some of whose fragments were held, and then displaced by others.
fn lose_a_fragment(random: &mut Random, tables: &Fake) {
    let family = random.below(2);
    let [from, cluster, node] = PIECES[family];
    let [from, to] = [from, random.of(&[cluster, node])].map(at);
    let id = random.below(2) as u8;
    let id = if family == 0 { [0, id, 0, 0] } else { [0, 0, 0, id] };
    let datagram = Fragment::new(from.ip, to.ip, id, Protocol::UDP, Side::INGRESS);
    let held = random.below(3) as u16;
    // Sometimes too old to belong to the fragments that arrive.
    let written = Ports::time(tables.clock.get() - random.of(&[0, 40_000_000_000]));
    let ports = Ports { source: from.port, destination: to.port, held, written, passed: 0 };
    tables.fragments.borrow_mut().insert(datagram, ports);
}

fn flavour(random: &mut Random, service: Service) -> Service {
    let mut flags = service.flags;
    for (flag, rarity) in [
        (Flags::LOCAL_POLICY, 3),
        (Flags::SOURCE_RANGES, 6),
        (Flags::DRAINING, 12),
        (Flags::ADDRESS, 24),
        (Flags::EXTERNAL, 6),
    ] {
        if random.one_in(rarity) {
            flags = flags.with(flag);
        }
    }
    let affinity = if random.one_in(3) { 60 } else { 0 };
    Service { flags, affinity, ..service }
}

/// Removes a frontend as the agent does, so that existing flows must look up their frontend again.
pub(super) fn lose_a_frontend(random: &mut Random, tables: &mut Fake) {
    if !tables.services.is_empty() {
        let number = random.below(tables.services.len());
        let frontend = tables.services.keys().nth(number).copied();
        frontend.and_then(|frontend| tables.services.remove(&frontend));
    }
    // Some endpoints are removed as well, so that datagram flows leave them.
    for row in tables.backends.iter_mut().skip(1) {
        row.epoch += u32::from(random.one_in(3)) * 1_000;
    }
    tables.settings.services.frontends_epoch += 1;
    tables.events.borrow_mut().clear();
    // The differential test starts without fragments.
    tables.fragments.borrow_mut().clear();
}

//! Maps that are full: the newest service is refused by name, the others are served, and refused services are served
//! once there is room.
//!
//! When the affinity map is full, the newest clients are remembered and no client is refused.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Result, ensure};
use lb_agent::datapath::LAYOUT;
use lb_agent::maps::Maps;
use lb_agent::reconcile::Op;
use lb_common::addr::{Ip, Port, Protocol as Number};
use lb_common::service::{Frontend, Service as Entry};
use lb_tests::campaign;
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, answered_by, ask, matrix, until};
use lb_tests::topology::{Family, Shape, Topology};
use lb_tests::traffic::{Ask, Protocol};
use lb_tests::wait::wait_until_ok;

/// The deadline for served Services: flows are swept before their entries are given to others.
const SOON: Duration = Duration::from_mins(1);

in_both_shapes!(
    newest_service_is_refused_by_name_until_there_is_room,
    entry_that_a_map_does_not_take_costs_its_service_alone,
    clients_beyond_the_affinity_table_are_served_and_the_newest_remembered,
);

fn rig(shape: Shape, sizes: &[&str]) -> Result<Rig> {
    let mut rig = Rig::build(Topology::builder(shape))?;
    rig.start_agents(sizes)?;
    Ok(rig)
}

/// A service with a remote pod as backend: it needs six entries, two of which are ClusterIP markers.
fn service(rig: &Rig, name: &str, index: u8, created: u8) -> Result<Service> {
    let service = Service::new(name, index)?.port(80, TARGET).created(created);
    Ok(service.pods(&[rig.pod(1, 0)?]))
}

fn is_served(rig: &Rig, service: &Service) -> Result<()> {
    is_served_by(rig, service, &Protocol::ALL)
}

fn is_served_by(rig: &Rig, service: &Service, protocols: &[Protocol]) -> Result<()> {
    for (family, protocol) in matrix().filter(|(_, protocol)| protocols.contains(protocol)) {
        drop(ask(rig.pod(0, 0)?, Ask::new(protocol, service.frontend(family)).within(2_000))?);
    }
    Ok(())
}

/// Checks that no port is refused, and that `status` reports no problem.
fn is_well(rig: &Rig) -> Result<()> {
    let (code, text) = rig.agent(0)?.exit_code(&["status"])?;
    ensure!(code == 0, "status exits with {code}: {text}");
    ensure!(rig.agent(0)?.metric(&["lb_refused_service_ports"])? < 0.5, "ports are refused");
    Ok(())
}

fn newest_service_is_refused_by_name_until_there_is_room(shape: Shape) -> Result<()> {
    // The place of the first Service is free when its flows have expired; flows of datagrams expire soon.
    let asked = campaign::size(&[Protocol::Udp][..], &Protocol::ALL);
    let rig = rig(shape, &["--map-size", "SERVICES=13", "--conntrack-udp-timeout=2s"])?;
    let (first, newest) = (service(&rig, "first", 10, 1)?, service(&rig, "a-newest", 11, 3)?);
    for service in [&first, &newest] {
        rig.manifests().apply(service)?;
        until(rig.pod(0, 0)?, Ask::udp(service.frontend(Family::V6)), Result::is_ok)?;
    }
    // Created between the two, but added last.
    let late = service(&rig, "late", 12, 2)?;
    rig.manifests().apply(&late)?;
    wait_until_ok(SOON, "the older of the two is served", || {
        is_served_by(&rig, &late, asked)?;
        let agent = rig.agent(0)?;
        ensure!(agent.metric(&["lb_refused_service_ports"])? > 3.5, "no port is refused");
        let (code, _) = agent.exit_code(&["status"])?;
        ensure!(code == 1, "status says that all is well");
        let known = std::fs::read_to_string(lb_agent::state_file::state_file(rig.node(0)?.bpf()))?;
        ensure!(known.contains(r#""default/a-newest:tcp-80":"SERVICES""#), "not named: {known}");
        Ok(())
    })?;
    is_served_by(&rig, &first, asked)?;
    rig.manifests().delete(&first)?;
    wait_until_ok(SOON, "the newest is served as soon as there is room", || {
        is_served(&rig, &newest)?;
        is_well(&rig)
    })?;
    is_served(&rig, &late)
}

fn entry_that_a_map_does_not_take_costs_its_service_alone(shape: Shape) -> Result<()> {
    let rig = rig(shape, &["--map-size", "SERVICES=20"])?;
    let first = service(&rig, "first", 10, 1)?;
    rig.manifests().apply(&first)?;
    until(rig.pod(0, 0)?, Ask::tcp(first.frontend(Family::V6)), Result::is_ok)?;
    rig.until_programmed()?;
    // Another process fills the map.
    let mut maps = Maps::open(&rig.node(0)?.bpf().join(LAYOUT).join("maps"))?;
    let foreign =
        |number: u8| Frontend::new(Ip::v4([203, 0, 113, number]), Port::new(9), Number::UDP);
    let put = |number| Op::PutService { frontend: foreign(number), service: Entry::default() };
    let taken: Vec<u8> = (1..30).take_while(|number| maps.apply(&put(*number)).is_ok()).collect();
    ensure!((10..=14).contains(&taken.len()), "{} entries were free", taken.len());

    let second = service(&rig, "second", 11, 2)?;
    rig.manifests().apply(&second)?;
    let agent = rig.agent(0)?;
    wait_until_ok(SOON, "the agent says which entries are missing", || {
        ensure!(agent.metric(&["lb_unwritten_entries"])? > 0.5, "none");
        let known = std::fs::read_to_string(lb_agent::state_file::state_file(rig.node(0)?.bpf()))?;
        ensure!(known.contains("default/second:tcp-80"), "not named: {known}");
        Ok(())
    })?;
    let moved = first.pods(&[rig.pod(1, 1)?]);
    let question = Ask::tcp(moved.frontend(Family::V4));
    rig.change(&moved, rig.pod(0, 0)?, question, answered_by("pod-b2"))?;
    for number in taken {
        maps.apply(&Op::RemoveService { frontend: foreign(number) })?;
    }
    wait_until_ok(SOON, "the second is served as soon as there is room", || {
        is_served(&rig, &second)?;
        is_well(&rig)
    })
}

/// The capacity of the affinity table.
const REMEMBERED: u16 = 512;
const CLIENTS: u16 = 700;
/// The number of clients at both ends of the sequence that ask again.
const ASKED_AGAIN: usize = 16;

/// The address of client `number`, routed through the external client.
fn one_of_many(family: Family, number: u16) -> SocketAddr {
    let [high, low] = number.to_be_bytes();
    let ip: IpAddr = match family {
        Family::V4 => [198, 18, high, low].into(),
        Family::V6 => [0xfd00, 0x198, 0, 0, 0, 0, 0, number].into(),
    };
    SocketAddr::new(ip, 0)
}

fn clients_beyond_the_affinity_table_are_served_and_the_newest_remembered(
    shape: Shape,
) -> Result<()> {
    let rig = rig(shape, &["--map-size", &format!("AFFINITY={REMEMBERED}")])?;
    let sticky = Service::new("sticky", 10)?.port(80, TARGET).node_port(30_080);
    let sticky = sticky.pods(&rig.pods()).affinity(600);
    rig.manifests().apply(&sticky)?;
    let (client, node) = (rig.client(), rig.node(0)?);
    client.netns().sysctl("net.ipv6.ip_nonlocal_bind", "1")?;
    client.netns().ip("route add local 198.18.0.0/16 dev lo
         route add local fd00:198::/64 dev lo")?;
    let via = client.addresses();
    node.netns().ip(&format!(
        "route add 198.18.0.0/16 via {}
         route add fd00:198::/64 via {}",
        via.v4, via.v6
    ))?;
    until(client, Ask::tcp(node.addresses().socket(Family::V6, 30_080)), Result::is_ok)?;
    for (family, protocol) in matrix() {
        let question = Ask::new(protocol, node.addresses().socket(family, 30_080));
        let server = |number| {
            let answer = ask(client, question.from(one_of_many(family, number)))?;
            Ok::<_, anyhow::Error>(answer.server)
        };
        let mut servers = Vec::new();
        for number in 1..=CLIENTS {
            let first = server(number)?;
            ensure!(server(number)? == first, "{family} {protocol}: {number} is not remembered");
            servers.push((number, first));
        }
        for (number, first) in servers.iter().rev().take(ASKED_AGAIN) {
            ensure!(server(*number)? == *first, "{family} {protocol}: {number} is forgotten");
        }
        // The first clients are served again, remembered or not: the kernel evicts the least recently used entries only
        // approximately.
        for (number, _) in servers.iter().take(ASKED_AGAIN) {
            drop(server(*number)?);
        }
    }
    let agent = rig.agent(0)?;
    let used = agent.metric(&["lb_map_entries", "\"AFFINITY\""])?;
    let capacity = f64::from(REMEMBERED);
    // The kernel evicts many entries at a time. That most clients are forgotten follows from their number.
    ensure!(used <= capacity && used > capacity / 4.0, "{used} of {REMEMBERED} entries are used");
    let refused = agent.metric(&["lb_events_total", "affinity_full"])?;
    ensure!(refused < 0.5, "{refused} found no room");
    ensure!(agent.metric(&["lb_drops"])? < 0.5, "packets were dropped");
    is_well(&rig)
}

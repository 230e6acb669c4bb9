//! The life of a flow beside the real kube-proxy: both keep what forged segments, floods, and connections with the same
//! ports must not end, and lose no new flow.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use lb_common::fake::{Datagram, Transport, at};
use lb_common::wire::tcp;
use lb_tests::control_plane::kube_proxy::Mode;
use lb_tests::manifest::{Endpoint, Service};
use lb_tests::matrix::{Detector, Proxy, Setup, SharedApiServer, World, services};
use lb_tests::rig::{Rig, TARGET, answered_outside, ask, from_one_port, matrix, until};
use lb_tests::topology::{Family, Member, Pod};
use lb_tests::traffic::{Ask, Attacked, Handmade, spoofed};

/// `NodePort`s of Services with a pod of the first and of the second node as backend, and with a backend that has no
/// listener.
const NODE_PORTS: [u16; 3] = [30_580, 30_581, 30_582];
/// A port without a listener.
const CLOSED: u16 = 9;
/// The number of packets of a flood, each from another source.
const FLOOD: u32 = 10_000;
/// The number of new flows beside it, of each client.
const ASKED: u32 = 100;

/// Services whose only backend is known, so that an answer of another one is a flow that moved.
fn published(server: &SharedApiServer, world: &World) -> Result<[Service; 3]> {
    let [near, far, closed] = NODE_PORTS;
    let rig = world.rig();
    let near = Service::new("life-near", 210)?.port(80, TARGET).node_port(near);
    let far = Service::new("life-far", 211)?.port(80, TARGET).node_port(far);
    let closed = Service::new("life-closed", 212)?.port(80, CLOSED).node_port(closed);
    let all = [
        near.pods(&[rig.pod(0, 1)?]),
        far.pods(&[rig.pod(1, 1)?]),
        closed.endpoints([Endpoint::pod(rig.pod(0, 1)?), Endpoint::pod(rig.pod(1, 1)?)]),
    ];
    all.iter().try_for_each(|service| server.publish(&service.objects()))?;
    for service in all.iter().take(2) {
        for (family, protocol) in matrix() {
            until(rig.pod(0, 0)?, Ask::new(protocol, service.frontend(family)), Result::is_ok)?;
        }
    }
    Ok(all)
}

#[test]
fn flows_live_as_long_as_with_kube_proxy() -> Result<()> {
    let server = SharedApiServer::take_over()?;
    server.publish(&services()?)?;
    for proxy in [Proxy::KubeProxy(Mode::Nftables), Proxy::Ours] {
        let world = World::start(Setup::new(proxy, Detector::NodeCidr), &server)?;
        let services = published(&server, &world)?;
        let [near, far, _] = &services;
        let rig = world.rig();
        let context = |what: &'static str| move || format!("{what}, {proxy:?}");
        own_connections_have_ports_of_services(rig).with_context(context("own connections"))?;
        two_frontends_from_one_port(rig, &services).with_context(context("one port"))?;
        forged_segments(rig, [near, far]).with_context(context("forged segments"))?;
        flood(rig, &services).with_context(context("flood"))?;
    }
    Ok(())
}

/// The node talks to a server outside from ports that are `NodePorts`.
fn own_connections_have_ports_of_services(rig: &Rig) -> Result<()> {
    for (family, protocol) in matrix() {
        for port in NODE_PORTS {
            drop(answered_outside(rig, rig.node(0)?, family, protocol, Some(port))?);
        }
    }
    Ok(())
}

/// A pod reaches one backend by two frontends and directly, and all from one port.
fn two_frontends_from_one_port(rig: &Rig, [near, far, _]: &[Service; 3]) -> Result<()> {
    let pod: &Member = rig.pod(0, 0)?;
    for (family, protocol) in matrix() {
        for (service, number, backend) in
            [(near, NODE_PORTS[0], rig.pod(0, 1)?), (far, NODE_PORTS[1], rig.pod(1, 1)?)]
        {
            let asked = [
                service.frontend(family),
                rig.node(0)?.addresses().socket(family, number),
                backend.addresses().socket(family, TARGET),
            ];
            for answer in from_one_port(protocol, &asked.map(|to| (pod, to)))? {
                ensure!(answer.server == backend.name(), "{answer:?}");
            }
        }
    }
    Ok(())
}

/// Connections by `ClusterIP` of a pod, and by `NodePort` of a client outside.
fn forged_segments(rig: &Rig, services: [&Service; 2]) -> Result<()> {
    let backends: [&Pod; 2] = [rig.pod(0, 1)?, rig.pod(1, 1)?];
    let mut open = Vec::new();
    for ((service, backend), port) in services.into_iter().zip(backends).zip(NODE_PORTS) {
        open.extend(Attacked::open_all(rig, service, port, backend)?);
    }
    for connection in &open {
        connection.forge(rig.pod(0, 1)?)?;
    }
    open.iter().try_for_each(Attacked::goes_on)
}

/// Unanswered SYNs and datagrams from spoofed sources; other clients ask meanwhile, by new flows and by open ones.
fn flood(rig: &Rig, [near, far, _]: &[Service; 3]) -> Result<()> {
    let mut kept = Vec::new();
    for (family, protocol) in matrix() {
        for service in [near, far] {
            let flow = rig.pod(0, 0)?.peer().keep(Ask::new(protocol, service.frontend(family)))?;
            let answer = flow.ask()?;
            kept.push((flow, answer));
        }
    }
    for family in Family::ALL {
        let target = rig.node(0)?.addresses().socket(family, NODE_PORTS[2]);
        let own = rig.client().addresses().socket(family, 25_998);
        let hand = Handmade::open(rig.client(), own)?;
        for number in 0..FLOOD {
            let source = SocketAddr::new(spoofed(own, number), 1_024 + number as u16);
            let kind =
                if number % 2 == 0 { Transport::Udp(true) } else { Transport::Tcp(tcp::SYN) };
            let packet = Datagram::new(at(&source.to_string()), at(&target.to_string()), kind);
            // A full send queue is not an error: the flood continues.
            drop(hand.send(&packet, target));
            if number % (FLOOD / ASKED) == 0 {
                for (asked, port) in [(near, NODE_PORTS[0]), (far, NODE_PORTS[1])] {
                    let outside = rig.node(0)?.addresses().socket(family, port);
                    drop(ask(rig.client(), Ask::tcp(outside))?);
                    drop(ask(rig.pod(0, 0)?, Ask::udp(asked.frontend(family)))?);
                }
            }
        }
    }
    for (flow, before) in &kept {
        let now = flow.ask()?;
        ensure!(now.server == before.server, "{now:?} after {before:?}");
    }
    Ok(())
}

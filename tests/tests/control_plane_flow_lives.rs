//! The life of a flow beside the real kube-proxy: both keep what forged segments, floods, and connections with the same
//! ports must not end, and lose no new flow.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use lb_common::fake::{Datagram, Transport, at};
use lb_common::wire::tcp;
use lb_tests::control_plane::kube_proxy::Mode;
use lb_tests::manifest::{Endpoint, Service};
use lb_tests::matrix::{Detector, Proxy, Setup, SharedApiServer, World, services};
use lb_tests::rig::{Rig, TARGET, matrix, until};
use lb_tests::topology::{Family, Member, Pod};
use lb_tests::traffic::{Ask, Attacked, Handmade};

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
            let server = rig.client().addresses().socket(family, TARGET);
            let question = Ask::new(protocol, server).from_port(port);
            let kept =
                rig.node(0)?.peer().keep(question).with_context(|| format!("{question:?}"))?;
            for _ in 0..2 {
                let answer = kept.ask().with_context(|| format!("{question:?}"))?;
                ensure!(answer.server == rig.client().name(), "{answer:?}");
            }
        }
    }
    Ok(())
}

/// A pod reaches one backend by two frontends and directly, and all from one port.
fn two_frontends_from_one_port(rig: &Rig, [near, far, _]: &[Service; 3]) -> Result<()> {
    let mut port = 25_100;
    for (family, protocol) in matrix() {
        for (service, number, backend) in
            [(near, NODE_PORTS[0], rig.pod(0, 1)?), (far, NODE_PORTS[1], rig.pod(1, 1)?)]
        {
            port += 1;
            let asked = [
                service.frontend(family),
                rig.node(0)?.addresses().socket(family, number),
                backend.addresses().socket(family, TARGET),
            ];
            let question = |to: SocketAddr| Ask::new(protocol, to).from_port(port);
            let kept = asked.map(|to| {
                rig.pod(0, 0)?
                    .peer()
                    .keep(question(to))
                    .with_context(|| format!("{:?}", question(to)))
            });
            let kept: Vec<_> = kept.into_iter().collect::<Result<_>>()?;
            for _ in 0..2 {
                for (flow, to) in kept.iter().zip(asked) {
                    let answer = flow.ask().with_context(|| format!("{:?}", question(to)))?;
                    ensure!(answer.server == backend.name() && answer.peer == to, "{answer:?}");
                }
            }
        }
    }
    Ok(())
}

/// Connections by `ClusterIP` of a pod, and by `NodePort` of a client outside.
fn forged_segments(rig: &Rig, services: [&Service; 2]) -> Result<()> {
    let backends: [&Pod; 2] = [rig.pod(0, 1)?, rig.pod(1, 1)?];
    let mut open = Vec::new();
    for family in Family::ALL {
        for ((service, backend), port) in services.iter().zip(backends).zip(NODE_PORTS) {
            let node_port = rig.node(0)?.addresses().socket(family, port);
            let asked: [(&Member, SocketAddr); 2] =
                [(rig.pod(0, 0)?, service.frontend(family)), (rig.client(), node_port)];
            for (from, to) in asked {
                open.push(Attacked::open(from, to, backend, family)?);
            }
        }
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
        let hand = Handmade::open(rig.client(), rig.client().addresses().socket(family, 25_998))?;
        for number in 0..FLOOD {
            let [low, high] = [number & 0xff, number >> 8];
            let source = match family {
                Family::V4 => format!("198.18.{high}.{low}:{}", 1_024 + number),
                Family::V6 => format!("[fd00:18::{high:x}:{low:x}]:{}", 1_024 + number),
            };
            let kind =
                if number % 2 == 0 { Transport::Udp(true) } else { Transport::Tcp(tcp::SYN) };
            let packet = Datagram::new(at(&source), at(&target.to_string()), kind);
            // A full send queue is not an error: the flood continues.
            drop(hand.send(&packet, target));
            if number % (FLOOD / ASKED) == 0 {
                for (asked, port) in [(near, NODE_PORTS[0]), (far, NODE_PORTS[1])] {
                    let outside = rig.node(0)?.addresses().socket(family, port);
                    drop(lb_tests::rig::ask(rig.client(), Ask::tcp(outside))?);
                    drop(lb_tests::rig::ask(rig.pod(0, 0)?, Ask::udp(asked.frontend(family)))?);
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

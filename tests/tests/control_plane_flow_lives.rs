//! The life of a flow beside the real kube-proxy: both keep what forged segments, floods, and connections with the same
//! ports must not end, and lose no new flow.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use lb_common::fake::{Datagram, Transport, at};
use lb_common::wire::tcp;
use lb_tests::control_plane::kube_proxy::Mode;
use lb_tests::manifest::{Endpoint, Service};
use lb_tests::matrix::{Detector, Proxy, Setup, SharedApiServer, World, services};
use lb_tests::rig::{Rig, TARGET, ask, matrix, until};
use lb_tests::topology::{Family, Pod};
use lb_tests::traffic::{Ask, Handmade, spoofed};

#[path = "control_plane_flow_lives/closes.rs"]
mod closes;
#[path = "control_plane_flow_lives/errors.rs"]
mod errors;
#[path = "control_plane_flow_lives/forged.rs"]
mod forged;
#[path = "control_plane_flow_lives/guest.rs"]
mod guest;
#[path = "control_plane_flow_lives/one_port.rs"]
mod one_port;
#[path = "control_plane_flow_lives/own_ports.rs"]
mod own_ports;
#[path = "control_plane_flow_lives/privileged.rs"]
mod privileged;
#[path = "control_plane_flow_lives/random_ports.rs"]
mod random_ports;
#[path = "control_plane_flow_lives/resets.rs"]
mod resets;
#[path = "control_plane_flow_lives/strays.rs"]
mod strays;

/// `NodePort`s of Services with a pod of the first and of the second node as backend, with a backend that has no
/// listener, and without endpoints. The API server assigns the first 86 ports of the range only on request.
const NODE_PORTS: [u16; 4] = [30_060, 30_061, 30_062, 30_063];
/// A port without a listener.
const CLOSED: u16 = 9;
/// The number of packets of a flood, each from another source.
const FLOOD: u32 = 10_000;
/// The number of new flows beside it, of each client.
const ASKED: u32 = 100;

/// A world with its Services, and the API server that it reads.
struct Life<'a> {
    server: &'a SharedApiServer,
    world: World,
    near: Service,
    far: Service,
}

/// A part of the life of a flow, which both proxies must pass.
type Trial = fn(&Life<'_>) -> Result<()>;

impl Life<'_> {
    const fn rig(&self) -> &Rig {
        self.world.rig()
    }

    /// The Services with a backend, each with its `NodePort` and its backend.
    fn served(&self) -> Result<[(&Service, u16, &Pod); 2]> {
        let [near, far, ..] = NODE_PORTS;
        let rig = self.rig();
        Ok([(&self.near, near, rig.pod(0, 1)?), (&self.far, far, rig.pod(1, 1)?)])
    }
}

/// Publishes Services whose only backend is known, so that an answer of another one is a flow that moved.
fn live(server: &SharedApiServer, world: World) -> Result<Life<'_>> {
    let [near, far, closed, none] = NODE_PORTS;
    let rig = world.rig();
    let near = Service::new("life-near", 210)?.port(80, TARGET).node_port(near);
    let near = near.pods(&[rig.pod(0, 1)?]);
    let far = Service::new("life-far", 211)?.port(80, TARGET).node_port(far);
    let far = far.pods(&[rig.pod(1, 1)?]);
    let closed = Service::new("life-closed", 212)?.port(80, CLOSED).node_port(closed);
    let closed = closed.endpoints([Endpoint::pod(rig.pod(0, 1)?), Endpoint::pod(rig.pod(1, 1)?)]);
    let none = Service::new("life-none", 213)?.port(80, TARGET).node_port(none);
    let all = [&near, &far, &closed, &none];
    all.into_iter().try_for_each(|service| server.publish(&service.objects()))?;
    for service in [&near, &far] {
        for (family, protocol) in matrix() {
            for node in 0..2 {
                let question = Ask::new(protocol, service.frontend(family));
                until(rig.pod(node, 0)?, question, Result::is_ok)?;
            }
        }
    }
    Ok(Life { server, world, near, far })
}

#[test]
fn flows_live_as_long_as_with_kube_proxy() -> Result<()> {
    let trials: [(&str, Trial); 11] = [
        ("own connections", own_ports::are_free_for_the_node_and_its_pods),
        ("ports that become NodePorts", own_ports::stay_with_open_connections),
        ("random masquerade", random_ports::cost_no_connection),
        ("one port", one_port::asks_by_every_way),
        ("ports below 1,024", privileged::stay_privileged),
        ("a guest", guest::reaches_near_and_far_backends),
        ("stray segments", strays::harm_no_later_connection),
        ("closes", closes::lose_no_byte),
        ("errors", errors::reach_only_the_sender),
        ("forged segments", forged::move_no_connection),
        ("flood", flood),
    ];
    let server = SharedApiServer::take_over()?;
    server.publish(&services()?)?;
    for proxy in [Proxy::KubeProxy(Mode::Nftables), Proxy::Ours] {
        let setup = Setup::new(proxy, Detector::NodeCidr);
        let life = live(&server, World::start_on_both_nodes(setup, &server)?)?;
        // These connections are idle while the trials run.
        let reset = resets::Reset::open(&life).with_context(|| format!("resets, {proxy:?}"))?;
        for (name, trial) in trials {
            trial(&life).with_context(|| format!("{name}, {proxy:?}"))?;
        }
        reset.all_go_on(&life).with_context(|| format!("resets, {proxy:?}"))?;
    }
    Ok(())
}

/// Unanswered SYNs and datagrams from spoofed sources; other clients ask meanwhile, by new flows and by open ones.
fn flood(life: &Life<'_>) -> Result<()> {
    let (rig, mut kept) = (life.rig(), Vec::new());
    for (family, protocol) in matrix() {
        for (service, ..) in life.served()? {
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
                for (asked, port, _) in life.served()? {
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

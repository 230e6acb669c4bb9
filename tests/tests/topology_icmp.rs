//! ICMP errors on the way back to the client: from a backend without a listener, and from a router that drops the
//! packet.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use lb_common::fake::Datagram;
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask, matrix, refused};
use lb_tests::topology::{Family, Member, Shape, Topology};
use lb_tests::traffic::{Ask, Capture, Failure, Handmade};

#[path = "topology_icmp/forged.rs"]
mod forged;

in_both_shapes!(
    backend_that_does_not_listen_refuses_through_the_service,
    router_error_names_the_router_and_quotes_the_packet,
    sockets_of_hosts_hear_of_a_router_that_gives_up,
    pods_are_not_redirected_around_their_node,
);

/// An RST, or an ICMP port unreachable about a translated datagram, reaches the client.
fn backend_that_does_not_listen_refuses_through_the_service(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let near = Service::new("near", 10)?.port(80, 9).node_port(30_080).pods(&[rig.pod(0, 1)?]);
    let far = Service::new("far", 11)?.port(80, 9).node_port(30_081).pods(&[rig.pod(1, 1)?]);
    let own = Service::new("own", 12)?.port(80, 9).pods(&[rig.pod(0, 0)?]);
    let rig = rig.start(&[&near, &far, &own])?;
    for (family, protocol) in matrix() {
        for (service, port) in [(&near, 30_080), (&far, 30_081)] {
            let cluster_ip = Ask::new(protocol, service.frontend(family));
            let node_port = rig.node(0)?.addresses().socket(family, port);
            refused(rig.pod(0, 0)?, cluster_ip)?;
            refused(rig.node(0)?, cluster_ip)?;
            refused(rig.client(), Ask::new(protocol, node_port))?;
        }
        refused(rig.pod(0, 0)?, Ask::new(protocol, own.frontend(family)))?;
    }
    Ok(())
}

/// The ICMP error of a router on the path has the router as its source, not the frontend (contract 14, row 11). It
/// quotes the packet as the client sent it, with correct checksums.
fn router_error_names_the_router_and_quotes_the_packet(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let far = Service::new("far", 11)?.port(80, TARGET).node_port(30_081).pods(&[rig.pod(1, 1)?]);
    let rig = rig.start(&[&far])?;
    for family in Family::ALL {
        let node_port = rig.node(0)?.addresses().socket(family, 30_081);
        let askers: [(&Member, SocketAddr); 2] =
            [(rig.pod(0, 0)?, far.frontend(family)), (rig.client(), node_port)];
        for (from, to) in askers {
            for (hops, with_more) in [(1, false), (2, false), (1, true), (2, true)] {
                let port = 27_000 + 10 * u16::from(with_more) + u16::from(hops);
                let own = from.addresses().socket(family, port);
                let capture = Capture::start(from.netns(), "eth0")?;
                let hand = Handmade::open(from, own)?;
                let question = hand.question(to, 100);
                let question = if with_more { more(question) } else { question };
                hand.send_far(&question, to, hops)?;
                let exceeded = if family == Family::V4 { (11, 0) } else { (3, 0) };
                let what = format!(
                    "{} hears of its packet to {to} after {hops} hops, options: {with_more}",
                    from.name()
                );
                let error = capture.wait_for(&what, |frame| frame.icmp() == Some(exceeded))?;
                let router = error.source().map(|source| source.ip());
                let cluster = far.cluster().of(family);
                ensure!(router != Some(cluster), "{what}: the frontend appears as a router");
                let quoted = error.quoted().with_context(|| format!("{what}: no quote"))?;
                let ends = (quoted.source(), quoted.destination());
                ensure!(ends == (Some(own), Some(to)), "{what}: quotes {ends:?}");
                let wrong = [error.wrong_checksums(), quoted.wrong_checksums()].concat();
                ensure!(wrong.is_empty(), "{what}: wrong {}", wrong.join(", "));
            }
        }
    }
    Ok(())
}

/// A connected socket gets the error only if the error quotes the packet to the frontend.
fn sockets_of_hosts_hear_of_a_router_that_gives_up(shape: Shape) -> Result<()> {
    for setting in ["", "socketLB: 'off'\nlocalhostNodePorts: true"] {
        let mut rig = Rig::build(Topology::builder(shape))?;
        let far = Service::new("far", 10)?.port(80, TARGET).node_port(30_080);
        let far = far.pods(&[rig.pod(1, 1)?]);
        rig.manifests().apply(&far)?;
        let config = rig.configuration(setting)?;
        rig.start_agents(&[&config])?;
        let host = rig.node(0)?;
        for (family, protocol) in matrix() {
            let loopback = if family == Family::V4 { "127.0.0.1" } else { "::1" };
            let loopback = SocketAddr::new(loopback.parse()?, 30_080);
            let own = host.addresses().socket(family, 30_080);
            let asked = [far.frontend(family), own, loopback];
            for to in asked.into_iter().take(if setting.is_empty() { 2 } else { 3 }) {
                let question = Ask::new(protocol, to);
                // With this hop limit, node-b may not forward the packet to its pod.
                let outcome = host.peer().ask(question.hops(1));
                let what = format!("{setting:?}, {question:?}: {outcome:?}");
                ensure!(outcome == Err(Failure::Unreachable), "{what}");
                drop(ask(host, question.hops(2))?);
            }
        }
    }
    Ok(())
}

/// Adds padding as an IPv4 option (RFC 791 3.1), or as an IPv6 destination option (RFC 8200 4.2).
fn more(mut question: Datagram) -> Datagram {
    question.options = vec![1, 1, 1, 0];
    question.extensions = vec![(60, vec![1, 4, 0, 0, 0, 0])];
    question
}

/// The kernel sends ICMP redirects for a packet that leaves by the interface that it arrived on.
fn pods_are_not_redirected_around_their_node(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let near = Service::new("near", 10)?.port(80, TARGET).node_port(30_080).pods(&[rig.pod(0, 1)?]);
    let far = Service::new("far", 11)?.port(80, TARGET).node_port(30_081).pods(&[rig.pod(1, 1)?]);
    let rig = rig.start(&[&near, &far])?;
    let clients: [&Member; 2] = [rig.pod(0, 0)?, rig.client()];
    let captures =
        [Capture::start(clients[0].netns(), "eth0")?, Capture::start(clients[1].netns(), "eth0")?];
    for (family, protocol) in matrix() {
        for _ in 0..5 {
            drop(ask(rig.pod(0, 0)?, Ask::new(protocol, near.frontend(family)))?);
            let node_port = rig.node(0)?.addresses().socket(family, 30_081);
            drop(ask(rig.client(), Ask::new(protocol, node_port))?);
        }
    }
    for (client, capture) in clients.iter().zip(&captures) {
        // Type 5 over IPv4, type 137 over IPv6.
        let redirect = |kind: Option<(u8, u8)>| kind.is_some_and(|(t, _)| t == 5 || t == 137);
        let redirects = capture.count(|frame| !frame.outgoing && redirect(frame.icmp()));
        ensure!(redirects == 0, "{} was sent {redirects} redirects", client.name());
    }
    Ok(())
}

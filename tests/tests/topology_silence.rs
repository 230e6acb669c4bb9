//! A traffic policy that drops stays silent towards every kind of socket, also for a process on a node that has the
//! load balancer address as its own.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use lb_tests::in_both_shapes;
use lb_tests::join_all::join_all;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, all_dropped, matrix, until};
use lb_tests::topology::{Addresses, Member, Shape, Topology};
use lb_tests::traffic::{Answer, Ask, Protocol};

const NODE_PORT: u16 = 30_080;
/// Settings in which hooks or packets decide for sockets of the node.
const SETTINGS: [&str; 3] = ["", "socketLB: 'off'", "socketLB: all"];
/// A hop limit larger than the number of routers: with it, a socket of the harness also reports ICMP errors.
const FAR: u8 = 64;

in_both_shapes!(
    no_socket_hears_of_a_policy_that_drops,
    process_that_binds_the_vip_it_asks_is_served_where_it_may_be,
);

/// Runs checks with agents of each setting, one after another.
fn in_each_setting(mut rig: Rig, check: impl Fn(&Rig) -> Result<()>) -> Result<()> {
    for setting in SETTINGS {
        let config = rig.configuration(setting)?;
        rig.start_agents(&[&config])?;
        check(&rig).with_context(|| format!("setting {setting:?}"))?;
        for _ in 0..rig.topology().nodes().len() {
            rig.take_agent(0)?.stop()?;
        }
    }
    Ok(())
}

/// The same question through every kind of socket. A socket with `IP_RECVERR` must report no error, not even ENOBUFS or
/// EPERM for a packet that was not sent.
fn by_every_socket(protocol: Protocol, to: SocketAddr) -> Vec<Ask> {
    let question = Ask::new(protocol, to);
    match protocol {
        Protocol::Tcp => vec![question],
        Protocol::Udp => vec![question, question.hops(FAR), question.unconnected()],
    }
}

/// All questions that must be dropped for a member: to a load balancer address with other source ranges, and to a
/// Service whose policies exclude a remote backend. The external policy applies to external clients, the internal one
/// to all others.
fn forbidden(rig: &Rig, from: &Member, vip: &Addresses, elsewhere: &Service) -> Result<Vec<Ask>> {
    let is_outside = from.name() == rig.client().name();
    let node = rig.node(0)?.addresses();
    let mut asks = Vec::new();
    for (family, protocol) in matrix() {
        let node_port = node.socket(family, NODE_PORT);
        let to = if is_outside { node_port } else { elsewhere.frontend(family) };
        asks.extend(by_every_socket(protocol, vip.socket(family, 80)));
        asks.extend(by_every_socket(protocol, to));
    }
    Ok(asks)
}

fn no_socket_hears_of_a_policy_that_drops(shape: Shape) -> Result<()> {
    let rig = Rig::build(Topology::builder(shape))?;
    let vip = Addresses::parse("198.51.100.7", "fd00:198::7")?;
    let node = rig.node(0)?.addresses();
    rig.client().netns().ip(&format!(
        "route add {}/32 via {}\nroute add {}/128 via {}",
        vip.v4, node.v4, vip.v6, node.v6
    ))?;
    let ranges = ["203.0.113.0/24", "2001:db8::/32"];
    let closed = Service::new("closed", 10)?.port(80, TARGET).pods(&rig.pods());
    let closed = closed.load_balancer(&vip.both(), &ranges);
    let elsewhere = Service::new("elsewhere", 11)?.port(80, TARGET).node_port(NODE_PORT);
    let elsewhere = elsewhere.pods(&[rig.pod(1, 0)?]);
    let elsewhere = elsewhere.internal_policy_local().external_policy_local();
    [&closed, &elsewhere].into_iter().try_for_each(|it| rig.manifests().apply(it))?;
    in_each_setting(rig, |rig| {
        let askers: [&Member; 3] = [rig.client(), rig.pod(0, 0)?, rig.node(0)?.host()];
        let all = askers.map(|from| {
            let (vip, elsewhere) = (&vip, &elsewhere);
            move || all_dropped(from, forbidden(rig, from, vip, elsewhere)?)
        });
        drop(join_all(all)?);
        for reason in ["\"source_not_allowed\"", "\"no_local_backend\""] {
            let count = rig.agent(0)?.metric(&["lb_datapath_packets_total", reason])?;
            ensure!(count > 0.0, "no packet was dropped for {reason}");
        }
        Ok(())
    })
}

/// Contract 3.8: if the source ranges contain the node's address, the Service's own load balancer addresses are
/// accepted as sources, too.
fn process_that_binds_the_vip_it_asks_is_served_where_it_may_be(shape: Shape) -> Result<()> {
    let rig = Rig::build(Topology::builder(shape))?;
    let open = Addresses::parse("198.51.100.7", "fd00:198::7")?;
    let closed = Addresses::parse("198.51.100.8", "fd00:198::8")?;
    let node = rig.node(0)?.addresses();
    let own = [format!("{}/32", node.v4), format!("{}/128", node.v6)];
    let own = own.each_ref().map(String::as_str);
    for (name, index, vip, ranges) in
        [("open", 10, open, own), ("closed", 11, closed, ["203.0.113.0/24", "2001:db8::/32"])]
    {
        let service = Service::new(name, index)?.port(80, TARGET).pods(&rig.pods());
        rig.manifests().apply(&service.load_balancer(&vip.both(), &ranges))?;
        rig.node(0)?.netns().ip(&format!(
            "address add {}/32 dev lo\naddress add {}/128 dev lo nodad",
            vip.v4, vip.v6
        ))?;
    }
    in_each_setting(rig, |rig| {
        let host = rig.node(0)?.host();
        let mut silent = Vec::new();
        for (family, protocol) in matrix() {
            let from_itself = |vip: Addresses| {
                let questions = by_every_socket(protocol, vip.socket(family, 80));
                questions.into_iter().map(move |question| question.from(vip.socket(family, 0)))
            };
            for question in from_itself(open) {
                until(host, question, |outcome| {
                    let served = |answer: &Answer| answer.peer == question.to;
                    outcome.as_ref().is_ok_and(served)
                })?;
            }
            silent.extend(from_itself(closed));
        }
        all_dropped(host, silent)
    })
}

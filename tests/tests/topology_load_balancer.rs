//! Load balancer addresses and external IPs: served on the node that the packets reach, for the permitted clients.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, Shared, TARGET, ask, different_servers, dropped, matrix};
use lb_tests::topology::{Addresses, Shape};
use lb_tests::traffic::{Ask, Protocol};

in_both_shapes!(
    load_balancer_address_is_served_for_everybody,
    external_ip_is_served_for_everybody,
    source_ranges_admit_only_the_listed_sources,
    source_ranges_of_one_family_leave_the_other_open,
);

/// Addresses that no interface has; external routers lead them to node-a.
fn outside_addresses() -> Result<Addresses> {
    Addresses::parse("203.0.113.10", "2001:db8::10")
}

fn start(shape: Shape, service: impl Fn(Service) -> Result<Service>) -> Result<Shared> {
    let rig = Rig::shared(shape)?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(30_080).pods(&rig.pods());
    let (node, outside) = (rig.node(0)?.addresses(), outside_addresses()?);
    let routes = format!(
        "route replace {}/32 via {}\nroute replace {}/128 via {}",
        outside.v4, node.v4, outside.v6, node.v6
    );
    rig.client().netns().ip(&routes)?;
    rig.start(&[&service(web)?])
}

fn everybody_is_served(rig: &Rig) -> Result<()> {
    let outside = outside_addresses()?;
    for (family, protocol) in matrix() {
        let question = Ask::new(protocol, outside.socket(family, 80));
        for from in [rig.client(), rig.pod(0, 0)?, rig.node(0)?.host()] {
            ensure!(ask(from, question)?.peer == question.to);
            let found = different_servers(from, question, 4)?;
            ensure!(found.len() == 4, "{} {family} {protocol}: {found:?}", from.name());
        }
    }
    Ok(())
}

fn load_balancer_address_is_served_for_everybody(shape: Shape) -> Result<()> {
    let addresses = outside_addresses()?.both();
    let rig = start(shape, |web| Ok(web.load_balancer(&addresses, &[])))?;
    everybody_is_served(&rig)
}

fn external_ip_is_served_for_everybody(shape: Shape) -> Result<()> {
    let addresses = outside_addresses()?.both();
    let rig = start(shape, |web| Ok(web.external_ips(&addresses)))?;
    everybody_is_served(&rig)
}

fn source_ranges_admit_only_the_listed_sources(shape: Shape) -> Result<()> {
    let outside = outside_addresses()?;
    // Only pod 1 of node-a.
    let ranges = ["10.244.1.12/32", "fd00:244:1::12/128"];
    let rig = start(shape, |web| Ok(web.load_balancer(&outside.both(), &ranges)))?;
    for (family, protocol) in matrix() {
        let question = Ask::new(protocol, outside.socket(family, 80));
        drop(ask(rig.pod(0, 1)?, question)?);
        dropped(rig.pod(0, 0)?, question)?;
        dropped(rig.client(), question)?;
        // Source ranges apply to the load balancer's address only.
        let node_port = SocketAddr::new(rig.node(0)?.ip(family), 30_080);
        drop(ask(rig.client(), Ask::new(protocol, node_port))?);
    }
    Ok(())
}

/// Contract 1.4: ranges of one family do not restrict the other family.
fn source_ranges_of_one_family_leave_the_other_open(shape: Shape) -> Result<()> {
    let outside = outside_addresses()?;
    let ranges = ["198.51.100.0/24"];
    let rig = start(shape, |web| Ok(web.load_balancer(&outside.both(), &ranges)))?;
    for protocol in Protocol::ALL {
        dropped(rig.client(), Ask::new(protocol, SocketAddr::new(outside.v4.into(), 80)))?;
        drop(ask(rig.client(), Ask::new(protocol, SocketAddr::new(outside.v6.into(), 80)))?);
    }
    Ok(())
}

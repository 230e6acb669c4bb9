//! Packets without endpoint, port or Service: refused at once, or dropped where the contract requires it.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use lb_common::fake::{Datagram, Transport, at};
use lb_tests::in_both_shapes;
use lb_tests::manifest::{Endpoint, Service};
use lb_tests::rig::{Rig, TARGET, matrix, refused};
use lb_tests::topology::{Family, Shape};
use lb_tests::traffic::{Ask, Failure, Handmade, Protocol};
use lb_tests::wait;

const NODE_PORT: u16 = 30_080;

in_both_shapes!(
    service_without_endpoints_is_refused_to_everybody,
    service_with_endpoints_that_are_not_ready_is_refused,
    other_port_of_a_cluster_ip_is_refused,
    endpoints_that_go_and_come_back_are_followed,
    flood_at_one_empty_service_spares_the_refusals_of_another,
);

fn service_without_endpoints_is_refused_to_everybody(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let empty = Service::new("empty", 10)?.port(80, TARGET).node_port(NODE_PORT);
    let rig = rig.start(&[&empty])?;
    for (family, protocol) in matrix() {
        let node_port = rig.node(0)?.addresses().socket(family, NODE_PORT);
        let (cluster_ip, pod) = (Ask::new(protocol, empty.frontend(family)), rig.pod(0, 0)?);
        let node_port = Ask::new(protocol, node_port);
        refused(pod, cluster_ip)?;
        refused(pod, node_port)?;
        refused(rig.client(), node_port)?;
        refused(rig.node(0)?, cluster_ip)?;
        refused(rig.node(1)?, node_port)?;
        if protocol == Protocol::Udp {
            refused(pod, cluster_ip.unconnected())?;
            refused(rig.client(), node_port.unconnected())?;
        }
    }
    Ok(())
}

fn service_with_endpoints_that_are_not_ready_is_refused(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let sick = Endpoint::pod(rig.pod(0, 1)?).not_ready();
    let web = Service::new("web", 10)?.port(80, TARGET).endpoints([sick]);
    let rig = rig.start(&[&web])?;
    for (family, protocol) in matrix() {
        refused(rig.pod(0, 0)?, Ask::new(protocol, web.frontend(family)))?;
        refused(rig.node(0)?, Ask::new(protocol, web.frontend(family)))?;
    }
    Ok(())
}

fn other_port_of_a_cluster_ip_is_refused(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
    let rig = rig.start(&[&web])?;
    for (family, protocol) in matrix() {
        let wrong = Ask::new(protocol, web.cluster().socket(family, 81));
        refused(rig.pod(0, 0)?, wrong)?;
        refused(rig.node(0)?, wrong)?;
    }
    Ok(())
}

fn endpoints_that_go_and_come_back_are_followed(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let empty = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT);
    let web = empty.clone().pods(&[rig.pod(1, 0)?]);
    let rig = rig.start(&[&web])?;
    for (family, protocol) in matrix() {
        let node_port = rig.node(0)?.addresses().socket(family, NODE_PORT);
        let askers = [
            (&**rig.pod(0, 0)?, web.frontend(family)),
            (rig.client(), node_port),
            (rig.node(0)?.host(), web.frontend(family)),
        ];
        for (from, to) in askers {
            let question = Ask::new(protocol, to);
            rig.change(&web, from, question, Result::is_ok)?;
            let gone = |outcome: &Result<_, _>| *outcome == Err(Failure::Refused);
            rig.change(&empty, from, question, gone)?;
        }
    }
    Ok(())
}

/// Refusals are rate-limited for each frontend separately: clients of one Service are still refused while another
/// Service is flooded.
fn flood_at_one_empty_service_spares_the_refusals_of_another(shape: Shape) -> Result<()> {
    const DATAGRAMS: u16 = 20_000;
    let rig = Rig::shared(shape)?;
    let flooded = Service::new("flooded", 10)?.port(80, TARGET);
    let empty = Service::new("empty", 11)?.port(80, TARGET);
    let rig = rig.start(&[&flooded, &empty])?;
    let limited = || rig.agent(0)?.metric(&["lb_drops_total", "\"reject_limited\""]);
    let before = limited().unwrap_or_default();
    for family in Family::ALL {
        let flood = || -> Result<()> {
            let (own, to) =
                (rig.pod(0, 0)?.addresses().socket(family, 25_997), flooded.frontend(family));
            let hand = Handmade::open(rig.pod(0, 0)?, own)?;
            for number in 0..DATAGRAMS {
                let mut asks =
                    Datagram::new(at(&own.to_string()), at(&to.to_string()), Transport::Udp(true));
                asks.source.port = lb_common::addr::Port::new(number | 1_024);
                // A full send queue is not an error: the flood continues.
                drop(hand.send(&asks, to));
            }
            Ok(())
        };
        thread::scope(|scope| -> Result<()> {
            let flood = scope.spawn(flood);
            while !flood.is_finished() {
                for protocol in Protocol::ALL {
                    refused(rig.pod(0, 1)?, Ask::new(protocol, empty.frontend(family)))?;
                }
                // The limit also applies to the other frontend: 1,000 refusals a second.
                wait::pass(Duration::from_millis(5));
            }
            flood.join().map_err(|_panic| anyhow::anyhow!("the flood ended early"))?
        })?;
    }
    let after = limited()?;
    ensure!(after > before, "no refusal reached its limit: {before}, {after}");
    Ok(())
}

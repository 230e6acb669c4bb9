//! Packets without endpoint, port or Service are refused at once, or dropped where they must be.

use anyhow::Result;
use lb_tests::in_both_shapes;
use lb_tests::manifest::{Endpoint, Service};
use lb_tests::rig::{Rig, TARGET, matrix, refused};
use lb_tests::topology::Shape;
use lb_tests::traffic::{Ask, Failure, Protocol};

const NODE_PORT: u16 = 30_080;

in_both_shapes!(
    service_without_endpoints_is_refused_to_everybody,
    service_with_endpoints_that_are_not_ready_is_refused,
    other_port_of_a_cluster_ip_is_refused,
    endpoints_that_go_and_come_back_are_followed,
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
            rig.change(&web, (from, question), Result::is_ok)?;
            let gone = |outcome: &Result<_, _>| *outcome == Err(Failure::Refused);
            rig.change(&empty, (from, question), gone)?;
        }
    }
    Ok(())
}

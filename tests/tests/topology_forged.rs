//! Forged segments of open connections: an RST or FIN with a guessed sequence number and a SYN with the same ports end
//! and move no connection, also when the connection is idle afterwards and its backend has left the Service.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, until};
use lb_tests::topology::{Family, Pod, Shape, Topology};
use lb_tests::traffic::{Ask, Attacked};
use lb_tests::wait::wait_until_ok;

/// The deadline for a closed connection to disappear from lists: it lasts ten seconds, and until the next sweep.
const SOON: Duration = Duration::from_mins(1);
const NODE_PORTS: [u16; 2] = [30_080, 30_081];
in_both_shapes!(forged_segments_end_no_connection);

fn forged_segments_end_no_connection(shape: Shape) -> Result<()> {
    let mut rig = Rig::build(Topology::builder(shape))?;
    rig.start_agents(&[])?;
    let services = [0_usize, 1].map(|node| -> Result<(Service, &Pod, &Pod)> {
        let (before, after) = (rig.pod(node, 1)?, rig.pod(1 - node, 1)?);
        let service = Service::new(["near", "far"][node], 10 + node as u8)?.port(80, TARGET);
        Ok((service.node_port(NODE_PORTS[node]), before, after))
    });
    let services: Vec<_> = services.into_iter().collect::<Result<_>>()?;
    for (service, before, _) in &services {
        rig.manifests().apply(&service.clone().pods(&[before]))?;
    }
    let mut open = Vec::new();
    for ((service, ..), port) in services.iter().zip(NODE_PORTS) {
        open.extend(Attacked::open_all(&rig, service, port)?);
    }
    // With a second backend a SYN that began the flow again could move it.
    for (service, before, after) in &services {
        rig.manifests().apply(&service.clone().pods(&[before, after]))?;
        until(rig.pod(0, 0)?, Ask::tcp(service.frontend(Family::V4)), |outcome| {
            outcome.as_ref().is_ok_and(|answer| answer.server == after.name())
        })?;
    }
    for connection in &open {
        connection.forge(rig.pod(0, 1)?)?;
        connection.goes_on()?;
    }
    // A connection that really ends is forgotten after the same time, so the forged segments had enough time to take
    // effect.
    let (service, ..) = services.first().context("a service")?;
    let question = Ask::tcp(service.frontend(Family::V4));
    let ended = rig.pod(0, 0)?.peer().ask(question)?.local.port().to_string();
    for (service, _, after) in &services {
        rig.manifests().apply(&service.clone().pods(&[after]))?;
        until(rig.pod(0, 0)?, Ask::tcp(service.frontend(Family::V4)), |outcome| {
            outcome.as_ref().is_ok_and(|answer| answer.server == after.name())
        })?;
    }
    wait_until_ok(SOON, "what has ended is forgotten", || {
        let flows = rig.agent(0)?.command(&["ct", "list", "--no-headers"])?;
        ensure!(!flows.contains(&ended), "port {ended} in:\n{flows}");
        Ok(())
    })?;
    open.iter().try_for_each(Attacked::goes_on)
}

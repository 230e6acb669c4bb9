//! Questions of every client to every frontend that it may use; the backend sees the expected source address.

use anyhow::{Context as _, Result, ensure};
use lb_tests::join_all::join_all;
use lb_tests::manifest::Service;
use lb_tests::rig::{TARGET, all_dropped, answered_by, ask, matrix, refused};
use lb_tests::topology::Family;
use lb_tests::traffic::{Ask, Protocol};

use super::world::{Asker, ServicePath, World};

/// The length in bytes of a fragmented datagram.
const LARGE: usize = 20_001;

/// Checks every path to every backend, also with large datagrams.
pub(crate) fn everybody_is_answered(world: &World) -> Result<()> {
    let askers = world.askers()?;
    let all = askers.iter().map(|asker| move || is_answered(world, *asker));
    join_all(all).map(drop)
}

fn is_answered(world: &World, asker: Asker<'_>) -> Result<()> {
    for (family, protocol) in matrix() {
        for served in &world.served {
            for path in world.paths(asker, served, family)? {
                let question = Ask::new(protocol, path.to);
                let answer = ask(asker.member, question)?;
                let source = world.source(asker, path, served, family)?;
                let is_right = answer.server == served.backend
                    && answer.peer == path.to
                    && answer.client.ip() == source;
                let (name, backend) = (asker.member.name(), served.backend);
                ensure!(
                    is_right,
                    "{name} asks {path:?} for {backend}, source {source}: {answer:?}"
                );
                if protocol == Protocol::Udp && !is_answered_with_mtu(asker, path, world)? {
                    let sized = question.sized(LARGE, LARGE);
                    let large = || format!("{LARGE} bytes to {path:?} for {backend}");
                    drop(ask(asker.member, sized).with_context(large)?);
                }
            }
        }
    }
    Ok(())
}

/// Whether the first packet of a host to its own address is answered with the MTU of the path to the backend, because
/// `lo` does not limit it.
fn is_answered_with_mtu(asker: Asker<'_>, path: ServicePath, world: &World) -> Result<bool> {
    let Some(node) = asker.node.filter(|_| asker.is_host) else { return Ok(false) };
    let own = world.rig.node(node)?.addresses();
    Ok(own.both().contains(&path.to.ip()))
}

/// A Service without endpoints refuses; a load balancer address with other clients' source ranges is silent.
pub(crate) fn forbidden_clients_are_refused_or_get_no_answer(world: &World) -> Result<()> {
    let askers = world.askers()?;
    let all = askers.iter().map(|asker| {
        move || {
            let from = asker.member;
            for (family, protocol) in matrix() {
                if asker.node.is_some() {
                    refused(from, Ask::new(protocol, world.empty.frontend(family)))?;
                }
            }
            let closed = |(family, protocol)| Ask::new(protocol, world.closed.socket(family, 80));
            all_dropped(from, matrix().map(closed))
        }
    });
    join_all(all).map(drop)
}

/// A pod that is the only backend uses its own Service.
pub(crate) fn hairpin_is_answered(world: &World) -> Result<()> {
    let (rig, pod) = (&world.rig, world.rig.pod(0, 0)?);
    let own = Service::new("own", 15)?.port(80, TARGET).pods(&[pod]);
    rig.change(&own, pod, Ask::tcp(own.frontend(Family::V4)), answered_by("pod-a1"))?;
    rig.until_programmed()?;
    for (family, protocol) in matrix() {
        let answer = ask(pod, Ask::new(protocol, own.frontend(family)))?;
        let source = world.source_of_itself(pod, family, protocol)?;
        let is_right = answer.server == "pod-a1" && answer.client.ip() == source;
        ensure!(is_right, "{protocol}, source {source}: {answer:?}");
    }
    Ok(())
}

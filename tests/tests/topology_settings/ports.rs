//! Flows that differ before translation also differ after it, even where their clients chose the same port.

use std::net::SocketAddr;

use anyhow::Result;
use lb_tests::rig::{from_one_port, matrix};
use lb_tests::topology::Family;

use super::world::World;

/// Two sockets of a host to two frontends of one backend, two sockets of a pod, and sockets of two pods to one
/// frontend.
pub(crate) fn flows_of_one_port_are_distinguished(world: &World) -> Result<()> {
    let [near, far, _] = &world.served;
    let askers = world.askers()?;
    let (first, second) = (world.rig.pod(0, 0)?, world.rig.pod(0, 1)?);
    for (family, protocol) in matrix() {
        for served in [near, far] {
            for asker in askers.iter().filter(|asker| asker.node == Some(0)) {
                let paths = world.paths(*asker, served, family)?;
                // The last path uses the external IP; both it and the ClusterIP are translated by the client's node.
                let to = [paths[0].to, paths[paths.len() - 1].to];
                drop(from_one_port(protocol, &to.map(|to| (asker.member, to)))?);
            }
        }
        let node_port = node_port(world, family)?;
        drop(from_one_port(protocol, &[(&**first, node_port), (&**second, node_port)])?);
    }
    Ok(())
}

/// The `NodePort`, on the own node, of the Service whose backend is on the other node.
fn node_port(world: &World, family: Family) -> Result<SocketAddr> {
    Ok(world.rig.node(0)?.addresses().socket(family, super::NODE_PORTS[1]))
}

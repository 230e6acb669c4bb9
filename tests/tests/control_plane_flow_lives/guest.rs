//! A container of node-a that is no pod: its address is in no pod range, and no other node has a route to it.

use anyhow::{Result, ensure};
use lb_tests::rig::{answered_by, ask, matrix, until};
use lb_tests::topology::Addresses;
use lb_tests::traffic::Ask;

use super::Life;

/// A far backend sees the node, because its answer would not find the guest. kube-proxy masquerades the guest
/// everywhere; the agent does not towards a near backend (ADR 0011).
pub(crate) fn reaches_near_and_far_backends(life: &Life<'_>) -> Result<()> {
    let rig = life.rig();
    let addresses = Addresses::parse("172.29.0.7", "fd00:172:29::7")?;
    let guest = rig.topology().guest(0, "guest", addresses)?;
    let node = rig.node(0)?.addresses();
    for (family, protocol) in matrix() {
        let [near, far] = life.served()?;
        for ((service, number, backend), is_far) in [(near, false), (far, true)] {
            for to in [service.frontend(family), node.socket(family, number)] {
                let question = Ask::new(protocol, to);
                // The agent attaches programs to the new interface.
                until(&guest, question, answered_by(backend.name()))?;
                for _ in 0..4 {
                    let answer = ask(&guest, question)?;
                    ensure!(answer.server == backend.name() && answer.peer == to, "{answer:?}");
                    let is_node = answer.client.ip() == node.of(family);
                    ensure!(is_node || !is_far, "seen as {answer:?}");
                    let is_guest = answer.client.ip() == guest.ip(family);
                    ensure!(is_guest || is_far || life.world.agent().is_none(), "{answer:?}");
                }
            }
        }
    }
    Ok(())
}

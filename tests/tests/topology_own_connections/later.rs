//! Connections in use whose port becomes a frontend of any kind, of the node itself and of masqueraded pods.

use anyhow::{Context as _, Result, ensure};
use lb_tests::in_both_shapes;
use lb_tests::rig::{Rig, answered_outside, matrix};
use lb_tests::topology::{Family, Shape, Topology};
use lb_tests::traffic::{Kept, Protocol};

use super::frontends::{Kind, xdp_has_served};
use super::{masquerade, rig, rig_of};

in_both_shapes!(
    connections_of_the_node_outlive_that_their_port_becomes_a_frontend,
    connections_of_masqueraded_pods_outlive_that_their_port_becomes_a_frontend,
);

/// The first port of connections; each later kind has the next one.
const LATER: u16 = 30_086;
/// The number of the first Service.
const INDEX: u8 = 20;

/// The end that opens a connection.
#[derive(Clone, Copy)]
pub(crate) enum Opener {
    Node,
    /// A pod, whose connections get the node's address and the port from netfilter.
    Pod,
}

fn connections_of_the_node_outlive_that_their_port_becomes_a_frontend(shape: Shape) -> Result<()> {
    connections_outlive(&rig(shape)?, Opener::Node)
}

fn connections_of_masqueraded_pods_outlive_that_their_port_becomes_a_frontend(
    shape: Shape,
) -> Result<()> {
    connections_outlive(&rig(shape)?, Opener::Pod)
}

#[test]
fn connections_outlive_that_their_port_becomes_a_frontend_that_xdp_serves() -> Result<()> {
    for opener in [Opener::Node, Opener::Pod] {
        let builder = Topology::builder(Shape::Routed).without_checksum_offload().polling();
        let rig = rig_of(builder, "native")?;
        connections_outlive(&rig, opener)?;
        xdp_has_served(&rig)?;
    }
    Ok(())
}

/// Opens a flow to the server outside, which sees the node's address with this port.
pub(crate) fn open(
    rig: &Rig,
    opener: Opener,
    family: Family,
    protocol: Protocol,
    port: u16,
) -> Result<Kept<'_>> {
    match opener {
        Opener::Node => answered_outside(rig, rig.node(0)?, family, protocol, Some(port)),
        Opener::Pod => {
            masquerade(rig, rig.client(), &port.to_string())?;
            answered_outside(rig, rig.pod(0, 1)?, family, protocol, None)
        }
    }
}

fn connections_outlive(rig: &Rig, opener: Opener) -> Result<()> {
    let own = rig.node(0)?.addresses();
    let mut flows = Vec::new();
    for (kind, port) in Kind::ALL.into_iter().zip(LATER..) {
        for (family, protocol) in matrix() {
            let kept = open(rig, opener, family, protocol, port)?;
            flows.push(((kind, own.socket(family, port), protocol), kept));
        }
    }
    for ((kind, port), index) in Kind::ALL.into_iter().zip(LATER..).zip(INDEX..) {
        kind.give(rig, index, port)?;
    }
    for (kind, port) in Kind::ALL.into_iter().zip(LATER..) {
        kind.is_served(rig, port)?;
    }
    for ((kind, own, protocol), kept) in flows {
        for _ in 0..3 {
            let what = || format!("{protocol} from {own}, which became {kind:?}");
            let answer = kept.ask().with_context(what)?;
            ensure!(answer.server == rig.client().name(), "{}: {answer:?}", what());
            ensure!(answer.client == own, "{}: {answer:?}", what());
        }
    }
    Ok(())
}

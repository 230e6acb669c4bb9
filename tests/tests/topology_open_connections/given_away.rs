//! Silent connections whose port becomes a frontend of any kind, before the agents start or while they run.

use anyhow::{Context as _, Result, ensure};
use lb_tests::in_both_shapes;
use lb_tests::rig::Rig;
use lb_tests::topology::{Builder, Family, Shape, Topology};
use lb_tests::traffic::open::{Open, open, socket};
use socket2::Type;

use super::frontends::{Kind, xdp_has_served};
use super::masquerade;

in_both_shapes!(silent_connections_outlive_that_their_port_becomes_a_frontend);

/// The first ports: inside the default range of `NodePorts`, and outside.
const USUAL: u16 = 30_100;
const UNUSUAL: u16 = 20_100;

/// The ports of three ways to use one: by the node's own connections, by those of a pod, and by a server on the node.
const fn ports(first: u16, at: usize) -> [u16; 3] {
    let first = first + 3 * at as u16;
    [first, first + 1, first + 2]
}

/// Opens connections of each way. Datagrams to a server on the node belong to the Service as soon as there is one.
fn open_all(rig: &Rig, [of_node, of_pod, served]: [u16; 3]) -> Result<Vec<Open>> {
    let (node, pod, outside) = (rig.node(0)?, rig.pod(0, 1)?, rig.client());
    masquerade(rig, pod, of_pod)?;
    let mut all = Vec::new();
    for family in Family::ALL {
        for kind in [Type::STREAM, Type::DGRAM] {
            let own = (socket(node, family, kind, of_node)?, of_node);
            for (client, seen) in [own, (socket(pod, family, kind, 0)?, of_pod)] {
                let (open, from) = open(client, socket(outside, family, kind, 0)?)?;
                ensure!(from == seen, "from {from}, not {seen}");
                all.push(open);
            }
        }
        for client in [outside, &**pod] {
            let client = socket(client, family, Type::STREAM, 0)?;
            let (open, _) = open(client, socket(node, family, Type::STREAM, served)?)?;
            all.push(open.turned());
        }
    }
    Ok(all)
}

/// Makes the ports of each kind such frontends, by Services with these numbers and later ones.
fn give_away(rig: &Rig, index: u8, first: u16) -> Result<()> {
    let all =
        Kind::ALL.iter().enumerate().flat_map(|(at, kind)| ports(first, at).map(|it| (kind, it)));
    (index..).zip(all).try_for_each(|(index, (kind, port))| kind.give(rig, index, port))
}

fn are_served(rig: &Rig, first: u16) -> Result<()> {
    for (at, kind) in Kind::ALL.iter().enumerate() {
        ports(first, at).into_iter().try_for_each(|port| kind.is_served(rig, port))?;
    }
    Ok(())
}

fn silent_connections_outlive_that_their_port_becomes_a_frontend(shape: Shape) -> Result<()> {
    outlive(Topology::builder(shape), "off").map(drop)
}

/// XDP is the first hook that the packets of the servers pass.
#[test]
fn silent_connections_outlive_that_their_port_becomes_a_frontend_that_xdp_serves() -> Result<()> {
    let builder = Topology::builder(Shape::Routed).without_checksum_offload().polling();
    xdp_has_served(&outlive(builder, "native")?)
}

/// The egress programs see no packet of these connections before the other ends send.
fn outlive(builder: Builder, acceleration: &str) -> Result<Rig> {
    let mut rig = Rig::build(builder)?;
    let mut all = Vec::new();
    for first in [USUAL, UNUSUAL] {
        for (at, kind) in Kind::ALL.into_iter().enumerate() {
            let open = open_all(&rig, ports(first, at))?;
            all.extend(open.into_iter().enumerate().map(|it| ((first, kind), it)));
        }
    }
    give_away(&rig, 10, USUAL)?;
    let config = rig.configuration(&format!("acceleration: '{acceleration}'"))?;
    rig.start_agents(&[&config])?;
    are_served(&rig, USUAL)?;
    give_away(&rig, 30, UNUSUAL)?;
    are_served(&rig, UNUSUAL)?;
    for (given, (number, open)) in &mut all {
        open.is_alive().with_context(|| format!("connection {number} from {given:?}"))?;
    }
    Ok(rig)
}

//! Datagrams larger than the wire: fragments of questions and of answers find their way.

use anyhow::{Result, ensure};
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, Shared, TARGET, ask};
use lb_tests::topology::{Family, Member, Shape, Topology};
use lb_tests::traffic::Ask;

in_both_shapes!(
    large_datagrams_pass_through_a_cluster_ip,
    large_datagrams_pass_through_a_node_port,
    large_segments_pass_a_smaller_wire,
);

const SIZES: [usize; 4] = [1_473, 4_000, 20_001, 60_000];

fn start(shape: Shape) -> Result<(Shared, [Service; 2])> {
    let rig = Rig::shared(shape)?;
    let near = Service::new("near", 10)?.port(80, TARGET).node_port(30_080).pods(&[rig.pod(0, 1)?]);
    let far = Service::new("far", 11)?.port(80, TARGET).node_port(30_081).pods(&[rig.pod(1, 1)?]);
    Ok((rig.start(&[&near, &far])?, [near, far]))
}

fn exchange(from: &Member, question: Ask) -> Result<()> {
    for size in SIZES {
        let answer = ask(from, question.sized(size, size))?;
        ensure!(answer.peer == question.to, "{answer:?}");
    }
    Ok(())
}

fn large_datagrams_pass_through_a_cluster_ip(shape: Shape) -> Result<()> {
    let (rig, services) = start(shape)?;
    for family in Family::ALL {
        for service in &services {
            exchange(rig.pod(0, 0)?, Ask::udp(service.frontend(family)))?;
            exchange(rig.node(0)?, Ask::udp(service.frontend(family)))?;
        }
    }
    Ok(())
}

fn large_datagrams_pass_through_a_node_port(shape: Shape) -> Result<()> {
    let (rig, _) = start(shape)?;
    for family in Family::ALL {
        for port in [30_080, 30_081] {
            let to = rig.node(0)?.addresses().socket(family, port);
            exchange(rig.client(), Ask::udp(to))?;
        }
    }
    Ok(())
}

/// Path MTU discovery: an ICMP error about a translated packet must reach whoever sent it.
fn large_segments_pass_a_smaller_wire(shape: Shape) -> Result<()> {
    let rig = Rig::build(Topology::builder(shape))?;
    let far = Service::new("far", 11)?.port(80, TARGET).node_port(30_081).pods(&[rig.pod(1, 1)?]);
    let rig = rig.start(&[&far])?;
    // The segment between the nodes, and to the client, takes less than the pods' wires.
    for member in [rig.client(), rig.node(0)?.host(), rig.node(1)?.host()] {
        member.netns().ip("link set eth0 mtu 1400")?;
    }
    for family in Family::ALL {
        let question = Ask::tcp(far.frontend(family)).sized(300_000, 300_000).within(30_000);
        drop(ask(rig.pod(0, 0)?, question)?);
        let to = rig.node(0)?.addresses().socket(family, 30_081);
        drop(ask(rig.client(), Ask::tcp(to).sized(300_000, 300_000).within(30_000))?);
    }
    Ok(())
}

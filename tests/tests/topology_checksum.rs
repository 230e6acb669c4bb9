//! Checksums on every wire: correct where the kernel leaves them for later (offload) and where it computes them at
//! once.

use anyhow::{Context as _, Result};
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask, matrix, refused};
use lb_tests::topology::{Builder, Shape, Topology};
use lb_tests::traffic::{Ask, Capture};

in_both_shapes!(checksums_are_right_with_offload, checksums_are_right_without_offload,);

fn checksums_are_right_with_offload(shape: Shape) -> Result<()> {
    every_wire(Topology::builder(shape))
}

fn checksums_are_right_without_offload(shape: Shape) -> Result<()> {
    every_wire(Topology::builder(shape).without_checksum_offload())
}

/// Captures on all members while pod, host and external client use local and remote backends, and a Service without a
/// backend.
fn every_wire(builder: Builder) -> Result<()> {
    let rig = Rig::build(builder)?;
    let near = Service::new("near", 10)?.port(80, TARGET).node_port(30_080).pods(&[rig.pod(0, 1)?]);
    let far = Service::new("far", 11)?.port(80, TARGET).node_port(30_081).pods(&[rig.pod(1, 1)?]);
    let own = Service::new("own", 12)?.port(80, TARGET).pods(&[rig.pod(0, 0)?]);
    let none = Service::new("none", 13)?.port(80, TARGET).node_port(30_082);
    let rig = rig.start(&[&near, &far, &own, &none])?;
    let members = rig.topology().members();
    let captures = members.iter().map(|member| Capture::start(member.netns(), "eth0"));
    let captures: Vec<Capture> = captures.collect::<Result<_>>()?;
    for (family, protocol) in matrix() {
        for service in [&near, &far, &own] {
            // Odd lengths, because the last byte is then summed without a partner.
            let question = Ask::new(protocol, service.frontend(family)).sized(601, 333);
            drop(ask(rig.pod(0, 0)?, question)?);
        }
        for (port, size) in [(30_080, 0), (30_081, 1_001)] {
            let question = Ask::new(protocol, rig.node(0)?.addresses().socket(family, port));
            drop(ask(rig.client(), question.sized(size, size))?);
        }
        drop(ask(rig.node(0)?, Ask::new(protocol, far.frontend(family)))?);
        refused(rig.pod(0, 0)?, Ask::new(protocol, none.frontend(family)))?;
        let nobody = rig.node(0)?.addresses().socket(family, 30_082);
        refused(rig.client(), Ask::new(protocol, nobody))?;
    }
    for (member, capture) in members.iter().zip(&captures) {
        if member.name() != "pod-b1" {
            capture.ensure_checksums().with_context(|| format!("eth0 of {}", member.name()))?;
        }
    }
    Ok(())
}

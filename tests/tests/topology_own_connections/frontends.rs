//! The kinds of frontend that the port of an open connection can become.

use anyhow::{Context as _, Result, ensure};
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, answered_by, matrix, until};
use lb_tests::traffic::{Answer, Ask, Failure};

/// A kind of frontend at the addresses of node-a.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// A `NodePort` with a backend on node-a.
    Near,
    /// A `NodePort` with a backend on node-b.
    Far,
    /// A `NodePort` without endpoints.
    Empty,
    /// The port of an external IP or VIP that is an address of node-a, with a backend on node-a.
    External,
}

impl Kind {
    /// [`Self::Empty`] is not the last one: a port without a Service refuses as well, and agents process Services in
    /// order.
    pub(crate) const ALL: [Self; 4] = [Self::Near, Self::Far, Self::Empty, Self::External];

    /// Makes a port such a frontend, by a Service with the `ClusterIP`s of this number.
    pub(crate) fn give(self, rig: &Rig, index: u8, port: u16) -> Result<()> {
        let service = Service::new(&format!("given-{index}"), index)?;
        let service = match self {
            Self::Near | Self::Far | Self::Empty => service.port(80, TARGET).node_port(port),
            Self::External if index.is_multiple_of(2) => {
                service.port(port, TARGET).external_ips(&rig.node(0)?.addresses().both())
            }
            Self::External => {
                service.port(port, TARGET).load_balancer(&rig.node(0)?.addresses().both(), &[])
            }
        };
        let service = match self {
            Self::Near | Self::External => service.pods(&[rig.pod(0, 0)?]),
            Self::Far => service.pods(&[rig.pod(1, 0)?]),
            Self::Empty => service,
        };
        rig.manifests().apply(&service)
    }

    /// Waits until node-a serves the port as this frontend, or refuses without endpoints. The client outside asks,
    /// because node-b serves an external IP itself.
    pub(crate) fn is_served(self, rig: &Rig, port: u16) -> Result<()> {
        for (family, protocol) in matrix() {
            let question = Ask::new(protocol, rig.node(0)?.addresses().socket(family, port));
            let expected = |outcome: &Result<Answer, Failure>| match self {
                Self::Near | Self::External => answered_by("pod-a1")(outcome),
                Self::Far => answered_by("pod-b1")(outcome),
                Self::Empty => *outcome == Err(Failure::Refused),
            };
            until(rig.client(), question, expected).with_context(|| format!("{self:?}"))?;
        }
        Ok(())
    }
}

/// Fails unless XDP has translated packets of node-a's external interface.
pub(crate) fn xdp_has_served(rig: &Rig) -> Result<()> {
    let parts = ["lb_datapath_packets_total", "external_xdp", "translated"];
    let served = rig.agent(0)?.metric(&parts)?;
    ensure!(served > 0.0, "XDP has served nothing");
    Ok(())
}

//! Clients with a source port below 1,024, which some servers require (NFS, rsh): masqueraded, they still have one.

use anyhow::{Result, ensure};
use lb_tests::rig::{ask, matrix};
use lb_tests::topology::Member;
use lb_tests::traffic::Ask;

use super::Life;

/// Netfilter chooses a port below 512 for the first of them, and one between 600 and 1,023 for the others.
const PORTS: [u16; 4] = [411, 512, 711, 1_023];

/// Two clients at the same time from the same ports, whose connections stay open until both have an answer.
pub(crate) fn stay_privileged(life: &Life<'_>) -> Result<()> {
    let rig = life.rig();
    let clients: [&Member; 2] = [rig.client(), rig.node(1)?];
    let [_, (_, number, backend)] = life.served()?;
    for (family, protocol) in matrix() {
        let node = rig.node(0)?.addresses();
        let mut open = Vec::new();
        for (client, port) in clients.iter().flat_map(|client| PORTS.map(|port| (client, port))) {
            let question = Ask::new(protocol, node.socket(family, number)).from_port(port);
            open.push((client.peer().keep(question)?, client));
        }
        for (flow, client) in &open {
            let answer = flow.ask()?;
            let (seen, what) = (answer.client, format!("{}: {answer:?}", client.name()));
            ensure!(answer.server == backend.name() && seen.ip() == node.of(family), "{what}");
            ensure!(seen.port() < 1_024, "{what}");
        }
        // A client with another port gets no privileged one.
        let answer = ask(rig.client(), Ask::new(protocol, node.socket(family, number)))?;
        ensure!(answer.client.port() >= 1_024, "{answer:?}");
    }
    Ok(())
}

//! Forged segments in an open connection: a SYN with its ports, and RST and FIN of both ends with wrong sequence
//! numbers.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use lb_common::fake::{Datagram, Transport, at};
use lb_common::wire::tcp;

use super::{Answer, Ask, Capture, Handmade, Kept};
use crate::manifest::Service;
use crate::rig::{Rig, TARGET, until};
use crate::topology::{Family, Member, Pod};

/// Distances of the guessed sequence numbers from those of the connection. A guess that is right ends a connection, so
/// the test takes none by chance.
const WRONG_BY: [u32; 3] = [0x4000_0000, 0x8000_0000, 0xc000_0000];

/// A connection that stays open, and the answer that it had at its begin.
#[derive(Debug)]
pub struct Attacked<'a> {
    from: &'a Member,
    backend: &'a Pod,
    family: Family,
    kept: Kept<'a>,
    answer: Answer,
    /// The first sequence numbers of the server and of the client.
    numbers: (u32, u32),
}

impl<'a> Attacked<'a> {
    /// Opens connections of both families to a Service with this backend: of a pod by its `ClusterIP`, and of the
    /// external client by its `NodePort`.
    pub fn open_all(
        rig: &'a Rig,
        service: &Service,
        node_port: u16,
        backend: &'a Pod,
    ) -> Result<Vec<Self>> {
        let mut all = Vec::new();
        for family in Family::ALL {
            let outside = rig.node(0)?.addresses().socket(family, node_port);
            let asked: [(&Member, SocketAddr); 2] =
                [(rig.pod(0, 0)?, service.frontend(family)), (rig.client(), outside)];
            for (from, to) in asked {
                until(from, Ask::tcp(to), Result::is_ok)?;
                all.push(Self::open(from, to, backend, family)?);
            }
        }
        Ok(all)
    }

    /// Opens a connection of `from`, which reaches `backend`, and asks once.
    fn open(from: &'a Member, to: SocketAddr, backend: &'a Pod, family: Family) -> Result<Self> {
        let capture = Capture::start(from.netns(), "eth0")?;
        let kept = from.peer().keep(Ask::tcp(to))?;
        let answer = kept.ask()?;
        let accepted = capture.wait_for("the SYN-ACK", |frame| {
            frame.destination() == Some(answer.local)
                && frame.tcp_flags() == Some(tcp::SYN | tcp::ACK)
        })?;
        let numbers = accepted.tcp_numbers().context("a TCP segment")?;
        Ok(Self { from, backend, family, kept, answer, numbers })
    }

    /// Sends forged SYNs of the client, also from another pod, then forged FINs and RSTs of both ends.
    pub fn forge(&self, other: &Member) -> Result<()> {
        let Self { from, backend, family, answer, numbers, .. } = self;
        let [local, peer, client] =
            [answer.local, answer.peer, answer.client].map(|end| end.to_string());
        let server = backend.addresses().socket(*family, TARGET).to_string();
        // Any port, because a child process of another test may hold a closed port open for a moment.
        let hand = |of: &Member| Handmade::open(of, of.addresses().socket(*family, 0));
        let (client_side, backend_side) = (hand(from)?, hand(backend)?);
        let syn = Datagram::new(at(&local), at(&peer), Transport::Tcp(tcp::SYN));
        client_side.send(&syn.clone().numbered(1, 0), answer.peer)?;
        hand(other)?.send(&syn.numbered(2, 0), answer.peer)?;
        for flags in [tcp::FIN | tcp::ACK, tcp::RST] {
            for wrong_by in WRONG_BY {
                let (of_server, of_client) =
                    (numbers.0.wrapping_add(wrong_by), numbers.1.wrapping_add(wrong_by));
                let forged =
                    |from: &str, to: &str| Datagram::new(at(from), at(to), Transport::Tcp(flags));
                let of_client_side = forged(&local, &peer).numbered(of_client, of_server);
                client_side.send(&of_client_side, answer.peer)?;
                let of_backend_side = forged(&server, &client).numbered(of_server, of_client);
                backend_side.send(&of_backend_side, answer.client)?;
            }
        }
        Ok(())
    }

    /// Asks once more; fails unless the same server answers.
    pub fn goes_on(&self) -> Result<()> {
        let Self { from, kept, answer: before, .. } = self;
        let now = kept.ask().with_context(|| format!("{}, {before:?}", from.name()))?;
        ensure!(now.server == before.server, "{}: {now:?} after {before:?}", from.name());
        Ok(())
    }
}

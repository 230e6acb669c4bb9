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

/// An end of a connection.
#[derive(Debug, Clone, Copy)]
pub enum End {
    Client,
    Backend,
}

impl End {
    /// Both ends, in the order of a request.
    pub const ALL: [Self; 2] = [Self::Client, Self::Backend];
}

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
    /// Opens connections of both families to a Service whose backends are pods: of a pod by its `ClusterIP`, and of the
    /// external client by its `NodePort`.
    pub fn open_all(rig: &'a Rig, service: &Service, node_port: u16) -> Result<Vec<Self>> {
        let mut all = Vec::new();
        for family in Family::ALL {
            let outside = rig.node(0)?.addresses().socket(family, node_port);
            let asked: [(&Member, SocketAddr); 2] =
                [(rig.pod(0, 0)?, service.frontend(family)), (rig.client(), outside)];
            for (from, to) in asked {
                until(from, Ask::tcp(to), Result::is_ok)?;
                all.push(Self::open(rig, from, to, family)?);
            }
        }
        Ok(all)
    }

    /// Opens a connection of `from`, and asks once.
    fn open(rig: &'a Rig, from: &'a Member, to: SocketAddr, family: Family) -> Result<Self> {
        let capture = Capture::start(from.netns(), "eth0")?;
        let kept = from.peer().keep(Ask::tcp(to))?;
        let answer = kept.ask()?;
        let backend = rig.pods().into_iter().find(|pod| pod.name() == answer.server);
        let backend = backend.with_context(|| format!("no pod has answered: {answer:?}"))?;
        let accepted = capture.wait_for("the SYN-ACK", |frame| {
            frame.destination() == Some(answer.local)
                && frame.tcp_flags() == Some(tcp::SYN | tcp::ACK)
        })?;
        let numbers = accepted.tcp_numbers().context("a TCP segment")?;
        Ok(Self { from, backend, family, kept, answer, numbers })
    }

    /// Sends forged SYNs of the client, also from another pod, then forged FINs and RSTs of both ends.
    pub fn forge(&self, other: &Member) -> Result<()> {
        let Self { from, answer, .. } = self;
        let [local, peer] = [answer.local, answer.peer].map(|end| at(&end.to_string()));
        let syn = Datagram::new(local, peer, Transport::Tcp(tcp::SYN));
        self.hand(from)?.send(&syn.clone().numbered(1, 0), answer.peer)?;
        self.hand(other)?.send(&syn.numbered(2, 0), answer.peer)?;
        for flags in [tcp::FIN | tcp::ACK, tcp::RST] {
            for wrong_by in WRONG_BY {
                End::ALL.into_iter().try_for_each(|end| self.send(end, flags, wrong_by))?;
            }
        }
        Ok(())
    }

    /// Sends one forged RST in the name of an end.
    pub fn reset(&self, end: End) -> Result<()> {
        let [_, wrong_by, _] = WRONG_BY;
        self.send(end, tcp::RST, wrong_by)
    }

    /// Sends a segment in the name of an end, with numbers that are wrong by this distance.
    fn send(&self, end: End, flags: u8, wrong_by: u32) -> Result<()> {
        let Self { from, backend, family, answer, numbers, .. } = self;
        let (of_server, of_client) =
            (numbers.0.wrapping_add(wrong_by), numbers.1.wrapping_add(wrong_by));
        let (member, own, to, (sequence, acknowledged)): (&Member, _, _, _) = match end {
            End::Client => (from, answer.local, answer.peer, (of_client, of_server)),
            End::Backend => {
                let server = backend.addresses().socket(*family, TARGET);
                (backend, server, answer.client, (of_server, of_client))
            }
        };
        let [source, destination] = [own, to].map(|end| at(&end.to_string()));
        let segment = Datagram::new(source, destination, Transport::Tcp(flags));
        self.hand(member)?.send(&segment.numbered(sequence, acknowledged), to)
    }

    /// Any port, because a child process of another test may hold a closed port open for a moment.
    fn hand(&self, of: &Member) -> Result<Handmade> {
        Handmade::open(of, of.addresses().socket(self.family, 0))
    }

    /// Asks once more; fails unless the same server answers.
    pub fn goes_on(&self) -> Result<()> {
        let Self { from, kept, answer: before, .. } = self;
        let now = kept.ask().with_context(|| format!("{}, {before:?}", from.name()))?;
        ensure!(now.server == before.server, "{}: {now:?} after {before:?}", from.name());
        Ok(())
    }
}

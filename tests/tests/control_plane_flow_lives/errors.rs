//! ICMP errors about an open flow: one that its path can have caused reaches the socket that it is about; one whose
//! receiver is not the sender of the quoted packet is forged, and reaches nobody translated.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_common::fake::{Datagram, at};
use lb_tests::rig::{TARGET, matrix};
use lb_tests::topology::{Family, Member};
use lb_tests::traffic::{Ask, Capture, Failure, Frame, Handmade, Kept, Protocol};
use lb_tests::wait::wait_until_ok;

use super::Life;

/// The MTU that an error names: smaller than that of every wire, and larger than the least of IPv6.
const MTU: u16 = 1_400;
/// The deadline for a socket to learn an MTU.
const SOON: Duration = Duration::from_secs(30);

/// An open flow to a backend of the other node, as each part of its path sees it.
struct Flow<'a> {
    family: Family,
    protocol: Protocol,
    kept: Kept<'a>,
    client: &'a Member,
    backend: &'a Member,
    /// The node of the backend, which stands for a router on the path.
    router: &'a Member,
    /// Source and destination of the question: at the client, and behind the node that translates it.
    asked: [SocketAddr; 2],
    translated: [SocketAddr; 2],
    capture: Capture,
}

/// The receiver of an error, and the ends of the packet that it quotes.
type Told = (IpAddr, [SocketAddr; 2]);

/// The flows of a client outside by `NodePort`, and of a pod by `ClusterIP`.
pub(crate) fn reach_only_the_sender(life: &Life<'_>) -> Result<()> {
    let rig = life.rig();
    let [_, (service, number, _)] = life.served()?;
    for (family, protocol) in matrix() {
        let node_port = rig.node(0)?.addresses().socket(family, number);
        let asked: [(&Member, SocketAddr); 2] =
            [(rig.client(), node_port), (rig.pod(0, 0)?, service.frontend(family))];
        for (client, to) in asked {
            let flow = Flow::open(life, client, family, Ask::new(protocol, to))?;
            let what = || format!("{} asks {to} by {protocol}", client.name());
            flow.forged_ones_stay_as_they_are(rig.pod(0, 1)?).with_context(what)?;
            flow.too_large_packet_is_reported(to).with_context(what)?;
            flow.kept.ask().with_context(what)?;
        }
    }
    Ok(())
}

impl<'a> Flow<'a> {
    fn open(life: &'a Life<'_>, client: &'a Member, family: Family, ask: Ask) -> Result<Self> {
        let rig = life.rig();
        let [_, (_, _, backend)] = life.served()?;
        let capture = Capture::start(client.netns(), "eth0")?;
        let kept = client.peer().keep(ask)?;
        let answer = kept.ask()?;
        let server = backend.addresses().socket(family, TARGET);
        Ok(Self {
            family,
            protocol: ask.protocol,
            kept,
            client,
            backend,
            router: rig.node(1)?,
            asked: [answer.local, answer.peer],
            translated: [answer.client, server],
            capture,
        })
    }

    /// Sends an error that quotes a packet with these ends and this sequence number.
    fn send(&self, from: &Member, about: Told, kind: (u8, u8), sequence: u32) -> Result<()> {
        let (receiver, [source, destination]) = about;
        let own = from.addresses().socket(self.family, 0);
        let transport = self.protocol.of_an_open_flow();
        let [source, destination] = [source, destination].map(|end| at(&end.to_string()));
        let lost = Datagram::new(source, destination, transport).numbered(sequence, 0);
        let mut body = vec![0, 0];
        body.extend(MTU.to_be_bytes());
        body.extend(lost.network());
        let (sender, to) = (own.ip().to_string(), receiver.to_string());
        let error = Datagram::icmp(&sender, &to, kind, body);
        Handmade::open(from, own)?.send(&error, SocketAddr::new(receiver, 0))
    }

    /// Errors to a bystander, and to the receiver of the packet that they quote, with their senders.
    const fn forged(&self, bystander: &Member) -> [(&'a Member, Told); 6] {
        let (asked, translated, other) = (self.asked, self.translated, bystander.ip(self.family));
        [
            (self.router, (other, translated)),
            (self.router, (other, back(translated))),
            (self.router, (translated[0].ip(), back(translated))),
            (self.client, (other, asked)),
            (self.client, (other, back(asked))),
            (self.client, (asked[1].ip(), asked)),
        ]
    }

    /// Each receiver gets each forged error once, as it was sent. Errors that follow on the same ways and are delivered
    /// show that no other one is still to come.
    fn forged_ones_stay_as_they_are(&self, bystander: &Member) -> Result<()> {
        let (unreachable, too_large) = kinds(self.family);
        let start = |member: &Member| Capture::start(member.netns(), "eth0");
        let captures = [start(self.client)?, start(self.backend)?, start(bystander)?];
        let forged = self.forged(bystander);
        for (from, about) in forged {
            self.send(from, about, unreachable, 0)?;
        }
        let (asked, translated) = (self.asked, self.translated);
        self.send(self.router, (translated[0].ip(), translated), too_large, 0)?;
        self.send(self.client, (asked[1].ip(), back(asked)), too_large, 0)?;
        for (capture, ends) in captures.iter().zip([asked, back(translated)]) {
            let delivered = |it: &Frame| !it.outgoing && quotes(it, too_large) == Some(ends);
            drop(capture.wait_for(&format!("an error about {ends:?}"), delivered)?);
        }
        for (capture, member) in captures.iter().zip([self.client, self.backend, bystander]) {
            let own = forged.iter().filter(|(_, (to, _))| *to == member.ip(self.family));
            let mut expected: Vec<_> = own.map(|(_, (_, ends))| *ends).collect();
            expected.sort_unstable();
            wait_until_ok(SOON, "each forged error arrives as it was sent", || {
                let arrived = capture.frames(|it| !it.outgoing);
                let mut quoted: Vec<_> =
                    arrived.iter().filter_map(|it| quotes(it, unreachable)).collect();
                quoted.sort_unstable();
                ensure!(quoted == expected, "{}: {quoted:?}, not {expected:?}", member.name());
                Ok(())
            })?;
        }
        Ok(())
    }

    /// A datagram socket fails once, the MTU of a connection shrinks, and another socket with the same frontend hears
    /// nothing.
    fn too_large_packet_is_reported(&self, to: SocketAddr) -> Result<()> {
        let (_, too_large) = kinds(self.family);
        let about = (self.translated[0].ip(), self.translated);
        let bystander = self.client.peer().keep(Ask::new(self.protocol, to))?;
        drop(bystander.ask()?);
        if self.protocol == Protocol::Udp {
            // The error that followed the forged ones; the capture sees it before the socket does.
            wait_until_ok(SOON, "the socket hears of its datagram", || {
                let failed = self.kept.ask();
                let is_told = |it: &Failure| it.to_string().contains("Message too long");
                ensure!(failed.as_ref().is_err_and(is_told), "{failed:?}");
                Ok(())
            })?;
        } else {
            let port = format!("sport = :{}", self.asked[0].port());
            let state = || self.client.netns().tool("ss", &["-tinHO", &port]);
            let (learnt, before) = (format!("pmtu:{MTU}"), state()?);
            ensure!(before.contains("pmtu:") && !before.contains(&learnt), "{before}");
            wait_until_ok(SOON, "the connection learns the MTU", || {
                // Only the last segment can be the lost one.
                let [own, _] = self.asked;
                let sent = self.capture.frames(|it| it.outgoing && it.source() == Some(own));
                let last = sent.iter().filter_map(Frame::tcp_numbers).next_back();
                self.send(self.router, about, too_large, last.context("no segment")?.0)?;
                let now = state()?;
                ensure!(now.contains(&learnt), "{now}");
                Ok(())
            })?;
        }
        bystander.ask().map(drop).context("another socket")
    }
}

const fn back([source, destination]: [SocketAddr; 2]) -> [SocketAddr; 2] {
    [destination, source]
}

/// Type and code: port unreachable, and packet too large.
const fn kinds(family: Family) -> ((u8, u8), (u8, u8)) {
    match family {
        Family::V4 => ((3, 3), (3, 4)),
        Family::V6 => ((1, 4), (2, 0)),
    }
}

/// The ends of the packet that an error of this kind quotes.
fn quotes(frame: &Frame, kind: (u8, u8)) -> Option<[SocketAddr; 2]> {
    frame.quoted_ends().filter(|_| frame.icmp() == Some(kind))
}

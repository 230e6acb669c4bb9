//! Errors to another host than the sender of the packet that they quote. They arrive as they were sent: a translation
//! would disclose which flows exist.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_common::fake::{Datagram, at};
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, matrix, unused_port};
use lb_tests::topology::{Family, Member, Shape};
use lb_tests::traffic::{Ask, Capture, Frame, Handmade, Kept, Protocol};
use lb_tests::wait::wait_until;

in_both_shapes!(errors_to_another_host_than_the_quoted_one_are_not_translated);

/// The deadline for an error to arrive, which takes microseconds.
const PATIENCE: Duration = Duration::from_secs(15);

/// The ends of a quoted packet: its source and its destination.
type Ends = [SocketAddr; 2];

/// A flow that is open, and the packets that belong to it on either side of a translation.
struct Flow<'a> {
    _socket: Kept<'a>,
    protocol: Protocol,
    packets: Vec<Ends>,
    /// A packet of the flow as its sender's network sees it, and as the sender has sent it.
    genuine: [Ends; 2],
}

impl<'a> Flow<'a> {
    /// Opens a flow of a client to a frontend; `is_external`: outside sees the packets between client and frontend.
    fn open(
        client: &'a Member,
        protocol: Protocol,
        to: SocketAddr,
        backend: SocketAddr,
        is_external: bool,
    ) -> Result<Self> {
        let question = Ask::new(protocol, to).from_port(unused_port());
        let socket = client.peer().keep(question).with_context(|| format!("{question:?}"))?;
        let answer = socket.ask()?;
        let (own, seen) = (answer.local, answer.client);
        let both = |[one, other]: Ends| [[one, other], [other, one]];
        let packets = [both([own, to]), both([own, backend]), both([seen, backend])].concat();
        let genuine =
            if is_external { [[to, own], [backend, seen]] } else { [[seen, backend], [own, to]] };
        Ok(Self { _socket: socket, protocol, packets, genuine })
    }

    /// An error of a router at an address that quotes a packet of the flow.
    fn error(&self, from: SocketAddr, to: SocketAddr, quoted: Ends) -> Datagram {
        let transport = self.protocol.of_an_open_flow();
        let [source, destination] = quoted.map(|end| at(&end.to_string()));
        let quoted = Datagram::new(source, destination, transport).with(b"a question").network();
        let message = if from.is_ipv4() { (11, 0) } else { (3, 0) };
        let body = [vec![0; 4], quoted].concat();
        Datagram::icmp(&from.to_string(), &to.to_string(), message, body)
    }
}

/// The members that receive errors, with the quotes that may arrive there.
struct Receivers<'a>(Vec<(&'a Member, Capture, Vec<Ends>)>);

impl<'a> Receivers<'a> {
    fn start(members: impl IntoIterator<Item = &'a Member>) -> Result<Self> {
        let capture =
            |member: &'a Member| Ok((member, Capture::start(member.netns(), "eth0")?, Vec::new()));
        members.into_iter().map(capture).collect::<Result<_>>().map(Self)
    }

    /// Waits until one more error with this quote has arrived at the member with this address.
    fn wait_for(&mut self, ip: SocketAddr, quoted: Ends, what: &str) -> Result<()> {
        let ip = ip.ip();
        let receiver = self.0.iter_mut().find(|(it, ..)| it.addresses().both().contains(&ip));
        let (_, capture, allowed) = receiver.context("a receiver has this address")?;
        allowed.push(quoted);
        let sent = allowed.iter().filter(|it| **it == quoted).count();
        let is_it = |frame: &Frame| arrived(frame) == Some(quoted);
        wait_until(PATIENCE, what, || (capture.count(is_it) == sent).then_some(()))
    }

    /// Fails if anything else has arrived.
    fn ensure_nothing_else(&self) -> Result<()> {
        for (member, capture, allowed) in &self.0 {
            let others = capture.frames(|it| arrived(it).is_some_and(|it| !allowed.contains(&it)));
            let quotes: Vec<_> = others.iter().filter_map(arrived).collect();
            ensure!(quotes.is_empty(), "{} got errors about {quotes:?}", member.name());
        }
        Ok(())
    }
}

/// The ends of the packet that an incoming error quotes, if the frame is one.
fn arrived(frame: &Frame) -> Option<Ends> {
    let is_error = !frame.outgoing && matches!(frame.icmp(), Some((11 | 3, 0)));
    frame.quoted_ends().filter(|_| is_error)
}

/// Errors from outside pass the external interface first, those of pods the interface of their pod.
fn errors_to_another_host_than_the_quoted_one_are_not_translated(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let near = Service::new("near", 10)?.port(80, TARGET).node_port(30_080);
    let far = Service::new("far", 11)?.port(80, TARGET).node_port(30_081);
    let (near, far) = (near.pods(&[rig.pod(0, 0)?]), far.pods(&[rig.pod(1, 0)?]));
    let rig = rig.start(&[&near, &far])?;
    for (family, protocol) in matrix() {
        let pods = rig.pods().into_iter().map(|pod| -> &Member { pod });
        let mut receivers = Receivers::start(pods.chain([rig.client()]))?;
        for flow in flows(&rig, [&near, &far], family, protocol)? {
            genuine_is_translated(&rig, &flow, family, &mut receivers)?;
            forged_are_not(&rig, &flow, family, &mut receivers)?;
        }
        receivers.ensure_nothing_else()?;
    }
    Ok(())
}

/// Flows of the client outside and of a pod, to a near and to a far backend.
fn flows<'a>(
    rig: &'a Rig,
    services: [&Service; 2],
    family: Family,
    protocol: Protocol,
) -> Result<Vec<Flow<'a>>> {
    let mut flows = Vec::new();
    for (node, service) in services.into_iter().enumerate() {
        let backend = rig.pod(node, 0)?.addresses().socket(family, TARGET);
        let node_port = rig.node(0)?.addresses().socket(family, 30_080 + node as u16);
        flows.push(Flow::open(rig.client(), protocol, node_port, backend, true)?);
        let cluster = service.frontend(family);
        flows.push(Flow::open(rig.pod(0, 1)?, protocol, cluster, backend, false)?);
    }
    Ok(flows)
}

/// Sends an error about a packet of the flow to the sender of that packet.
fn genuine_is_translated(
    rig: &Rig,
    flow: &Flow<'_>,
    family: Family,
    receivers: &mut Receivers<'_>,
) -> Result<()> {
    let [quoted, translated] = flow.genuine;
    let hand =
        Handmade::open(rig.client(), rig.client().addresses().socket(family, unused_port()))?;
    let own = rig.client().addresses().socket(family, 1);
    hand.send(&flow.error(own, quoted[0], quoted), quoted[0])?;
    let what = format!("an error about {quoted:?} arrives as one about {translated:?}");
    receivers.wait_for(translated[0], translated, &what)
}

/// Sends errors about each packet of the flow from several places to hosts that have not sent it.
fn forged_are_not(
    rig: &Rig,
    flow: &Flow<'_>,
    family: Family,
    receivers: &mut Receivers<'_>,
) -> Result<()> {
    let (client, other): (_, &Member) = (rig.client(), rig.pod(0, 1)?);
    let bystander: &Member = rig.pod(1, 1)?;
    let ways: [(&Member, &Member); 5] = [
        (client, other),
        (client, bystander),
        (rig.pod(0, 0)?, other),
        (bystander, other),
        (rig.pod(0, 0)?, client),
    ];
    for (from, to) in ways {
        let [own, target] = [from, to].map(|it| it.addresses().socket(family, 1));
        let hand = Handmade::open(from, from.addresses().socket(family, unused_port()))?;
        for quoted in flow.packets.iter().filter(|it| it[0].ip() != target.ip()) {
            hand.send(&flow.error(own, target, *quoted), target)?;
            let what = format!("{} tells {} about {quoted:?}", from.name(), to.name());
            receivers.wait_for(target, *quoted, &what)?;
        }
    }
    Ok(())
}

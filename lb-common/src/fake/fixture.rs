//! One case as data: tables, then packets one after the other, each with its expected outcome.

use std::format;
use std::string::String;
use std::vec::Vec;

use super::{Bytes, Datagram, Fake, Home, assert_packet_eq, wrong_checksums};
use crate::event::{Event, Hook, Redirect, Verdict};
use crate::forward::{Role, Scratch, egress, fast, ingress, whole};
use crate::hash;
use crate::l3::L3;
use crate::packet::Packet;
use crate::wire::ETHERNET;

/// One packet at one hook.
#[derive(Clone, Debug)]
pub struct Step {
    /// The hook at which the packet is seen.
    pub hook: Hook,
    /// Whether this host created the packet.
    pub from_host: bool,
    pub packet: Vec<u8>,
    /// The expected verdict.
    pub verdict: Verdict,
    /// The expected packet afterwards; `None`: unchanged.
    pub out: Option<Vec<u8>>,
}

#[derive(Clone, Debug)]
pub struct Fixture {
    pub name: String,
    /// The tables before the first packet.
    pub tables: Fake,
    /// The packets.
    pub steps: Vec<Step>,
    /// Expected number of flow entries at the end.
    pub flows: usize,
    /// Expected events, counted once each unless named more often.
    pub events: Vec<Event>,
}

/// A fragment gets another identification with another source, unless it is returned.
fn renumbered(packet: &Datagram, into: &Datagram) -> Datagram {
    let mut into = into.clone();
    let (before, after) = (packet.source, into.source);
    let is_returned = after.ip == packet.destination.ip;
    if let (Some(piece), false, false) = (&mut into.piece, before == after, is_returned) {
        let other = hash::of_addresses(&before.ip, &packet.destination.ip, 0).to_ne_bytes();
        let [a, b, c, d] = other;
        let number = if before.ip.is_v4() { [0, 0, a, b] } else { [a, b, c, d] };
        piece.id ^= u32::from_be_bytes(number);
    }
    into
}

impl Fixture {
    /// A case that has no packets yet.
    pub fn new(name: &str, tables: Fake) -> Self {
        Self { name: String::from(name), tables, steps: Vec::new(), flows: 0, events: Vec::new() }
    }

    /// Adds a packet that must pass unchanged.
    #[must_use]
    pub fn leaves(mut self, hook: Hook, packet: &Datagram, verdict: Verdict) -> Self {
        self.push(hook, packet.build(), verdict, None);
        self
    }

    /// Adds a packet that must become another one.
    #[must_use]
    pub fn turns(
        mut self,
        hook: Hook,
        packet: &Datagram,
        into: &Datagram,
        verdict: Verdict,
    ) -> Self {
        self.push(hook, packet.build(), verdict, Some(renumbered(packet, into).build()));
        self
    }

    /// Adds a packet of bytes, with its expected outcome.
    pub fn push(
        &mut self,
        hook: Hook,
        packet: Vec<u8>,
        verdict: Verdict,
        mut out: Option<Vec<u8>>,
    ) {
        if verdict == Verdict::Redirected(Redirect::FromHost)
            && let Some(link) = out.as_mut().and_then(|out| out.first_chunk_mut::<6>())
        {
            // The kernel writes the next hop's address after the program.
            *link = [0; 6];
        }
        self.steps.push(Step { hook, from_host: false, packet, verdict, out });
    }

    /// Marks the last packet as created by this host.
    #[must_use]
    pub fn by_host(mut self) -> Self {
        if let Some(step) = self.steps.last_mut() {
            step.from_host = true;
        }
        self
    }

    /// Sets the expected number of flow entries at the end.
    #[must_use]
    pub fn flows(self, flows: usize) -> Self {
        Self { flows, ..self }
    }

    /// Sets the expected events beside the verdicts.
    #[must_use]
    pub fn events(self, events: &[Event]) -> Self {
        Self { events: events.to_vec(), ..self }
    }

    /// Runs the case on this host and asserts every expectation.
    pub fn check(&self) {
        let tables = self.tables.clone();
        for (index, step) in self.steps.iter().enumerate() {
            let name = format!("{} (packet {index})", self.name);
            let (verdict, out) = run(step, &tables);
            assert_eq!(verdict, step.verdict, "{name}");
            assert_packet_eq(&out, step.out.as_ref().unwrap_or(&step.packet), &name);
            if wrong_checksums(&step.packet).is_empty() {
                assert_eq!(wrong_checksums(&out), Vec::<&str>::new(), "{name}");
            }
        }
        let flows = tables.all_flows();
        assert_eq!(flows.len(), self.flows, "{}: {flows:#?}", self.name);
        for event in Event::ALL {
            let wanted = self.events.iter().filter(|wanted| *wanted == event).count() as u64;
            assert_eq!(tables.counted(*event), wanted, "{}: {event:?}", self.name);
        }
    }
}

/// Runs one packet through the data path on this host.
pub fn run(step: &Step, tables: &Fake) -> (Verdict, Vec<u8>) {
    let mut packet = packet(step, &step.packet, tables);
    (decide(step.hook, &mut packet, tables, [ingress, egress]), packet.data)
}

/// Runs a packet through the programs of two layouts at one hook, as during an upgrade: those of the first layout see
/// it first. Also the packet as the last program leaves it.
pub fn run_both(step: &Step, layouts: [&Fake; 2]) -> ([Verdict; 2], Bytes) {
    let mut packet = packet(step, &step.packet, layouts[0]);
    let verdicts = layouts.map(|tables| decide(step.hook, &mut packet, tables, [ingress, egress]));
    (verdicts, packet)
}

/// The same as [`run`] without the fast path, which must make no difference.
pub fn run_whole(step: &Step, tables: &Fake) -> (Verdict, Vec<u8>) {
    let mut packet = packet(step, &step.packet, tables);
    (decide(step.hook, &mut packet, tables, [whole::ingress, whole::egress]), packet.data)
}

/// The same with working memory that still holds data of other packets.
pub fn run_in(step: &Step, tables: &Fake, scratch: &mut Scratch) -> (Verdict, Vec<u8>) {
    let mut packet = packet(step, &step.packet, tables);
    let (role, goes_out) = role_at(step.hook);
    let handle = if goes_out { whole::egress } else { whole::ingress };
    (handle(&mut packet, tables, scratch, role), packet.data)
}

/// Whether the fast path decides about a packet.
pub fn is_fast(step: &Step, tables: &Fake) -> bool {
    let mut packet = packet(step, &step.packet, tables);
    decide(step.hook, &mut packet, tables, [fast::ingress, fast::egress]).is_some()
}

/// Runs a packet of an interface without a link-layer header on the whole path, as its programs do; the returned bytes
/// lack that header.
pub fn run_l3(step: &Step, tables: &Fake) -> (Verdict, Vec<u8>) {
    let (link, rest) = step.packet.split_at(ETHERNET);
    let mut packet = L3(packet(step, rest, tables));
    packet.0.l3 = link.last_chunk().copied();
    (decide(step.hook, &mut packet, tables, [whole::ingress, whole::egress]), packet.0.data)
}

fn packet(step: &Step, bytes: &[u8], tables: &Fake) -> Bytes {
    let home = if step.hook == Hook::ExternalXdp { Home::Frame } else { Home::Skb };
    let mut packet = Bytes::new(bytes.to_vec(), home);
    packet.from_host = step.from_host;
    packet.routes.clone_from(&tables.routes);
    packet.sockets.clone_from(&tables.sockets);
    packet
}

/// Functions that handle a packet, for ingress and for egress.
type Paths<P, R> = [fn(&mut P, &Fake, &mut Scratch, Role) -> R; 2];

fn decide<P: Packet, R>(hook: Hook, packet: &mut P, tables: &Fake, paths: Paths<P, R>) -> R {
    let (role, goes_out) = role_at(hook);
    let [comes_in, out] = paths;
    let handle = if goes_out { out } else { comes_in };
    handle(packet, tables, &mut Scratch::default(), role)
}

/// The role of the interface of a hook, and whether packets go out by it.
const fn role_at(hook: Hook) -> (Role, bool) {
    match hook {
        Hook::PodIngress => (Role::Pod, false),
        Hook::ExternalIngress | Hook::ExternalXdp => (Role::External, false),
        Hook::PodEgress => (Role::Pod, true),
        Hook::ExternalEgress => (Role::External, true),
        Hook::HostIngress => (Role::Host, false),
        Hook::HostEgress => (Role::Host, true),
    }
}

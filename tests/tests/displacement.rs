//! The order in which the kernel displaces the entries of unanswered flows from a full table: those of one flow go
//! together. Needs root.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use lb_common::addr::{Endpoint, Ip, Port, Protocol};
use lb_common::event::{Hook, Translation, Verdict};
use lb_common::fake::{Datagram, Fake, Step, Transport, at, world};
use lb_common::flow::{FlowKey, Kind};
use lb_tests::differential::Kernel;

/// The number of flows of a flood between two looks at the table.
const EACH: u32 = 64;
/// The capacity of the transient table: the least that the test programs are loaded with.
const CAPACITY: usize = 8_192;
/// The number of flows that fill the table.
const FILLED: u32 = 4_096;
/// More flows than can pass before an entry is displaced.
const MOST: u32 = FILLED + 2 * CAPACITY as u32;
/// The kernel makes room for 128 entries at a time, on each of two lists, so entries of one moment may go that far from
/// one another. Each flow has three entries.
const FAR: u32 = 256;

/// The first datagram of a client outside, to a NodePort whose backend is on another node.
fn question(number: u32) -> Step {
    let [_, high, middle, low] = number.to_be_bytes();
    let client = Endpoint::new(Ip::v4([203, high, middle, low]), Port::new(10_000));
    let packet = Datagram::new(client, at(world::NODE4), Transport::Udp(true)).build();
    let verdict = Verdict::Translated(Translation::NewFlow);
    Step { hook: Hook::ExternalIngress, from_host: false, packet, verdict, out: None }
}

/// A node with a NodePort whose backend is on another node.
fn node() -> Fake {
    let mut tables = Fake::node();
    let service = tables.add_service(9, &[(world::REMOTE4, false)]);
    tables.node_port(world::NODE4, Protocol::UDP, service);
    tables
}

/// The entries of the flow that the packet begins: forward, masquerade (without a source yet) and reply.
fn begin(kernel: &mut Kernel, packet: &Step) -> Result<BTreeMap<FlowKey, Kind>> {
    let before = kernel.transient()?;
    kernel.run(packet)?.context("a packet long enough")?;
    let after = kernel.transient()?.into_iter();
    Ok(after
        .filter(|(key, _)| !before.contains_key(key))
        .map(|(key, flow)| (key, flow.kind))
        .collect())
}

#[test]
fn entries_of_one_flow_are_displaced_together() -> Result<()> {
    let mut kernel = Kernel::new(CAPACITY)?;
    kernel.load(&node())?;
    // A full table: before that, no entry goes.
    (1..FILLED).try_for_each(|number| kernel.run(&question(number)).map(drop))?;
    let watched = begin(&mut kernel, &question(0))?;
    ensure!(watched.len() == 3, "{watched:?}");
    let mut gone = BTreeMap::new();
    let mut number = FILLED;
    while gone.len() < watched.len() {
        ensure!(number < MOST, "after {MOST} flows only {gone:?} are displaced");
        for _ in 0..EACH {
            kernel.run(&question(number))?.context("a packet long enough")?;
            number += 1;
        }
        let there = kernel.transient()?;
        for (key, kind) in watched.iter().filter(|(key, _)| !there.contains_key(*key)) {
            gone.entry(*kind).or_insert((number, key));
        }
    }
    let moments = || gone.values().map(|(number, _)| *number);
    let (first, last) = (moments().min().unwrap_or_default(), moments().max().unwrap_or_default());
    ensure!(last - first <= FAR, "displaced one by one: {gone:?}");
    Ok(())
}

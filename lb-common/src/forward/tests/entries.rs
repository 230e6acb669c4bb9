//! The contents of each entry that the fixtures leave in the tables that the data path writes.

use core::fmt::Write as _;
use std::format;
use std::net::{IpAddr, SocketAddr};
use std::string::String;
use std::vec::Vec;

use crate::addr::{Ip, Port};
use crate::fake::{Fake, Fixture, fixtures, run};
use crate::flow::{Affinity, Client, Flow, FlowKey, Fragment, Held, Ports, Tuple};

/// The counts in the fixtures say how many flow entries a case leaves; this says which, and what is in them.
#[test]
fn every_fixture_leaves_the_entries_that_it_should() {
    let mut text = String::new();
    for (name, tables) in left_by_fixtures() {
        let _written = writeln!(text, "{name}");
        for (key, flow) in tables.all_flows() {
            let _written = writeln!(text, "  {}{}", entry(&key, &flow), age(&flow, &tables));
        }
    }
    insta::assert_snapshot!("entries", text);
}

/// The same for the other tables. Fixtures without such a record are left out.
#[test]
fn every_fixture_leaves_the_records_that_it_should() {
    let mut text = String::new();
    for (name, tables) in left_by_fixtures() {
        let records = other_records(&tables);
        if !records.is_empty() {
            let _written = writeln!(text, "{name}\n{}", records.join("\n"));
        }
    }
    insta::assert_snapshot!("records", text);
}

/// Asserts that two runs have left the same entries, and have counted the same.
pub(super) fn assert_left_alike(left: &Fake, right: &Fake, name: &str) {
    assert_eq!(left.all_flows(), right.all_flows(), "{name}");
    assert_eq!(left.affinity, right.affinity, "{name}");
    assert_eq!(left.in_use, right.in_use, "{name}");
    assert_eq!(left.direct, right.direct, "{name}");
    assert_eq!(left.own_answers, right.own_answers, "{name}");
    assert_eq!(left.fragments, right.fragments, "{name}");
    assert_eq!(left.held, right.held, "{name}");
    assert_eq!(left.events, right.events, "{name}");
}

/// The name of each fixture, and the tables as its packets leave them.
fn left_by_fixtures() -> impl Iterator<Item = (String, Fake)> {
    fixtures::all().into_iter().map(|Fixture { name, tables, steps, .. }| {
        for step in &steps {
            let _verdict = run(step, &tables);
        }
        (name, tables)
    })
}

/// Every record that the data path writes beside the flow entries, a line each.
fn other_records(tables: &Fake) -> Vec<String> {
    let mut records = Vec::new();
    for (Client { ip, service, scope }, affinity) in tables.affinity.borrow().iter() {
        let Affinity { backend, epoch, seen } = affinity;
        let (client, age) = (IpAddr::from(*ip), seconds_since(*seen, tables));
        records.push(format!("  affinity {client} service {service} scope {scope} row {backend} epoch {epoch} seen {age} s ago"));
    }
    for (line, byte) in tables.in_use.borrow().iter() {
        records.push(format!("  in use {line} {byte}"));
    }
    for hash in tables.direct.borrow().values() {
        records.push(format!("  direct {hash:016x}"));
    }
    for (hash, moment) in tables.own_answers.borrow().iter() {
        records.push(format!("  own answer {hash:016x} moment {moment}"));
    }
    for (fragment, Ports { source, destination, held, written, passed }) in
        tables.fragments.borrow().iter()
    {
        let (source, destination) = (source.get(), destination.get());
        // The value wraps, and an ended entry is one step older than the oldest valid one.
        let age = Ports::time(tables.clock.get()).wrapping_sub(*written);
        records.push(format!(
            "  ports of {} {source} > {destination} held {held} age {age} passed {passed}",
            datagram(fragment)
        ));
    }
    for (fragment, held) in tables.held.borrow().iter() {
        assert_eq!(held.fragment, *fragment);
        let Held { length, bytes, .. } = held;
        let packet = bytes.get(..(length & !Held::L3) as usize);
        records.push(format!("  held {} length {length} {packet:02x?}", datagram(fragment)));
    }
    records
}

fn datagram(fragment: &Fragment) -> String {
    let Fragment { source, destination, id, protocol, side, place } = fragment;
    let [source, destination] = [source, destination].map(|ip| IpAddr::from(*ip));
    let id = u32::from_be_bytes(*id);
    let side = ["in", "out"][usize::from(side.0)];
    format!("{} {side} {source} > {destination} id {id:08x} place {place}", protocol.0)
}

/// How long ago an entry was seen, and its flow begun, where that is not now.
fn age(flow: &Flow, tables: &Fake) -> String {
    let begun = u64::from(flow.begun) << Flow::MOMENT_BITS;
    let (seen, begun) = (seconds_since(flow.seen, tables), seconds_since(begun, tables));
    let text = |what: &str, seconds| {
        if seconds == 0 { String::new() } else { format!(" {what} {seconds} s ago") }
    };
    text("seen", seen) + &text("begun", begun)
}

/// Whole seconds since a time, which flow entries hold without its last 16 bits.
fn seconds_since(time: u64, tables: &Fake) -> u64 {
    (tables.clock.get() >> 16).saturating_sub(time >> 16) / (1_000_000_000 >> 16)
}

/// An entry, but for its times.
fn entry(key: &FlowKey, flow: &Flow) -> String {
    let Flow { to, service, backend, epoch, kind, flags, shown, .. } = flow;
    let Flow { noted, frontends_epoch, client_device, expected, .. } = flow;
    let side = ["in", "out"][usize::from(key.side.0)];
    let kind =
        ["", "forward", "reply", "masquerade", "unmasquerade", "hairpin"][usize::from(kind.0)];
    let flags = [
        (Flow::MASQUERADED, " masqueraded"),
        (Flow::PROTECTED, " protected"),
        (Flow::ANSWER, " answer"),
        (Flow::STICKY, " sticky"),
        (Flow::OF_POD, " of_pod"),
    ]
    .map(|(flag, name)| if flags & flag == 0 { "" } else { name })
    .concat();
    let shown = [
        (shown.established, " established"),
        (shown.fin, " fin"),
        (shown.rst, " rst"),
        (shown.claimed, " claimed"),
    ]
    .map(|(byte, name)| if byte == 0 { "" } else { name })
    .concat();
    let noted = if *noted == 0 { String::new() } else { format!(" noted {noted}") };
    format!(
        "{} {side} {} {kind} {} service {service} row {backend} epoch {epoch} frontends {frontends_epoch} device {client_device} expects {expected}{flags}{shown}{noted}",
        key.protocol.0,
        ends(&key.tuple),
        ends(to),
    )
}

fn ends(tuple: &Tuple) -> String {
    let end = |ip: &Ip, port: &Port| SocketAddr::new(IpAddr::from(*ip), port.get());
    let Tuple { source, destination, source_port, destination_port } = tuple;
    format!("{} > {}", end(source, source_port), end(destination, destination_port))
}

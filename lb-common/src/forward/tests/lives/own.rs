//! Connections that the node began: how long the answers to those from the port of a `NodePort` are known, and how long
//! those with the source of a masqueraded flow have another one.

use super::{SECOND, node, step};
use crate::event::{Hook, Translation, Verdict};
use crate::fake::{Datagram, Fake, Transport, at, fixtures, run, world};
use crate::flow::{DIRECT_SEEN, FlowKey, Kind, Side, Tuple};
use crate::tables::Filters as _;

/// Packets of pods straight to backends, from ever new ports, make the node forget none of its own connections.
#[test]
fn answers_to_own_connections_are_known_after_any_number_of_direct_packets() {
    let is_own = |name: &str| name.starts_with("answer_to_an_own_");
    let mut tried = 0;
    for fixture in fixtures::all().into_iter().filter(|fixture| is_own(&fixture.name)) {
        for step in &fixture.steps {
            assert_eq!(run(step, &fixture.tables).0, step.verdict, "{}", fixture.name);
            for place in 0..DIRECT_SEEN {
                fixture.tables.put_direct(1 << 40 | u64::from(place));
            }
        }
        tried += 1;
    }
    assert!(tried > 10, "{tried} fixtures");
}

/// No entry but this one shows the packets of such a connection. It has its source as long as its answers are known,
/// whatever becomes of the flow that had the source first.
#[test]
fn own_connection_keeps_the_source_that_it_was_given() {
    let tables = node(&[(world::REMOTE4, false)]);
    let udp = Transport::Udp(true);
    let comes = Datagram::udp(world::CLIENT4, world::NODE4).build();
    let (_, left) = run(&step(Hook::ExternalIngress, comes), &tables);
    let (_, theirs) = run(&step(Hook::ExternalEgress, left), &tables);
    let flow_of_the_client = tables.all_flows();
    let sends = |tables: &Fake| {
        let mut sends = step(Hook::ExternalEgress, theirs.clone());
        sends.from_host = true;
        run(&sends, tables)
    };
    let (verdict, given) = sends(&tables);
    assert_eq!(verdict, Verdict::Translated(Translation::Masquerade));
    assert_ne!(given, theirs);
    // The server answers, and the flow of the client ends.
    let all = tables.all_flows();
    let is_own =
        |key: &&FlowKey| !flow_of_the_client.contains_key(*key) && key.side == Side::INGRESS;
    let Tuple { source_port: _, destination, destination_port, .. } =
        all.keys().find(is_own).expect("answers").tuple;
    let ours = crate::addr::Endpoint::new(destination, destination_port);
    let answer = Datagram::new(at(world::REMOTE4), ours, udp).build();
    let (verdict, _) = run(&step(Hook::ExternalIngress, answer), &tables);
    assert_eq!(verdict, Verdict::Translated(Translation::Unmasquerade));
    tables.transient.borrow_mut().retain(|key, _| !flow_of_the_client.contains_key(key));
    let left: std::vec::Vec<Kind> = tables.all_flows().values().map(|flow| flow.kind).collect();
    assert_eq!(left.len(), 2, "{left:?}");
    for seconds in [31, 121, 3_600] {
        tables.clock.set(tables.clock.get() + seconds * SECOND);
        assert_eq!(sends(&tables), (Verdict::Translated(Translation::Masquerade), given.clone()));
    }
}

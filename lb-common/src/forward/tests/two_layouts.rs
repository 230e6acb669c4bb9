//! Packets that the programs of two layouts see at one hook, during an upgrade (ADR 0005).

use super::step;
use crate::addr::Protocol;
use crate::event::{Hook, PassReason, Translation, Verdict};
use crate::fake::{Datagram, Fake, Transport, at, is_fast, run, run_both, world};
use crate::wire::tcp;

const NEW: Verdict = Verdict::Translated(Translation::NewFlow);
const MASQUERADE: Verdict = Verdict::Translated(Translation::Masquerade);
const NOT_OURS: Verdict = Verdict::Pass(PassReason::NotOurs);

/// A node whose `NodePort` has a backend on another node.
fn node(protocol: Protocol) -> Fake {
    let mut tables = Fake::node();
    let service = tables.add_service(1, &[(world::REMOTE4, false)]);
    tables.node_port(world::NODE4, protocol, service);
    tables
}

/// A client outside asks; its packet is still to be masqueraded.
fn asks(tables: &Fake, transport: Transport) -> super::Step {
    let comes = Datagram::new(at(world::CLIENT4), at(world::NODE4), transport).build();
    let (verdict, left) = run(&step(Hook::ExternalIngress, comes), tables);
    assert_eq!(verdict, NEW);
    step(Hook::ExternalEgress, left)
}

/// The new flow has the source of an earlier one that the tables of the old program still hold.
#[test]
fn new_program_masquerades_and_the_old_one_leaves_the_packet() {
    for (protocol, transport) in
        [(Protocol::TCP, Transport::Tcp(tcp::SYN)), (Protocol::UDP, Transport::Udp(true))]
    {
        let [new, old] = [node(protocol), node(protocol)];
        let (verdict, theirs) = run(&asks(&old, transport), &old);
        assert_eq!(verdict, MASQUERADE);
        let before = old.all_flows();
        let leaves = asks(&new, transport);
        for _ in 0..3 {
            let (verdicts, packet) = run_both(&leaves, [&new, &old]);
            assert_eq!((verdicts, packet.data), ([MASQUERADE, NOT_OURS], theirs.clone()));
        }
        assert_eq!(is_fast(&leaves, &new), protocol == Protocol::UDP, "both paths mark packets");
        assert_eq!(old.all_flows(), before, "{transport:?}");
    }
}

/// The table of these records may be shared: the new program would look for another port.
#[test]
fn old_program_records_no_connection_that_the_new_one_has_masqueraded() {
    let [new, old] = [node(Protocol::TCP), node(Protocol::TCP)];
    let (verdicts, packet) = run_both(&asks(&new, Transport::Tcp(tcp::SYN)), [&new, &old]);
    assert_eq!(verdicts, [MASQUERADE, NOT_OURS]);
    assert!(packet.masqueraded && old.own_answers.borrow().is_empty());
    // Without the mark it would be one of netfilter's.
    let (verdict, _) = run(&step(Hook::ExternalEgress, packet.data), &old);
    assert_eq!((verdict, old.own_answers.borrow().len()), (NOT_OURS, 1));
}

#[test]
fn only_packets_that_leave_with_another_source_are_marked() {
    let mut tables = Fake::node();
    let service = tables.add_service(1, &[(world::LOCAL4, true)]);
    tables.node_port(world::NODE4, Protocol::UDP, service);
    let udp = Transport::Udp(true);
    let _left = asks(&tables, udp);
    let answer = Datagram::new(at(world::LOCAL4), at(world::CLIENT4), udp).build();
    let old = Fake::node();
    let (verdicts, packet) = run_both(&step(Hook::ExternalEgress, answer), [&tables, &old]);
    assert_eq!(verdicts[0], Verdict::Translated(Translation::Reply));
    assert!(!packet.masqueraded);
}

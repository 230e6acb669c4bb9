//! Copies of first fragments that come in again, and ports of datagrams that are stored or not.

use std::vec::Vec;

use crate::addr::{Port, Protocol};
use crate::event::{DropReason, Event, PassReason, Return, Translation, Verdict};
use crate::fake::{Bytes, Datagram, Fake, Home, world};
use crate::flow::Ports;
use crate::forward::{Role, Scratch, ingress};

const NOT_OURS: Verdict = Verdict::Pass(PassReason::NotOurs);
const HELD: Verdict = Verdict::Drop(DropReason::FragmentHeld);
const CARRIES: Verdict = Verdict::Returned(Return::Fragment);
const ID: u32 = 77;

/// A node with a ClusterIP of UDP.
fn node() -> Fake {
    let mut tables = Fake::node();
    let service = tables.add_service(1, &[(world::REMOTE4, false)]);
    tables.cluster_ip(world::CLUSTER4, Protocol::UDP, service);
    tables
}

fn first(to: &str) -> Datagram {
    Datagram::udp(world::POD4, to).piece(0, true, ID)
}

fn later(to: &str, offset: u16) -> Datagram {
    Datagram::udp(world::POD4, to).piece(offset, offset < 32, ID).with(b"the rest")
}

/// The verdict for a packet of a pod, how many copies of the packet come in again, and its bytes afterwards.
fn comes(tables: &Fake, packet: &Datagram) -> (Verdict, u32, Vec<u8>) {
    comes_raw(tables, packet.build())
}

fn comes_raw(tables: &Fake, packet: Vec<u8>) -> (Verdict, u32, Vec<u8>) {
    let mut packet = Bytes::new(packet, Home::Skb);
    let verdict = ingress(&mut packet, tables, &mut Scratch::default(), Role::Pod);
    (verdict, packet.copies, packet.data)
}

/// A first fragment that ends inside of its UDP header.
fn short(to: &str) -> Vec<u8> {
    const LEFT: u8 = 4;
    let mut packet = first(to).build();
    packet.truncate(34 + usize::from(LEFT));
    packet[16..18].copy_from_slice(&[0, 20 + LEFT]);
    packet
}

/// A copy for each held fragment: one too few would lose a fragment, one too many the first one of the datagram.
#[test]
fn first_fragment_comes_in_again_once_for_each_held_one() {
    for held in 0..4 {
        let tables = node();
        for number in 0..held {
            let (verdict, copies, _) = comes(&tables, &later(world::CLUSTER4, 16 + 8 * number));
            assert_eq!((verdict, copies), (HELD, 0));
        }
        let (verdict, mut copies, _) = comes(&tables, &first(world::CLUSTER4));
        assert_eq!(verdict, Verdict::Translated(Translation::NewFlow));
        let mut carried = 0;
        while copies > 0 {
            let (verdict, again, out) = comes(&tables, &first(world::CLUSTER4));
            assert_eq!(verdict, CARRIES, "{held} held");
            carried += 1;
            assert!(carried <= held, "{held} held");
            assert_eq!(out, later(world::CLUSTER4, 16 + 8 * (held - carried)).build());
            copies = again;
        }
        assert_eq!(carried, held);
        assert!(tables.held.borrow().is_empty());
    }
}

/// The frontend is removed between a fragment and the first one of its datagram: the fragment is not held for ever.
#[test]
fn fragment_held_for_a_frontend_that_went_is_released() {
    let mut tables = node();
    assert_eq!(comes(&tables, &later(world::CLUSTER4, 16)).0, HELD);
    tables.services.clear();
    tables.settings.services.known = 0;
    assert_eq!(comes(&tables, &first(world::CLUSTER4)).0, NOT_OURS);
    assert_eq!(tables.counted(Event::FragmentsReleased), 1);
    let (verdict, copies, out) = comes(&tables, &first(world::CLUSTER4));
    assert_eq!((verdict, copies), (CARRIES, 0));
    assert_eq!(out, later(world::CLUSTER4, 16).build());
    assert_eq!(comes(&tables, &later(world::CLUSTER4, 16)).0, NOT_OURS);
}

#[test]
fn ports_of_a_datagram_to_no_frontend_are_not_stored() {
    let tables = node();
    assert_eq!(comes(&tables, &first(world::CLIENT4)).0, NOT_OURS);
    assert!(tables.fragments.borrow().is_empty(), "{:?}", tables.fragments);
    assert_eq!(
        comes(&tables, &first(world::CLUSTER4)).0,
        Verdict::Translated(Translation::NewFlow)
    );
    assert_eq!(tables.fragments.borrow().len(), 1);
}

/// Its record says that nothing waits. It is written where fragments may wait or an earlier datagram has left its
/// ports, and nowhere else: strangers' fragments must not fill the table.
#[test]
fn first_fragment_without_ports_is_recorded_where_others_may_wait() {
    let recorded = |tables: &Fake, to: &str| {
        assert_eq!(comes_raw(tables, short(to)).0, Verdict::Pass(PassReason::Malformed));
        let all = tables.fragments.borrow();
        all.values().map(|ports| (ports.held, ports.destination)).collect::<Vec<_>>()
    };
    let nothing_waits = [(Ports::NONE_WAITS, Port::NONE)];
    assert_eq!(recorded(&node(), world::CLUSTER4), nothing_waits);
    assert_eq!(recorded(&node(), world::CLIENT4), []);
    let close = |mut tables: Fake| {
        tables.services.clear();
        tables.settings.services.known = 0;
        tables
    };
    let held = node();
    assert_eq!(comes(&held, &later(world::CLUSTER4, 16)).0, HELD);
    assert_eq!(recorded(&close(held), world::CLUSTER4), nothing_waits);
    let earlier = node();
    assert_eq!(
        comes(&earlier, &first(world::CLUSTER4)).2.len(),
        first(world::CLUSTER4).build().len()
    );
    assert_eq!(recorded(&close(earlier), world::CLUSTER4), nothing_waits);
}

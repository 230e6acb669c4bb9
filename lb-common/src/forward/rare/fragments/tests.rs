//! Copies of first fragments that come in again, and ports of datagrams that are stored or not.

use std::vec::Vec;

use crate::addr::Protocol;
use crate::event::{DropReason, Event, PassReason, Return, Translation, Verdict};
use crate::fake::{Bytes, Datagram, Fake, Home, world};
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
    let mut packet = Bytes::new(packet.build(), Home::Skb);
    let verdict = ingress(&mut packet, tables, &mut Scratch::default(), Role::Pod);
    (verdict, packet.copies, packet.data)
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

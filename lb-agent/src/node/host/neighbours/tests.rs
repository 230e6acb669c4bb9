//! Neighbour entries of frontends, and what becomes of each.

use netlink_packet_route::AddressFamily;

use super::*;

const ETH0: u32 = 2;

fn wanted() -> Wanted {
    Wanted::new(&FrontendNetworks {
        networks: ["10.96.0.0/16", "192.168.50.200/32"].map(|it| it.parse().unwrap()).into(),
        interfaces: [ETH0].into(),
        ..FrontendNetworks::default()
    })
}

fn entry(
    (interface, ip): (u32, &str),
    state: NeighbourState,
    probes: u32,
    address: Option<u8>,
) -> NeighbourMessage {
    let mut entry = NeighbourMessage::default();
    entry.header.family = AddressFamily::Inet;
    (entry.header.ifindex, entry.header.state) = (interface, state);
    let ip = NeighbourAddress::Inet(ip.parse().unwrap());
    entry.attributes =
        vec![NeighbourAttribute::Destination(ip), NeighbourAttribute::Probes(probes)];
    let address = address.map(|byte| NeighbourAttribute::LinkLayerAddress(vec![byte; 6]));
    entry.attributes.extend(address);
    entry
}

fn first(entry: &NeighbourMessage) -> Action {
    action(entry, &wanted(), &mut Seen::default(), Instant::now())
}

#[test]
fn unanswered_frontend_gets_the_broadcast_address_and_keeps_it() {
    for ip in ["192.168.50.200", "10.96.0.7"] {
        let of = |state, probes, address| first(&entry((ETH0, ip), state, probes, address));
        assert_eq!(of(NeighbourState::Failed, 6, None), Action::Give);
        assert_eq!(of(NeighbourState::Incomplete, 4, None), Action::Keep, "just asked");
        assert_eq!(of(NeighbourState::Incomplete, 5, None), Action::Give);
        assert_eq!(of(NeighbourState::Probe, 1, Some(u8::MAX)), Action::Keep);
        assert_eq!(of(NeighbourState::Probe, 2, Some(u8::MAX)), Action::Give);
        assert_eq!(of(NeighbourState::Probe, 2, Some(2)), Action::Keep, "a machine has it");
        assert_eq!(of(NeighbourState::Delay, 0, Some(u8::MAX)), Action::Keep);
    }
}

#[test]
fn other_addresses_and_interfaces_are_left_alone() {
    for at in [(ETH0, "192.168.50.201"), (3, "192.168.50.200")] {
        assert_eq!(first(&entry(at, NeighbourState::Failed, 6, None)), Action::Keep);
        let stale = entry(at, NeighbourState::Stale, 0, Some(u8::MAX));
        assert_eq!(first(&stale), Action::Delete, "of a frontend that is gone");
        let given = entry(at, NeighbourState::Permanent, 0, Some(u8::MAX));
        assert_eq!(first(&given), Action::Keep, "of another program");
    }
}

#[test]
fn whole_table_is_read_only_after_a_change_of_interfaces() {
    let (mut seen, mut wanted) = (Seen::default(), wanted());
    assert_eq!(seen.scope(&wanted), [None], "an earlier run may have left entries anywhere");
    seen.interfaces = Some(wanted.interfaces.clone());
    assert_eq!(seen.scope(&wanted), [Some(ETH0)]);
    wanted.interfaces.clear();
    assert_eq!(seen.scope(&wanted), [None], "entries at the former one are deleted");
}

#[test]
fn machine_that_answered_once_may_be_down() {
    let (mut seen, began) = (Seen::default(), Instant::now());
    let at = (ETH0, "192.168.50.200");
    let mut after = |time, state, probes, address| {
        action(&entry(at, state, probes, address), &wanted(), &mut seen, began + time)
    };
    let soon = Duration::from_mins(1);
    assert_eq!(after(soon, NeighbourState::Reachable, 0, Some(2)), Action::Keep);
    assert_eq!(after(ANSWERED, NeighbourState::Failed, 6, None), Action::Keep);
    assert_eq!(after(ANSWERED, NeighbourState::Stale, 0, Some(u8::MAX)), Action::Delete);
    assert_eq!(after(soon + ANSWERED, NeighbourState::Failed, 6, None), Action::Give);
}

#[test]
fn entry_that_was_confirmed_is_deleted_after_a_while() {
    let (mut seen, began) = (Seen::default(), Instant::now());
    let at = (ETH0, "192.168.50.200");
    let mut after = |seconds, state, address| {
        let now = began + Duration::from_secs(seconds);
        action(&entry(at, state, 0, Some(address)), &wanted(), &mut seen, now)
    };
    assert_eq!(after(0, NeighbourState::Reachable, u8::MAX), Action::Keep);
    assert_eq!(after(19, NeighbourState::Reachable, u8::MAX), Action::Keep);
    assert_eq!(after(20, NeighbourState::Stale, u8::MAX), Action::Delete);
}

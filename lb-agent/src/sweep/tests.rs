//! When halves are over.

use super::*;
use lb_common::addr::{Endpoint, Ip, Port};
use lb_common::flow::{Tuple, state};

pub(super) const NOW: Duration = Duration::from_secs(1_000_000);

fn at(host: u8, port: u16) -> Endpoint {
    Endpoint::new(Ip::v4([10, 0, 0, host]), Port::new(port))
}

fn half(kind: Kind, to: Tuple, idle: u64, state: u8) -> Flow {
    let seen = NOW.saturating_sub(Duration::from_secs(idle)).as_nanos() as u64;
    let mut flow = Flow::new(to, kind, seen);
    (flow.state, flow.service, flow.backend, flow.epoch) = (state, 1, 1, 1);
    flow
}

/// Both halves of a flow of client 1 to frontend 2 and backend 3, idle for so many seconds.
pub(super) fn pair(protocol: Protocol, idle: u64, states: [u8; 2]) -> Vec<(FlowKey, Flow)> {
    let (client, frontend, backend) = (at(1, 1000), at(2, 80), at(3, 8080));
    let to = Tuple::new(client, backend);
    let key = FlowKey::new(Tuple::new(client, frontend), protocol, Side::INGRESS);
    let forward = half(Kind::FORWARD, to, idle, states[0]);
    let reply = half(Kind::REPLY, key.tuple.reversed(), idle + 50, states[1]);
    vec![(key, forward), (key.other(&forward), reply)]
}

/// The masquerade pair of it.
pub(super) fn masquerade(idle: u64) -> Vec<(FlowKey, Flow)> {
    let (client, backend, ours) = (at(1, 1000), at(3, 8080), at(9, 2000));
    let key = FlowKey::new(Tuple::new(client, backend), Protocol::TCP, Side::EGRESS);
    let flow = half(Kind::MASQUERADE, Tuple::new(ours, backend), idle, 0);
    let back = half(Kind::UNMASQUERADE, key.tuple.reversed(), idle, 0);
    vec![(key, flow), (key.other(&flow), back)]
}

fn over(halves: &[(FlowKey, Flow)]) -> Vec<bool> {
    let mut notes = Notes { epochs: vec![0, 1], ..Notes::default() };
    for (key, flow) in halves {
        notes.note(key, flow);
    }
    halves.iter().map(|(key, flow)| notes.is_over(key, flow, NOW)).collect()
}

#[test]
fn a_pair_lives_as_long_as_either_half_is_seen() {
    let both = [state::ESTABLISHED; 2];
    assert_eq!(over(&pair(Protocol::UDP, 119, both)), [false, false]);
    assert_eq!(over(&pair(Protocol::UDP, 120, both)), [true, true]);
    assert_eq!(over(&pair(Protocol::UDP, 30, [1, 0])), [true, true], "never answered");
    assert_eq!(over(&pair(Protocol::TCP, 3_600, both)), [false, false]);
    assert_eq!(over(&pair(Protocol::TCP, 10, [1, 1 | state::RST])), [true, true]);
}

#[test]
fn a_half_alone_is_over_soon() {
    let halves = pair(Protocol::TCP, 6, [1, 1]);
    assert_eq!(over(&halves[..1]), [true]);
    assert_eq!(over(&pair(Protocol::TCP, 4, [1, 1])[..1]), [false], "its twin may be coming");
}

#[test]
fn a_half_whose_twin_belongs_to_another_is_alone() {
    let mut halves = pair(Protocol::TCP, 20, [1, 1]);
    halves[1].1.to.destination_port = Port::new(1001);
    assert_eq!(over(&halves), [true, true]);
}

#[test]
fn a_masquerade_lives_as_long_as_its_flow() {
    let flow = pair(Protocol::TCP, 100, [1, 1]);
    let all = [flow, masquerade(100)].concat();
    assert_eq!(over(&all), [false; 4]);
    assert_eq!(over(&masquerade(100)), [true, true]);
}

#[test]
fn quiet_datagram_flows_of_a_backend_that_left_are_over() {
    for (seconds, expected) in [(1, false), (5, true)] {
        let mut flow = pair(Protocol::UDP, seconds, [1, 1]);
        for (_, half) in &mut flow {
            half.epoch = 0;
        }
        assert_eq!(over(&flow), [expected; 2], "quiet for {seconds} s");
    }
    let mut flow = pair(Protocol::UDP, 5, [1, 1]);
    for (_, half) in &mut flow {
        (half.service, half.backend, half.epoch) = (0, 0, 0);
    }
    assert_eq!(over(&flow), [false, false], "of no service");
    let mut flow = pair(Protocol::TCP, 1, [1, 1]);
    for (_, half) in &mut flow {
        half.epoch = 0;
    }
    assert_eq!(over(&flow), [false, false], "TCP goes on");
    let mut flow = pair(Protocol::UDP, 5, [1, 1]);
    for (_, half) in &mut flow {
        half.epoch = 2;
    }
    assert_eq!(over(&flow), [false, false], "begun after the rows were read");
}

#[test]
fn a_flow_keeps_what_it_goes_to_whichever_service_had_that_when_it_began() {
    let [(key, flow), _] = pair(Protocol::TCP, 0, [0; 2]).try_into().unwrap();
    let to = frontend(&key);
    let node_port = Frontend::node_port(to.ip, to.port, to.protocol);
    let of = |leaving: &[Frontend]| {
        let leaving = leaving.iter().copied().collect();
        left(&leaving, frontend(&key)).collect::<Vec<_>>()
    };
    assert!(begins(&flow));
    assert_eq!(of(&[to]), [to]);
    assert_eq!(of(&[node_port]), [node_port], "any address of the family");
    let other = Frontend::new(to.ip, Port::new(81), to.protocol);
    let of_udp = Frontend::new(to.ip, to.port, Protocol::UDP);
    assert_eq!(of(&[other, of_udp]), []);
}

#[test]
fn the_fuller_table_says_when_to_sweep_next() {
    assert_eq!(fuller((10, 100), (90, 1000)), (10, 100));
    assert_eq!(fuller((10, 200), (90, 1000)), (90, 1000));
}

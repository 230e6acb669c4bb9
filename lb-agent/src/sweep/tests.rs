//! The entries that a sweep checks, and the flows that keep a frontend.

use super::*;
use lb_common::addr::{Endpoint, Ip, Port};
use lb_common::flow::{Kind, Shown, Side, Tuple};

pub(super) const NOW: Duration = Duration::from_secs(1_000_000);

fn at(host: u8, port: u16) -> Endpoint {
    Endpoint::new(Ip::v4([10, 0, 0, host]), Port::new(port))
}

fn entry(kind: Kind, to: Tuple, idle: u64, flags: u8, shown: Shown) -> Flow {
    let seen = NOW.saturating_sub(Duration::from_secs(idle)).as_nanos() as u64;
    let mut flow = Flow::new(to, kind, seen);
    (flow.flags, flow.shown) = (Flow::PROTECTED | flags, shown);
    flow.begun = Flow::moment(seen.saturating_sub(3_600_000_000_000));
    flow
}

/// Makes both entries of a flow of client 1 to frontend 2 and backend 3, idle for this many seconds.
pub(super) fn pair(protocol: Protocol, idle: u64, shown: [Shown; 2]) -> Vec<(FlowKey, Flow)> {
    let (client, frontend, backend) = (at(1, 1000), at(2, 80), at(3, 8080));
    let to = Tuple::new(client, backend);
    let key = FlowKey::new(Tuple::new(client, frontend), protocol, Side::INGRESS);
    let [asked, answered] = shown;
    let forward = entry(Kind::FORWARD, to, idle, 0, asked);
    let back = key.tuple.reversed();
    let reply = entry(Kind::REPLY, back, idle + 50, Flow::ANSWER, answered);
    vec![(key, forward), (key.opposite(&forward), reply)]
}

/// Makes the same with a masquerade.
pub(super) fn masqueraded(idle: u64) -> Vec<(FlowKey, Flow)> {
    let mut all = pair(Protocol::TCP, idle, [Shown::FIN; 2]);
    let (client, backend, ours) = (at(1, 1000), at(3, 8080), at(9, 2000));
    let key = FlowKey::new(Tuple::new(client, backend), Protocol::TCP, Side::EGRESS);
    let flow = entry(Kind::MASQUERADE, Tuple::new(ours, backend), idle, 0, Shown::FIN);
    let back = key.tuple.reversed();
    let back = entry(Kind::UNMASQUERADE, back, idle, Flow::ANSWER, Shown::FIN);
    all.extend([(key, flow), (key.opposite(&flow), back)]);
    for (_, flow) in &mut all {
        flow.flags |= Flow::MASQUERADED;
    }
    all
}

#[test]
fn only_entries_that_were_silent_for_long_are_judged() {
    let lifetimes = Lifetimes::default();
    let suspects = |protocol, idle, shown| {
        let [(key, flow), _] = pair(protocol, idle, [shown; 2]).try_into().unwrap();
        is_suspect(&lifetimes, &key, &flow, NOW)
    };
    assert!(!suspects(Protocol::UDP, 29, Shown::ESTABLISHED));
    assert!(suspects(Protocol::UDP, 30, Shown::ESTABLISHED));
    assert!(!suspects(Protocol::TCP, 3_599, Shown::ESTABLISHED));
    assert!(suspects(Protocol::TCP, 3_600, Shown::ESTABLISHED));
    assert!(suspects(Protocol::TCP, 10, Shown::FIN));
}

#[test]
fn flow_keeps_the_draining_frontend_that_it_goes_to() {
    for (protocol, is_kept) in
        [(Protocol::TCP, true), (Protocol::SCTP, true), (Protocol::UDP, false)]
    {
        let [(key, flow), _] = pair(protocol, 0, [Shown::NOTHING; 2]).try_into().unwrap();
        let to = frontend(&key);
        let node_port = Frontend::node_port(to.ip, to.port, to.protocol);
        let of = |draining: &[Frontend]| {
            let draining = draining.iter().copied().collect();
            draining_of(&draining, frontend(&key)).collect::<Vec<_>>()
        };
        assert!(flow.is_forward());
        assert_eq!(of(&[to]), if is_kept { vec![to] } else { vec![] }, "{protocol:?}");
        if is_kept {
            assert_eq!(of(&[node_port]), [node_port], "any address of the family");
        }
        let other = Frontend::new(to.ip, Port::new(81), to.protocol);
        let of_icmp = Frontend::new(to.ip, to.port, Protocol::ICMP);
        assert_eq!(of(&[other, of_icmp]), []);
    }
}

#[test]
fn the_fuller_table_says_when_to_sweep_next() {
    assert_eq!(fuller((10, 100), (90, 1000)), (10, 100));
    assert_eq!(fuller((10, 200), (90, 1000)), (90, 1000));
}

/// Sweeps until a walk has ended: returns how often each of `count` entries was checked. `is_over`: by its number.
fn checks(count: usize, is_over: impl Fn(usize) -> bool) -> Vec<usize> {
    let key = |number: usize| {
        let client = Endpoint::new(Ip::v4((number as u32).to_be_bytes()), Port::new(1));
        FlowKey::new(Tuple::new(client, at(2, 80)), Protocol::TCP, Side::INGRESS)
    };
    let mut table: Vec<usize> = (0..count).collect();
    let (mut checks, mut skip) = (vec![0; count], 0);
    loop {
        let mut suspects = Suspects { skip, ..Suspects::default() };
        for number in &table {
            suspects.add(&key(*number));
        }
        assert!(suspects.keys.len() <= MOST);
        let checked: BTreeSet<FlowKey> = suspects.keys.iter().copied().collect();
        let is_checked = |number: usize| checked.contains(&key(number));
        for number in table.iter().filter(|it| is_checked(**it)) {
            checks[*number] += 1;
        }
        let before = table.len();
        table.retain(|it| !(is_checked(*it) && is_over(*it)));
        skip = suspects.next(before - table.len());
        if skip == 0 {
            return checks;
        }
    }
}

#[test]
fn entries_that_are_alive_hide_no_expired_ones_behind_them() {
    let count = 3 * MOST + 100;
    assert!(checks(count, |_| false).iter().all(|times| *times == 1));
    assert!(checks(count, |number| number >= 2 * MOST).iter().all(|times| *times > 0));
    assert!(checks(count, |number| number % 3 == 0).iter().all(|times| *times > 0));
    assert_eq!(checks(10, |_| true), [1; 10]);
}

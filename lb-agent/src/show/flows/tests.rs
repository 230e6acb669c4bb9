use super::*;
use crate::show::print;
use lb_common::addr::Port;
use lb_common::flow::Tuple;

#[test]
fn every_entry_of_a_flow_is_found_by_its_ends() {
    let at = |last, port| Endpoint::new(Ip::v4([10, 0, 0, last]), Port::new(port));
    let (client, frontend, backend, node) = (at(1, 1), at(2, 80), at(3, 8080), at(4, 2_000));
    let entry = |[from, to]: [Endpoint; 2], side, [source, destination]: [Endpoint; 2], kind| {
        let mut flow = Flow::new(Tuple::new(source, destination), kind, 0);
        let is_answer = matches!(kind, Kind::REPLY | Kind::UNMASQUERADE);
        flow.flags = if is_answer { Flow::ANSWER } else { 0 };
        (FlowKey::new(Tuple::new(from, to), Protocol::UDP, side), flow)
    };
    for (key, flow) in [
        entry([client, frontend], Side::INGRESS, [client, backend], Kind::FORWARD),
        entry([backend, client], Side::EGRESS, [frontend, client], Kind::REPLY),
        entry([client, backend], Side::EGRESS, [node, backend], Kind::MASQUERADE),
        entry([backend, node], Side::INGRESS, [backend, client], Kind::UNMASQUERADE),
    ] {
        assert_eq!(ends(&key, &flow), (client.ip, backend.ip), "{:?}", flow.kind);
    }
}

#[test]
fn phase_follows_the_tcp_flags_of_both_directions() {
    let [none, open, fin, rst] = [Shown::NOTHING, Shown::ESTABLISHED, Shown::FIN, Shown::RST];
    let cases = [
        (Protocol::TCP, none, Some(none), "opening"),
        (Protocol::TCP, open, Some(open), "open"),
        (Protocol::TCP, fin, Some(open), "closing"),
        (Protocol::TCP, fin, Some(fin), "closed"),
        (Protocol::TCP, open, Some(rst), "reset"),
        (Protocol::UDP, open, Some(none), "unanswered"),
        (Protocol::UDP, none, Some(open), "open"),
        (Protocol::UDP, none, None, "alone"),
    ];
    for (protocol, forward, reply, expected) in cases {
        let seen = phase(protocol, forward, reply);
        assert_eq!(seen, expected, "{protocol:?} {forward:?} {reply:?}");
    }
}

#[test]
fn a_flow_is_a_line() {
    let at = |host: u8, port| Endpoint::new(Ip::v4([10, 0, 0, host]), Port::new(port));
    let (client, frontend, backend) = (at(1, 1000), at(2, 80), at(3, 8080));
    let flow = |seen: u64, shown| {
        let mut flow = Flow::new(Tuple::new(client, backend), Kind::FORWARD, seen);
        (flow.service, flow.shown, flow.epoch) = (1, shown, 4);
        flow
    };
    let key = |side| FlowKey::new(Tuple::new(client, frontend), Protocol::TCP, side);
    let mut host = key(Side::EGRESS);
    host.protocol = Protocol::UDP;
    let open = flow(1_000_000_000, Shown::ESTABLISHED);
    let quiet = flow(9_000_000_000, Shown::NOTHING);
    let now = 191_000_000_000;
    let all = [
        row(&key(Side::INGRESS), &open, Some(&open), Some("default/web".into()), now),
        row(&host, &quiet, Some(&quiet), None, now),
    ];
    let wide = Format { output: crate::cli::Output::Wide, ..print::PLAIN };
    insta::assert_snapshot!(print::print(&all, wide).unwrap());
    insta::assert_snapshot!(
        print::print(&all, Format { output: crate::cli::Output::Json, ..wide }).unwrap()
    );
}

//! The exit of a packet beyond its verdict: what is asked about the route, to which end of a veth it goes, from which
//! address a packet of this host continues.

use core::ops::Range;
use std::vec::Vec;

use super::step;
use crate::addr::{Ip, Protocol};
use crate::config::{Device, Settings, address};
use crate::event::{Event, Hook, PassReason, Redirect, Return, Translation, Verdict};
use crate::fake::{Bytes, Datagram, Fake, Home, Piece, Transport, at, ip, run, run_in, world};
use crate::flow::{Flow, Kind};
use crate::forward::{Role, Scratch, egress, ingress};
use crate::wire::{sctp, tcp};

const FORWARD: Verdict = Verdict::Redirected(Redirect::Forward);
const BY_THE_STACK: Verdict = Verdict::Translated(Translation::Forward);

/// A node with bypasses, a ClusterIP and a `NodePort`. Interface 1 is a port of the one in the routes.
fn node(backend: &str, local: bool) -> Fake {
    let mut tables = Fake::node();
    tables.settings.node.flags |= Settings::BYPASSES;
    for device in tables.devices.values_mut() {
        device.flags |= Device::BYPASS;
    }
    tables.devices.entry(1).or_default().bridge = world::OUT;
    for (id, protocol) in [(1, Protocol::TCP), (2, Protocol::UDP), (3, Protocol::SCTP)] {
        let service = tables.add_service(id, &[(backend, local)]);
        let v4 = at(backend).ip.is_v4();
        tables.cluster_ip(if v4 { world::CLUSTER4 } else { world::CLUSTER6 }, protocol, service);
        tables.node_port(if v4 { world::NODE4 } else { world::NODE6 }, protocol, service);
    }
    tables
}

/// A packet from the next hop of its source, as a router gets it.
fn packet(from: &str, to: &str, transport: Transport) -> Datagram {
    let datagram = Datagram::new(at(from), at(to), transport);
    Datagram { hardware: [datagram.hardware[0], world::HOP_HARDWARE], ..datagram }
}

fn bytes(data: Vec<u8>, tables: &Fake) -> Bytes {
    let mut packet = Bytes::new(data, Home::Skb);
    packet.routes.clone_from(&tables.routes);
    packet
}

/// A pod, its ClusterIP and a backend of another node.
const V4: [&str; 3] = [world::POD4, world::CLUSTER4, world::REMOTE4];
const V6: [&str; 3] = [world::POD6, world::CLUSTER6, world::REMOTE6];

/// The verdict for a packet of a known flow of a pod, and the packet afterwards.
fn follows(
    [pod, cluster, remote]: [&str; 3],
    transport: Transport,
    change: impl Fn(&mut Bytes),
) -> (Verdict, Bytes) {
    let tables = node(remote, false);
    let first =
        if let Transport::Tcp(_) = transport { Transport::Tcp(tcp::SYN) } else { transport };
    let first = packet(pod, cluster, first).with(&[sctp::INIT, 0, 0, 20]);
    let (begun, _) = run(&step(Hook::PodIngress, first.build()), &tables);
    assert_eq!(begun, Verdict::Translated(Translation::NewFlow));
    let asks = packet(pod, cluster, transport).with(&[7; 3_000]).build();
    let mut asks = bytes(asks, &tables);
    change(&mut asks);
    let verdict = ingress(&mut asks, &tables, &mut Scratch::default(), Role::Pod);
    (verdict, asks)
}

/// A packet that an interface will split is as large as the largest part (`gso_size` counts the payload alone).
#[test]
fn packet_to_be_split_is_as_large_as_its_parts() {
    let [tcp, udp] = [Transport::Tcp(tcp::ACK), Transport::Udp(true)];
    for (ends, transport, headers) in
        [(V4, tcp, 20 + 20), (V4, udp, 20 + 8), (V6, tcp, 40 + 20), (V6, udp, 40 + 8)]
    {
        let largest = usize::from(world::OUT_MTU) - headers;
        for (segment, verdict) in [
            (1, FORWARD),
            (largest, FORWARD),
            (largest + 1, BY_THE_STACK),
            (65_536 - headers, BY_THE_STACK),
            (0, BY_THE_STACK),
        ] {
            let (seen, _) = follows(ends, transport, |packet| packet.segment = segment);
            assert_eq!(seen, verdict, "{ends:?} {transport:?} {segment}");
        }
    }
    // Options of TCP are in each part.
    for (ends, header) in [(V4, 20), (V6, 40)] {
        let largest = usize::from(world::OUT_MTU) - header - 32;
        for (segment, verdict) in [(largest, FORWARD), (largest + 1, BY_THE_STACK)] {
            let (seen, _) = follows(ends, tcp, |packet| {
                packet.segment = segment;
                packet.data[14 + header + 12] = 0x80;
            });
            assert_eq!(seen, verdict, "{ends:?} {segment}");
        }
    }
}

#[test]
fn route_is_asked_for_by_the_traffic_class() {
    let small = |packet: &mut Bytes| packet.segment = 1;
    let class = |ends, change: fn(&mut Bytes)| {
        let (verdict, packet) = follows(ends, Transport::Udp(true), |packet| {
            small(packet);
            change(packet);
        });
        assert_eq!(verdict, FORWARD);
        packet.asked.get().expect("a question").class
    };
    let of_v4 = class(V4, |packet| packet.data[15] = 0xb8);
    assert_eq!(of_v4.to_ne_bytes(), [0xb8, 0, 0, 0]);
    // The class is in two halves, behind the version; then the flow label.
    let of_v6 = class(V6, |packet| packet.data[14..18].copy_from_slice(&[0x6b, 0x81, 0x23, 0x45]));
    assert_eq!(of_v6.to_ne_bytes(), [0x0b, 0x81, 0x23, 0x45]);
}

/// The verdict for a packet of the host to a backend of this node.
fn of_host(change: impl Fn(&mut Datagram), segment: usize) -> Verdict {
    let tables = node(world::LOCAL4, true);
    let mut asks = packet("192.168.0.10:45000", world::CLUSTER4, Transport::Udp(true));
    change(&mut asks);
    let mut packet = bytes(asks.build(), &tables);
    (packet.from_host, packet.segment) = (true, segment);
    egress(&mut packet, &tables, &mut Scratch::default(), Role::External)
}

/// A process may ask for parts that no packet can hold: their length must not wrap around, for a card that gets such a
/// packet may stop.
#[test]
fn packet_of_the_host_to_be_split_is_as_large_as_its_parts() {
    let largest = usize::from(world::OUT_MTU) - 20 - 8;
    let large = |packet: &mut Datagram| packet.payload = [7; 3_000].to_vec();
    let [fits, large_one] =
        [Verdict::Redirected(Redirect::FromHost), Verdict::Returned(Return::TooBig)];
    for (segment, verdict) in [
        (1, fits),
        (largest, fits),
        (largest + 1, large_one),
        (0, large_one),
        (65_535 - 20 - 8 + 1, large_one),
        (65_535, large_one),
    ] {
        assert_eq!(of_host(large, segment), verdict, "{segment}");
    }
    let with_options = |packet: &mut Datagram| {
        large(packet);
        packet.options = [0x94, 4, 0, 0].to_vec();
    };
    for (segment, verdict) in
        [(largest - 4, fits), (largest - 3, large_one), (0, large_one), (65_535, large_one)]
    {
        assert_eq!(of_host(with_options, segment), verdict, "with options, {segment}");
    }
    // The bytes in which an IPv6 header says that it is of a jumbogram.
    let without_id = |packet: &mut Datagram| {
        with_options(packet);
        packet.piece = Some(Piece { offset: 0, more: false, id: 0 });
    };
    for (segment, verdict) in [(largest - 4, fits), (largest - 3, large_one)] {
        assert_eq!(of_host(without_id, segment), verdict, "without identification, {segment}");
    }
}

/// The transport header is part of each: 12 bytes for SCTP, and for TCP as many as it says.
#[test]
fn packet_of_the_host_to_be_split_has_its_transport_header_in_each_part() {
    let [fits, large] =
        [Verdict::Redirected(Redirect::FromHost), Verdict::Returned(Return::TooBig)];
    let most = usize::from(world::OUT_MTU);
    let init = |asks: &mut Datagram| {
        asks.transport = Transport::Sctp;
        asks.payload = [&[sctp::INIT, 0, 0, 20][..], &[7; 16]].concat();
    };
    for (segment, verdict) in [(most - 20 - 12, fits), (most - 20 - 12 + 1, large)] {
        assert_eq!(of_host(init, segment), verdict, "SCTP, {segment}");
        let (seen, _) = follows(V4, Transport::Sctp, |packet| packet.segment = segment);
        let expected = if verdict == fits { FORWARD } else { BY_THE_STACK };
        assert_eq!(seen, expected, "SCTP through the node, {segment}");
    }
    let of_family = |own: &str, to: &str, backend: &str, words: u8, segment: usize| {
        let mut tables = node(backend, true);
        tables.addresses.insert(at(own).ip, address::NODE);
        let asks = Datagram::new(at(own), at(to), Transport::Tcp(tcp::SYN)).with(&[7; 40]);
        let mut packet = bytes(asks.build(), &tables);
        let header = if at(own).ip.is_v4() { 20 } else { 40 };
        packet.data[14 + header + 12] = words << 4;
        (packet.from_host, packet.segment) = (true, segment);
        egress(&mut packet, &tables, &mut Scratch::default(), Role::External)
    };
    for words in [5, 8] {
        let v4 = most - 20 - 4 * usize::from(words);
        let v6 = v4 - 20;
        for (more, verdict) in [(0, fits), (1, large)] {
            let own = ["192.168.0.10:45000", "[fd00:c0::10]:45000"];
            let v4 = of_family(own[0], world::CLUSTER4, world::LOCAL4, words, v4 + more);
            let v6 = of_family(own[1], world::CLUSTER6, world::LOCAL6, words, v6 + more);
            assert_eq!([v4, v6], [verdict; 2], "{words} words, {more}");
        }
    }
}

/// Linux marks IPv6 packets of more than 64 KiB by a header that their parts do not have.
#[test]
fn parts_of_a_jumbogram_of_the_host_have_no_hop_by_hop_header() {
    let largest = usize::from(world::OUT_MTU) - 40 - 20;
    let verdict = |payload_length: [u8; 2], segment| {
        let mut tables = node(world::LOCAL6, true);
        let own = at("[fd00:c0::10]:45000");
        tables.addresses.insert(own.ip, address::NODE);
        let asks = Datagram::new(own, at(world::CLUSTER6), Transport::Tcp(tcp::SYN));
        let mut data = asks.build();
        data.splice(54..54, [data[20], 0, 0xc2, 4, 0, 1, 0, 0]).for_each(drop);
        data[18..20].copy_from_slice(&payload_length);
        data[20] = 0;
        let mut packet = bytes(data, &tables);
        (packet.from_host, packet.segment) = (true, segment);
        egress(&mut packet, &tables, &mut Scratch::default(), Role::External)
    };
    let [fits, large] =
        [Verdict::Redirected(Redirect::FromHost), Verdict::Returned(Return::TooBig)];
    assert_eq!(verdict([0, 0], largest), fits);
    assert_eq!(verdict([0, 0], largest + 1), large);
    assert_eq!(verdict([0, 28], largest - 8), fits);
    assert_eq!(verdict([0, 28], largest - 7), large, "an ordinary hop-by-hop header stays");
}

/// The kernel must look up the route where the packet needs one of its own: behind an interface without a link-layer
/// header, and for IPv6 behind a tunnel.
#[test]
fn next_hop_of_a_packet_of_the_host_is_named_where_the_packet_needs_no_route() {
    let own = ["192.168.0.10:45000", "[fd00:c0::10]:45000"];
    for (family, own, remote) in [(V4, own[0], world::REMOTE4), (V6, own[1], world::REMOTE6)] {
        let card = (world::OUT_HARDWARE, 0);
        for (hardware, flags) in [card, (world::OUT_HARDWARE, Device::TUNNEL), ([0; 6], 0)] {
            let mut tables = node(remote, false);
            tables.addresses.insert(at(own).ip, address::NODE);
            let device = tables.devices.entry(world::OUT).or_default();
            (device.hardware, device.flags) = (hardware, flags);
            let asks = packet(own, family[1], Transport::Udp(true));
            let mut packet = bytes(asks.build(), &tables);
            packet.from_host = true;
            let mut scratch = Scratch::default();
            scratch.exit.route.gateway = at(world::CLIENT4).ip;
            let verdict = egress(&mut packet, &tables, &mut scratch, Role::External);
            assert_eq!(verdict, Verdict::Redirected(Redirect::FromHost));
            let is_named = hardware != [0; 6] && (family == V4 || flags == 0);
            let wanted = if is_named { at(remote).ip } else { Ip::UNSPECIFIED };
            assert_eq!(scratch.exit.route.gateway, wanted, "{own} {hardware:?} {flags}");
        }
    }
}

/// `bpf_redirect_peer` skips egress of the interface, where a masquerade gets its source.
#[test]
fn packets_go_to_the_peer_of_a_veth_unless_they_are_masqueraded() {
    let udp = Transport::Udp(true);
    for (hook, from, asked, peer, is_to_peer) in [
        (Hook::PodIngress, world::POD4, world::CLUSTER4, Device::PEER, true),
        (Hook::PodIngress, world::POD4, world::CLUSTER4, 0, false),
        (Hook::ExternalIngress, world::CLIENT4, world::NODE4, Device::PEER, false),
        (Hook::ExternalIngress, world::CLIENT4, world::NODE4, 0, false),
    ] {
        let mut tables = node(world::REMOTE4, false);
        tables.devices.entry(world::OUT).or_default().flags |= peer;
        let asks = step(hook, packet(from, asked, udp).build());
        let mut scratch = Scratch::default();
        let verdicts = [(); 2].map(|()| run_in(&asks, &tables, &mut scratch).0);
        assert_eq!(verdicts, [Verdict::Translated(Translation::NewFlow), FORWARD], "{asked}");
        assert_eq!(scratch.exit.to_peer != 0, is_to_peer, "{asked} {peer}");
    }
}

/// The route of an answer leads to a bridge that has the client's interface as a port.
#[test]
fn answer_to_a_port_of_a_bridge_goes_to_the_bridge_and_not_to_the_peer() {
    let udp = Transport::Udp(true);
    let [redirected, kept] =
        [Verdict::Redirected(Redirect::Reply), Verdict::Pass(PassReason::NotOurs)];
    for (flags, verdict, events) in
        [(Device::BYPASS | Device::PEER, redirected, 0), (Device::PEER, kept, 1), (0, kept, 1)]
    {
        let mut tables = node(world::REMOTE4, false);
        tables.devices.remove(&world::OUT);
        let asks = packet(world::POD4, world::CLUSTER4, udp).build();
        let _begun = run(&step(Hook::PodIngress, asks), &tables);
        // Another port than the interface by which the answer comes.
        tables.devices.insert(7, Device { flags, bridge: world::OUT, ..Device::default() });
        let mut flows = tables.transient.borrow_mut();
        let reply = flows.values_mut().find(|flow| flow.kind == Kind::REPLY).expect("a reply");
        reply.client_device = 7;
        drop(flows);
        let mut scratch = Scratch::default();
        let answers = step(Hook::ExternalIngress, packet(world::REMOTE4, world::POD4, udp).build());
        let (seen, _) = run_in(&answers, &tables, &mut scratch);
        assert_eq!((seen, tables.counted(Event::KeptDevice)), (verdict, events), "{flags}");
        assert_eq!(scratch.exit.to_peer, 0, "{flags}");
    }
}

/// The comparison needs a lookup, so it is made once a tick.
#[test]
fn answers_to_a_process_follow_the_route_to_the_frontend_at_the_next_tick() {
    const EARLIER: u32 = 7;
    let tables = node(world::REMOTE4, false);
    let own = "192.168.0.10:45000";
    let mut asks = step(Hook::ExternalEgress, Datagram::udp(own, world::CLUSTER4).build());
    asks.from_host = true;
    let delivered_at = |change: fn(&mut Flow)| {
        let mut flows = tables.transient.borrow_mut();
        let reply = flows.values_mut().find(|flow| flow.kind == Kind::REPLY).expect("a reply");
        change(reply);
        reply.client_device
    };
    // The second packet writes the tick.
    let _begun = [(); 2].map(|()| run(&asks, &tables));
    let device = delivered_at(|_| {});
    assert_ne!(device, EARLIER);
    delivered_at(|reply| reply.client_device = EARLIER);
    for (later, wanted) in [(0, EARLIER), (1 << 30, device)] {
        tables.clock.set(tables.clock.get() + later);
        assert_eq!(run(&asks, &tables).0, Verdict::Redirected(Redirect::FromHost));
        assert_eq!(delivered_at(|_| {}), wanted, "{later}");
    }
}

/// The process has chosen its source for this interface, or the route to the frontend has.
#[test]
fn packet_of_a_process_keeps_its_source_where_its_backend_has_the_same_interface() {
    const SOURCE: Range<usize> = 26..30;
    let chosen = "192.168.0.11:45000";
    for (backend, local) in [(world::REMOTE4, false), (world::LOCAL4, true)] {
        let mut tables = node(backend, local);
        let other = ip("192.168.9.10");
        tables.settings.node.own.add(&other);
        tables.addresses.insert(at(chosen).ip, address::NODE);
        for device in tables.devices.values_mut() {
            device.source4 = other;
        }
        let route = tables.routes.get_mut(&at(backend).ip).expect("a route");
        (route.device, route.source) = (1, other);
        let mut asks = step(Hook::ExternalEgress, Datagram::udp(chosen, world::CLUSTER4).build());
        asks.from_host = true;
        let (verdict, sent) = run(&asks, &tables);
        assert_eq!(verdict, Verdict::Redirected(Redirect::FromHost), "{backend}");
        let source = Ip::v4(sent[SOURCE].first_chunk().copied().expect("an IPv4 header"));
        assert_eq!(source, at(chosen).ip, "to {backend}");
    }
}

//! Where a packet comes from: clients, pods, the node itself; by which address of the node it goes on.

use std::vec::Vec;

use super::step;
use crate::addr::{Ip, Port, Protocol};
use crate::config::Settings;
use crate::event::{DropReason, Event, Hook, PassReason, Redirect, Return, Translation, Verdict};
use crate::fake::{Datagram, Fake, at, ip, run, world};
use crate::flow::{Affinity, Client};
use crate::service::{Flags, Service};
use crate::wire::tcp;

const NEW: Verdict = Verdict::Translated(Translation::NewFlow);
const VIP: &str = "198.51.100.1:80";

/// Under policy Local, a packet is rejected if the Service has no endpoint, and dropped if all are on other nodes
/// (contract 3.2).
#[test]
fn policy_local_rejects_without_endpoints_and_drops_if_all_are_elsewhere() {
    for (backends, verdict) in [
        (&[][..], Verdict::Returned(Return::NoBackend)),
        (&[(world::REMOTE4, false)], Verdict::Drop(DropReason::NoLocalBackend)),
    ] {
        let mut tables = Fake::node();
        let service = tables.add_service(1, backends);
        let flags = service.flags.with(Flags::LOCAL_POLICY);
        tables.cluster_ip(world::CLUSTER4, Protocol::TCP, Service { flags, ..service });
        let asks = Datagram::syn(world::POD4, world::CLUSTER4).build();
        assert_eq!(run(&step(Hook::PodIngress, asks), &tables).0, verdict);
    }
}

/// The backend that a client was given under policy Cluster holds under policy Local, where it is of this node.
#[test]
fn affinity_holds_from_policy_cluster_to_policy_local() {
    let mut tables = Fake::node();
    let backends = ["10.1.0.6:8080", "10.1.0.7:8080", "10.1.0.8:8080", "10.1.0.9:8080"];
    let service = tables.add_service(1, &backends.map(|backend| (backend, true)));
    let flags = service.flags.with(Flags::LOCAL_POLICY);
    tables.cluster_ip(world::CLUSTER4, Protocol::TCP, Service { flags, affinity: 60, ..service });
    for row in 1..=4 {
        let key = Client { ip: at(world::POD4).ip, service: 1, scope: 0 };
        let seen = tables.clock.get();
        let value = Affinity { backend: row, epoch: 100 + row, seen };
        *tables.affinity.borrow_mut() = [(key, value)].into();
        let mut asks = Datagram::syn(world::POD4, world::CLUSTER4);
        asks.source.port = Port::new(40_000 + row as u16);
        let (verdict, _) = run(&step(Hook::PodIngress, asks.build()), &tables);
        assert_eq!((verdict, tables.counted(Event::AffinityHit)), (NEW, row.into()));
    }
}

/// A packet that a process of this host sends.
fn by_host(hook: Hook, packet: &Datagram, tables: &Fake) -> (Verdict, Vec<u8>) {
    let mut step = step(hook, packet.build());
    step.from_host = true;
    run(&step, tables)
}

fn source(packet: &[u8]) -> Ip {
    Ip::v4(packet[26..].first_chunk().copied().expect("an IPv4 header"))
}

/// Contract 3.3, the row of external policy Local: who is masqueraded on the way to a backend of this node.
#[test]
fn external_policy_local_masquerades_the_node_itself_alone() {
    for (hook, from, entries) in [
        (Hook::ExternalIngress, world::CLIENT4, 2),
        (Hook::ExternalIngress, "192.168.0.10:999", 3),
        (Hook::PodIngress, world::POD4, 2),
    ] {
        let mut tables = Fake::node();
        tables.settings.node.flags |= Settings::MASQUERADE_KUBE_PROXY;
        let service = tables.add_service(1, &[(world::LOCAL4, true)]);
        let flags = service.flags.with(Flags::LOCAL_POLICY);
        tables.external(VIP, Protocol::TCP, Service { flags, ..service });
        let (verdict, _) = run(&step(hook, Datagram::syn(from, VIP).build()), &tables);
        assert_eq!((verdict, tables.all_flows().len()), (NEW, entries), "{hook:?} {from}");
    }
}

#[test]
fn packet_of_a_process_goes_on_by_the_address_of_the_device_it_leaves_by() {
    let (own, theirs) = (at(world::NODE4).ip, ip("192.168.9.10"));
    for (backend, is_local, of_device, wanted) in [
        (world::REMOTE4, false, theirs, theirs),
        (world::REMOTE4, false, Ip::UNSPECIFIED, own),
        (world::LOCAL4, true, theirs, own),
    ] {
        let mut tables = Fake::node();
        let service = tables.add_service(1, &[(backend, is_local)]);
        tables.cluster_ip(world::CLUSTER4, Protocol::TCP, service);
        let out = tables.devices.get_mut(&world::OUT).expect("the device of every route");
        out.source4 = of_device;
        let asks = Datagram::syn("192.168.0.10:45000", world::CLUSTER4);
        let (verdict, sent) = by_host(Hook::ExternalEgress, &asks, &tables);
        assert!(matches!(verdict, Verdict::Redirected(_)), "{verdict:?}");
        assert_eq!(source(&sent), wanted, "{backend} {of_device:?}");
    }
}

#[test]
fn second_syn_of_a_process_belongs_to_its_flow() {
    let mut tables = Fake::node();
    let service = tables.add_service(1, &[("192.168.0.10:8080", true)]);
    tables.node_port(world::NODE4, Protocol::TCP, service);
    let asks = Datagram::syn("192.168.0.10:45000", world::NODE4);
    let verdicts = [(); 2].map(|()| by_host(Hook::HostEgress, &asks, &tables).0);
    assert_eq!(verdicts, [NEW, Verdict::Translated(Translation::Forward)]);
}

#[test]
fn martian_sources_of_the_host_are_left_to_the_stack() {
    let mut tables = Fake::node();
    let service = tables.add_service(1, &[(world::LOCAL4, true)]);
    tables.cluster_ip(world::CLUSTER4, Protocol::TCP, service);
    for (hook, from) in [(Hook::ExternalEgress, "127.0.0.1:1"), (Hook::HostEgress, "0.0.0.0:1")] {
        let (verdict, _) = by_host(hook, &Datagram::syn(from, world::CLUSTER4), &tables);
        assert_eq!(verdict, Verdict::Pass(PassReason::Martian), "{hook:?} {from}");
    }
}

/// A virtual machine whose macvtap is over the node's card sends by it as well, as if it were a process.
#[test]
fn guest_over_a_card_of_the_node_is_no_process_of_it() {
    let mut tables = Fake::node();
    let service = tables.add_service(1, &[(world::LOCAL4, true)]);
    tables.cluster_ip(world::CLUSTER4, Protocol::TCP, service);
    let not_ours = Verdict::Pass(PassReason::NotOurs);
    for (from, syn, ping) in [
        ("192.168.0.77:45000", not_ours, not_ours),
        (
            "192.168.0.10:45000",
            Verdict::Redirected(Redirect::FromHost),
            Verdict::Returned(Return::Echo),
        ),
    ] {
        let echo = Datagram::icmp(from, world::CLUSTER4, (8, 0), b"\0\x07\0\x01ping".to_vec());
        for (sent, expected) in [(Datagram::syn(from, world::CLUSTER4), syn), (echo, ping)] {
            let (verdict, _) = by_host(Hook::ExternalEgress, &sent, &tables);
            assert_eq!(verdict, expected, "{from}");
        }
    }
}

/// The client is a backend itself, so that its packets are looked up at a pod's device, too.
#[test]
fn pods_device_leaves_a_masquerade_as_it_is() {
    let mut tables = Fake::node();
    let service = tables.add_service(1, &[(world::REMOTE4, false)]);
    tables.node_port(world::NODE4, Protocol::TCP, service);
    let comes = Datagram::tcp(world::CLIENT4, world::NODE4, tcp::SYN).build();
    let (verdict, left) = run(&step(Hook::ExternalIngress, comes), &tables);
    assert_eq!(verdict, NEW);
    tables
        .in_use
        .borrow_mut()
        .insert(crate::hash::backend_byte(&at(world::CLIENT4).ip, at(world::CLIENT4).port));
    let (verdict, out) = run(&step(Hook::PodEgress, left.clone()), &tables);
    assert_eq!((verdict, out), (Verdict::Pass(PassReason::Unchanged), left));
}

//! The path of a packet on this host: every fixture, and what must hold for all of them.

use proptest::prelude::*;
use std::collections::BTreeSet;
use std::string::String;
use std::vec::Vec;

use crate::addr::{Endpoint, Ip, Port, Protocol};
use crate::event::{DropReason, Hook, PassReason, Return, Translation, Verdict};
use crate::fake::{
    Datagram, Fake, Fixture, Step, Transport, assert_packet_eq, at, fixtures, is_fast, run, run_in,
    run_whole, world, wrong_checksums,
};
use crate::forward::Scratch;
use crate::wire::tcp;

mod entries;
mod exits;
mod lives;
mod origins;
mod records;
mod removal;
mod two_layouts;
mod vips;

#[test]
fn every_fixture_ends_as_expected() {
    let mut failed = Vec::new();
    for fixture in fixtures::chosen() {
        if let Err(panic) =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| fixture.check()))
        {
            failed.push((fixture.name, panic.downcast_ref::<String>().cloned()));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// In the kernel, working memory is what the packet before has left there.
#[test]
fn leftovers_in_working_memory_change_nothing() {
    let mut scratch = Scratch::default();
    let there = fixtures::all();
    let back = fixtures::all().into_iter().rev();
    for Fixture { name, tables, steps, .. } in there.into_iter().chain(back) {
        let clean = tables.clone();
        for step in &steps {
            assert_eq!(run_in(step, &tables, &mut scratch), run_whole(step, &clean), "{name}");
        }
        entries::assert_left_alike(&tables, &clean, &name);
    }
}

#[test]
fn fixture_names_are_distinct() {
    let all = fixtures::all();
    let names: BTreeSet<_> = all.iter().map(|fixture| &fixture.name).collect();
    assert_eq!(names.len(), all.len());
}

#[test]
fn every_verdict_has_a_fixture() {
    // Only a broken kernel can make these happen.
    let never = [Verdict::Drop(DropReason::RewriteFailed), Verdict::Pass(PassReason::Unchanged)];
    let all = fixtures::all();
    let seen: Vec<Verdict> =
        all.iter().flat_map(|fixture| fixture.steps.iter().map(|step| step.verdict)).collect();
    for verdict in Verdict::all().filter(|verdict| !never.contains(verdict)) {
        assert!(seen.contains(&verdict), "{verdict:?}");
    }
}

#[test]
fn dropped_and_passed_packets_are_untouched() {
    for fixture in fixtures::all() {
        let tables = fixture.tables.clone();
        for step in &fixture.steps {
            let (verdict, out) = run(step, &tables);
            if matches!(verdict, Verdict::Pass(_) | Verdict::Drop(_)) {
                assert_packet_eq(&out, &step.packet, &fixture.name);
            }
        }
    }
}

#[test]
fn packets_of_no_service_cost_no_lookup() {
    for (pod, remote, client) in [
        (world::POD4, world::REMOTE4, world::CLIENT4),
        (world::POD6, world::REMOTE6, world::CLIENT6),
    ] {
        let mut tables = Fake::node();
        // Most ports of pods are among those of our sources, by default.
        tables.settings.node.answer_port_low = Port::new(1);
        let service = tables.add_service(1, &[(world::LOCAL4, true)]);
        tables.cluster_ip(world::CLUSTER4, Protocol::TCP, service);
        tables.cluster_ip(world::CLUSTER6, Protocol::TCP, service);
        for hook in Hook::ALL.iter().copied().take(5) {
            for (from, to) in [(pod, remote), (remote, pod), (pod, client), (client, pod)] {
                for transport in [Transport::Tcp(tcp::SYN), Transport::Udp(true)] {
                    tables.look_ups.set(0);
                    let packet = Datagram::new(at(from), at(to), transport).build();
                    let (verdict, _) = run(&step(hook, packet), &tables);
                    let what = std::format!("{hook:?}: {from} to {to} by {transport:?}");
                    assert_eq!(verdict, Verdict::Pass(PassReason::NotOurs), "{what}");
                    assert_eq!(tables.look_ups.get(), 0, "{what}");
                }
            }
        }
    }
}

#[test]
fn fast_path_and_whole_path_decide_alike() {
    let mut decided = BTreeSet::new();
    // Where others write to the tables in between, every look-up is a step of its own.
    let quiet = |fixture: &Fixture| fixture.tables.meanwhile.borrow().is_empty();
    for Fixture { name, tables, steps, .. } in fixtures::all().into_iter().filter(quiet) {
        let other = tables.clone();
        // A packet begins a flow the first time, marks it the second, and is followed the third.
        for step in steps.iter().chain(&steps).chain(&steps) {
            let is_fast = is_fast(step, &tables.clone());
            let (verdict, out) = run(step, &tables);
            if is_fast {
                decided.insert((step.hook, verdict.index()));
            }
            assert_eq!(run_whole(step, &other), (verdict, out), "{name}");
            entries::assert_left_alike(&tables, &other, &name);
        }
    }
    let (ours, theirs) = (Verdict::Translated, Verdict::Pass(PassReason::NotOurs));
    for (hook, verdict) in [
        (Hook::PodIngress, ours(Translation::Forward)),
        (Hook::PodEgress, ours(Translation::Reply)),
        (Hook::ExternalIngress, ours(Translation::Forward)),
        (Hook::ExternalIngress, ours(Translation::Unmasquerade)),
        (Hook::ExternalEgress, ours(Translation::Reply)),
        (Hook::ExternalEgress, ours(Translation::Masquerade)),
        (Hook::ExternalXdp, ours(Translation::Forward)),
        (Hook::ExternalXdp, ours(Translation::Unmasquerade)),
        (Hook::PodIngress, theirs),
        (Hook::PodEgress, theirs),
        (Hook::ExternalIngress, theirs),
        (Hook::ExternalEgress, theirs),
    ] {
        assert!(decided.contains(&(hook, verdict.index())), "{hook:?}: {verdict:?}");
    }
}

fn address(v4: bool, bytes: [u8; 16]) -> Ip {
    let [a, b, c, d, ..] = bytes;
    if v4 { Ip::v4([a, b, c, d]) } else { Ip::v6(bytes) }
}

fn transports() -> impl Strategy<Value = Transport> {
    prop_oneof![Just(Transport::Tcp(tcp::SYN)), Just(Transport::Udp(true)), Just(Transport::Sctp),]
}

fn step(hook: Hook, packet: Vec<u8>) -> Step {
    Step { hook, from_host: false, packet, verdict: Verdict::Returned(Return::Echo), out: None }
}

proptest! {
    #[test]
    fn translation_and_its_reverse_are_identity(
        v4: bool,
        source: [u8; 16],
        port in 1_u16..,
        transport in transports(),
        payload in proptest::collection::vec(any::<u8>(), 0..64),
        filling in proptest::collection::vec(any::<u8>(), 0..32),
    ) {
        let mut tables = Fake::node();
        let (cluster, remote) = if v4 {
            (world::CLUSTER4, world::REMOTE4)
        } else {
            (world::CLUSTER6, world::REMOTE6)
        };
        let service = tables.add_service(1, &[(remote, false)]);
        for protocol in [Protocol::TCP, Protocol::UDP, Protocol::SCTP] {
            tables.cluster_ip(cluster, protocol, service);
        }
        let client = Endpoint::new(address(v4, source), Port::new(port));
        prop_assume!((v4 || !client.ip.is_v4()) && !client.ip.is_martian());
        // A wire fills up what is short.
        let frame = |from, to| {
            let packet = Datagram::new(from, to, transport).with(&payload);
            [packet.build(), filling.clone()].concat()
        };
        let (_, sent) = run(&step(Hook::PodIngress, frame(client, at(cluster))), &tables);
        prop_assert_eq!(wrong_checksums(&sent), Vec::<&str>::new());
        prop_assert_eq!(&sent, &frame(client, at(remote)));

        let answer = if matches!(transport, Transport::Tcp(_)) {
            Transport::Tcp(tcp::SYN | tcp::ACK)
        } else {
            transport
        };
        let frame = |from, to| {
            let packet = Datagram::new(from, to, answer).with(&payload);
            [packet.build(), filling.clone()].concat()
        };
        let (_, shown) = run(&step(Hook::PodEgress, frame(at(remote), client)), &tables);
        prop_assert_eq!(shown, frame(at(cluster), client));
    }

    #[test]
    fn any_bytes_are_survived(
        mut packet in proptest::collection::vec(any::<u8>(), 0..120),
        family in 0_u8..4,
        hook in 0_usize..5,
    ) {
        if let (Some(place), true) = (packet.get_mut(12..14), family > 0) {
            place.copy_from_slice(if family == 1 { &[0x08, 0x00] } else { &[0x86, 0xdd] });
        }
        if let (Some(version), true) = (packet.get_mut(14), family > 0) {
            *version = if family == 1 { 0x45 } else { 0x60 };
        }
        let hook = Hook::ALL[hook];
        let (verdict, out) = run(&step(hook, packet.clone()), &Fake::node());
        let whole = run_whole(&step(hook, packet.clone()), &Fake::node());
        prop_assert_eq!(whole, (verdict, out.clone()));
        if matches!(verdict, Verdict::Pass(_) | Verdict::Drop(_)) {
            prop_assert_eq!(out, packet);
        }
    }
}

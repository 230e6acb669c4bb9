//! The differential test of all fixtures: each through `BPF_PROG_TEST_RUN` equals its run on this host. Needs root.

use std::collections::BTreeMap;

use lb_common::event::{DropReason, Event, Hook, PassReason, Translation, Verdict};
use lb_common::fake::{Fake, Fixture, fixtures};
use lb_tests::campaign;
use lb_tests::differential::{Kernel, compare, random, sums};

/// The loaded programs with flow tables of this size.
fn of(kernels: &mut BTreeMap<usize, Kernel>, flows: usize) -> &mut Kernel {
    kernels.entry(flows).or_insert_with(|| Kernel::new(flows).expect("programs load"))
}

/// Fixtures that the kernel can reproduce: its transient tables are preallocated, so inserting into them never fails.
fn playable(fixtures: Vec<Fixture>) -> impl Iterator<Item = Fixture> {
    fixtures.into_iter().filter(|fixture| fixture.tables.flow_failures.is_empty())
}

#[test]
fn every_fixture_is_the_same_in_the_kernel() {
    let mut failed = Vec::new();
    let (mut equal, mut skipped) = (0, Vec::new());
    let mut kernels = BTreeMap::new();
    // State is compared after each packet, or only after the last one of a fixture.
    let careful = campaign::size(false, true);
    for fixture in playable(fixtures::chosen()) {
        let kernel = of(&mut kernels, fixture.tables.flow_capacity);
        let outcome = compare(kernel, &fixture.tables, &fixture.steps, careful)
            .unwrap_or_else(|error| panic!("{}: {error:#}", fixture.name));
        for (step, ended) in fixture.steps.iter().zip(&outcome.verdicts) {
            match ended {
                None => skipped.push(fixture.name.clone()),
                Some(ended) if *ended == (step.hook, step.verdict) => equal += 1,
                Some((_, verdict)) => failed.push((
                    fixture.name.clone(),
                    format!("{verdict:?}, but the fixture says {:?}", step.verdict),
                )),
            }
        }
        failed.extend(outcome.difference.map(|difference| (fixture.name, difference.what)));
    }
    for (name, what) in &failed {
        eprintln!("--- {name}: {what}");
    }
    eprintln!("{equal} packets equal; the kernel runs no program on {skipped:?}");
    assert!(failed.is_empty(), "{} differences", failed.len());
}

/// A packet that came out of an `xfrm` interface has the Ethernet header of its outer packet in front of it, although
/// the interface has none.
#[test]
fn packet_behind_the_header_of_its_outer_one_is_the_same_in_the_kernel() {
    let is_ip = |fixture: &Fixture| {
        let types = fixture.steps.iter().map(|step| step.packet.get(12..14));
        let are_ip = types.clone().all(|kind| matches!(kind, Some([0x08, 0x00] | [0x86, 0xdd])));
        are_ip && fixture.steps.iter().any(|step| step.hook == Hook::ExternalIngress)
    };
    let mut kernels = BTreeMap::new();
    let mut count = 0;
    for fixture in playable(fixtures::all()).filter(is_ip) {
        let kernel = of(&mut kernels, fixture.tables.flow_capacity);
        kernel.take_behind_outer_headers().expect("the program is loaded");
        let outcome = compare(kernel, &fixture.tables, &fixture.steps, false)
            .unwrap_or_else(|error| panic!("{}: {error:#}", fixture.name));
        assert!(outcome.difference.is_none(), "{}: {:?}", fixture.name, outcome.difference);
        count += 1;
    }
    assert!(count > 100, "only {count} fixtures");
}

#[test]
fn the_fast_path_is_the_same_in_the_kernel() {
    let mut kernels = BTreeMap::new();
    let mut fast = BTreeMap::<_, u64>::new();
    // A fixture with writes by others between its packets changes its tables, so that repeated packets meet other
    // tables.
    let quiet = |fixture: &Fixture| fixture.tables.meanwhile.borrow().is_empty();
    for fixture in playable(fixtures::all()).filter(quiet) {
        let kernel = of(&mut kernels, fixture.tables.flow_capacity);
        // The first packet begins a flow, the second marks it, the third follows it.
        let steps = [&fixture.steps[..]; 3].concat();
        let outcome = compare(kernel, &fixture.tables, &steps, false)
            .unwrap_or_else(|error| panic!("{}: {error:#}", fixture.name));
        assert!(outcome.difference.is_none(), "{}: {:?}", fixture.name, outcome.difference);
        for (what, count) in outcome.fast {
            *fast.entry(what).or_default() += count;
        }
    }
    eprintln!("{fast:?}");
    for (hook, what) in [
        (Hook::PodIngress, Translation::Forward),
        (Hook::PodEgress, Translation::Reply),
        (Hook::ExternalIngress, Translation::Forward),
        (Hook::ExternalIngress, Translation::Unmasquerade),
        (Hook::ExternalEgress, Translation::Reply),
        (Hook::ExternalEgress, Translation::Masquerade),
        (Hook::ExternalXdp, Translation::Forward),
        (Hook::ExternalXdp, Translation::Unmasquerade),
    ] {
        assert!(fast.contains_key(&(hook, Verdict::Translated(what))), "{hook:?}: {what:?}");
    }
}

#[test]
fn sums_of_devices_stay_right() {
    let mut kernels = BTreeMap::new();
    let random = (0..campaign::size(60, 1_000)).map(|seed| {
        let (tables, steps) = random::batch(seed, 4096);
        (format!("batch seed {seed}"), tables, steps)
    });
    let fixtures = playable(fixtures::all()).map(|it| (it.name, it.tables, it.steps));
    let (mut right, mut wrong) = (0, Vec::new());
    for (name, tables, steps) in fixtures.chain(random) {
        let kernel = of(&mut kernels, tables.flow_capacity);
        if !kernel.reports_checksums() {
            return eprintln!("not tested: the kernel reports checksums only from Linux 6.11 on");
        }
        let sums =
            sums(kernel, &tables, &steps).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        for (step, is_right) in sums {
            if is_right {
                right += 1;
            } else {
                wrong.push(format!("{name}: {step:02x?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} are wrong: {wrong:#?}", wrong.len());
    assert!(right > 4_000, "{right} packets");
}

#[test]
fn random_packets_are_the_same_in_the_kernel() {
    let summary =
        random::run(campaign::size(20_000, 100_000), 1).unwrap_or_else(|error| panic!("{error:#}"));
    let never: Vec<Verdict> =
        summary.verdicts().filter(|(_, count)| *count == 0).map(|(verdict, _)| verdict).collect();
    eprintln!("{} equal, {} skipped, never: {never:?}", summary.equal, summary.skipped);
    // Verdicts that need an interface to complete them, a failing allocation, as many flows as ports, or a broken
    // kernel. Fixtures cover them.
    let unlikely = [
        Verdict::Pass(PassReason::PartialChecksum),
        Verdict::Drop(DropReason::FlowTableFull),
        Verdict::Drop(DropReason::PortsExhausted),
        Verdict::Drop(DropReason::RewriteFailed),
    ];
    // Only the number of packets in a campaign reaches these; fixtures cover them in every run.
    let rare = campaign::size(&[Verdict::Drop(DropReason::FragmentLost)][..], &[]);
    let is_likely = |verdict: &&Verdict| !unlikely.contains(verdict) && !rare.contains(verdict);
    let missing: Vec<_> = never.iter().filter(is_likely).collect();
    assert!(missing.is_empty(), "never reached: {missing:?}");
    // Events that random packets cannot cause or rarely cause: evicting tables are never full, allocations never fail,
    // no packet is a socket call, ports are rarely all taken, and XDP rarely keeps a packet that it could redirect.
    // Fixtures cover each.
    let of_others = [
        Event::KeptTooBig,
        Event::KeptHopLimit,
        Event::KeptDevice,
        Event::KeptLink,
        Event::PortsScarce,
        Event::AffinityFull,
        Event::FragmentTableFull,
        Event::FlowNoMemory,
        Event::SocketTranslated,
        Event::SocketRefused,
        Event::SocketRestored,
        Event::SocketNoMemory,
    ];
    let rare = campaign::size(&[Event::FlowUnprotected][..], &[]);
    let missing: Vec<Event> = summary
        .events()
        .filter(|(event, count)| *count == 0 && !of_others.contains(event) && !rare.contains(event))
        .map(|(event, _)| event)
        .collect();
    assert!(missing.is_empty(), "never counted: {missing:?}");
    campaign::figure("random packets, equal in kernel and host", summary.equal, "packets");
    assert!(summary.skipped * 20 < summary.equal, "too many packets were skipped: {summary:?}");
}

#[test]
fn a_difference_of_tables_is_seen() {
    let fixture = fixtures::all()
        .into_iter()
        .find(|fixture| fixture.steps.iter().any(|step| step.out.is_some()))
        .expect("a fixture that translates");
    let mut kernel = Kernel::new(fixture.tables.flow_capacity).expect("programs load");
    kernel.load(&Fake::default()).expect("empty tables");
    let step = fixture.steps.iter().find(|step| step.out.is_some()).expect("a translation");
    let run = kernel.run(step).expect("a run").expect("a packet long enough");
    assert_ne!(Some(&run.bytes), step.out.as_ref(), "the kernel translates without tables");
}

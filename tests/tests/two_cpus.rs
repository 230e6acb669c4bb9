//! Changes of backends while packets on two CPUs look them up, through the programs in the kernel: every packet finds
//! the old set or the new one, and only the new one once the change is complete.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use lb_agent::plan::{
    EndpointPlan, Family, FrontendKind, FrontendPlan, PortKey, PortPlan, ServiceName,
};
use lb_agent::reconcile::{Change, Limits, Reconciler};
use lb_common::addr::{Endpoint, Ip, Port, Protocol};
use lb_common::event::Hook;
use lb_common::fake::{Datagram, Fake, Transport, at};
use lb_common::wire::tcp;
use lb_tests::campaign;
use lb_tests::cpus;
use lb_tests::differential::{Kernel, bpf};

/// The smallest number of changes.
const CHANGES: u64 = 50;
const QUESTIONS: u64 = 10_000;
/// The deadline for the changes and questions, on a slow machine.
const PATIENCE: Duration = Duration::from_mins(3);
/// The capacity of the flow table, in entries.
const FLOWS: usize = 1 << 21;
/// The number of new flows for each transport and CPU.
const NEW: u32 = 200_000;
/// The number of UDP flows that continue through all changes.
const KEPT: u32 = 256;
const FRONTEND: [u8; 4] = [10, 96, 0, 10];
const LIMITS: Limits = Limits { services: 1_000, backends: 4_000, lines: 4_000, sources: 100 };

/// The kind of a packet: a SYN, the first datagram of a new flow, or a datagram of an existing flow.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Connects,
    Asks,
    GoesOn,
}

#[test]
fn every_packet_of_two_cpus_finds_the_old_set_or_the_new_one() -> Result<()> {
    let mut kernel = Kernel::new(FLOWS)?;
    let mut tables = Fake::node();
    tables.flow_capacity = FLOWS;
    kernel.load(&tables)?;
    let began = Instant::now();
    let mut reconciler = Reconciler::new(LIMITS);
    for op in reconciler.plan(began.elapsed(), vec![change(0)]) {
        kernel.apply(&op)?;
    }
    // 2n: set n is in use; 2n + 1: set n is being replaced by set n + 1.
    let state = AtomicU64::new(0);
    let (asked, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let cpus = cpus::two()?;
    let program = kernel.program(Hook::PodIngress);
    let changes = thread::scope(|scope| -> Result<u64> {
        let ask = |(number, cpu)| {
            let (state, asked, is_over) = (&state, &asked, &is_over);
            scope.spawn(move || questions(program, number, cpu, state, asked, is_over))
        };
        let asking: Vec<_> = (0_u8..).zip(cpus).map(ask).collect();
        let asks = || !asking.iter().any(ScopedJoinHandle::is_finished);
        let mut changes = || -> Result<u64> {
            let mut changed = 0;
            // Freed rows and lines are reused only after a second.
            let lasts = Duration::from_secs(campaign::size(5, 60));
            let questions = || asked.load(Ordering::Relaxed);
            while began.elapsed() < lasts || changed <= CHANGES || questions() <= QUESTIONS {
                let so_far = || format!("{} questions, {changed} changes", questions());
                ensure!(asks() && began.elapsed() < PATIENCE, "{}", so_far());
                state.store(2 * changed + 1, Ordering::SeqCst);
                let mut ops = reconciler.tick(began.elapsed());
                ops.extend(reconciler.plan(began.elapsed(), vec![change(changed + 1)]));
                ops.iter().try_for_each(|op| kernel.apply(op))?;
                let lacking = reconciler.refused().count() + reconciler.delayed().count();
                ensure!(lacking == 0, "set {} finds no room", changed + 1);
                changed += 1;
                state.store(2 * changed, Ordering::SeqCst);
                // A pause, so that some packets meet a state without a change in progress.
                let rest = Instant::now();
                while rest.elapsed() < Duration::from_millis(40) {
                    thread::yield_now();
                }
            }
            Ok(changed)
        };
        let changes = changes();
        is_over.store(true, Ordering::Relaxed);
        let mut ends = asking.into_iter().map(|thread| thread.join().expect("no panic"));
        ends.try_for_each(|end| end)?;
        changes
    })?;
    campaign::figure("packets of two CPUs", asked.into_inner(), "packets");
    campaign::figure("changes of backends meanwhile", changes, "changes");
    Ok(())
}

/// The network and the number of endpoints of set `number`. Consecutive sets have no endpoint in common.
fn members(number: u64) -> (u8, u8) {
    let sizes = [1, 3, 2, 10, 40];
    let size = sizes.get((number % 5) as usize).copied().unwrap_or(1);
    ((number % 7) as u8, size)
}

fn change(number: u64) -> Change {
    let service = ServiceName { namespace: "default".into(), name: "web".into() };
    let (network, size) = members(number);
    let endpoint = |host| EndpointPlan {
        ip: IpAddr::V4(Ipv4Addr::new(10, 2, network, host)),
        port: 8_080,
        on_this_node: false,
        cluster: true,
        local: false,
    };
    let plan = |protocol| PortPlan {
        key: PortKey {
            service: service.clone(),
            port: String::new(),
            protocol,
            family: Family::V4,
        },
        age: (1, "uid".into()),
        frontends: vec![FrontendPlan {
            kind: FrontendKind::ClusterIp,
            ip: IpAddr::V4(FRONTEND.into()),
            port: 80,
            local_policy: false,
            checks_sources: false,
        }],
        affinity: None,
        sources: Vec::new(),
        endpoints: (1..=size).map(endpoint).collect(),
        anywhere: true,
    };
    Change { service: service.clone(), ports: [Protocol::TCP, Protocol::UDP].map(plan).into() }
}

/// Sends packets on one CPU until the end, and counts them.
fn questions(
    program: BorrowedFd<'_>,
    number: u8,
    cpu: usize,
    state: &AtomicU64,
    counted: &AtomicU64,
    is_over: &AtomicBool,
) -> Result<()> {
    cpus::stay_on(cpu)?;
    let mut asked: u64 = 0;
    let mut out = vec![0; 512];
    while !is_over.load(Ordering::Relaxed) {
        let kinds = [Kind::Connects, Kind::Asks, Kind::GoesOn];
        let kind = kinds[(asked % 3) as usize];
        let packet = question(number, asked as u32, kind);
        let before = state.load(Ordering::SeqCst);
        let context = bpf::Context::default();
        let ran = bpf::test_run(program, &packet, &mut out, Some(&context), 1)?;
        let after = state.load(Ordering::SeqCst);
        ensure!(ran.code == u32::MAX, "{kind:?} in {before}..{after} ended with {}", ran.code);
        let Some([a, b, network, host]) = out.get(30..34) else { bail!("{} bytes", ran.length) };
        // The sets that were in use at some time between the start and the end of the packet.
        let sets = before / 2..=after.div_ceil(2);
        let is_of = |set: u64| {
            let (of, size) = members(set);
            *network == of && (1..=size).contains(host)
        };
        ensure!(
            [*a, *b] == [10, 2] && sets.clone().any(is_of),
            "{kind:?} went to {a}.{b}.{network}.{host} while sets {sets:?} were in use"
        );
        asked += 1;
        counted.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

fn question(number: u8, asked: u32, kind: Kind) -> Vec<u8> {
    let (index, transport) = match kind {
        Kind::Connects => (asked % NEW, Transport::Tcp(tcp::SYN)),
        Kind::Asks => (asked % NEW, Transport::Udp(true)),
        Kind::GoesOn => (asked % KEPT, Transport::Udp(true)),
    };
    let kept = if matches!(kind, Kind::GoesOn) { 64 } else { 0 };
    let [_, high, ..] = index.to_be_bytes();
    let source = Ip::v4([10, 128 + 16 * number + kept, 1, high]);
    let source = Endpoint::new(source, Port::new(index as u16));
    Datagram::new(source, at("10.96.0.10:80"), transport).build()
}

#[test]
fn sets_that_follow_each_other_share_no_endpoint() {
    let all: BTreeMap<u64, u8> = (0..200).map(|number| (number, members(number).0)).collect();
    assert!(all.values().zip(all.values().skip(1)).all(|(one, next)| one != next));
}

//! Two CPUs that handle packets of one flow at once, through the programs in the kernel: however the flow begins, it
//! has one source and each of its entries once; however it ends, the end is recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use anyhow::{Result, ensure};
use lb_common::addr::{Endpoint, Ip, Port, Protocol};
use lb_common::event::Hook;
use lb_common::fake::{Datagram, Fake, at, world};
use lb_common::flow::{Flow, FlowKey, Kind, Side};
use lb_common::wire::tcp;
use lb_tests::cpus;
use lb_tests::differential::{Kernel, bpf};

/// The number of flows that both CPUs begin.
const FLOWS: u32 = 10_000;
/// The capacity of the flow table, in entries.
const CAPACITY: usize = 1 << 19;
/// Another frontend with the same backend.
const OTHER: &str = "10.96.0.11:80";

/// The packets of a flow, with the hook for each.
type Packets = fn(u32) -> Vec<(Hook, Datagram)>;

const fn client(number: u32) -> Endpoint {
    let [_, high, middle, _] = number.to_be_bytes();
    Endpoint::new(Ip::v4([203, 0, 113 + high, middle]), Port::new(10_000 + (number % 256) as u16))
}

/// An external client's packet to a backend on another node: its source becomes the node's address.
fn masqueraded(number: u32) -> Vec<(Hook, Datagram)> {
    let from = |to: &str| {
        let mut packet = Datagram::syn(world::CLIENT4, to);
        packet.source = client(number);
        packet
    };
    vec![(Hook::ExternalIngress, from(world::NODE4)), (Hook::ExternalEgress, from(world::REMOTE4))]
}

/// A packet to a frontend whose backend the client already uses from the same port.
fn shifted(number: u32) -> Vec<(Hook, Datagram)> {
    let mut packet = Datagram::syn(world::POD4, OTHER);
    packet.source = client(number);
    vec![(Hook::PodIngress, packet)]
}

fn tables() -> Fake {
    let mut tables = Fake::node();
    tables.flow_capacity = CAPACITY;
    // Three ports for each flow, so that ports never run out.
    tables.settings.node.set_source_ports(Port::new(33_000), Port::new(65_000));
    let [one, other] = [1, 2].map(|id| tables.add_service(id, &[(world::REMOTE4, false)]));
    tables.node_port(world::NODE4, Protocol::TCP, one);
    tables.cluster_ip(world::CLUSTER4, Protocol::TCP, one);
    tables.cluster_ip(OTHER, Protocol::TCP, other);
    tables
}

/// A packet of a client to the frontend, or of the backend to the client, at a pod's interface.
fn of_connection(
    number: u32,
    is_answer: bool,
    flags: u8,
    [sequence, acknowledged]: [u32; 2],
) -> (Hook, Datagram) {
    let (from, hook) =
        if is_answer { (world::REMOTE4, Hook::PodEgress) } else { (world::POD4, Hook::PodIngress) };
    let mut packet = Datagram::tcp(from, world::CLUSTER4, flags).numbered(sequence, acknowledged);
    if is_answer {
        packet.destination = client(number);
    } else {
        packet.source = client(number);
    }
    (hook, packet)
}

/// Packets of both ends; the answers have acknowledged 1,000 bytes.
fn opened(number: u32) -> Vec<(Hook, Datagram)> {
    vec![
        of_connection(number, false, tcp::SYN, [999, 0]),
        of_connection(number, true, tcp::SYN | tcp::ACK, [1, 1_000]),
        of_connection(number, false, tcp::ACK, [1_000, 2]),
    ]
}

fn closed(number: u32) -> Vec<(Hook, Datagram)> {
    vec![of_connection(number, false, tcp::FIN | tcp::ACK, [1_000, 2])]
}

/// A reset without proof: its sequence number is far from the acknowledged one.
fn reset(number: u32) -> Vec<(Hook, Datagram)> {
    vec![of_connection(number, false, tcp::RST, [1 << 30, 0])]
}

/// Sends the packets of every flow from both CPUs at the same time.
fn race(kernel: &Kernel, [ones, others]: [Packets; 2]) -> Result<()> {
    let done = [0, 1].map(|_| AtomicU32::new(0));
    let [first, second] = &done;
    let [one, other] = cpus::two()?;
    let programs: BTreeMap<Hook, BorrowedFd<'_>> =
        Hook::ALL.iter().map(|hook| (*hook, kernel.program(*hook))).collect();
    let send = |packets, cpu, mine: &AtomicU32, its: &AtomicU32| {
        let outcome = send(&programs, packets, cpu, mine, its);
        // On a failure, the other CPU must not wait for this one.
        mine.store(u32::MAX, Ordering::SeqCst);
        outcome
    };
    thread::scope(|scope| {
        let send = &send;
        let other = scope.spawn(move || send(others, other, second, first));
        let one = send(ones, one, first, second);
        let other = other.join().expect("no panic");
        one.and(other)
    })
}

fn send(
    programs: &BTreeMap<Hook, BorrowedFd<'_>>,
    packets: Packets,
    cpu: usize,
    mine: &AtomicU32,
    its: &AtomicU32,
) -> Result<()> {
    cpus::stay_on(cpu)?;
    let mut out = vec![0; 512];
    for number in 0..FLOWS {
        let made = packets(number);
        let steps =
            made.iter().filter_map(|(hook, packet)| Some((*programs.get(hook)?, packet.build())));
        let steps: Vec<(BorrowedFd<'_>, Vec<u8>)> = steps.collect();
        mine.store(number + 1, Ordering::SeqCst);
        while its.load(Ordering::SeqCst) <= number {
            // If both threads share a CPU, the other thread would not run otherwise.
            thread::yield_now();
        }
        for (program, packet) in &steps {
            let context = bpf::Context::default();
            let ran = bpf::test_run(*program, packet, &mut out, Some(&context), 1)?;
            ensure!(ran.code == u32::MAX, "flow {number} ended with {}", ran.code);
        }
    }
    Ok(())
}

fn run(kernel: &Kernel, (hook, packet): (Hook, Datagram), out: &mut [u8]) -> Result<()> {
    let context = bpf::Context::default();
    let ran = bpf::test_run(kernel.program(hook), &packet.build(), out, Some(&context), 1)?;
    ensure!(ran.code == u32::MAX, "{packet:?} ended with {}", ran.code);
    Ok(())
}

/// The entries of a kind in the transient table: no end has answered.
fn entries(kernel: &Kernel, kind: Kind) -> Result<Vec<(FlowKey, Flow)>> {
    Ok(kernel.transient()?.into_iter().filter(|(_, flow)| flow.kind == kind).collect())
}

#[test]
fn flow_that_two_cpus_masquerade_at_once_has_one_source() -> Result<()> {
    let mut kernel = Kernel::new(CAPACITY)?;
    kernel.load(&tables())?;
    race(&kernel, [masqueraded; 2])?;
    let sources = entries(&kernel, Kind::UNMASQUERADE)?;
    let flows: BTreeSet<_> = sources.iter().map(|(_, flow)| flow.to).collect();
    ensure!(flows.len() == FLOWS as usize, "{} flows", flows.len());
    ensure!(sources.len() == flows.len(), "{} sources of {} flows", sources.len(), flows.len());
    let keys: BTreeSet<FlowKey> = sources.iter().map(|(key, _)| *key).collect();
    // The answer to a masqueraded packet must find an entry for that packet's source.
    for (key, mark) in entries(&kernel, Kind::MASQUERADE)? {
        let back = FlowKey::new(mark.to.reversed(), key.protocol, Side::INGRESS);
        ensure!(keys.contains(&back), "{mark:?} has no way back");
    }
    Ok(())
}

#[test]
fn flow_that_two_cpus_shift_at_once_has_one_source() -> Result<()> {
    let mut kernel = Kernel::new(CAPACITY)?;
    kernel.load(&tables())?;
    let mut out = vec![0; 512];
    for number in 0..FLOWS {
        let mut packet = Datagram::syn(world::POD4, world::CLUSTER4);
        packet.source = client(number);
        run(&kernel, (Hook::PodIngress, packet), &mut out)?;
    }
    race(&kernel, [shifted; 2])?;
    let asked = at(OTHER);
    let answers = entries(&kernel, Kind::REPLY)?;
    let answers = answers.iter().filter(|(_, flow)| flow.to.source == asked.ip).count();
    ensure!(answers == FLOWS as usize, "{answers} sources of {FLOWS} flows");
    let forward = entries(&kernel, Kind::FORWARD)?.len();
    ensure!(forward == 2 * FLOWS as usize, "{forward} forward entries");
    Ok(())
}

#[test]
fn end_and_reset_that_two_cpus_see_at_once_are_both_recorded() -> Result<()> {
    let mut kernel = Kernel::new(CAPACITY)?;
    kernel.load(&tables())?;
    let mut out = vec![0; 512];
    for number in 0..FLOWS {
        for step in opened(number) {
            run(&kernel, step, &mut out)?;
        }
    }
    race(&kernel, [closed, reset])?;
    let protected = kernel.flows()?;
    let forward: Vec<&Flow> =
        protected.values().filter(|flow| flow.kind == Kind::FORWARD).collect();
    ensure!(forward.len() == FLOWS as usize, "{} protected forward entries", forward.len());
    let lacks = |shown: fn(&Flow) -> u8| forward.iter().filter(|flow| shown(flow) == 0).count();
    let (ends, resets) = (lacks(|flow| flow.shown.fin), lacks(|flow| flow.shown.claimed));
    ensure!(ends + resets == 0, "{ends} ends and {resets} resets were not recorded");
    Ok(())
}

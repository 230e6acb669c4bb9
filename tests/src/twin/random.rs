//! Random tables and random packets (valid, mutated, hostile) through host and kernel.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use lb_common::addr::{Endpoint, Port, Protocol};
use lb_common::config::{Device, Settings};
use lb_common::event::{Event, Hook, PassReason, Verdict};
use lb_common::fake::{Datagram, Fake, Piece, Step, Transport, at, run as run_here, world};
use lb_common::flow::{Fragment, Ports, Side};
use lb_common::service::{Flags, Frontend, Service};
use lb_common::wire::tcp;

use super::{Kernel, Outcome, compare};

/// Packets that share tables.
const BATCH: u64 = 64;

/// A generator of numbers (`splitmix64`): equal seeds give equal packets.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// One of the numbers below `limit`, which is not 0.
    pub const fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    const fn one_in(&mut self, limit: usize) -> bool {
        self.below(limit) == 0
    }

    /// One of these, of which there must be some.
    pub fn of<T: Copy>(&mut self, items: &[T]) -> T {
        *items.get(self.below(items.len())).expect("a choice of something")
    }
}

const FRONTENDS: [&[&str]; 2] = [
    &[
        "10.96.0.10:80",
        "10.96.0.11:80",
        "10.96.0.10:53",
        "198.51.100.1:80",
        "192.168.0.10:30080",
        "192.168.0.10:30053",
    ],
    &[
        "[fd00:96::10]:80",
        "[fd00:96::11]:80",
        "[fd00:96::10]:53",
        "[2001:db8:1::1]:80",
        "[fd00:c0::10]:30080",
        "[fd00:c0::10]:30053",
    ],
];
const BACKENDS: [&[(&str, bool)]; 2] = [
    &[
        ("10.1.0.5:8080", true),
        ("10.1.0.6:8080", true),
        ("10.2.0.7:8080", false),
        ("10.2.0.8:8081", false),
    ],
    &[
        ("[fd00:1::5]:8080", true),
        ("[fd00:1::6]:8080", true),
        ("[fd00:2::7]:8080", false),
        ("[fd00:2::8]:8081", false),
    ],
];
const CLIENTS: [&[&str]; 2] = [
    &[
        "10.1.0.5:40000",
        "10.1.0.5:40001",
        "10.1.0.9:8080",
        "203.0.113.9:50000",
        "203.0.113.10:50000",
        "192.168.0.10:1024",
        "192.0.0.8:40000",
        "10.96.9.9:80",
    ],
    &[
        "[fd00:1::5]:40000",
        "[fd00:1::5]:40001",
        "[fd00:1::9]:8080",
        "[2001:db8::9]:50000",
        "[2001:db8::10]:50000",
        "[fd00:c0::10]:1024",
        "[100::8]:40000",
        "[fd00:96::99]:80",
    ],
];
/// A pod, and a ClusterIP and a `NodePort` that it sends datagrams in pieces to.
const PIECES: [[&str; 3]; 2] = [
    ["10.1.0.5:40000", "10.96.0.10:80", "192.168.0.10:30080"],
    ["[fd00:1::5]:40000", "[fd00:96::10]:80", "[fd00:c0::10]:30080"],
];
const PROTOCOLS: [Protocol; 3] = [Protocol::TCP, Protocol::UDP, Protocol::SCTP];

fn tables(random: &mut Random, capacity: usize) -> Fake {
    let mut tables = Fake::node();
    tables.flow_capacity = capacity;
    tables.settings.flags ^= random.next() as u32 & 0xff & random.next() as u32;
    if random.one_in(8) {
        tables.settings.source_port_high = Port::new(61000 + random.below(4) as u16);
    }
    if random.one_in(5) {
        tables.devices.clear();
    }
    let [local4, local6] = &mut tables.settings.local;
    *local4 = world::prefix("10.1.0.0", 16);
    *local6 = world::prefix("fd00:1::", 32);
    if random.one_in(40) {
        tables.settings.source_port_high = Port::new(0);
    }
    if random.one_in(2) {
        tables.settings.flags |= Settings::SENDS;
    }
    if random.one_in(2) {
        open(random, &mut tables);
    }
    tables.rejects.set(!random.one_in(8));
    for id in 1..=random.below(10) as u32 {
        let family = random.below(2);
        let count = random.below(5);
        let backends: Vec<(&str, bool)> = (0..count).map(|_| random.of(BACKENDS[family])).collect();
        let service = tables.add_service(id, &backends);
        let service = flavour(random, service);
        if service.flags.has(Flags::SOURCES) && random.one_in(2) {
            let (network, bits) =
                if family == 0 { ("203.0.113.8", 29) } else { ("2001:db8::", 64) };
            tables.allow(id, network, bits);
        }
        for _ in 0..=random.below(10) {
            let (frontend, protocol) = (random.of(FRONTENDS[family]), random.of(&PROTOCOLS));
            match frontend {
                port if port.contains(":30") => tables.node_port(port, protocol, service),
                vip if vip.contains("198.51") || vip.contains("db8:1") => {
                    tables.external(vip, protocol, service);
                }
                ip => tables.cluster_ip(ip, protocol, service),
            }
        }
    }
    // Rows that died after their tables were written.
    if random.one_in(4) && tables.backends.len() > 1 {
        let row = 1 + random.below(tables.backends.len() - 1);
        tables.backends[row].epoch = random.of(&[0, 7]);
    }
    if random.one_in(4) {
        lose_a_fragment(random, &tables);
    }
    tables
}

/// Lets packets go past the stack at tc, by some devices.
fn open(random: &mut Random, tables: &mut Fake) {
    tables.settings.flags |= Settings::SHORT_CUTS;
    for device in tables.devices.values_mut() {
        if !random.one_in(4) {
            device.flags |= Device::SHORT_CUT;
        }
    }
    if random.one_in(4)
        && tables.devices.remove(&world::OUT).is_some()
        && let Some(device) = tables.devices.values_mut().next()
    {
        device.bridge = world::OUT;
    }
}

/// A datagram some of whose pieces were held, and had to make room for others.
fn lose_a_fragment(random: &mut Random, tables: &Fake) {
    let family = random.below(2);
    let [from, cluster, node] = PIECES[family];
    let [from, to] = [from, random.of(&[cluster, node])].map(at);
    let id = random.below(2) as u8;
    let id = if family == 0 { [0, id, 0, 0] } else { [0, 0, 0, id] };
    let datagram = Fragment::new(from.ip, to.ip, id, Protocol::UDP, Side::INGRESS);
    let held = random.below(3) as u16;
    // Some too long ago to be of what comes.
    let written = Ports::time(tables.clock.get() - random.of(&[0, 40_000_000_000]));
    let ports = Ports { source: from.port, destination: to.port, held, written };
    let _: Option<Ports> = tables.fragments.borrow_mut().insert(datagram, ports);
}

fn flavour(random: &mut Random, service: Service) -> Service {
    let mut flags = service.flags;
    for (flag, rarity) in [
        (Flags::LOCAL_POLICY, 3),
        (Flags::SOURCES, 6),
        (Flags::LEAVING, 12),
        (Flags::ADDRESS, 24),
        (Flags::EXTERNAL, 6),
    ] {
        if random.one_in(rarity) {
            flags = flags.with(flag);
        }
    }
    let affinity = if random.one_in(3) { 60 } else { 0 };
    Service { flags, affinity, ..service }
}

fn end(random: &mut Random, family: usize) -> Endpoint {
    match random.below(8) {
        0..=3 => at(random.of(FRONTENDS[family])),
        4 | 5 => at(random.of(CLIENTS[family])),
        6 => at(random.of(BACKENDS[family]).0),
        _ => {
            let ip = at(random.of(CLIENTS[family])).ip;
            Endpoint::new(ip, Port::new(61000 + random.below(4001) as u16))
        }
    }
}

fn datagram(random: &mut Random, depth: u32) -> Datagram {
    let family = random.below(2);
    let source =
        if random.one_in(4) { end(random, family) } else { at(random.of(CLIENTS[family])) };
    let destination = end(random, family);
    let flags = random.of(&[2, 2, 2, 16, 16, 17, 4, 18, 0, 0x29, 255]);
    let transport = match random.below(16) {
        0..=5 => Transport::Tcp(flags),
        6..=9 => Transport::Udp(!random.one_in(4)),
        10 | 11 => Transport::Sctp,
        12..=14 => {
            let kind = if family == 0 {
                random.of(&[0, 3, 3, 4, 5, 8, 8, 11, 12])
            } else {
                random.of(&[1, 2, 3, 4, 128, 128, 129, 137])
            };
            Transport::Icmp(kind, random.below(5) as u8)
        }
        _ => Transport::Other(random.next() as u8),
    };
    let mut made = Datagram::new(source, destination, transport);
    made.payload = (0..random.below(64)).map(|_| random.next() as u8).collect();
    if matches!(transport, Transport::Icmp(..)) && depth > 0 && !random.one_in(4) {
        let mut body = vec![0, 0, 5, 0];
        body.extend(datagram(random, depth - 1).network());
        body.truncate(4 + 24 + random.below(80));
        made.payload = body;
    }
    if random.one_in(10) {
        let offset = if random.one_in(2) { 0 } else { 16 };
        made.piece = Some(Piece { offset, more: random.one_in(2), id: random.below(3) as u32 });
    }
    if random.one_in(10) {
        options(random, &mut made);
    }
    if random.one_in(6) {
        let kinds = [0, 43, 60, 60, 44, 135, 51];
        made.extensions = (0..=random.below(7)).map(|_| extension(random, &kinds)).collect();
    }
    let tags = if random.one_in(20) { 1 + random.below(3) } else { 0 };
    for _ in 0..tags {
        made = made.tagged(random.next() as u16);
    }
    made
}

/// Options, and extension headers that the path walks.
fn options(random: &mut Random, made: &mut Datagram) {
    made.options = vec![1; 4 * (1 + random.below(10))];
    let count = 1 + random.below(3);
    made.extensions = (0..count).map(|_| extension(random, &[0, 43, 60])).collect();
}

fn extension(random: &mut Random, kinds: &[u8]) -> (u8, Vec<u8>) {
    let mut rest = vec![0; 6 + 8 * random.below(3)];
    rest[1] = u8::from(random.one_in(8));
    (random.of(kinds), rest)
}

fn piece(random: &mut Random) -> Datagram {
    let family = random.below(2);
    let [from, cluster, node] = PIECES[family];
    let [from, to] = [from, random.of(&[cluster, node])].map(at);
    let offset = random.of(&[0, 0, 16, 32]);
    let made = Datagram::new(from, to, Transport::Udp(true)).with(&[7; 16]);
    made.piece(offset, offset < 32, random.below(2) as u32)
}

/// Source and destination changed places: checksums stay right.
fn answer(packet: &mut [u8]) {
    let Some(ethernet) = packet.get(12..14) else { return };
    let (from, length, ports) = if ethernet == [8, 0] { (26, 4, 34) } else { (22, 16, 54) };
    if packet.len() >= ports + 4 {
        for (at, width) in [(from, length), (ports, 2)] {
            let (left, right) = packet[at..at + 2 * width].split_at_mut(width);
            left.swap_with_slice(right);
        }
    }
}

fn mutate(random: &mut Random, packet: &mut Vec<u8>) {
    if random.one_in(8) {
        for _ in 0..=random.below(3) {
            let at = 12 + random.below(packet.len().min(100) - 12);
            packet[at] = random.next() as u8;
        }
    }
    if random.one_in(16) {
        packet.truncate(14 + random.below(packet.len() - 13));
    }
    if random.one_in(32) {
        packet.extend((0..random.below(40)).map(|_| 0xee));
    }
}

fn packet(random: &mut Random, seen: &[Vec<u8>]) -> Vec<u8> {
    let mut packet = match random.below(8) {
        0..=2 if !seen.is_empty() => {
            let mut packet = seen[random.below(seen.len())].clone();
            answer(&mut packet);
            packet
        }
        3 | 4 if !seen.is_empty() => seen[random.below(seen.len())].clone(),
        // An error about something that was seen.
        5 if !seen.is_empty() && random.one_in(2) => {
            let quoted = seen[random.below(seen.len())].clone();
            error_about(random, &quoted)
        }
        // Pieces of few datagrams, so that they meet.
        6 if random.one_in(2) => piece(random).build(),
        _ => datagram(random, 1).build(),
    };
    if packet.len() > 14 {
        mutate(random, &mut packet);
    }
    packet
}

/// Puts options, or extension headers, into a packet that had none: an error about it is translated where its flow is known.
fn widen(random: &mut Random, quote: &mut Vec<u8>) {
    let words = 1 + random.below(10);
    if quote.first() == Some(&0x45) && quote.len() >= 20 {
        quote[0] += words as u8;
        drop(quote.splice(20..20, vec![1; 4 * words]));
    } else if quote.len() >= 40 {
        let next = std::mem::replace(&mut quote[6], 60);
        let units = random.below(4);
        let header = [vec![next, units as u8], vec![0; 6 + 8 * units]].concat();
        drop(quote.splice(40..40, header));
    }
}

fn error_about(random: &mut Random, quoted: &[u8]) -> Vec<u8> {
    let family = usize::from(quoted.get(12..14) != Some(&[8, 0]));
    let mut quote: Vec<u8> = quoted.iter().skip(14).take(28 + random.below(120)).copied().collect();
    if random.one_in(3) {
        widen(random, &mut quote);
    }
    let body = [&[0, 0, 5, 0], quote.as_slice()].concat();
    let kind = if family == 0 { random.of(&[3, 11, 5]) } else { random.of(&[1, 2, 3]) };
    let client = random.of(CLIENTS[family]);
    let mut made = Datagram::new(end(random, family), at(client), Transport::Icmp(kind, 1));
    made.payload = body;
    if random.one_in(3) {
        options(random, &mut made);
    }
    let mut packet = made.build();
    // Often to and from the very ends of what it quotes.
    let (from, length) = if family == 0 { (26, 4) } else { (22, 16) };
    if !random.one_in(3) && quoted.len() >= from + 2 * length {
        packet[from + length..from + 2 * length].copy_from_slice(&quoted[from..from + length]);
        if random.one_in(2) {
            packet[from..from + length].copy_from_slice(&quoted[from + length..from + 2 * length]);
        }
    }
    packet
}

/// The tables and packets of one seed.
pub fn batch(seed: u64, capacity: usize) -> (Fake, Vec<Step>) {
    let mut random = Random::new(seed);
    let mut tables = tables(&mut random, capacity);
    let mut seen: Vec<Vec<u8>> = Vec::new();
    if random.one_in(3) {
        for _ in 0..BATCH {
            let step = step(&mut random, &seen);
            seen.push(run_here(&step, &tables).1);
        }
        lose_a_frontend(&mut random, &mut tables);
    }
    let here = tables.clone();
    let mut steps = Vec::new();
    // Several, so that few source ports do not suffice for them.
    for _ in 0..random.of(&[0, 0, 1, 3]) {
        steps.extend(conversation(&mut random, &here));
    }
    seen.extend(steps.iter().map(|step| step.packet.clone()));
    while (steps.len() as u64) < BATCH {
        let step = step(&mut random, &seen);
        seen.push(run_here(&step, &here).1);
        steps.push(step);
    }
    (tables, steps)
}

/// A client outside talks to a `NodePort` for a while, most often by way of XDP: each packet is what became of the one
/// before it, or the answer to that.
fn conversation(random: &mut Random, here: &Fake) -> Vec<Step> {
    const ROUNDS: usize = 4;
    let node_ports: Vec<Frontend> =
        here.services.keys().filter(|it| it.ip == it.ip.any_of_family()).copied().collect();
    if node_ports.is_empty() {
        return Vec::new();
    }
    let frontend = random.of(&node_ports);
    let (client, own) = if frontend.ip.is_v4() {
        (world::CLIENT4, world::NODE4)
    } else {
        (world::CLIENT6, world::NODE6)
    };
    let mut client = at(client);
    client.port = Port::new(client.port.get() + random.below(8) as u16);
    let to = Endpoint::new(at(own).ip, frontend.port);
    let mut steps = Vec::new();
    let mut pass = |hook, packet: Vec<u8>| {
        let verdict = Verdict::Pass(PassReason::NotOurs);
        let step = Step { hook, from_host: false, packet, verdict, out: None };
        let out = run_here(&step, here).1;
        steps.push(step);
        out
    };
    for round in 0..ROUNDS {
        let transport = match frontend.protocol {
            Protocol::TCP if round == 0 => Transport::Tcp(tcp::SYN),
            Protocol::TCP => Transport::Tcp(tcp::ACK),
            Protocol::UDP => Transport::Udp(true),
            _ => Transport::Sctp,
        };
        let first = if random.one_in(8) { Hook::EdgeIngress } else { Hook::EdgeXdp };
        let came = pass(first, Datagram::new(client, to, transport).build());
        let mut back = pass(Hook::EdgeEgress, came);
        answer(&mut back);
        let came = pass(first, back);
        let _left: Vec<u8> = pass(Hook::EdgeEgress, came);
    }
    steps
}

fn step(random: &mut Random, seen: &[Vec<u8>]) -> Step {
    // Most flows begin on the way in.
    let inwards = [Hook::PodIngress, Hook::EdgeIngress, Hook::EdgeXdp];
    let hook = if random.one_in(2) { random.of(Hook::ALL) } else { random.of(&inwards) };
    Step {
        hook,
        from_host: random.one_in(4),
        packet: packet(random, seen),
        verdict: Verdict::Pass(PassReason::NotOurs),
        out: None,
    }
}

/// What the agent does when a frontend goes; flows that are there then must look theirs up again.
fn lose_a_frontend(random: &mut Random, tables: &mut Fake) {
    if !tables.services.is_empty() {
        let number = random.below(tables.services.len());
        let frontend = tables.services.keys().nth(number).copied();
        let _: Option<Service> = frontend.and_then(|frontend| tables.services.remove(&frontend));
    }
    // And endpoints, which datagram flows leave.
    for row in tables.backends.iter_mut().skip(1) {
        row.epoch += u32::from(random.one_in(3)) * 1_000;
    }
    tables.settings.removals += 1;
    tables.events.borrow_mut().clear();
    // The twin begins without.
    tables.fragments.borrow_mut().clear();
}

/// What was run.
#[derive(Debug, Default)]
pub struct Summary {
    /// Packets whose verdict, bytes and state were equal.
    pub equal: u64,
    /// Packets the kernel runs no program on.
    pub skipped: u64,
    /// How often each verdict was given, over all hooks, by its index.
    verdicts: BTreeMap<u32, u64>,
    events: BTreeMap<Event, u64>,
}

impl Summary {
    /// How often each verdict was given, those that were never given too.
    pub fn verdicts(&self) -> impl Iterator<Item = (Verdict, u64)> {
        let count = |verdict: Verdict| self.verdicts.get(&verdict.index()).copied().unwrap_or(0);
        Verdict::all().map(move |verdict| (verdict, count(verdict)))
    }

    /// How often each event was counted, those that were never counted too.
    pub fn events(&self) -> impl Iterator<Item = (Event, u64)> {
        let count = |event: Event| (event, self.events.get(&event).copied().unwrap_or(0));
        Event::ALL.iter().copied().map(count)
    }

    fn add(&mut self, outcome: &Outcome) {
        for (event, count) in &outcome.events {
            *self.events.entry(*event).or_default() += count;
        }
        for ended in &outcome.verdicts {
            if let Some((_, verdict)) = ended {
                self.equal += 1;
                *self.verdicts.entry(verdict.index()).or_default() += 1;
            } else {
                self.skipped += 1;
            }
        }
    }
}

/// Runs `packets` packets from `seed`; an error holds the smallest case found that still differs.
pub fn run(packets: u64, seed: u64) -> Result<Summary> {
    let mut kernels = [(6, Kernel::new(6)?), (4096, Kernel::new(4096)?)];
    let mut summary = Summary::default();
    for number in 0..packets.div_ceil(BATCH) {
        let seed = Random::new(seed.wrapping_add(number << 32)).next();
        let (capacity, kernel) = &mut kernels[usize::from(number % 4 != 0)];
        let (tables, steps) = batch(seed, *capacity);
        let outcome = compare(kernel, &tables, &steps, false)
            .with_context(|| format!("batch seed {seed}"))?;
        if outcome.difference.is_some() {
            bail!("batch seed {seed}: {}", smallest(kernel, &tables, steps)?);
        }
        summary.add(&outcome);
    }
    Ok(summary)
}

/// Leaves out every packet that is not needed to differ, and prints what is left as a fixture.
fn smallest(kernel: &mut Kernel, tables: &Fake, mut steps: Vec<Step>) -> Result<String> {
    let mut index = 0;
    while index < steps.len() {
        let mut fewer = steps.clone();
        drop(fewer.remove(index));
        if compare(kernel, tables, &fewer, true)?.difference.is_some() {
            steps = fewer;
        } else {
            index += 1;
        }
    }
    let what = compare(kernel, tables, &steps, true)?.difference.map(|difference| difference.what);
    let what = what.unwrap_or_else(|| String::from("it does not differ when run again"));
    Ok(format!("{what}\nFixture {{ tables: {tables:#?}, steps: {steps:#?} }}"))
}

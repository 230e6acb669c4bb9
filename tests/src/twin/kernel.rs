//! The programs in the kernel, with maps of their own that nothing else sees.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, RawFd};

use anyhow::{Context as _, Result};
use aya::maps::Map;
use aya::programs::{Program, SchedClassifier, Xdp};
use aya::{Ebpf, EbpfLoader};
use lb_agent::datapath::{self, PacketLog};
use lb_agent::program::Op;
use lb_common::config::SettingsPair;
use lb_common::event::{COUNTERS, Hook, Verdict, verdict_counter};
use lb_common::fake::{Fake, Step};
use lb_common::flow::{Affinity, Client, DIRECT, Flow, FlowKey, Fragment, Held, Ports};
use lb_common::service::{Frontend, Service};

use super::bpf::{self, Line, Trie};
use super::roads;
use crate::process::ensure_root;

/// What one packet came to.
#[derive(Debug)]
pub struct Run {
    /// The program's answer.
    pub code: u32,
    /// The packet afterwards.
    pub bytes: Vec<u8>,
    /// Counters that moved.
    pub counters: BTreeMap<u32, u64>,
}

/// The loaded programs.
#[derive(Debug)]
pub struct Kernel {
    ebpf: Ebpf,
    programs: Vec<RawFd>,
    maps: BTreeMap<&'static str, RawFd>,
    counters: Vec<u64>,
    loaded: Fake,
    cpus: usize,
}

/// The maps the twin reads and writes.
const MAPS: [&str; 16] = [
    "SOCKETS",
    "HELD",
    "ENDPOINTS",
    "DIRECT",
    "SERVICES",
    "SLOTS",
    "BACKENDS",
    "FLOWS",
    "AFFINITY",
    "SOURCES",
    "ADDRESSES",
    "DEVICES",
    "FRAGMENTS",
    "SETTINGS",
    "COUNTERS",
    "REJECTIONS",
];

/// Whether `BPF_PROG_TEST_RUN` may refuse a packet: nothing behind Ethernet, or, for tc in newer kernels, less
/// than the fixed header that the `EtherType` promises. Any other refusal is an error.
fn is_refused(step: &Step) -> bool {
    let header = match step.packet.get(12..14) {
        Some([0x08, 0x00]) if step.hook != Hook::EdgeXdp => 20,
        Some([0x86, 0xdd]) if step.hook != Hook::EdgeXdp => 40,
        _ => 1,
    };
    step.packet.len() < 14 + header
}

/// The program of a hook.
const fn program(hook: Hook) -> &'static str {
    hook.name()
}

fn raw(map: &Map) -> Result<RawFd> {
    let (Map::Array(data)
    | Map::HashMap(data)
    | Map::LruHashMap(data)
    | Map::LpmTrie(data)
    | Map::PerCpuArray(data)) = map
    else {
        anyhow::bail!("a kind of map the twin does not know");
    };
    Ok(data.fd().as_fd().as_raw_fd())
}

impl Kernel {
    /// Loads the product's object, the flow table with room for `flows` halves.
    pub fn new(flows: usize) -> Result<Self> {
        Self::with(datapath::object(), flows)
    }

    /// Loads an object that has the product's maps. From then on this thread is in a network namespace of its own.
    pub fn with(object: &[u8], flows: usize) -> Result<Self> {
        ensure_root()?;
        roads::enter().context("roads")?;
        let mut loader = PacketLog::Off.loader();
        let sizes = [
            ("SERVICES", 1024),
            ("SLOTS", Fake::LINES),
            ("BACKENDS", Fake::BACKENDS),
            ("AFFINITY", 8192),
            ("SOURCES", 1024),
            ("ADDRESSES", 64),
            ("DEVICES", 64),
            ("FRAGMENTS", 8192),
            ("FLOWS", flows as u32),
            ("SOCKETS", 4096),
        ];
        for (map, size) in sizes {
            let _: &mut EbpfLoader<'_> = loader.map_max_entries(map, size);
        }
        let mut ebpf = loader.load(object).context("load the object")?;
        let mut programs = Vec::new();
        for hook in Hook::ALL {
            let name = program(*hook);
            let there = ebpf.program_mut(name).with_context(|| format!("program {name}"))?;
            let fd = if *hook == Hook::EdgeXdp {
                let xdp: &mut Xdp = there.try_into()?;
                xdp.load().with_context(|| format!("load {name}"))?;
                xdp.fd()?.as_fd().as_raw_fd()
            } else {
                let tc: &mut SchedClassifier = there.try_into()?;
                tc.load().with_context(|| format!("load {name}"))?;
                tc.fd()?.as_fd().as_raw_fd()
            };
            programs.push(fd);
        }
        let mut maps = BTreeMap::new();
        for name in MAPS {
            let map = ebpf.map(name).with_context(|| format!("map {name}"))?;
            let _: Option<RawFd> = maps.insert(name, raw(map)?);
        }
        let cpus =
            aya::util::nr_cpus().map_err(|(what, error)| anyhow::anyhow!("{what}: {error}"))?;
        let counters = vec![0; COUNTERS as usize * cpus];
        Ok(Self { ebpf, programs, maps, counters, loaded: Fake::default(), cpus })
    }

    /// The object, for what else it holds.
    pub const fn ebpf(&mut self) -> &mut Ebpf {
        &mut self.ebpf
    }

    /// Every program of the object by name.
    pub fn programs(&self) -> impl Iterator<Item = (&str, &Program)> {
        self.ebpf.programs()
    }

    fn map(&self, name: &str) -> BorrowedFd<'_> {
        let fd = self.maps.get(name).copied().unwrap_or(-1);
        // SAFETY: the object that owns it lives as long as this borrow.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// The file descriptor of a hook's program.
    pub fn program(&self, hook: Hook) -> BorrowedFd<'_> {
        let fd = self.programs.get(hook as usize).copied().unwrap_or(-1);
        // SAFETY: as for `map`.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Makes the maps hold what `tables` holds, and nothing else.
    pub fn load(&mut self, tables: &Fake) -> Result<()> {
        let order: Vec<FlowKey> = tables.flows.borrow().keys().copied().collect();
        self.load_ordered(tables, &order)
    }

    /// [`Kernel::load`], the flows one after the other as named.
    pub fn load_ordered(&mut self, tables: &Fake, order: &[FlowKey]) -> Result<()> {
        self.empty()?;
        for (frontend, service) in &tables.services {
            bpf::put(self.map("SERVICES"), frontend, service)?;
        }
        for (index, line) in (0_u32..).zip(&tables.lines) {
            bpf::put(self.map("SLOTS"), &index, &Line(*line))?;
        }
        for (index, row) in (0_u32..).zip(&tables.backends) {
            bpf::put(self.map("BACKENDS"), &index, row)?;
        }
        for (word, bits) in words(&tables.endpoints) {
            bpf::put(self.map("ENDPOINTS"), &word, &bits)?;
        }
        let (then, now) = (tables.clock.get(), bpf::now());
        for (fragment, ports) in &mut *tables.fragments.borrow_mut() {
            let age = Ports::time(then).wrapping_sub(ports.written);
            ports.written = Ports::time(now).wrapping_sub(age);
            bpf::put(self.map("FRAGMENTS"), fragment, ports)?;
        }
        for (key, held) in &*tables.held.borrow() {
            bpf::put(self.map("HELD"), key, held)?;
        }
        for (index, hash) in &*tables.direct.borrow() {
            bpf::put(self.map("DIRECT"), index, hash)?;
        }
        for source in &tables.sources {
            bpf::put(self.map("SOURCES"), &trie(source), &1_u32)?;
        }
        for (ip, bits) in &tables.addresses {
            bpf::put(self.map("ADDRESSES"), ip, bits)?;
        }
        for (index, device) in &tables.devices {
            bpf::put(self.map("DEVICES"), index, device)?;
        }
        let there: SettingsPair = bpf::get(self.map("SETTINGS"), &0_u32)?;
        for pair in there.replaced(tables.settings) {
            bpf::put(self.map("SETTINGS"), &0_u32, &pair)?;
        }
        // The tables may have been made long ago or before: their times move to the kernel's clock.
        let moved = |seen: u64| seen.wrapping_sub(tables.clock.get()).wrapping_add(bpf::now());
        let mut flows = tables.flows.borrow_mut();
        flows.values_mut().for_each(|flow| flow.seen = moved(flow.seen));
        for key in order {
            let flow = flows.get(key).context("a flow that is not there")?;
            bpf::put(self.map("FLOWS"), key, flow).context("FLOWS")?;
        }
        drop(flows);
        for (key, value) in &mut *tables.affinity.borrow_mut() {
            value.seen = moved(value.seen);
            bpf::put(self.map("AFFINITY"), key, value)?;
        }
        let granted = if tables.rejects.get() { 0 } else { u64::MAX };
        self.put_each_cpu("REJECTIONS", granted)?;
        self.loaded = tables.clone();
        Ok(())
    }

    /// Lets the next rejection of each CPU through, whatever went before.
    pub fn grant_rejections(&self) -> Result<()> {
        self.put_each_cpu("REJECTIONS", 0)
    }

    /// Does what the agent would do, but for the settings, which are those of [`Kernel::load`].
    pub fn apply(&self, op: &Op) -> Result<()> {
        match op {
            Op::PutSettings(_) | Op::ForgetClients { .. } => {}
            Op::PutBackend { id, row } => bpf::put(self.map("BACKENDS"), id, row)?,
            Op::WriteLines { line, lines } => {
                for (index, line) in (*line..).zip(lines) {
                    bpf::put(self.map("SLOTS"), &index, &Line(*line))?;
                }
            }
            Op::PutSource { bits, source } => {
                bpf::put(self.map("SOURCES"), &trie(&(*bits, *source)), &1_u32)?;
            }
            Op::RemoveSource { bits, source } => {
                bpf::remove(self.map("SOURCES"), &trie(&(*bits, *source)));
            }
            Op::PutService { frontend, service } => {
                bpf::put(self.map("SERVICES"), frontend, service)?;
            }
            Op::RemoveService { frontend } => bpf::remove(self.map("SERVICES"), frontend),
        }
        Ok(())
    }

    fn put_each_cpu(&self, map: &str, value: u64) -> Result<()> {
        // One value for each CPU: written as pairs, which are as many as there are CPUs or more.
        let values = vec![value; self.cpus];
        bpf::put_values(self.map(map), 0, &values).context("per-CPU map")
    }

    fn empty(&self) -> Result<()> {
        let _gone: Vec<(Frontend, Service)> = bpf::entries(self.map("SERVICES"), true)?;
        let _gone: Vec<(lb_common::addr::Ip, u32)> = bpf::entries(self.map("ADDRESSES"), true)?;
        let _gone: Vec<(u32, lb_common::config::Device)> = bpf::entries(self.map("DEVICES"), true)?;
        let _gone: Vec<(FlowKey, Flow)> = bpf::entries(self.map("FLOWS"), true)?;
        let _gone: Vec<(Client, Affinity)> = bpf::entries(self.map("AFFINITY"), true)?;
        let _gone: Vec<(Fragment, Ports)> = bpf::entries(self.map("FRAGMENTS"), true)?;
        for word in words(&self.loaded.endpoints).into_keys() {
            bpf::put(self.map("ENDPOINTS"), &word, &0_u64)?;
        }
        let _gone: Vec<(u32, Held)> = bpf::entries(self.map("HELD"), true)?;
        for index in self.direct()?.into_keys() {
            bpf::put(self.map("DIRECT"), &index, &0_u64)?;
        }
        for source in &self.loaded.sources {
            bpf::remove(self.map("SOURCES"), &trie(source));
        }
        for index in (0_u32..).take(self.loaded.lines.len()) {
            bpf::put(self.map("SLOTS"), &index, &Line::default())?;
        }
        for index in (0_u32..).take(self.loaded.backends.len()) {
            bpf::put(self.map("BACKENDS"), &index, &lb_common::service::Backend::default())?;
        }
        Ok(())
    }

    /// Runs one packet. Nothing if the kernel makes no packet of it, see `is_refused`.
    pub fn run(&mut self, step: &Step) -> Result<Option<Run>> {
        let mut out = vec![0; step.packet.len() + 256];
        let mut context = bpf::Context::default();
        // `ingress_ifindex`: 0 for what this host made.
        context.0[9] = u32::from(!step.from_host);
        let context = (step.hook != Hook::EdgeXdp).then_some(&context);
        let before = std::mem::take(&mut self.counters);
        let ran = bpf::test_run(self.program(step.hook), &step.packet, &mut out, context, 1);
        let mut after = vec![0; before.len()];
        bpf::array(self.map("COUNTERS"), COUNTERS, &mut after)?;
        let moved = |cpus: &[u64]| cpus.iter().sum::<u64>();
        let pairs = after.chunks(self.cpus).zip(before.chunks(self.cpus));
        let counters =
            (0..).zip(pairs).map(|(index, (now, then))| (index, moved(now) - moved(then)));
        let counters = counters.filter(|(_, count)| *count > 0).collect();
        self.counters = after;
        match ran {
            Ok(ran) => {
                out.truncate(ran.length);
                // A test run hands out what lies in front of the packet too.
                if step.hook == Hook::EdgeXdp && out.starts_with(b"lbXD") {
                    drop(out.drain(..4));
                }
                Ok(Some(Run { code: ran.code, bytes: out, counters }))
            }
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && is_refused(step) => {
                Ok(None)
            }
            Err(error) => Err(error).with_context(|| format!("BPF_PROG_TEST_RUN of {step:02x?}")),
        }
    }

    /// How many packets ended at a hook with a verdict, since the object was loaded.
    pub fn counted(&self, hook: Hook, verdict: Verdict) -> Result<u64> {
        let mut counters = vec![0; COUNTERS as usize * self.cpus];
        bpf::array(self.map("COUNTERS"), COUNTERS, &mut counters)?;
        let own = counters.chunks(self.cpus).nth(verdict_counter(hook, verdict) as usize);
        Ok(own.into_iter().flatten().sum())
    }

    /// The map `SOCKETS`, which no packet changes.
    pub fn sockets(&self) -> BorrowedFd<'_> {
        self.map("SOCKETS")
    }

    /// `FLOWS` as it is.
    pub fn flows(&self) -> Result<BTreeMap<FlowKey, Flow>> {
        Ok(bpf::entries(self.map("FLOWS"), false)?.into_iter().collect())
    }

    /// `AFFINITY` as it is.
    pub fn affinity(&self) -> Result<BTreeMap<Client, Affinity>> {
        Ok(bpf::entries(self.map("AFFINITY"), false)?.into_iter().collect())
    }

    /// `HELD` as it is.
    pub fn held(&self) -> Result<BTreeMap<u32, Held>> {
        let all: Vec<(u32, Held)> = bpf::entries(self.map("HELD"), false)?;
        // What lies behind a packet is left over from another.
        let clean = |(key, mut held): (u32, Held)| {
            held.bytes.iter_mut().skip(held.length as usize).for_each(|byte| *byte = 0);
            (key, held)
        };
        Ok(all.into_iter().map(clean).collect())
    }

    /// The elements of `DIRECT` that are not 0.
    pub fn direct(&self) -> Result<BTreeMap<u32, u64>> {
        let mut hashes = vec![0; DIRECT as usize];
        bpf::array(self.map("DIRECT"), DIRECT, &mut hashes)?;
        Ok((0..).zip(hashes).filter(|(_, hash)| *hash != 0).collect())
    }

    /// `FRAGMENTS` as it is.
    pub fn fragments(&self) -> Result<BTreeMap<Fragment, Ports>> {
        Ok(bpf::entries(self.map("FRAGMENTS"), false)?.into_iter().collect())
    }
}

/// Bits as the words of an array hold them.
fn words(bits: &BTreeSet<u32>) -> BTreeMap<u32, u64> {
    let mut words = BTreeMap::new();
    for bit in bits {
        *words.entry(bit / 64).or_default() |= 1 << (bit % 64);
    }
    words
}

const fn trie((bits, source): &(u32, lb_common::service::Source)) -> Trie {
    let [a, b, c, d] = source.ip.words();
    Trie { bits: *bits, key: [source.service, a, b, c, d, 0] }
}

//! The programs in the kernel, with maps of their own that nothing else sees.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, RawFd};

use anyhow::{Context as _, Result};
use aya::maps::Map;
use aya::programs::{Program, SchedClassifier, Xdp};
use aya::{Ebpf, EbpfLoader};
use lb_agent::datapath::{self, PacketLog};
use lb_common::event::{COUNTERS, Hook, Verdict, verdict_counter};
use lb_common::fake::{Fake, Step};
use lb_common::flow::{
    Affinity, Client, DIRECT, Flow, Flow4, FlowKey, FlowKey4, Fragment, Held, Ports,
};

use super::bpf;
use super::roads;
use crate::process::ensure_root;

mod tables;

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
const MAPS: [&str; 17] = [
    "SOCKETS",
    "HELD",
    "ENDPOINTS",
    "DIRECT",
    "SERVICES",
    "SLOTS",
    "BACKENDS",
    "FLOWS6",
    "FLOWS4",
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

/// What is told of a packet.
fn context(step: &Step) -> bpf::Context {
    let mut context = bpf::Context::default();
    // `ingress_ifindex`: 0 for what this host made.
    context.0[9] = u32::from(!step.from_host);
    context
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
            ("FLOWS6", flows as u32),
            ("FLOWS4", flows as u32),
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

    /// Runs one packet. Nothing if the kernel makes no packet of it, see `is_refused`.
    pub fn run(&mut self, step: &Step) -> Result<Option<Run>> {
        let mut out = vec![0; step.packet.len() + 256];
        let context = context(step);
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

    /// Whether the kernel tells what becomes of sums: from Linux 6.11 on.
    pub fn tells_sums(&self) -> bool {
        // Of an IPv4 packet that is nobody's.
        let mut packet = [0; 64];
        packet[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
        bpf::sum_stays_right(self.program(Hook::PodEgress), &packet, &bpf::Context::default())
            .is_ok()
    }

    /// Runs one packet that is no frame, and says whether the sum that its device made of it stays right. Nothing if the
    /// kernel makes no packet of it, see `is_refused`.
    pub fn sum_stays_right(&self, step: &Step) -> Result<Option<bool>> {
        match bpf::sum_stays_right(self.program(step.hook), &step.packet, &context(step)) {
            Ok(is_right) => Ok(Some(is_right)),
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

    /// `FLOWS6` and `FLOWS4` as they are.
    pub fn flows(&self) -> Result<BTreeMap<FlowKey, Flow>> {
        let v4: Vec<(FlowKey4, Flow4)> = bpf::entries(self.map("FLOWS4"), false)?;
        let others: Vec<(FlowKey, Flow)> = bpf::entries(self.map("FLOWS6"), false)?;
        let v4 = v4.into_iter().map(|(key, flow)| (key.whole(), flow.whole()));
        Ok(v4.chain(others).collect())
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

//! The programs in the kernel, with maps that no other program uses.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};

use anyhow::{Context as _, Result};
use aya::Ebpf;
use aya::maps::Map;
use aya::programs::{Program, SchedClassifier, Xdp};
use lb_agent::datapath::{self, PacketLog};
use lb_agent::maps::{MapShape, SHAPES};
use lb_common::event::{COUNTERS, Hook, Verdict, verdict_counter};
use lb_common::fake::{Fake, Step};
use lb_common::flow::{
    Affinity, Client, DIRECT_SEEN, Flow, Flow4, FlowKey, FlowKey4, Fragment, Held, Ports,
};
use lb_common::hash::BACKEND_LINES;
use lb_common::service::Line;

use socket2::Socket;

use super::bpf;
use super::routes;
use crate::process::ensure_root;

mod tables;

/// The result of one packet.
#[derive(Debug)]
pub struct Run {
    /// The return code of the program.
    pub code: u32,
    /// The packet after the run.
    pub bytes: Vec<u8>,
    /// The counters that changed, with the differences.
    pub counters: BTreeMap<u32, u64>,
}

/// The loaded programs and their maps.
#[derive(Debug)]
pub struct Kernel {
    ebpf: Ebpf,
    programs: Vec<RawFd>,
    maps: BTreeMap<&'static str, RawFd>,
    counters: Vec<u64>,
    loaded: Fake,
    cpus: usize,
    jiffies: OwnedFd,
    /// The sockets of the tables that are loaded.
    sockets: Vec<Socket>,
}

/// The binary logarithm of the number of jiffies in a tick.
const TICK: u32 = 7;
/// The smallest capacity of each transient flow table: far more entries than a test makes, so that none is displaced.
const TRANSIENT: u32 = 8192;

/// Whether `BPF_PROG_TEST_RUN` may refuse a packet: one without bytes after the Ethernet header, or, for tc in newer
/// kernels, one shorter than the fixed header that its `EtherType` names. Any other refusal is an error.
fn is_refused(step: &Step) -> bool {
    let header = match step.packet.get(12..14) {
        Some([0x08, 0x00]) if step.hook != Hook::ExternalXdp => 20,
        Some([0x86, 0xdd]) if step.hook != Hook::ExternalXdp => 40,
        _ => 1,
    };
    step.packet.len() < 14 + header
}

/// The `__sk_buff` context for a packet.
fn context(step: &Step) -> bpf::Context {
    let mut context = bpf::Context::default();
    // `ingress_ifindex`: 0 for a packet that this host sends.
    context.0[9] = u32::from(!step.from_host);
    context
}

/// The program at the ingress of interfaces without a link-layer header.
const L3_INGRESS: &str = "l3_ingress";

/// The name of the program at a hook.
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
        anyhow::bail!("unknown kind of map");
    };
    Ok(data.fd().as_fd().as_raw_fd())
}

/// Loads all programs for packets, and connects them; returns those of the hooks.
fn load_programs(ebpf: &mut Ebpf) -> Result<Vec<RawFd>> {
    let mut programs = Vec::new();
    for hook in Hook::ALL {
        let name = program(*hook);
        let there = ebpf.program_mut(name).with_context(|| format!("program {name}"))?;
        let fd = if *hook == Hook::ExternalXdp {
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
    let others = datapath::PATHS.iter().map(|(_, name)| *name).chain([L3_INGRESS]);
    for name in others {
        let path: &mut SchedClassifier =
            ebpf.program_mut(name).with_context(|| format!("program {name}"))?.try_into()?;
        path.load().with_context(|| format!("load {name}"))?;
    }
    datapath::connect_paths(ebpf)?;
    for (_, name) in datapath::XDP_PATHS {
        let path: &mut Xdp =
            ebpf.program_mut(name).with_context(|| format!("program {name}"))?.try_into()?;
        path.load().with_context(|| format!("load {name}"))?;
    }
    datapath::connect_xdp_paths(ebpf)?;
    Ok(programs)
}

impl Kernel {
    /// Loads the agent's object, with flow tables for `flows` entries.
    pub fn new(flows: usize) -> Result<Self> {
        Self::with(datapath::object(), flows)
    }

    /// Loads an object with the same maps as the agent's. From then on this thread is in a network namespace of its
    /// own.
    pub fn with(object: &[u8], flows: usize) -> Result<Self> {
        ensure_root()?;
        routes::enter().context("routes")?;
        let mut loader = PacketLog::Off.loader();
        let sizes = [
            ("SERVICES", 1024),
            ("MAGLEV", Fake::LINES),
            ("BACKENDS", Fake::BACKENDS),
            ("AFFINITY", 8192),
            ("SOURCE_RANGES", 1024),
            ("ADDRESSES", 64),
            ("DEVICES", 64),
            ("INHERITED", 1024),
            ("FRAGMENTS", 8192),
            ("FLOWS6", flows as u32),
            ("FLOWS4", flows as u32),
            ("TRANSIENT6", TRANSIENT.max(flows as u32)),
            ("TRANSIENT4", TRANSIENT.max(flows as u32)),
        ];
        for (map, size) in sizes {
            loader.map_max_entries(map, size);
        }
        let mut ebpf = loader.load(object).context("load the object")?;
        let programs = load_programs(&mut ebpf)?;
        let mut maps = BTreeMap::new();
        for MapShape { name, .. } in SHAPES {
            let map = ebpf.map(name).with_context(|| format!("map {name}"))?;
            maps.insert(name, raw(map)?);
        }
        let cpus =
            aya::util::nr_cpus().map_err(|(what, error)| anyhow::anyhow!("{what}: {error}"))?;
        let counters = vec![0; COUNTERS as usize * cpus];
        let jiffies = bpf::load_jiffies().context("a program that says jiffies")?;
        Ok(Self {
            ebpf,
            programs,
            maps,
            counters,
            loaded: Fake::default(),
            cpus,
            jiffies,
            sockets: Vec::new(),
        })
    }

    /// The loaded object, for its other programs.
    pub const fn ebpf(&mut self) -> &mut Ebpf {
        &mut self.ebpf
    }

    /// All programs of the object, by name.
    pub fn programs(&self) -> impl Iterator<Item = (&str, &Program)> {
        self.ebpf.programs()
    }

    fn map(&self, name: &str) -> BorrowedFd<'_> {
        let fd = self.maps.get(name).copied().unwrap_or(-1);
        // SAFETY: the object that owns it lives as long as this borrow.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Runs packets from outside by the program of interfaces without a link-layer header, which some of them give to a
    /// packet with the header of its outer one.
    pub fn take_behind_outer_headers(&mut self) -> Result<()> {
        let program = self.ebpf.program(L3_INGRESS).context("no program")?;
        let fd = <&SchedClassifier>::try_from(program)?.fd()?.as_fd().as_raw_fd();
        let place = self.programs.get_mut(Hook::ExternalIngress as usize).context("no hook")?;
        *place = fd;
        Ok(())
    }

    /// The file descriptor of a hook's program.
    pub fn program(&self, hook: Hook) -> BorrowedFd<'_> {
        let fd = self.programs.get(hook as usize).copied().unwrap_or(-1);
        // SAFETY: as for `map`.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Runs one packet; `None` if the kernel refuses it, see `is_refused`.
    pub fn run(&mut self, step: &Step) -> Result<Option<Run>> {
        let mut out = vec![0; step.packet.len() + 256];
        let context = context(step);
        let context = (step.hook != Hook::ExternalXdp).then_some(&context);
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
                Ok(Some(Run { code: ran.code, bytes: out, counters }))
            }
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && is_refused(step) => {
                Ok(None)
            }
            Err(error) => Err(error).with_context(|| format!("BPF_PROG_TEST_RUN of {step:02x?}")),
        }
    }

    /// [`lb_common::tables::Tables::tick`] as the programs see it.
    pub fn tick(&self) -> Result<u16> {
        Ok((bpf::jiffies(self.jiffies.as_fd())? >> TICK) as u16)
    }

    /// Waits until the current tick lasts longer than a packet takes, and returns it.
    pub fn fresh_tick(&self) -> Result<u16> {
        /// The last jiffies of a tick, during which no packet starts.
        const LAST: u32 = 2;
        loop {
            let jiffies = bpf::jiffies(self.jiffies.as_fd())?;
            if jiffies % (1 << TICK) < (1 << TICK) - LAST {
                return Ok((jiffies >> TICK) as u16);
            }
            std::thread::yield_now();
        }
    }

    /// Whether the kernel reports the checksum after a run: from Linux 6.11 on.
    pub fn reports_checksums(&self) -> bool {
        // An IPv4 packet for no Service.
        let mut packet = [0; 64];
        packet[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
        bpf::sum_stays_right(self.program(Hook::PodEgress), &packet, &bpf::Context::default())
            .is_ok()
    }

    /// Runs one packet with `CHECKSUM_COMPLETE`, and returns whether that checksum stays right; `None` if the kernel
    /// refuses the packet, see `is_refused`.
    pub fn sum_stays_right(&self, step: &Step) -> Result<Option<bool>> {
        match bpf::sum_stays_right(self.program(step.hook), &step.packet, &context(step)) {
            Ok(is_right) => Ok(Some(is_right)),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && is_refused(step) => {
                Ok(None)
            }
            Err(error) => Err(error).with_context(|| format!("BPF_PROG_TEST_RUN of {step:02x?}")),
        }
    }

    /// The number of packets with a verdict at a hook since the object was loaded.
    pub fn counted(&self, hook: Hook, verdict: Verdict) -> Result<u64> {
        let mut counters = vec![0; COUNTERS as usize * self.cpus];
        bpf::array(self.map("COUNTERS"), COUNTERS, &mut counters)?;
        let own = counters.chunks(self.cpus).nth(verdict_counter(hook, verdict) as usize);
        Ok(own.into_iter().flatten().sum())
    }

    /// The content of a pair of flow tables: `FLOWS6` and `FLOWS4`, or the transient ones.
    fn table(&self, v6: &str, v4: &str) -> Result<BTreeMap<FlowKey, Flow>> {
        let v4: Vec<(FlowKey4, Flow4)> = bpf::entries(self.map(v4), false)?;
        let others: Vec<(FlowKey, Flow)> = bpf::entries(self.map(v6), false)?;
        let v4 = v4.into_iter().map(|(key, flow)| (key.whole(), flow.whole()));
        Ok(v4.chain(others).collect())
    }

    /// The content of `FLOWS6` and `FLOWS4`.
    pub fn flows(&self) -> Result<BTreeMap<FlowKey, Flow>> {
        self.table("FLOWS6", "FLOWS4")
    }

    /// The content of `TRANSIENT6` and `TRANSIENT4`.
    pub fn transient(&self) -> Result<BTreeMap<FlowKey, Flow>> {
        self.table("TRANSIENT6", "TRANSIENT4")
    }

    /// The bytes of `IN_USE` that are not zero, by line and index.
    pub fn in_use(&self) -> Result<BTreeSet<(u32, usize)>> {
        const WORDS: usize = size_of::<Line>() / size_of::<u64>();
        let mut lines = vec![[0_u64; WORDS]; BACKEND_LINES as usize];
        bpf::array(self.map("IN_USE"), BACKEND_LINES, lines.as_flattened_mut())?;
        // Nearly all lines are empty, and this runs for each packet of each fixture.
        let used = (0..).zip(&lines).filter(|(_, line)| **line != [0; WORDS]);
        let bytes = |(index, line): (u32, &[u64; WORDS])| {
            let bytes = line.iter().flat_map(|word| word.to_ne_bytes());
            let set = (0..).zip(bytes).filter(|(_, byte)| *byte != 0);
            set.map(|(at, _)| (index, at)).collect::<Vec<_>>()
        };
        Ok(used.flat_map(bytes).collect())
    }

    /// The content of `AFFINITY`.
    pub fn affinity(&self) -> Result<BTreeMap<Client, Affinity>> {
        Ok(bpf::entries(self.map("AFFINITY"), false)?.into_iter().collect())
    }

    /// The content of `HELD_FRAGMENTS`.
    pub fn held(&self) -> Result<BTreeMap<Fragment, Held>> {
        let all: Vec<(Fragment, Held)> = bpf::entries(self.map("HELD_FRAGMENTS"), false)?;
        // The bytes after a held packet are left over from an earlier one.
        let clean = |(key, mut held): (Fragment, Held)| {
            held.bytes.iter_mut().skip(held.length as usize).for_each(|byte| *byte = 0);
            (key, held)
        };
        Ok(all.into_iter().map(clean).collect())
    }

    /// The nonzero elements of `DIRECT_SEEN`.
    pub fn direct(&self) -> Result<BTreeMap<u32, u64>> {
        let mut hashes = vec![0; DIRECT_SEEN as usize];
        bpf::array(self.map("DIRECT_SEEN"), DIRECT_SEEN, &mut hashes)?;
        Ok((0..).zip(hashes).filter(|(_, hash)| *hash != 0).collect())
    }

    /// The keys of `OWN_ANSWERS`.
    pub fn own_answers(&self) -> Result<BTreeSet<u64>> {
        let all: Vec<(u64, u32)> = bpf::entries(self.map("OWN_ANSWERS"), false)?;
        Ok(all.into_iter().map(|(hash, _)| hash).collect())
    }

    /// The content of `FRAGMENTS`.
    pub fn fragments(&self) -> Result<BTreeMap<Fragment, Ports>> {
        Ok(bpf::entries(self.map("FRAGMENTS"), false)?.into_iter().collect())
    }
}

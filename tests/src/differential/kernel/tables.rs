//! The tables of a node, written into the maps of the kernel.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use lb_agent::reconcile::Op;
use lb_common::config::SettingsPair;
use lb_common::fake::Fake;
use lb_common::flow::{Flow, Flow4, FlowKey, FlowKey4, Ports};
use lb_common::hash::REJECT_LIMIT;

use super::Kernel;
use crate::differential::bpf::{self, Line, Trie};
use crate::differential::sockets;

impl Kernel {
    /// Makes the maps hold exactly the content of `tables`.
    pub fn load(&mut self, tables: &Fake) -> Result<()> {
        let order: Vec<FlowKey> = tables.flows.borrow().keys().copied().collect();
        self.load_ordered(tables, &order)
    }

    /// As [`Kernel::load`], with the flows inserted in the given order.
    pub fn load_ordered(&mut self, tables: &Fake, order: &[FlowKey]) -> Result<()> {
        self.empty()?;
        for (frontend, service) in &tables.services {
            bpf::put(self.map("SERVICES"), frontend, service)?;
        }
        for (index, line) in (0_u32..).zip(&tables.lines) {
            bpf::put(self.map("MAGLEV"), &index, &Line(*line))?;
        }
        for (index, row) in (0_u32..).zip(&tables.backends) {
            bpf::put(self.map("BACKENDS"), &index, row)?;
        }
        for (word, bits) in words(&tables.endpoints) {
            bpf::put(self.map("BACKEND_FILTER"), &word, &bits)?;
        }
        let (then, now) = (tables.clock.get(), bpf::now());
        for (fragment, ports) in &mut *tables.fragments.borrow_mut() {
            let age = Ports::time(then).wrapping_sub(ports.written);
            ports.written = Ports::time(now).wrapping_sub(age);
            bpf::put(self.map("FRAGMENTS"), fragment, ports)?;
        }
        for (key, held) in &*tables.held.borrow() {
            bpf::put(self.map("HELD_FRAGMENTS"), key, held)?;
        }
        for (index, hash) in &*tables.direct.borrow() {
            bpf::put(self.map("DIRECT_SEEN"), index, hash)?;
        }
        for (hash, moment) in &mut *tables.own_answers.borrow_mut() {
            let age = Flow::moment(then).wrapping_sub(*moment);
            *moment = Flow::moment(now).wrapping_sub(age);
            bpf::put(self.map("OWN_ANSWERS"), hash, moment)?;
        }
        for hash in &tables.inherited {
            bpf::put(self.map("INHERITED"), hash, &1_u32)?;
        }
        for source in &tables.sources {
            bpf::put(self.map("SOURCE_RANGES"), &trie(source), &1_u32)?;
        }
        for (ip, bits) in &tables.addresses {
            bpf::put(self.map("ADDRESSES"), ip, bits)?;
        }
        for (index, device) in &tables.devices {
            bpf::put(self.map("DEVICES"), index, device)?;
        }
        let there: SettingsPair = bpf::get(self.map("SETTINGS"), &0_u32)?;
        for pair in there.replaced(*tables.settings) {
            bpf::put(self.map("SETTINGS"), &0_u32, &pair)?;
        }
        self.sockets.clear();
        for (protocol, tuple) in &tables.sockets {
            self.sockets.push(sockets::open(*protocol, tuple)?);
        }
        for (protocol, own) in &tables.waiting {
            self.sockets.push(sockets::wait(*protocol, own)?);
        }
        self.load_remembered(tables, order)?;
        let granted = if tables.rejects.get() { 0 } else { u64::MAX };
        self.put_rejections(granted)?;
        self.loaded = tables.clone();
        Ok(())
    }

    /// Loads flows and affinity. Their times are moved to the kernel's clock, with the same age.
    fn load_remembered(&self, tables: &Fake, order: &[FlowKey]) -> Result<()> {
        let moved = |seen: u64| seen.wrapping_sub(tables.clock.get()).wrapping_add(bpf::now());
        let moment = |of: u32| Flow::moment(moved(u64::from(of) << Flow::MOMENT_BITS));
        let note = |of: u16| Flow::note(moved(u64::from(of) << Flow::NOTE_BITS));
        for table in [&tables.flows, &tables.transient] {
            for flow in table.borrow_mut().values_mut() {
                flow.seen = moved(flow.seen);
                flow.begun = moment(flow.begun);
                if flow.noted != 0 {
                    flow.noted = note(flow.noted);
                }
            }
        }
        let flows = tables.flows.borrow();
        for key in order {
            let flow = flows.get(key).context("a flow that is not in the tables")?;
            self.put_flow(["FLOWS4", "FLOWS6"], key, flow)?;
        }
        for (key, flow) in &*tables.transient.borrow() {
            self.put_flow(["TRANSIENT4", "TRANSIENT6"], key, flow)?;
        }
        for (line, bytes) in lines(&tables.in_use.borrow()) {
            bpf::put(self.map("IN_USE"), &line, &bytes)?;
        }
        for (key, value) in &mut *tables.affinity.borrow_mut() {
            value.seen = moved(value.seen);
            bpf::put(self.map("AFFINITY"), key, value)?;
        }
        Ok(())
    }

    fn put_flow(&self, [v4, v6]: [&'static str; 2], key: &FlowKey, flow: &Flow) -> Result<()> {
        if key.is_v4() {
            bpf::put(self.map(v4), &FlowKey4::of(key), &Flow4::of(flow)).context(v4)
        } else {
            bpf::put(self.map(v6), key, flow).context(v6)
        }
    }

    /// Resets the limit of rejections, so that the next rejection of each CPU is allowed.
    pub fn grant_rejections(&self) -> Result<()> {
        self.put_rejections(0)
    }

    /// Applies an operation as the agent would, except for settings, which stay those of [`Kernel::load`].
    pub fn apply(&self, op: &Op) -> Result<()> {
        match op {
            Op::PutSettings(_) | Op::ForgetClients { .. } => {}
            Op::PutBackend { id, row } => bpf::put(self.map("BACKENDS"), id, row)?,
            Op::WriteLines { line, lines } => {
                for (index, line) in (*line..).zip(lines) {
                    bpf::put(self.map("MAGLEV"), &index, &Line(*line))?;
                }
            }
            Op::PutSource { bits, source } => {
                bpf::put(self.map("SOURCE_RANGES"), &trie(&(*bits, *source)), &1_u32)?;
            }
            Op::RemoveSource { bits, source } => {
                bpf::remove(self.map("SOURCE_RANGES"), &trie(&(*bits, *source)));
            }
            Op::PutService { frontend, service } => {
                bpf::put(self.map("SERVICES"), frontend, service)?;
            }
            Op::RemoveService { frontend } => bpf::remove(self.map("SERVICES"), frontend),
        }
        Ok(())
    }

    fn put_rejections(&self, value: u64) -> Result<()> {
        // One value for each CPU; they are written in pairs, of which there are as many as CPUs or more.
        let values = vec![value; self.cpus];
        (0..REJECT_LIMIT).try_for_each(|bucket| {
            bpf::put_values(self.map("REJECT_LIMIT"), bucket, &values).context("per-CPU map")
        })
    }

    fn empty(&self) -> Result<()> {
        self.empty_hashes()?;
        for (line, _) in self.in_use()? {
            bpf::put(self.map("IN_USE"), &line, &Line::default())?;
        }
        for word in words(&self.loaded.endpoints).into_keys() {
            bpf::put(self.map("BACKEND_FILTER"), &word, &0_u64)?;
        }
        for index in self.direct()?.into_keys() {
            bpf::put(self.map("DIRECT_SEEN"), &index, &0_u64)?;
        }
        for source in &self.loaded.sources {
            bpf::remove(self.map("SOURCE_RANGES"), &trie(source));
        }
        for index in (0_u32..).take(self.loaded.lines.len()) {
            bpf::put(self.map("MAGLEV"), &index, &Line::default())?;
        }
        for index in (0_u32..).take(self.loaded.backends.len()) {
            bpf::put(self.map("BACKENDS"), &index, &lb_common::service::Backend::default())?;
        }
        Ok(())
    }
}

macro_rules! empty {
    (Hash, $map:expr, $key:ty, $value:ty) => {
        let _gone: Vec<($key, $value)> = bpf::entries($map, true)?;
    };
    (LruHash, $map:expr, $key:ty, $value:ty) => {
        empty!(Hash, $map, $key, $value);
    };
    ($kind:ident, $map:expr, $key:ty, $value:ty) => {};
}

macro_rules! hashes {
    ($($name:ident($field:ident): $kind:ident<$key:ty, $value:ty>, $entries:expr,
        $content:ident by $author:ident, $holds:literal;)*) => {
        impl Kernel {
            /// Removes every entry of the hash maps.
            fn empty_hashes(&self) -> Result<()> {
                $(empty!($kind, self.map(stringify!($name)), $key, $value);)*
                Ok(())
            }
        }
    };
}

lb_common::maps!(hashes);

/// A set of bits as 64-bit words of an array map, by index.
fn words(bits: &BTreeSet<u32>) -> BTreeMap<u32, u64> {
    let mut words = BTreeMap::new();
    for bit in bits {
        *words.entry(bit / 64).or_default() |= 1 << (bit % 64);
    }
    words
}

/// A set of bytes as lines of an array map, by index.
fn lines(bytes: &BTreeSet<(u32, usize)>) -> BTreeMap<u32, Line> {
    let mut lines = BTreeMap::<u32, Line>::new();
    for (line, at) in bytes {
        if let Some(byte) = lines.entry(*line).or_default().0.get_mut(*at) {
            *byte = 1;
        }
    }
    lines
}

const fn trie((bits, source): &(u32, lb_common::service::Source)) -> Trie {
    let [a, b, c, d] = source.ip.words();
    Trie { bits: *bits, key: [source.service, a, b, c, d, 0] }
}

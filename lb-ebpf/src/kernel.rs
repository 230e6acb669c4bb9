//! The tables of the data path, over the maps and the helpers of the kernel.

use aya_ebpf::btf_maps::lpm_trie::Key;
use aya_ebpf::helpers::generated::{bpf_jiffies64, bpf_ktime_get_coarse_ns};
use lb_common::addr::{Ip, Port};
use lb_common::config::{Device, Settings, SettingsPair};
use lb_common::event::{Event, event_counter};
use lb_common::flow::{
    Affinity, Client, DIRECT_SEEN as DIRECTS, Flow, FlowKey, Fragment, Held, Ports,
};
use lb_common::forward::Scratch;
use lb_common::hash;
use lb_common::service::{Backend, BackendId, Frontend, Service, Source};
use lb_common::tables::{Added, Clock, Filters, Flows, Fragments, Node, Services, Touch};

use crate::flows;
use crate::maps::{
    ADDRESSES, AFFINITY, BACKEND_FILTER, BACKENDS, COUNTERS, DEVICES, DIRECT_SEEN, FRAGMENTS,
    HELD_FRAGMENTS, HELD_SCRATCH, IN_USE, INHERITED, MAGLEV, OWN_ANSWERS, REJECT_LIMIT, SCRATCH,
    SERVICES, SETTINGS, SOURCE_RANGES,
};

/// Nanoseconds between rejections in the long run (1,000 a second and CPU).
const REJECTION: u64 = 1_000_000;
/// Nanoseconds by which a burst may run ahead (500 rejections).
const REJECTION_BURST: u64 = 500 * REJECTION;

/// The kernel as an implementation of [`lb_common::tables::Tables`].
pub(crate) struct Kernel;

/// Adds one to a counter of this CPU.
#[inline(always)]
pub(crate) fn add_one(index: u32) {
    if let Some(counter) = COUNTERS.get_ptr_mut(index) {
        // SAFETY: an aligned word of this CPU. Packets' programs do not interrupt each other; where one, or
        // another process, interrupts a socket call just here, one of two events is not counted.
        unsafe { *counter += 1 };
    }
}

/// Counts a refused flow entry if the kernel had no memory for it; a full table is another error and not counted here.
#[inline(always)]
fn count_refusal(error: i32) {
    if error == flows::NO_MEMORY {
        add_one(event_counter(Event::FlowNoMemory));
    }
}

/// The working memory of this CPU for packets.
#[inline(always)]
pub(crate) fn scratch() -> Option<&'static mut Scratch> {
    let scratch = SCRATCH.get_ptr_mut(0)?;
    // SAFETY: the element is this CPU's own; programs for packets run with softirqs off, one at a time, and each takes
    // it once.
    Some(unsafe { &mut *scratch })
}

/// Copies a value out of a hash map.
macro_rules! copy {
    ($map:ident, $key:expr) => {{
        // SAFETY: memory of the map stays the map's until this program ends (RCU). The element may be replaced
        // meanwhile, and since Linux 6.1 a hash without preallocation reuses its memory for another key at once: a copy
        // made in those nanoseconds may be that of another element, or a mix of two. Any bytes are a valid value of
        // these types ([`lb_common::layout`]).
        let value = unsafe { $map.get($key) };
        value.copied()
    }};
}

/// Copies a value out of a hash map to its destination; false where there is none.
macro_rules! load {
    ($map:ident, $key:expr, $into:expr) => {{
        // SAFETY: as for `copy`.
        let value = unsafe { $map.get($key) };
        value.map(|value| *$into = *value).is_some()
    }};
}

impl Services for Kernel {
    #[inline(always)]
    fn service(&self, frontend: &Frontend, into: &mut Service) -> bool {
        load!(SERVICES, frontend, into)
    }

    #[inline(always)]
    fn knows(&self, frontend: &Frontend) -> bool {
        SERVICES.get_ptr(frontend).is_some()
    }

    #[inline(always)]
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "a place and its use: one access")]
    #[expect(clippy::cast_ptr_alignment, reason = "lines are 8-byte aligned")]
    fn slot_word(&self, line: u32, index: u32) -> Option<u32> {
        let line = MAGLEV.get_ptr(line)?.cast::<u32>();
        // VERIFIER: the mask is the bound; the verifier does not know that callers stay below it.
        // SAFETY: a line has 16 words, and lines are 8-byte aligned.
        Some(unsafe { *line.add((index & 15) as usize) })
    }

    #[inline(always)]
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "a place and its use: one access")]
    #[expect(clippy::cast_ptr_alignment, reason = "lines are 8-byte aligned")]
    fn slot_u16(&self, line: u32, index: u32) -> Option<u16> {
        let line = MAGLEV.get_ptr(line)?.cast::<u16>();
        // SAFETY: a line has 32 `u16`, and lines are 8-byte aligned.
        Some(unsafe { *line.add((index & 31) as usize) })
    }

    #[inline(always)]
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "a place and its use: one access")]
    fn slot_byte(&self, line: u32, index: u32) -> Option<u8> {
        let line = MAGLEV.get_ptr(line)?.cast::<u8>();
        // SAFETY: a line has 64 bytes.
        Some(unsafe { *line.add((index & 63) as usize) })
    }

    #[inline(always)]
    fn backend(&self, id: BackendId, into: &mut Backend) -> bool {
        BACKENDS.get(id).map(|row| *into = *row).is_some()
    }

    #[inline(always)]
    fn epoch(&self, id: BackendId) -> u32 {
        BACKENDS.get(id).map_or(0, |row| row.epoch)
    }

    #[inline(always)]
    fn affinity(&self, client: &Client) -> Option<Affinity> {
        copy!(AFFINITY, client)
    }

    #[inline(always)]
    fn put_affinity(&self, client: &Client, affinity: &Affinity) -> bool {
        AFFINITY.insert(client, affinity, 0).is_ok()
    }

    #[inline(always)]
    fn allows(&self, source: &Source) -> bool {
        SOURCE_RANGES.get(&Key::new(Source::BITS, *source)).is_some()
    }
}

impl Flows for Kernel {
    #[inline(always)]
    fn flow(&self, key: &FlowKey, into: &mut Flow) -> bool {
        flows::load(key, into)
    }

    #[inline(always)]
    fn flow_of<const V4: bool>(&self, key: &FlowKey, into: &mut Flow) -> bool {
        flows::load_of::<V4>(key, into)
    }

    #[inline(always)]
    fn add_flow(&self, key: &FlowKey, flow: &Flow) -> Added {
        match flows::add(key, flow) {
            0 => Added::Yes,
            flows::EXISTS => Added::Taken,
            error => {
                count_refusal(error);
                Added::Full
            }
        }
    }

    #[inline(always)]
    fn put_flow(&self, key: &FlowKey, flow: &Flow) -> bool {
        let put = flows::put(key, flow);
        count_refusal(put);
        put == 0
    }

    #[inline(always)]
    fn touch_flow(&self, key: &FlowKey, touch: &Touch) {
        flows::touch(key, touch);
    }

    #[inline(always)]
    fn confirm_flow(&self, key: &FlowKey, frontends_epoch: u32, noted: u16) {
        flows::confirm(key, frontends_epoch, noted);
    }

    #[inline(always)]
    fn remove_flow(&self, key: &FlowKey) {
        flows::remove(key);
    }

    #[inline(always)]
    fn remove_protected(&self, key: &FlowKey) {
        flows::remove_protected(key);
    }
}

impl Filters for Kernel {
    #[inline(always)]
    fn is_in_use(&self, ip: &Ip, port: Port) -> bool {
        let (line, byte) = hash::backend_byte(ip, port);
        let line = IN_USE.get_ptr(line);
        // SAFETY: a byte of a live element.
        line.is_some_and(|line| unsafe { (*line).0[byte] } != 0)
    }

    #[inline(always)]
    fn put_in_use(&self, ip: &Ip, port: Port) {
        let (line, byte) = hash::backend_byte(ip, port);
        let Some(line) = IN_USE.get_ptr_mut(line) else { return };
        // A store takes the line from all other CPUs, which read it for packets of the backend.
        // SAFETY: a byte of a live element.
        if unsafe { (*line).0[byte] } == 0 {
            // SAFETY: as above; all writers write the same value.
            unsafe { (*line).0[byte] = 1 };
        }
    }

    #[inline(always)]
    fn may_be_backend(&self, ip: &Ip, port: Port) -> bool {
        let bit = hash::endpoint(ip, port);
        BACKEND_FILTER.get(bit / 64).is_some_and(|word| word.0 >> (bit % 64) & 1 != 0)
    }

    #[inline(always)]
    fn is_direct(&self, hash: u64) -> bool {
        DIRECT_SEEN.get(hash as u32 % DIRECTS).is_some_and(|known| *known == hash)
    }

    #[inline(always)]
    fn put_direct(&self, hash: u64) {
        if let Some(known) = DIRECT_SEEN.get_ptr_mut(hash as u32 % DIRECTS) {
            // SAFETY: an aligned word of a live element; the last of two writers wins.
            unsafe { *known = hash };
        }
    }

    #[inline(always)]
    fn own_answer(&self, hash: u64) -> Option<u32> {
        copy!(OWN_ANSWERS, hash)
    }

    #[inline(always)]
    fn put_own_answer(&self, hash: u64, moment: u32) {
        // Without memory the answer may be mistaken for a request; the next packet that leaves tries again.
        let _noted: Result<(), _> = OWN_ANSWERS.insert(hash, moment, 0);
    }

    #[inline(always)]
    fn is_inherited(&self, hash: u64) -> bool {
        INHERITED.get_ptr(hash).is_some()
    }
}

impl Fragments for Kernel {
    #[inline(always)]
    fn fragment(&self, fragment: &Fragment) -> Option<Ports> {
        copy!(FRAGMENTS, fragment)
    }

    #[inline(always)]
    fn put_fragment(&self, fragment: &Fragment, ports: &Ports) -> bool {
        FRAGMENTS.insert(fragment, ports, 0).is_ok()
    }

    #[inline(always)]
    fn read_held<R>(&self, key: &Fragment, read: impl FnOnce(&Held) -> R) -> Option<R> {
        // SAFETY: as for `copy`; the reader compares the key in the element with its own.
        unsafe { HELD_FRAGMENTS.get(key) }.map(read)
    }

    #[expect(
        clippy::needless_borrows_for_generic_args,
        reason = "without the borrow, a packet would be copied to the stack"
    )]
    #[inline(always)]
    fn put_held(&self, key: &Fragment, fill: impl FnOnce(&mut Held) -> Option<()>) -> bool {
        let Some(held) = HELD_SCRATCH.get_ptr_mut(0) else {
            return false;
        };
        // SAFETY: the element is this CPU's own, and the one program that runs on it now takes it only once.
        let held = unsafe { &mut *held };
        held.fragment = *key;
        fill(held).is_some() && HELD_FRAGMENTS.insert(key, &*held, 0).is_ok()
    }

    #[inline(always)]
    fn remove_held(&self, key: &Fragment) {
        let _gone: Result<(), i32> = HELD_FRAGMENTS.remove(key);
    }
}

impl Node for Kernel {
    #[inline(always)]
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "a place and its use: one access")]
    fn settings(&self) -> Option<&Settings> {
        let pair = SETTINGS.get_ptr(0)?;
        // The read is volatile: otherwise the compiler could read the word again, after a switch of the slots.
        // SAFETY: an aligned word of a live element, read once.
        let start = unsafe { (&raw const (*pair).start).read_volatile() } & SettingsPair::SLOT;
        // SAFETY: one of the two slots begins there; the one in use is not written.
        let settings =
            unsafe { &*(&raw const (*pair).slots).byte_add(start as usize).cast::<Settings>() };
        // An element that the agent has not written has no port range, and is not ready.
        (settings.node.source_port_high.get() != 0).then_some(settings)
    }

    #[inline(always)]
    fn address(&self, ip: &Ip) -> u32 {
        copy!(ADDRESSES, ip).unwrap_or(0)
    }

    #[inline(always)]
    fn device(&self, index: u32) -> Option<Device> {
        copy!(DEVICES, index)
    }
}

impl Clock for Kernel {
    #[inline(always)]
    fn now(&self) -> u64 {
        // SAFETY: the helper has no preconditions (kernel 5.11).
        unsafe { bpf_ktime_get_coarse_ns() }
    }

    #[inline(always)]
    fn tick(&self) -> u16 {
        // SAFETY: the helper has no preconditions (kernel 5.6); the verifier makes a load of it. The kernel
        // counts 100 to 1,000 in a second.
        (unsafe { bpf_jiffies64() } >> 7) as u16
    }

    #[inline(always)]
    fn may_reject(&self, bucket: u32) -> bool {
        let Some(granted) = REJECT_LIMIT.get_ptr_mut(bucket) else {
            return false;
        };
        // The element is a bucket of tokens as one number: the time up to which rejections are granted. A bucket that
        // was idle lies at most one burst behind the present.
        let now = self.now();
        // SAFETY: the element is this CPU's own.
        let until = unsafe { *granted }.max(now.saturating_sub(REJECTION_BURST));
        if until > now {
            return false;
        }
        // SAFETY: as above.
        unsafe { *granted = until + REJECTION };
        true
    }

    #[inline(always)]
    fn count(&self, event: Event) {
        add_one(event_counter(event));
    }
}

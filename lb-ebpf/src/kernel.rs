//! The tables of the data path, over the maps and the helpers of the kernel.

use aya_ebpf::helpers::generated::{bpf_jiffies64, bpf_ktime_get_coarse_ns};
use lb_common::addr::Ip;
use lb_common::config::{Device, Settings, SettingsPair};
use lb_common::event::{Event, event_counter};
use lb_common::flow::{Flow, FlowKey};
use lb_common::forward::Scratch;
use lb_common::tables::{Added, Clock, Flows, Node, Touch};

use crate::flows;
use crate::maps::{ADDRESSES, COUNTERS, DEVICES, REJECT_LIMIT, SCRATCH, SETTINGS};

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

// The modules follow the macro, which they use.
mod records;
mod services;

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

//! Entries of flows, over the four maps that hold them: `FLOWS4` and `TRANSIENT4` for IPv4, `FLOWS6` and `TRANSIENT6`
//! for all others.
//!
//! VERIFIER: each is a function of its own, except for the one of the fast path: inlined, it needs more stack than the
//! program around it has. The functions are global in the object, as the parts are, so that the verifier walks each
//! once, and not again for every path that leads to it.

use lb_common::flow::{Flow, Flow4, FlowKey, FlowKey4, Shown};
use lb_common::tables::Touch;

use crate::maps::{ASKS_FOR_MAPS, FLOWS4, FLOWS6, TRANSIENT4, TRANSIENT6, TRANSIT, Transit};

pub(crate) const EXISTS: i32 = -17;
/// `-ENOMEM`: the kernel had no memory for an element. For a full table the error is `-E2BIG`.
pub(crate) const NO_MEMORY: i32 = -12;
/// `BPF_NOEXIST`.
const NO_EXIST: u64 = 1;

/// The key of `FLOWS4`, and room for an entry.
#[inline(always)]
fn key4(key: &FlowKey) -> Option<(&'static FlowKey4, &'static mut Flow4)> {
    let place = TRANSIT.get_ptr_mut(0)?;
    // SAFETY: the element is this CPU's own. Only packets have flows of IPv4 on both ends; their programs run with
    // softirqs off, one at a time, and no call here reads the data of an earlier one.
    let Transit { key4, flow4, .. } = unsafe { &mut *place };
    *key4 = FlowKey4::of(key);
    Some((key4, flow4))
}

/// The key of `FLOWS6`: the caller's, or a copy where the verifier refuses keys in lent memory.
#[inline(always)]
fn key6(key: &FlowKey) -> Option<&FlowKey> {
    if ASKS_FOR_MAPS.load() == 0 {
        return Some(key);
    }
    let place = TRANSIT.get_ptr_mut(0)?;
    // SAFETY: as for `key4`; the reference covers this field only.
    let copy = unsafe { &mut (*place).key };
    *copy = *key;
    Some(copy)
}

/// An entry of `FLOWS6`: the caller's, or a copy, as for `key6`.
#[inline(always)]
fn flow6(flow: &Flow) -> Option<&Flow> {
    if ASKS_FOR_MAPS.load() == 0 {
        return Some(flow);
    }
    let place = TRANSIT.get_ptr_mut(0)?;
    // SAFETY: as for `key4`.
    let copy = unsafe { &mut (*place).flow };
    *copy = *flow;
    Some(copy)
}

/// A reference to memory that a function is lent: the verifier requires a check for null.
#[inline(always)]
const fn lent<'a, T>(memory: *const T) -> Option<&'a T> {
    // SAFETY: null, or a value that its only owner lends for this call.
    unsafe { memory.as_ref() }
}

/// Copies an entry; says whether it was there.
#[inline(always)]
pub(crate) fn load(key: &FlowKey, into: &mut Flow) -> bool {
    flow_load(key, into) != 0
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn flow_load(key: *const FlowKey, into: *mut Flow) -> u32 {
    // SAFETY: as for `lent`.
    let (Some(key), Some(into)) = (lent(key), unsafe { into.as_mut() }) else { return 0 };
    let is_there = if key.is_v4() {
        load_of::<true>(key, into)
    } else {
        key6(key).is_some_and(|key| load_of::<false>(key, into))
    };
    is_there.into()
}

/// The same where the family is known.
#[inline(always)]
pub(crate) fn load_of<const V4: bool>(key: &FlowKey, into: &mut Flow) -> bool {
    if V4 {
        let Some((key, _)) = key4(key) else { return false };
        // The protected table comes first: most packets belong to its flows, and an entry that moves is copied before
        // it is removed, so that one of the two lookups finds it (ADR 0025).
        // SAFETY: as for `copy` in `kernel`.
        if let Some(flow) = unsafe { FLOWS4.get(key) } {
            flow.write(into);
            return true;
        }
        // SAFETY: as above.
        let flow = unsafe { TRANSIENT4.get(key) };
        flow.map(|flow| flow.write(into)).is_some()
    } else {
        // SAFETY: as above.
        if let Some(flow) = unsafe { FLOWS6.get(key) } {
            *into = *flow;
            return true;
        }
        // SAFETY: as above.
        let flow = unsafe { TRANSIENT6.get(key) };
        flow.map(|flow| *into = *flow).is_some()
    }
}

/// Adds an entry if neither table has its key, and returns the result of `bpf_map_update_elem`: 0, or an error. (A
/// `Result` would need memory on the stack.)
#[inline(always)]
pub(crate) fn add(key: &FlowKey, flow: &Flow) -> i32 {
    flow_add(key, flow)
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn flow_add(key: *const FlowKey, flow: *const Flow) -> i32 {
    let (Some(key), Some(flow)) = (lent(key), lent(flow)) else { return NO_MEMORY };
    // The kernel itself refuses a key that is in the table to which the entry is added; the other table is asked here.
    let is_protected = flow.is_protected();
    let is_taken = if key.is_v4() {
        let Some((key, _)) = key4(key) else { return NO_MEMORY };
        if is_protected { TRANSIENT4.get_ptr(key).is_some() } else { FLOWS4.get_ptr(key).is_some() }
    } else {
        let Some(key) = key6(key) else { return NO_MEMORY };
        if is_protected { TRANSIENT6.get_ptr(key).is_some() } else { FLOWS6.get_ptr(key).is_some() }
    };
    // New entries are transient, and an entry that moves on another CPU has a copy in the transient table at that
    // moment (`forward/life/tiers`), so no key is missed between the two tests.
    if is_taken { EXISTS } else { write(key, flow, NO_EXIST) }
}

/// Overwrites an entry in the table that its flag names, or adds it there; the same result.
#[inline(always)]
pub(crate) fn put(key: &FlowKey, flow: &Flow) -> i32 {
    flow_put(key, flow)
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn flow_put(key: *const FlowKey, flow: *const Flow) -> i32 {
    let (Some(key), Some(flow)) = (lent(key), lent(flow)) else { return NO_MEMORY };
    write(key, flow, 0)
}

/// Writes an entry, and looks one in a transient table up once.
///
/// The kernel displaces those entries first that were never looked up (`kernel/bpf/bpf_lru_list.c`). Searches for
/// source ports look up many entries of a flood again and again. Beside them, an entry without this lookup was
/// displaced within 0.2 ms: the packet that had made a masquerade left the node without it.
#[inline(always)]
fn write(key: &FlowKey, flow: &Flow, flags: u64) -> i32 {
    let is_protected = flow.is_protected();
    let written = if key.is_v4() {
        let Some((key, kept)) = key4(key) else { return NO_MEMORY };
        kept.put(flow);
        let kept: &Flow4 = kept;
        if is_protected {
            FLOWS4.insert(key, kept, flags)
        } else {
            let written = TRANSIENT4.insert(key, kept, flags);
            let _looked_at = TRANSIENT4.get_ptr(key);
            written
        }
    } else {
        let (Some(key), Some(flow)) = (key6(key), flow6(flow)) else { return NO_MEMORY };
        if is_protected {
            FLOWS6.insert(key, flow, flags)
        } else {
            let written = TRANSIENT6.insert(key, flow, flags);
            let _looked_at = TRANSIENT6.get_ptr(key);
            written
        }
    };
    written.map_or_else(|error| error, |()| 0)
}

/// Writes fields of an entry in place, in whichever table it is: the entries of all four tables have these fields.
macro_rules! write_in {
    ($key:ident, $flow:ident => $written:block) => {
        if $key.is_v4() {
            if let Some((key, _)) = key4($key) {
                if let Some($flow) = FLOWS4.get_ptr_mut(key) {
                    $written
                } else if let Some($flow) = TRANSIENT4.get_ptr_mut(key) {
                    $written
                }
            }
        } else if let Some(key) = key6($key) {
            if let Some($flow) = FLOWS6.get_ptr_mut(key) {
                $written
            } else if let Some($flow) = TRANSIENT6.get_ptr_mut(key) {
                $written
            }
        }
    };
}

/// Records the time of a packet in its entry, and the flags that the packet has shown.
#[inline(always)]
pub(crate) fn touch(key: &FlowKey, touch: &Touch) {
    let word = |Shown { established, fin, rst, claimed }| {
        u32::from_ne_bytes([established, fin, rst, claimed])
    };
    let (shown, cleared) = (word(touch.shown), word(touch.cleared));
    let _done: u32 = flow_touch(key, touch.seen, shown, touch.expected, cleared);
}

/// Takes the fields of [`Touch`] one by one, the [`Shown`] ones as their bytes: a structure on the stack would have
/// padding, and the verifier accepts no reference to uninitialised bytes.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn flow_touch(
    key: *const FlowKey,
    seen: u64,
    shown: u32,
    expected: u32,
    cleared: u32,
) -> u32 {
    let Some(key) = lent(key) else { return 0 };
    let bytes = |word: u32| {
        let [established, fin, rst, claimed] = word.to_ne_bytes();
        Shown { established, fin, rst, claimed }
    };
    let (shown, cleared) = (bytes(shown), bytes(cleared));
    // The fields are written in place: an update of the element would take a lock, and could undo a mark that another
    // CPU sets at the same time.
    write_in!(key, flow => {
        // SAFETY: an aligned word of a live element; the last writer of a second wins.
        unsafe { (*flow).seen = seen };
        // SAFETY: bytes of a live element. One of two claims at the same moment may be lost (`Shown`).
        unsafe { (*flow).shown.set(shown) };
        if expected != 0 {
            // SAFETY: an aligned word of a live element.
            unsafe { (*flow).expected = expected };
        }
        // SAFETY: bytes of a live element; a RST or FIN at the same moment is lost, or recorded again by the next one.
        unsafe { (*flow).shown.clear_ends(cleared) };
    });
    0
}

/// Sets [`Flow::frontends_epoch`] and [`Flow::noted`] of an entry.
#[inline(always)]
pub(crate) fn confirm(key: &FlowKey, frontends_epoch: u32, noted: u16) {
    let _done: u32 = flow_confirm(key, frontends_epoch, noted.into());
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn flow_confirm(key: *const FlowKey, frontends_epoch: u32, noted: u32) -> u32 {
    let Some(key) = lent(key) else { return 0 };
    write_in!(key, flow => {
        // SAFETY: an aligned word of a live element.
        unsafe { (*flow).frontends_epoch = frontends_epoch };
        // SAFETY: an aligned half word of a live element.
        unsafe { (*flow).noted = noted as u16 };
    });
    0
}

/// Removes an entry of both tables, if it is there.
#[inline(always)]
pub(crate) fn remove(key: &FlowKey) {
    let _done: u32 = flow_remove(key, 1);
}

/// Removes an entry of the protected flows, if it is there.
#[inline(always)]
pub(crate) fn remove_protected(key: &FlowKey) {
    let _done: u32 = flow_remove(key, 0);
}

/// `transient`: not 0 to remove the entry from the transient table as well.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn flow_remove(key: *const FlowKey, transient: u32) -> u32 {
    let Some(key) = lent(key) else { return 0 };
    if key.is_v4() {
        let Some((key, _)) = key4(key) else { return 0 };
        // Behind a protected entry its older transient copy may be left (`forward/life/tiers`), which lookups would
        // find from then on.
        let _gone: Result<(), i32> = FLOWS4.remove(key);
        if transient != 0 {
            let _gone: Result<(), i32> = TRANSIENT4.remove(key);
        }
    } else if let Some(key) = key6(key) {
        let _gone: Result<(), i32> = FLOWS6.remove(key);
        if transient != 0 {
            let _gone: Result<(), i32> = TRANSIENT6.remove(key);
        }
    }
    0
}

//! The records beside the flows: filters over addresses and tuples, and the ports of fragmented datagrams.

use lb_common::addr::{Ip, Port};
use lb_common::flow::{DIRECT_SEEN as DIRECTS, Fragment, Held, Ports};
use lb_common::hash;
use lb_common::tables::{Filters, Fragments};

use super::Kernel;
use crate::maps::{
    BACKEND_FILTER, DIRECT_SEEN, FRAGMENTS, HELD_FRAGMENTS, HELD_SCRATCH, IN_USE, INHERITED,
    OWN_ANSWERS,
};

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

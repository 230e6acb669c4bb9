//! Access to a packet's bytes by pointer: the linear part of an skb, or the first buffer of an XDP frame.
//!
//! For programs that may write, the kernel has made an skb's data private to the packet before they run.

use lb_common::layout::Plain;

/// Copies a value from `at` bytes behind `start`; `None` where it would reach beyond `end`.
#[inline(always)]
pub(crate) const fn read<T: Plain>(start: usize, end: usize, at: usize) -> Option<T> {
    let from = start + at;
    // VERIFIER: from a comparison of this form it learns how many bytes the packet has (`find_good_pkt_pointers` in
    // kernel/bpf/verifier.c).
    if from + size_of::<T>() > end {
        return None;
    }
    // SAFETY: the bounds were just checked, the read needs no alignment, and any bytes are a valid value.
    Some(unsafe { (from as *const T).read_unaligned() })
}

/// Overwrites a value; the same rule for `at`.
#[inline(always)]
pub(crate) const fn write<T: Plain>(start: usize, end: usize, at: usize, value: T) -> Option<()> {
    let to = start + at;
    if to + size_of::<T>() > end {
        return None;
    }
    // SAFETY: the bounds were just checked, and the write needs no alignment.
    unsafe { (to as *mut T).write_unaligned(value) };
    Some(())
}

/// The methods of [`lb_common::packet::Packet`] that are the same for every context of aya in `self.0`.
macro_rules! access {
    () => {
        #[inline(always)]
        fn read<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
            linear::read(self.0.data(), self.0.data_end(), at)
        }

        #[inline(always)]
        fn words<const N: usize>(&self, at: usize) -> Option<[u32; N]> {
            linear::read(self.0.data(), self.0.data_end(), at)
        }

        #[inline(always)]
        fn u64s<const N: usize>(&self, at: usize) -> Option<[u64; N]> {
            linear::read(self.0.data(), self.0.data_end(), at)
        }

        #[inline(always)]
        fn write<const N: usize>(&mut self, at: usize, bytes: [u8; N]) -> Option<()> {
            linear::write(self.0.data(), self.0.data_end(), at, bytes)
        }

        #[inline(always)]
        fn set_words<const N: usize>(&mut self, at: usize, words: [u32; N]) -> Option<()> {
            linear::write(self.0.data(), self.0.data_end(), at, words)
        }

        #[inline(always)]
        fn set_u64s<const N: usize>(&mut self, at: usize, u64s: [u64; N]) -> Option<()> {
            linear::write(self.0.data(), self.0.data_end(), at, u64s)
        }
    };
}
pub(crate) use access;

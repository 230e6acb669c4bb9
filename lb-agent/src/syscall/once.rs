//! Two programs that run before one of ours at two places of an interface. A packet that passes both places meets our
//! program once.
//!
//! The *marker* records in the packet's control block, which is kept between programs of an interface, that it has run,
//! and continues with ours. The *gate* continues with ours unless the packet is marked.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use super::links::load_tc;
use super::{number, single, update};

/// A map of programs for tail calls (`BPF_MAP_TYPE_PROG_ARRAY`).
const PROGRAMS: u32 = 3;
/// The mark: two words that no other program writes by chance, in `cb[3]` and `cb[4]` of `struct __sk_buff`, with their
/// offsets.
const MARK: [i32; 2] = [0x6c62_6f6e, 0x6365_9e37];
const AT: [u8; 2] = [60, 64];

/// The two programs. They pass packets on unchanged once `slot` has neither a descriptor nor a pin.
#[derive(Debug)]
pub(crate) struct Once {
    pub(crate) marker: OwnedFd,
    pub(crate) gate: OwnedFd,
    /// The map with the program that they continue with.
    pub(crate) slot: OwnedFd,
}

impl Once {
    /// Loads both programs; they continue with `program`.
    pub(crate) fn before(program: BorrowedFd<'_>) -> io::Result<Self> {
        let slot = single(PROGRAMS, 0)?;
        update(slot.as_fd(), &0_u32, &number(program), 0)?;
        let marker = load_tc(*b"marker\0\0\0\0\0\0\0\0\0\0", &marker(number(slot.as_fd())))?;
        let gate = load_tc(*b"gate\0\0\0\0\0\0\0\0\0\0\0\0", &gate(number(slot.as_fd())))?;
        Ok(Self { marker, gate, slot })
    }
}

/// Encodes an instruction: operation, destination and source register, offset, number.
const fn instruction(code: u8, registers: u8, offset: u8, number: i32) -> [u8; 8] {
    let [a, b, c, d] = number.to_ne_bytes();
    [code, registers, offset, 0, a, b, c, d]
}

/// `r0 = -1` (`TCX_NEXT`), `exit`.
const NEXT: [[u8; 8]; 2] = [instruction(0xb7, 0, 0, -1), instruction(0x95, 0, 0, 0)];

/// Encodes `bpf_tail_call(r1, map, 0)`; if the map is empty, the packet goes to the next program.
const fn go_on(map: u32) -> [[u8; 8]; 6] {
    [
        // `r2 = map`, in two parts; `r3 = 0`; the call.
        instruction(0x18, 0x12, 0, map.cast_signed()),
        instruction(0, 0, 0, 0),
        instruction(0xb7, 3, 0, 0),
        instruction(0x85, 0, 0, 12),
        NEXT[0],
        NEXT[1],
    ]
}

fn marker(map: u32) -> Vec<[u8; 8]> {
    let store = |word: usize| {
        // `r2 = word`; `*(u32 *)(r1 + at) = r2`.
        [instruction(0xb7, 2, 0, MARK[word]), instruction(0x63, 0x21, AT[word], 0)]
    };
    [store(0), store(1)].into_iter().flatten().chain(go_on(map)).collect()
}

fn gate(map: u32) -> Vec<[u8; 8]> {
    let differs = |word: usize, skipped: u8| {
        // `r2 = *(u32 *)(r1 + at)`; `if r2 != word` (32 bits) skip this many instructions.
        [instruction(0x61, 0x12, AT[word], 0), instruction(0x56, 2, skipped, MARK[word])]
    };
    let asks = [differs(0, 4), differs(1, 2)].into_iter().flatten();
    asks.chain(NEXT).chain(go_on(map)).collect()
}

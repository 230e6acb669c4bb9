//! The stack depth of a loaded program: the deepest chain of its functions, each counted as the verifier counts it.
//!
//! The depth is computed from the translated instructions: the bytes below the frame pointer (r10) that a function
//! reaches, directly or through a register derived from it. The verifier allows 512 bytes for a whole chain. It rounds
//! each function up to 16 bytes, or to 32 on older kernels such as Linux 6.6, also a function that uses no stack.

use std::collections::BTreeSet;

/// The number of the frame pointer register (r10).
const FRAME: u8 = 10;
/// The rounding of the oldest supported kernel, in bytes.
const ROUND: u32 = 32;
const CLASS: u8 = 0x07;
const LOAD: u8 = 0x01;
const STORE_NUMBER: u8 = 0x02;
const STORE: u8 = 0x03;
const MOVE: u8 = 0xbf;
const ADD_NUMBER: u8 = 0x07;
const CALL: u8 = 0x85;
/// The source register value of a call within the program (`BPF_PSEUDO_CALL`).
const WITHIN: u8 = 1;

/// An instruction as the kernel shows it (`struct bpf_insn`).
#[derive(Clone, Copy, Debug)]
struct Instruction {
    code: u8,
    to: u8,
    from: u8,
    offset: i16,
    number: i32,
}

impl From<[u8; 8]> for Instruction {
    fn from([code, registers, o0, o1, n0, n1, n2, n3]: [u8; 8]) -> Self {
        Self {
            code,
            to: registers & 15,
            from: registers >> 4,
            offset: i16::from_le_bytes([o0, o1]),
            number: i32::from_le_bytes([n0, n1, n2, n3]),
        }
    }
}

/// Stack bytes of the deepest call chain.
pub(super) fn depth(instructions: &[[u8; 8]]) -> u32 {
    let code: Vec<Instruction> = instructions.iter().map(|&bytes| bytes.into()).collect();
    let calls: Vec<(usize, usize)> = code
        .iter()
        .enumerate()
        .filter(|(_, instruction)| instruction.code == CALL && instruction.from == WITHIN)
        // In a translated program the offset holds the distance; the immediate holds a function number.
        .map(|(at, instruction)| (at, at.wrapping_add_signed(instruction.offset.into()) + 1))
        .collect();
    let mut begins: BTreeSet<usize> = calls.iter().map(|&(_, target)| target).collect();
    let _main: bool = begins.insert(0);
    let begins: Vec<usize> = begins.into_iter().collect();
    chain(0, &begins, &code, &calls)
}

/// Stack bytes of the deepest chain from the function at `begin`. The recursion ends, because the verifier refuses
/// recursive programs.
fn chain(begin: usize, begins: &[usize], code: &[Instruction], calls: &[(usize, usize)]) -> u32 {
    let end = begins.iter().copied().find(|&other| other > begin).unwrap_or(code.len());
    let targets: BTreeSet<usize> = calls
        .iter()
        .filter(|(at, _)| (begin..end).contains(at))
        .map(|&(_, target)| target)
        .collect();
    let deepest = targets.into_iter().map(|target| chain(target, begins, code, calls)).max();
    own(&code[begin..end]).max(1).next_multiple_of(ROUND) + deepest.unwrap_or(0)
}

/// Bytes below the frame pointer that one function accesses.
fn own(code: &[Instruction]) -> u32 {
    let mut lowest = 0_i32;
    for (at, instruction) in code.iter().enumerate() {
        let base = match instruction.code & CLASS {
            LOAD => instruction.from,
            STORE | STORE_NUMBER => instruction.to,
            _ => 0,
        };
        if base == FRAME {
            lowest = lowest.min(instruction.offset.into());
        }
        let next = code.get(at + 1);
        if instruction.code == MOVE
            && instruction.from == FRAME
            && let Some(next) = next
            && next.code == ADD_NUMBER
            && next.to == instruction.to
        {
            lowest = lowest.min(next.number);
        }
    }
    lowest.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::depth;

    #[test]
    fn the_deepest_chain_counts() {
        let store = |offset: i16| {
            let [low, high] = offset.to_le_bytes();
            [0x7b, 0x1a, low, high, 0, 0, 0, 0]
        };
        let call = |distance: u8| [0x85, 0x10, distance, 0, 0, 0, 0, 0];
        let exit = [0x95, 0, 0, 0, 0, 0, 0, 0];
        let address = [[0xbf, 0xa2, 0, 0, 0, 0, 0, 0], [0x07, 0x02, 0, 0, 0xd0, 0xff, 0xff, 0xff]];
        assert_eq!(depth(&[store(-8), exit]), 32);
        assert_eq!(depth(&[store(-8), call(0), exit]), 64);
        // main (8 bytes, rounded to 32) calls the functions at 4 (48 bytes by address, rounded to 64) and at 7 (8,
        // rounded to 32).
        let program =
            [store(-8), call(2), call(4), exit, address[0], address[1], exit, store(-8), exit];
        assert_eq!(depth(&program), 32 + 64);
    }
}

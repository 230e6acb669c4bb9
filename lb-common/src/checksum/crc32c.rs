//! The CRC32c of RFC 9260 appendix A, as far as incremental updates need it.
//!
//! CRC is linear: the change of a word followed by `n` unchanged bytes changes the CRC by that word's own remainder,
//! multiplied by x^(8n) modulo the polynomial.

/// The Castagnoli polynomial, bits reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// x^(8 * n), reflected (bit 31 is x^0), for the low byte `n` of a length.
const LOW: [u32; 256] = powers(1 << (31 - 8));
/// x^(8 * 256 * n), reflected, for the high byte `n` of a length.
const HIGH: [u32; 256] = powers(multiply(LOW[255], LOW[1]));

const fn powers(base: u32) -> [u32; 256] {
    let mut powers = [1 << 31; 256];
    let mut at = 1;
    while at < 256 {
        powers[at] = multiply(powers[at - 1], base);
        at += 1;
    }
    powers
}

/// The raw CRC of four bytes followed by `behind` zero bytes, of a packet below 64 KiB.
///
/// VERIFIER: two multiplications by tables, and no branch that depends on data: a loop over the bits of the length was
/// nine tenths of the verifier's work.
#[must_use]
#[inline(always)]
pub fn shifted(word: u32, behind: u16) -> u32 {
    static TABLES: [[u32; 256]; 2] = [LOW, HIGH];
    // The word itself is shifted by x^32 through the register, and each following byte shifts by x^8.
    let [high, low] = behind.wrapping_add(4).to_be_bytes();
    let [lows, highs] = &TABLES;
    multiply(multiply(word, lows[low as usize]), highs[high as usize])
}

/// Product of two polynomials modulo [`POLYNOMIAL`], reflected.
#[inline(always)]
const fn multiply(left: u32, right: u32) -> u32 {
    let mut product = 0;
    let mut factor = left;
    let mut rest = right;
    let mut bit = 0;
    while bit < 32 {
        product ^= factor & 0_u32.wrapping_sub(rest >> 31);
        rest <<= 1;
        factor = (factor >> 1) ^ (POLYNOMIAL & 0_u32.wrapping_sub(factor & 1));
        bit += 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bit by bit, from the RFC.
    fn crc32c(bytes: &[u8]) -> u32 {
        let mut crc = !0_u32;
        for byte in bytes {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = (crc >> 1) ^ (POLYNOMIAL & 0_u32.wrapping_sub(crc & 1));
            }
        }
        !crc
    }

    #[test]
    fn check_value_is_right() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    proptest! {
        #[test]
        fn update_equals_recomputation(
            mut bytes in proptest::collection::vec(any::<u8>(), 4..300),
            new: [u8; 4],
        ) {
            let before = crc32c(&bytes);
            let delta = [bytes[0] ^ new[0], bytes[1] ^ new[1], bytes[2] ^ new[2], bytes[3] ^ new[3]];
            let behind = bytes.len() as u16 - 4;
            bytes[..4].copy_from_slice(&new);
            prop_assert_eq!(before ^ shifted(u32::from_le_bytes(delta), behind), crc32c(&bytes));
        }
    }
}

//! Types of map entries, which outlive the agent: every byte of such a type belongs to a field, and a fingerprint
//! distinguishes its layout from others.
//!
//! [`Plain`] is proven field by field: each field is itself plain and begins where the one before it ends. So a map
//! holds no padding, and any bytes in it are a valid value. The fingerprint identifies the layout in which an older
//! agent wrote the entries; the agent compares it with the one that it last committed, beside the version of the layout
//! (ADR 0005).

/// A type that maps may hold: it has no padding, and any bytes of its size are a valid value.
///
/// Implemented by `plain!`, beside the type; no other crate can implement it.
pub trait Plain: Copy + sealed::Proven {
    /// Names, offsets, sizes and types of all fields, as a number.
    const FINGERPRINT: u64;
    /// The value whose bytes are all 0.
    const ZERO: Self;
}

pub(crate) mod sealed {
    /// The type went through `plain!`, or is made of types that did.
    #[expect(unnameable_types, reason = "so that no other crate implements `Plain`")]
    pub trait Proven {}
}

macro_rules! numbers {
    ($($type:ident)*) => { $(
        impl sealed::Proven for $type {}

        impl Plain for $type {
            const FINGERPRINT: u64 = named(size_of::<Self>() as u64, stringify!($type));
            const ZERO: Self = 0;
        }
    )* };
}

numbers!(u8 u16 u32 u64);

impl<T: Plain, const N: usize> sealed::Proven for [T; N] {}

impl<T: Plain, const N: usize> Plain for [T; N] {
    const FINGERPRINT: u64 = number(T::FINGERPRINT, N as u64);
    const ZERO: Self = [T::ZERO; N];
}

/// Proves that a type has this many bytes and no padding, and implements [`Plain`] for it. The call lists all fields,
/// in order.
macro_rules! plain {
    ($type:ident = $size:literal { $($field:tt),* $(,)? }) => {
        impl $crate::layout::sealed::Proven for $type {}

        impl $crate::layout::Plain for $type {
            const FINGERPRINT: u64 = {
                // A pattern must name every field.
                let _: fn(&Self) = |Self { $($field: _),* }| ();
                let (mut end, mut hash) = (0, $crate::layout::named(0, stringify!($type)));
                $(
                    assert!(core::mem::offset_of!($type, $field) == end, "padding, or another order");
                    let (size, kind) = $crate::layout::field::<$type, _>(|all| &all.$field);
                    end += size;
                    hash = $crate::layout::named(hash, stringify!($field));
                    hash = $crate::layout::number(hash, kind);
                )*
                assert!(end == size_of::<$type>() && end == $size, "padding at the end, or another size");
                hash
            };
            const ZERO: Self = Self { $($field: $crate::layout::Plain::ZERO),* };
        }
        const _: u64 = <$type as $crate::layout::Plain>::FINGERPRINT;
    };
}

pub(crate) use plain;

/// Size and fingerprint of a field.
pub(crate) const fn field<T, F: Plain>(_of: fn(&T) -> &F) -> (usize, u64) {
    (size_of::<F>(), F::FINGERPRINT)
}

/// Continues a fingerprint with a name: its length, then its bytes.
pub const fn named(hash: u64, name: &str) -> u64 {
    let bytes = name.as_bytes();
    let (mut hash, mut at) = (number(hash, bytes.len() as u64), 0);
    while at < bytes.len() {
        hash = number(hash, bytes[at] as u64);
        at += 1;
    }
    hash
}

/// Continues a fingerprint with a number.
pub const fn number(hash: u64, number: u64) -> u64 {
    crate::mix::mix(hash, number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy)]
    struct One {
        long: u32,
        short: [u16; 2],
    }

    plain!(One = 8 { long, short });

    mod same_size {
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub(super) struct One {
            pub(super) long: [u16; 2],
            pub(super) short: u32,
        }

        plain!(One = 8 { long, short });
    }

    #[test]
    fn fields_of_another_type_are_another_layout() {
        assert_ne!(One::FINGERPRINT, same_size::One::FINGERPRINT);
        assert_ne!(<[u16; 2]>::FINGERPRINT, <[u16; 3]>::FINGERPRINT);
    }

    #[test]
    fn another_name_is_another_layout() {
        assert_ne!(named(0, "seen"), named(0, "since"));
        assert_ne!(named(named(0, "a"), "bc"), named(named(0, "ab"), "c"));
    }
}

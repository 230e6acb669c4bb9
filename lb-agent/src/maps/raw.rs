//! Types of `lb-common` in the form that aya requires. `lb-common` forbids `unsafe`, so one `unsafe impl` here covers
//! all of its types.

use aya::Pod;
use lb_common::layout::Plain;

/// A key or value of a map; `aya::Pod` for types that are plain integers.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Raw<T: Plain>(pub(crate) T);

impl<T: Plain> Default for Raw<T> {
    /// Returns a value of zeros, as a buffer for an entry of a map.
    fn default() -> Self {
        Self(T::ZERO)
    }
}

// SAFETY: `repr(transparent)` over a `Plain` type. That trait is sealed, and `plain!` proves field by field what `Pod`
// asks for: no padding that could leak, no value that bytes from the kernel could break, and nothing borrowed, for
// every field is made of integers.
#[expect(unsafe_code, reason = "aya::Pod is foreign and unsafe; the one place that promises it")]
unsafe impl<T: Plain + 'static> Pod for Raw<T> {}

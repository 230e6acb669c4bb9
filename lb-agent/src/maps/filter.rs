//! Filters: arrays of bits or bytes that are set and never cleared.

use std::io;
use std::os::fd::AsFd as _;

use aya::Pod;
use aya::maps::MapData;
use lb_common::hash::{BackendBytes, EndpointBits};

use super::raw::Raw;
use super::walk::walk;
use crate::syscall;

/// An element of a filter.
pub(super) trait Bits: Pod + Default {
    /// The element with every possible bit set.
    const ALL: Self;

    /// Also sets the bits of another element.
    fn unite(&mut self, more: &Self);
}

impl Bits for Raw<EndpointBits> {
    const ALL: Self = Self(EndpointBits(u64::MAX));

    fn unite(&mut self, more: &Self) {
        self.0.0 |= more.0.0;
    }
}

impl Bits for Raw<BackendBytes> {
    const ALL: Self = Self(BackendBytes([u8::MAX; size_of::<BackendBytes>()]));

    fn unite(&mut self, more: &Self) {
        self.0.0.iter_mut().zip(more.0.0).for_each(|(byte, more)| *byte |= more);
    }
}

/// Sets the bits of `from` in `to`. Returns how many elements did not fit, which is always 0.
pub(super) fn unite<V: Bits>(from: &MapData, to: &MapData) -> io::Result<u32> {
    let mut united: Vec<V> = elements(to)?;
    united.iter_mut().zip(&elements(from)?).for_each(|(element, more)| element.unite(more));
    put_elements(to, &united).map(|()| 0)
}

/// Sets every bit of a filter, so that it excludes nothing.
pub(super) fn mark<V: Bits>(map: &MapData, entries: u32) -> io::Result<()> {
    put_elements(map, &vec![V::ALL; entries as usize])
}

/// Returns the elements of an array, in order.
pub(super) fn elements<V: Pod + Default>(map: &MapData) -> io::Result<Vec<V>> {
    let mut elements = Vec::new();
    walk(map, (0_u32, V::default()), |_, element| {
        elements.push(*element);
        true
    })?;
    Ok(elements)
}

fn put_elements<V: Pod>(map: &MapData, elements: &[V]) -> io::Result<()> {
    let keys: Vec<u32> = (0..elements.len() as u32).collect();
    syscall::update_batch(map.fd().as_fd(), &keys, elements)
}

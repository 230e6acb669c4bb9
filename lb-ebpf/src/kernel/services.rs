//! The tables of services, backends and their clients.

use aya_ebpf::btf_maps::lpm_trie::Key;
use lb_common::flow::{Affinity, Client};
use lb_common::service::{Backend, BackendId, Frontend, Service, Source};
use lb_common::tables::Services;

use super::Kernel;
use crate::maps::{AFFINITY, BACKENDS, MAGLEV, SERVICES, SOURCE_RANGES};

impl Services for Kernel {
    #[inline(always)]
    fn service(&self, frontend: &Frontend, into: &mut Service) -> bool {
        // SAFETY: as for `copy`.
        let found = unsafe { SERVICES.get(frontend) };
        found.map(|service| *into = *service).is_some()
    }

    #[inline(always)]
    fn knows(&self, frontend: &Frontend) -> bool {
        SERVICES.get_ptr(frontend).is_some()
    }

    #[inline(always)]
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "a place and its use: one access")]
    #[expect(clippy::cast_ptr_alignment, reason = "lines are 8-byte aligned")]
    fn slot_word(&self, line: u32, index: u32) -> Option<u32> {
        let line = MAGLEV.get_ptr(line)?.cast::<u32>();
        // VERIFIER: the mask is the bound; the verifier does not know that callers stay below it.
        // SAFETY: a line has 16 words, and lines are 8-byte aligned.
        Some(unsafe { *line.add((index & 15) as usize) })
    }

    #[inline(always)]
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "a place and its use: one access")]
    #[expect(clippy::cast_ptr_alignment, reason = "lines are 8-byte aligned")]
    fn slot_u16(&self, line: u32, index: u32) -> Option<u16> {
        let line = MAGLEV.get_ptr(line)?.cast::<u16>();
        // SAFETY: a line has 32 `u16`, and lines are 8-byte aligned.
        Some(unsafe { *line.add((index & 31) as usize) })
    }

    #[inline(always)]
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "a place and its use: one access")]
    fn slot_byte(&self, line: u32, index: u32) -> Option<u8> {
        let line = MAGLEV.get_ptr(line)?.cast::<u8>();
        // SAFETY: a line has 64 bytes.
        Some(unsafe { *line.add((index & 63) as usize) })
    }

    #[inline(always)]
    fn backend(&self, id: BackendId, into: &mut Backend) -> bool {
        BACKENDS.get(id).map(|row| *into = *row).is_some()
    }

    #[inline(always)]
    fn epoch(&self, id: BackendId) -> u32 {
        BACKENDS.get(id).map_or(0, |row| row.epoch)
    }

    #[inline(always)]
    fn affinity(&self, client: &Client) -> Option<Affinity> {
        copy!(AFFINITY, client)
    }

    #[inline(always)]
    fn put_affinity(&self, client: &Client, affinity: &Affinity) -> bool {
        AFFINITY.insert(client, affinity, 0).is_ok()
    }

    #[inline(always)]
    fn allows(&self, source: &Source) -> bool {
        SOURCE_RANGES.get(&Key::new(Source::BITS, *source)).is_some()
    }
}

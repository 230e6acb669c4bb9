//! Room in the maps: their limits, the entries that a port lacks, and the entries that are free or will be.

use std::collections::BTreeSet;
use std::time::Duration;

use lb_common::maps::name;
use lb_common::service::Frontend;

use super::Op;
use super::frontends::FrontendClaims;
use super::rows::Rows;
use super::slot_ranges::SlotRanges;
use super::sources::Sources;

/// The reserve is this fraction (1/16) of a map.
const RESERVE: usize = 16;

/// The largest number of entries of each map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries of `SERVICES`, markers included.
    pub services: u32,
    /// Rows of `BACKENDS`, the unused row 0 included.
    pub backends: u32,
    /// Lines of `MAGLEV`, 64 bytes each.
    pub lines: u32,
    /// Entries of `SOURCE_RANGES`.
    pub sources: u32,
}

/// The map that is full: the reason why a service port is not served, or is served as before its last change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FullMap {
    /// `SERVICES` is full.
    Services,
    /// `BACKENDS` is full.
    Backends,
    /// `MAGLEV` has no free run of lines that is long enough.
    Slots,
    /// `SOURCE_RANGES` is full.
    Sources,
}

impl FullMap {
    /// Returns the name of the map.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Services => name::SERVICES,
            Self::Backends => name::BACKENDS,
            Self::Slots => name::MAGLEV,
            Self::Sources => name::SOURCE_RANGES,
        }
    }
}

/// Entries in use, for metrics: from the mirror, without reading the maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub services: usize,
    pub backends: usize,
    /// Lines of `MAGLEV`.
    pub lines: usize,
    pub sources: usize,
}

impl Limits {
    /// Returns the larger of the two numbers of each map.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            services: self.services.max(other.services),
            backends: self.backends.max(other.backends),
            lines: self.lines.max(other.lines),
            sources: self.sources.max(other.sources),
        }
    }

    /// Returns how much of a capacity new ports must leave free.
    pub(super) const fn reserve(limit: u32, is_new: bool) -> usize {
        if is_new { limit as usize / RESERVE } else { 0 }
    }
}

/// The room that a port lacks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lack {
    /// The map that is full.
    pub(super) full: FullMap,
    /// Entries that the port needs besides those it has.
    pub(super) needed: usize,
    /// Entries that the port would need if it had none.
    pub(super) whole: usize,
}

/// The rows, lines and source ranges that ports have, and the limits of the maps.
#[derive(Debug)]
pub(super) struct Capacity {
    pub(super) limits: Limits,
    pub(super) rows: Rows,
    pub(super) lines: SlotRanges,
    pub(super) sources: Sources,
}

impl Capacity {
    /// Frees the rows and lines whose grace period is over. Returns whether there were any.
    pub(super) fn release(&mut self, now: Duration, ops: &mut Vec<Op>) -> bool {
        self.rows.release(now, ops) | self.lines.release(now)
    }

    /// Reports whether rows or lines wait to become free.
    pub(super) fn is_waiting(&self) -> bool {
        self.rows.is_waiting() || self.lines.is_waiting()
    }

    /// Returns the number of entries in use, by map; `services` is that of `SERVICES`.
    pub(super) fn usage(&self, services: usize) -> Usage {
        Usage {
            services,
            backends: self.rows.used(),
            lines: self.lines.used() as usize,
            sources: self.sources.len(),
        }
    }

    /// Returns the number of entries that are free, or will be without displacing a port.
    pub(super) fn coming(
        &self,
        full: FullMap,
        frontends: &FrontendClaims,
        dirty: &BTreeSet<Frontend>,
    ) -> usize {
        let limits = self.limits;
        match full {
            FullMap::Services => {
                let going = dirty.iter().filter(|frontend| frontends.is_going(frontend)).count();
                (limits.services as usize + going).saturating_sub(frontends.used())
            }
            FullMap::Backends => self.rows.free() + self.rows.waiting(),
            FullMap::Slots => (limits.lines - self.lines.used() + self.lines.waiting()) as usize,
            FullMap::Sources => (limits.sources as usize).saturating_sub(self.sources.len()),
        }
    }

    /// Reports whether entries of the full map wait to become free.
    pub(super) fn is_giving(&self, full: FullMap) -> bool {
        match full {
            FullMap::Backends => self.rows.is_waiting(),
            FullMap::Slots => self.lines.is_waiting(),
            // Source ranges have no grace period, and the flows of a draining frontend may last for days.
            FullMap::Services | FullMap::Sources => false,
        }
    }
}

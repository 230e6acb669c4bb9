//! Restarts for larger maps: at once when a Service found no room; when the objects need most of a map, after a random
//! time, so that the nodes of a cluster do not all restart in the same second.

use std::collections::BTreeMap;
use std::time::Duration;

use tracing::info;

use super::memory;
use super::service_maps::ServiceMaps;
use super::sizes::{by_name, outgrown};
use crate::random;
use crate::reconcile::{FullMap, Limits, Usage};
use crate::tracker::Tracker;

/// Shortest time between restarts for larger maps.
const APART: Duration = Duration::from_secs(20);
/// Longest time from when room is scarce to the restart.
const SPREAD: Duration = Duration::from_mins(1);

/// Shortest time between two counts of the objects while no Service is refused.
const COUNT: Duration = Duration::from_secs(10);

/// The room that is left in maps that would be larger if they were created now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Ample,
    /// The objects need more than three quarters of a map.
    Scarce,
    /// A Service was refused.
    Lacking,
}

impl Room {
    /// Returns the room in the maps `growing`. `refused` are the full maps of refused ports.
    fn of(
        growing: &[&'static str],
        mut refused: impl Iterator<Item = FullMap>,
        need: &Limits,
        has: &Limits,
    ) -> Self {
        if refused.any(|full| growing.contains(&full.name())) {
            Self::Lacking
        } else if fuller(3, need, has).iter().any(|name| growing.contains(name)) {
            Self::Scarce
        } else {
            Self::Ample
        }
    }
}

/// The schedule of a restart for larger maps.
#[derive(Debug)]
pub(super) struct Growth {
    /// Configured sizes of maps.
    configured: BTreeMap<String, u32>,
    /// Time since the start when the objects were counted last.
    counted: Option<Duration>,
    /// Time from when room is scarce to the restart.
    delay: Duration,
    /// Time since the start from when on room was scarce.
    since: Option<Duration>,
}

impl Growth {
    /// Makes the schedule for maps with these configured sizes.
    pub(super) fn new(configured: BTreeMap<String, u32>) -> Self {
        Self { configured, counted: None, delay: random::below(SPREAD), since: None }
    }

    /// Reports whether it is time to restart for larger maps, at this time since the start.
    pub(super) fn wants_restart(
        &mut self,
        tracker: &Tracker,
        maps: &ServiceMaps,
        now: Duration,
    ) -> bool {
        if !self.counts(maps.reconciler().refused().next().is_some(), now) {
            return false;
        }
        let (room, growing) = self.room(tracker, maps);
        let wants = self.is_due(room, now);
        if wants {
            info!(maps = growing.join(" "), "maps are too small; restarting with larger ones");
        }
        wants
    }

    /// Returns the room in the maps that would be larger if they were created now, and these maps.
    fn room(&self, tracker: &Tracker, maps: &ServiceMaps) -> (Room, Vec<&'static str>) {
        let reconciler = maps.reconciler();
        let refused = || reconciler.refused().map(|(_, full)| full);
        let (usage, has) = (reconciler.usage(), reconciler.limits());
        // Counting the objects takes a while, so it is left out while no map is half full.
        let may_lack = refused().next().is_some() || is_half_full(&usage, &has);
        // The next run needs the count of all objects.
        if !may_lack || !maps.is_programmed() {
            return (Room::Ample, Vec::new());
        }
        let need = tracker.demand();
        let growing = outgrown(&self.configured, &need, &has, memory::limit());
        (Room::of(&growing, refused(), &need, &has), growing)
    }

    /// Reports whether to count the objects, which takes a while: at once if a Service was refused, else now and then.
    fn counts(&mut self, is_refused: bool, now: Duration) -> bool {
        let is_time = self.counted.is_none_or(|counted| now.saturating_sub(counted) >= COUNT);
        if is_refused || is_time {
            self.counted = Some(now);
        }
        is_refused || is_time
    }

    /// Reports whether to restart, at this time since the start.
    fn is_due(&mut self, room: Room, now: Duration) -> bool {
        // If a restart did not help, the next one must not follow at once.
        if now < APART {
            return false;
        }
        match room {
            Room::Ample => {
                self.since = None;
                false
            }
            Room::Scarce => now.saturating_sub(*self.since.get_or_insert(now)) >= self.delay,
            Room::Lacking => true,
        }
    }
}

/// Reports whether more than half of a map is in use.
fn is_half_full(usage: &Usage, has: &Limits) -> bool {
    let used = Limits {
        services: usage.services as u32,
        backends: usage.backends as u32,
        lines: usage.lines as u32,
        sources: usage.sources as u32,
    };
    !fuller(2, &used, has).is_empty()
}

/// Returns the maps of which more than this number of quarters is taken.
fn fuller(quarters: u64, taken: &Limits, has: &Limits) -> Vec<&'static str> {
    let is_fuller = |taken: u32, has: u32| u64::from(taken) * 4 > u64::from(has) * quarters;
    let maps = by_name(taken).into_iter().zip(by_name(has));
    let fuller = maps.filter(|((_, taken), (_, has))| is_fuller(*taken, *has));
    fuller.map(|((name, _), _)| name).collect()
}

#[cfg(test)]
mod tests {
    use lb_common::maps::name;

    use super::*;

    const HAS: Limits = Limits { services: 100, backends: 100, lines: 100, sources: 100 };
    const NEED: Limits = Limits { services: 10, backends: 76, lines: 75, sources: 0 };

    fn room(growing: &[&'static str], refused: &[FullMap]) -> Room {
        Room::of(growing, refused.iter().copied(), &NEED, &HAS)
    }

    #[test]
    fn only_maps_that_would_be_larger_count() {
        assert_eq!(room(&[name::BACKENDS], &[]), Room::Scarce);
        assert_eq!(room(&[name::MAGLEV, name::SERVICES], &[]), Room::Ample);
        assert_eq!(room(&[name::SERVICES], &[FullMap::Services]), Room::Lacking);
        assert_eq!(room(&[name::SERVICES], &[FullMap::Backends]), Room::Ample);
    }

    #[test]
    fn objects_are_counted_once_a_map_is_half_full() {
        let used = |lines| Usage { lines, ..Usage::default() };
        assert!(!is_half_full(&used(50), &HAS));
        assert!(is_half_full(&used(51), &HAS));
    }

    #[test]
    fn objects_are_counted_now_and_then() {
        let mut growth = Growth::new(BTreeMap::new());
        let counts = [(false, 1), (false, 2), (true, 3), (false, 12), (false, 13)]
            .map(|(refused, now)| growth.counts(refused, Duration::from_secs(now)));
        assert_eq!(counts, [true, false, true, false, true]);
    }

    #[test]
    fn restart_waits_a_random_time_unless_a_service_is_refused() {
        let seconds = Duration::from_secs;
        let mut growth = Growth { delay: seconds(30), ..Growth::new(BTreeMap::new()) };
        assert!(!growth.is_due(Room::Lacking, seconds(19)), "soon after a start");
        assert!(growth.is_due(Room::Lacking, seconds(20)));
        for (room, now, is_due) in [
            (Room::Scarce, 40, false),
            (Room::Scarce, 69, false),
            (Room::Scarce, 70, true),
            (Room::Ample, 71, false),
            (Room::Scarce, 72, false),
            (Room::Scarce, 102, true),
        ] {
            assert_eq!(growth.is_due(room, seconds(now)), is_due, "{now}");
        }
        assert!(Growth::new(BTreeMap::new()).delay < SPREAD);
    }
}

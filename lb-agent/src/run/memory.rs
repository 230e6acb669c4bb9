//! The memory limit of the agent, and what its maps take of it.
//!
//! The kernel charges maps, and each entry that a packet creates in them, to the memory cgroup of the process that
//! created the map. A full table must therefore fit the limit of that cgroup. Otherwise packets make the kernel kill
//! the agent, and every agent started after it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use lb_common::maps::name;
use nix::sys::sysinfo::sysinfo;

use crate::maps::{MapShape, SHAPES};
use crate::reconcile::Limits;

/// Memory that is not for maps, in bytes: the programs, the agent, and the verifier while it checks programs (40 MB on
/// Linux 6.18).
const OTHER: u64 = 64 << 20;
/// Most that the agent takes in its own memory for an entry of `SERVICES` and for a backend, in bytes (ADR 0032). A
/// Service has two such entries or more.
const OF_FRONTEND: u64 = 2 << 10;
const OF_BACKEND: u64 = 512;

/// Returns the smallest memory limit of this process's cgroups, in bytes; `None` without a limit.
///
/// In a container the visible files are those of the container; a path that does not exist there is the host's.
pub(super) fn limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    groups.lines().flat_map(files).filter_map(|file| read(&file)).min()
}

/// Returns the memory of the machine, in bytes.
pub(super) fn of_machine() -> Option<u64> {
    Some(sysinfo().ok()?.ram_total())
}

/// Returns the files that may contain a limit, for one line of `/proc/self/cgroup` (cgroups(7)): those of cgroup v2, or
/// of v1's memory controller.
fn files(line: &str) -> Vec<String> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else {
        return Vec::new();
    };
    let (root, name) = match controllers {
        // The hierarchy of cgroup v2 has no list of controllers there.
        "" => ("/sys/fs/cgroup", "memory.max"),
        _ if controllers.split(',').any(|it| it == "memory") => {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        }
        _ => return Vec::new(),
    };
    let groups = Path::new(group).ancestors();
    // A limit of any parent applies, too.
    groups.map(|group| format!("{root}{}/{name}", group.display())).collect()
}

fn read(file: &str) -> Option<u64> {
    // `max` is no number and means no limit.
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Halves the map that takes most memory until all full maps fit `limit`, none below its floor.
///
/// `sizes` has every map whose size may change; `floors` has those whose size is not configured.
pub(super) fn fit(
    sizes: &mut BTreeMap<&'static str, u32>,
    floors: &BTreeMap<&'static str, u32>,
    need: &Limits,
    limit: u64,
) {
    while !fits(sizes, need, limit) {
        let entries = |shape: &MapShape| sizes.get(shape.name).copied().unwrap_or(shape.entries);
        let may_shrink = |shape: &&MapShape| {
            floors.get(shape.name).is_some_and(|floor| entries(shape) / 2 >= *floor)
        };
        let largest = SHAPES.iter().filter(may_shrink).max_by_key(|it| it.bytes(entries(it)));
        // All maps are at their floor: the caller reports that the limit is too small.
        let Some(largest) = largest else { return };
        let half = entries(largest) / 2;
        sizes.insert(largest.name, half);
    }
}

/// Reports whether full maps of these sizes, and all else that the agent takes, fit the limit.
pub(super) fn fits(sizes: &BTreeMap<&'static str, u32>, need: &Limits, limit: u64) -> bool {
    let entries = |shape: &MapShape| sizes.get(shape.name).copied().unwrap_or(shape.entries);
    total(entries).saturating_add(other_memory(need, entries)) <= limit
}

/// Returns the problem if full maps of these sizes may take more than the limit: packets could then make the kernel
/// kill the agent.
pub(super) fn problem(
    sizes: &BTreeMap<String, u32>,
    need: &Limits,
    limit: Option<u64>,
) -> Option<String> {
    let (limit, needed) = (limit?, needed(sizes, need));
    (needed > limit).then(|| {
        format!(
            "memory limit of the agent is {} MiB, and full maps with the Services of the cluster may take {} MiB, so \
             the kernel may kill the agent when packets fill them: raise the limit, or lower mapSizes where set",
            limit >> 20,
            mebibytes(needed)
        )
    })
}

/// Returns the problem if the machine does not have the memory for full maps of these sizes: `machine`, in bytes.
pub(super) fn machine_problem(
    sizes: &BTreeMap<String, u32>,
    need: &Limits,
    machine: Option<u64>,
) -> Option<String> {
    let (machine, needed) = (machine?, needed(sizes, need));
    (needed > machine).then(|| {
        format!(
            "this machine has {} MiB of memory, and full maps with the Services of the cluster take {} MiB: lower \
             mapSizes",
            machine >> 20,
            mebibytes(needed)
        )
    })
}

const fn mebibytes(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

/// Returns the memory that full maps of these sizes and all else of the agent take, in bytes.
pub(super) fn needed(sizes: &BTreeMap<String, u32>, need: &Limits) -> u64 {
    let entries = |shape: &MapShape| sizes.get(shape.name).copied().unwrap_or(shape.entries);
    total(entries).saturating_add(other_memory(need, entries))
}

/// Returns the memory of all maps when full, in bytes.
fn total(entries: impl Fn(&MapShape) -> u32) -> u64 {
    SHAPES.iter().map(|shape| shape.bytes(entries(shape))).sum()
}

/// Returns the memory that is not for maps, in bytes. Services that find no room in the maps take little.
fn other_memory(need: &Limits, entries: impl Fn(&MapShape) -> u32) -> u64 {
    let served =
        |name, need: u32| MapShape::of(name).map_or(need, |shape| need.min(entries(shape)));
    let frontends = u64::from(served(name::SERVICES, need.services));
    let backends = u64::from(served(name::BACKENDS, need.backends));
    OTHER + frontends * OF_FRONTEND + backends * OF_BACKEND
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Limits = Limits { services: 0, backends: 1, lines: 0, sources: 0 };

    fn sizes() -> BTreeMap<&'static str, u32> {
        SHAPES.iter().map(|shape| (shape.name, shape.entries)).collect()
    }

    fn total(sizes: &BTreeMap<&'static str, u32>) -> u64 {
        super::total(|shape| sizes[shape.name])
    }

    #[test]
    fn full_maps_fit_the_limit() {
        for mebibytes in [96_u64, 128, 200, 256, 320] {
            let (mut sizes, limit) = (sizes(), mebibytes << 20);
            let floors =
                SHAPES.iter().filter(|it| it.content.is_sizable()).map(|it| (it.name, 4_096));
            fit(&mut sizes, &floors.collect(), &NOTHING, limit);
            assert!(total(&sizes) + OTHER <= limit, "{mebibytes} MiB: {sizes:?}");
            let most = sizes.values().max();
            assert!(most.is_some_and(|most| *most >= 16_384), "{mebibytes} MiB: {sizes:?}");
        }
    }

    #[test]
    fn limit_above_the_total_changes_nothing() {
        let mut all = sizes();
        let floors = sizes();
        fit(&mut all, &floors, &NOTHING, 512 << 20);
        assert_eq!(all, sizes());
        assert!(total(&all) < 448 << 20, "what ADR 0032 computes: {}", total(&all));
    }

    #[test]
    fn limit_reduces_no_map_below_its_floor() {
        let (mut small, floors) = (sizes(), sizes());
        fit(&mut small, &floors, &NOTHING, 1 << 20);
        assert_eq!(small, sizes());
    }

    #[test]
    fn a_limit_below_full_maps_is_a_problem() {
        let chosen = BTreeMap::from([("FLOWS4".to_owned(), 2_097_152)]);
        let of = |sizes, mebibytes: u64| problem(sizes, &NOTHING, Some(mebibytes << 20));
        assert_eq!(of(&chosen, 1_024), None);
        assert_eq!(problem(&BTreeMap::new(), &NOTHING, Some(512 << 20)), None);
        assert_eq!(problem(&chosen, &NOTHING, None), None, "no limit");
        let said = of(&chosen, 512).expect("a problem");
        assert!(said.contains("is 512 MiB") && said.contains("raise the limit"), "{said}");
        let many = Limits { services: 200_000, backends: 200_000, ..NOTHING };
        assert!(problem(&BTreeMap::new(), &many, Some(512 << 20)).is_some(), "objects count");
        let refused = Limits { services: 4_000_000, ..NOTHING };
        assert_eq!(problem(&BTreeMap::new(), &refused, Some(512 << 20)), None, "have no entries");
    }

    #[test]
    fn files_of_both_versions_are_looked_at_up_to_the_root() {
        assert_eq!(
            files("0::/kubepods/pod1"),
            [
                "/sys/fs/cgroup/kubepods/pod1/memory.max",
                "/sys/fs/cgroup/kubepods/memory.max",
                "/sys/fs/cgroup//memory.max",
            ]
        );
        assert_eq!(
            files("4:memory:/a"),
            [
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory//memory.limit_in_bytes",
            ]
        );
        assert!(files("3:cpuset:/a").is_empty());
        assert!(files("").is_empty());
    }
}

//! The time limits of root tests on a quiet machine. No test can stop the run: a test that exceeds its limit is killed.

use std::time::Duration;

/// The limit of a test that is not in the table. Beside others on two CPUs, the slowest of these take a minute.
const DEFAULT: Duration = Duration::from_mins(2);

/// The name of a test file that hangs, in the tests of this runner.
#[cfg(test)]
pub(super) const HANGING: &str = "hanging_example";

/// Tests with a limit of their own, and the reason. The key is the name of the file, or of the file and the test.
const LARGER: [(&str, Duration, &str); 6] = [
    (
        "control_plane_matrix",
        Duration::from_mins(5),
        "hundreds of questions to the real kube-proxy and to the agent in each of many settings",
    ),
    (
        "control_plane_contract",
        Duration::from_mins(5),
        "its own deadlines, of which two of a minute follow each other, name the wrong answer",
    ),
    ("compare", Duration::from_mins(5), "hundreds of requests to the real kube-apiserver"),
    (
        "control_plane_takeover",
        Duration::from_mins(5),
        "hundreds of connections through the real kube-proxy, there and back",
    ),
    (
        "prog_run",
        Duration::from_mins(5),
        "thousands of packets through every program of a debug build",
    ),
    ("topology_neighbours", Duration::from_mins(4), "the agent's pauses between repairs double"),
];

/// Returns the limit of a test on a quiet machine.
pub(super) fn of(file: &str, test: &str) -> Duration {
    #[cfg(test)]
    if file == HANGING {
        return Duration::from_secs(1);
    }
    let name = format!("{file}::{test}");
    let found = LARGER.iter().find(|(key, ..)| *key == file || *key == name);
    found.map_or(DEFAULT, |(_, limit, _)| *limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_holds_for_whole_files_and_else_the_default() {
        assert_eq!(of("topology_agent", "any"), DEFAULT);
        assert_eq!(of("prog_run", "any"), Duration::from_mins(5));
        assert!(LARGER.iter().all(|(_, limit, why)| *limit > DEFAULT && !why.is_empty()));
    }
}

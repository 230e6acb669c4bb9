//! The test harness: namespaces as hosts, a real control plane, waiting with a deadline.

pub mod control_plane;
pub mod netns;
pub mod process;
pub mod topology;
pub mod traffic;
pub mod wait;

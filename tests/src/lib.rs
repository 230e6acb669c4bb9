//! The test harness: namespaces as hosts, a real control plane, waiting with a deadline.

pub mod agent;
pub mod at_once;
pub mod bench;
pub mod budget;
pub mod cluster;
pub mod container;
pub mod control_plane;
pub mod cpus;
pub mod http;
pub mod manifest;
pub mod matrix;
pub mod netns;
pub mod playground;
pub mod population;
pub mod process;
pub mod relay;
pub mod rig;
pub mod topology;
pub mod traffic;
pub mod twin;
pub mod wait;

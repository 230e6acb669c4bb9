//! The test harness: namespaces as hosts, a real control plane, and waits with a deadline.

pub mod agent;
pub mod budget;
pub mod campaign;
pub mod cluster;
pub mod container;
pub mod control_plane;
pub mod cpus;
pub mod differential;
pub mod first_questions;
pub mod http;
pub mod interceptor;
pub mod join_all;
pub mod kinds;
pub mod manifest;
pub mod matrix;
pub mod memory;
pub mod netns;
pub mod playground;
pub mod population;
pub mod process;
pub mod programs;
pub mod rig;
pub mod skipped;
pub mod topology;
pub mod traffic;
pub mod wait;

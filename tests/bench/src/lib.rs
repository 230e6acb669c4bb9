//! Benchmarks: a module for each of them, and the modules that they share; `docs/bench/README.md` explains the figures.
//!
//! The harness is that of the tests (`lb_tests`), which knows nothing of this crate.

pub mod api_relay;
pub mod churn;
pub mod compare;
mod figures;
mod load;
mod machine;
mod memory;
pub mod packet;
mod proxy;
pub mod report;
mod results;
pub mod scale;
pub mod traffic;

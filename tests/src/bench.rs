//! The benchmarks, one module each, and the modules that they share; see `docs/bench/README.md`.

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

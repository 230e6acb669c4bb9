//! The same Services, the same questions: asked of the real kube-proxy and of ours, and compared with
//! what the contract says (contract 2.4 and 3.3).
//!
//! One API server serves many *worlds*: topologies of the same names and addresses, each with a proxy of its own
//! on `node-a`. `node-b` is the other node and has none, so that every decision is one of `node-a`.

mod beyond;
mod contract;
mod hub;
mod objects;
mod question;
mod routes;
mod services;
mod setup;
mod stale;
mod world;

pub use beyond::{
    BRIEFLY_STICKY, HEALTH_CHECKS, NODE_PORT_ADDRESSES, SCTP, STICKY, Step, node_port_cases, steps,
    without_addresses,
};
pub use contract::expected;
pub use hub::Hub;
pub use question::{
    Case, Destination, Outcome, Policy, Question, Seen, Source, State, frontend, questions,
};
pub use services::services;
pub use setup::{Detector, Proxy, Setup};
pub use stale::{Answers, Row, SECOND_TARGET, STALE, Stage, rows};
pub use world::World;

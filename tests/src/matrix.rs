//! The same questions to the same Services, sent through the real kube-proxy and through our agent, and compared with
//! the contract (contract 2.4 and 3.3).
//!
//! One API server serves many *worlds*: topologies with the same names and addresses, each with its own proxy on
//! `node-a`. `node-b` is the other node. It has no proxy unless a test asks for one, so `node-a` makes every decision.

mod account;
mod contract;
mod extra_cases;
mod objects;
mod question;
mod routes;
mod services;
mod setup;
mod shared_api_server;
mod stale;
mod world;

pub use account::{Account, Compared};
pub use contract::expected;
pub use extra_cases::{
    BRIEFLY_STICKY, HEALTH_CHECKS, NODE_PORT_ADDRESSES, SCTP, STICKY, Step, node_port_cases, steps,
    without_addresses,
};
pub use question::{
    Case, Destination, Outcome, Policy, Question, Seen, Source, State, frontend, questions,
};
pub use services::services;
pub use setup::{Detector, NATIVE, Proxy, SETTINGS, Setup};
pub use shared_api_server::SharedApiServer;
pub use stale::{Answers, Phase, Row, SECOND_TARGET, STALE, rows};
pub use world::World;

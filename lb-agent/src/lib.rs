//! The node agent as a library: watches Services, decides what the maps should contain, and writes the difference.
//!
//! The modules from the bottom up. A module uses only those before it in this list: `cargo test -p xtask module_order`
//! checks this. The `mod` lines below are alphabetical, because rustfmt sorts them.
//!
//! - `syscall`: kernel calls that aya and nix lack
//! - `random`: random numbers and delays
//! - `netlink`: messages of netlink
//! - `netfilter`: messages of netfilter, and its connections
//! - `words`: keys and values of the maps as people write them
//! - `http_server`: connections and refusals of every HTTP listener
//! - `plan`: the desired state of a service port
//! - `snapshot`: Services, EndpointSlices and Nodes as every source sends them
//! - `state_file`: the last known state of a run, for the commands that show it
//! - `translate`: a Service and its slices to plans
//! - `reconcile`: the difference between plans and maps, as operations
//! - `maps`: typed handles to the maps
//! - `datapath`: loads, attaches, upgrades and removes the programs
//! - `health`: the responses of `/healthz` and `/readyz`
//! - `config`: file and flags as one configuration
//! - `cli`: the command line
//! - `node`: interfaces, addresses and routes of this node
//! - `tracker`: which Services changed
//! - `sweep`: removes expired flows
//! - `health_check`: responses to load balancers about the health of a Service
//! - `manifests`: objects from a directory
//! - `kube_events`: Events for Kubernetes
//! - `watch`: objects from an API server
//! - `metrics`: metrics, and the pages that kube-proxy serves
//! - `takeover`: connections and rules of kube-proxy, on the way in and on the way back
//! - `run`: the main loop
//! - `show`: the commands that read the maps
#![deny(unsafe_code)]

pub mod cli;
pub mod config;
pub mod datapath;
pub mod health;
pub mod health_check;
mod http_server;
pub mod kube_events;
pub mod manifests;
pub mod maps;
pub mod metrics;
mod netfilter;
mod netlink;
pub mod node;
pub mod plan;
mod random;
pub mod reconcile;
pub mod run;
pub mod show;
pub mod snapshot;
pub mod state_file;
pub mod sweep;
#[expect(unsafe_code, reason = "raw kernel calls; the only other unsafe code is in maps/raw")]
pub mod syscall;
pub mod takeover;
pub mod tracker;
pub mod translate;
pub mod watch;
mod words;

pub use syscall::{keep_name, keep_one_heap};

/// Returns an error with its causes on one line. A cause whose text the line already contains is skipped.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| match cause.to_string() {
        cause if text.contains(&cause) => text,
        cause => format!("{text}: {cause}"),
    })
}

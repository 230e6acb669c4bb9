//! The node agent as a library: watches Services, decides what the maps should contain, and writes the difference.
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
pub mod reconcile;
pub mod run;
pub mod show;
pub mod snapshot;
pub mod sweep;
#[expect(unsafe_code, reason = "raw kernel calls; beside it only maps/raw promises something")]
pub mod syscall;
pub mod takeover;
pub mod tracker;
pub mod translate;
pub mod watch;

pub use syscall::keep_one_heap;

/// Returns an error with its causes on one line. A cause whose text the line already contains is skipped.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| match cause.to_string() {
        cause if text.contains(&cause) => text,
        cause => format!("{text}: {cause}"),
    })
}

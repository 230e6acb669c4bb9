//! The same requests to the real kube-apiserver and to ours: answers are equal but for identity, time and chance.
//!
//! Needs no root, and the binaries of `cargo xtask setup` (or `KUBEBUILDER_ASSETS`). `COMPARE_SEED` repeats a run,
//! `LB_PROVE` makes it longer.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a step that fails ends the test")]

use serde_json::Value;

use self::client::{Api, Reply};
use self::generate::{Generator, Step};

mod client;
mod generate;
mod normal;
mod real;

/// The number of requests of one history, in a campaign (`cargo xtask prove`) and else.
fn requests() -> usize {
    if std::env::var_os("LB_PROVE").is_some_and(|value| !value.is_empty()) { 4_000 } else { 150 }
}

/// The number that the first history is drawn by.
fn seed() -> u64 {
    std::env::var("COMPARE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// The requests to both; fields of the objects as each has them are put in by each.
async fn ask(api: &Api, step: &Step) -> Reply {
    let current = match &step.based_on {
        Some(path) => api.send("GET", path, "", None).await.body,
        None => Value::Null,
    };
    let body = step.body.as_ref().map(|it| (it.0, it.1(&current)));
    let body = body.as_ref().map(|it| (it.0, it.1.as_str()));
    api.send(step.method, &step.path, step.accept, body).await
}

async fn history(cidrs: &str, more: u64) {
    let Some(mut real) = real::Real::start(cidrs).await else {
        // Said once more by `cargo xtask setup`, which brings them.
        println!("skipped: kube-apiserver and etcd are not there; remedy: cargo xtask setup");
        return;
    };
    let ours = Api::ours(cidrs, real.port).await;
    let (seed, requests) = (seed() + more, requests());
    let mut generator = Generator::new(seed, cidrs.contains(','));
    let begin = [real.api.revision().await, ours.revision().await];
    let mut differences = Vec::new();
    for turn in 0..requests {
        let step = generator.step(turn);
        let theirs = normal::reply(&ask(&real.api, &step).await);
        let own = normal::reply(&ask(&ours, &step).await);
        if theirs != own {
            let body = step.body.as_ref().map(|it| it.1(&Value::Null)).unwrap_or_default();
            let asked = format!("{} {} {}\n{body}", step.method, step.path, step.accept);
            differences.push(format!("{turn}: {asked}\n{}", normal::difference(&theirs, &own)));
        }
    }
    let [theirs, own] = begin;
    let (theirs, own) = tokio::join!(real.api.events(theirs), ours.events(own));
    if let Some(difference) = normal::events(&theirs, &own) {
        differences.push(difference);
    }
    real.stop();
    let count = differences.len();
    let shown: Vec<String> = differences.into_iter().take(20).collect();
    assert!(shown.is_empty(), "seed {seed}: {count} of {requests} differ\n{}", shown.join("\n\n"));
    println!("{} events are the same (seed {seed}, {cidrs})", own.len());
    println!("figure: requests answered alike, {cidrs} {requests} requests");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histories_on_two_ranges_are_the_same() {
    history("10.96.0.0/16,fd00:10:96::/112", 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histories_on_one_range_are_the_same() {
    history("10.96.0.0/16", 1).await;
}

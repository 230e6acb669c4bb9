//! The connections that new ones displace.

use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;

/// Makes a connection that never ends by itself.
fn idle(connections: &Connections, of: usize, from: &str, has_asked: bool) -> JoinHandle<()> {
    let task = tokio::spawn(std::future::pending());
    let state = AtomicU8::new(if has_asked { Progress::ANSWERED } else { Progress::NEW });
    let began = Instant::now().checked_sub(GRACE).expect("a machine that was just started");
    let progress = Arc::new(Progress { began, state });
    let from = from.parse().expect("an address");
    connections.admit(HttpConnection { of, from, progress, task: task.abort_handle() });
    task
}

async fn is_pushed_out(task: JoinHandle<()>) -> bool {
    let ended = timeout(Duration::from_mins(1), task).await;
    ended.is_ok_and(|ended| ended.is_err_and(|error| error.is_cancelled()))
}

const OF_ALL: usize = 12;
const OF_ONE: usize = 4;

#[tokio::test]
async fn new_connection_displaces_the_oldest_of_its_own_service() {
    let connections = Connections::bounded(OF_ALL, OF_ONE);
    let of_other = idle(&connections, 1, "192.0.2.1", false);
    let mut all: Vec<_> = (0..OF_ONE).map(|_| idle(&connections, 0, "192.0.2.1", false)).collect();
    let newest = idle(&connections, 0, "192.0.2.1", false);
    assert!(is_pushed_out(all.remove(0)).await);
    assert!(all.iter().chain([&newest, &of_other]).all(|task| !task.is_finished()));
}

#[tokio::test]
async fn full_table_displaces_the_oldest_connection_of_all() {
    let connections = Connections::bounded(OF_ALL, OF_ONE);
    let mut all = Vec::new();
    for of in 0..OF_ALL / OF_ONE {
        all.extend((0..OF_ONE).map(|_| idle(&connections, of, "192.0.2.1", false)));
    }
    let newest = idle(&connections, OF_ALL, "192.0.2.1", false);
    assert!(is_pushed_out(all.remove(0)).await);
    assert!(all.iter().chain([&newest]).all(|task| !task.is_finished()));
}

/// A thousand clients with one address, or from one network of IPv6, displace each other but no probe.
#[tokio::test]
async fn a_source_with_many_pushes_out_its_own() {
    for many in ["192.0.2.1", "2001:db8::1"] {
        let connections = Connections::bounded(8, 8);
        let probes: Vec<_> = ["198.51.100.1", "198.51.100.2", "2001:db8:1::1"]
            .map(|from| idle(&connections, 0, from, false))
            .into();
        let bad: Vec<_> = (0..20).map(|_| idle(&connections, 0, many, true)).collect();
        assert_eq!(connections.all().len(), 8);
        assert!(probes.iter().all(|probe| !probe.is_finished()), "{many}");
        drop(bad);
    }
}

#[tokio::test]
async fn sources_without_a_request_are_displaced_first() {
    let connections = Connections::bounded(4, 4);
    let probes = [1, 2].map(|n| idle(&connections, 0, &format!("192.0.2.{n}"), true));
    let mut silent = [3, 4].map(|n| idle(&connections, 0, &format!("192.0.2.{n}"), false));
    let newest = idle(&connections, 0, "192.0.2.5", false);
    let oldest = std::mem::replace(&mut silent[0], tokio::spawn(std::future::pending()));
    assert!(is_pushed_out(oldest).await);
    assert!(probes.iter().chain([&silent[1], &newest]).all(|task| !task.is_finished()));
}

/// A balancer keeps two connections, and each of the silent clients has one.
#[tokio::test]
async fn few_of_a_source_are_not_more_than_one_of_each_silent_source() {
    let connections = Connections::bounded(2 * MANY, 2 * MANY);
    let probes = [(); 2].map(|()| idle(&connections, 0, "192.0.2.1", true));
    let silent = |n: usize| format!("198.51.{}.{}", n / 256, n % 256);
    let bad: Vec<_> = (0..3 * MANY).map(|n| idle(&connections, 0, &silent(n), false)).collect();
    assert!(probes.iter().all(|probe| !probe.is_finished()));
    assert_eq!(connections.all().len(), 2 * MANY);
    drop(bad);
}

/// A probe that was accepted a moment ago is not treated as a silent client.
#[tokio::test]
async fn just_accepted_connection_is_not_displaced_by_the_next() {
    let connections = Connections::bounded(2, 2);
    let kept_alive = idle(&connections, 0, "192.0.2.1", true);
    let task = tokio::spawn(std::future::pending::<()>());
    let (from, handle) = ("192.0.2.1".parse().expect("an address"), task.abort_handle());
    connections.admit(HttpConnection { of: 0, from, progress: Progress::begin(), task: handle });
    let newest = idle(&connections, 0, "192.0.2.1", false);
    assert!(is_pushed_out(kept_alive).await);
    assert!(!task.is_finished() && !newest.is_finished());
}

#[tokio::test]
async fn ended_connection_takes_no_place() {
    let connections = Connections::bounded(OF_ALL, OF_ONE);
    let first = idle(&connections, 0, "192.0.2.1", false);
    for _ in 0..2 * OF_ONE {
        let task = tokio::spawn(std::future::ready(()));
        let (handle, from) = (task.abort_handle(), "192.0.2.1".parse().expect("an address"));
        task.await.expect("no panic");
        let progress = Progress::begin();
        connections.admit(HttpConnection { of: 0, from, progress, task: handle });
    }
    assert!(!first.is_finished());
    assert_eq!(connections.all().len(), 2, "the idle one, and the last");
}

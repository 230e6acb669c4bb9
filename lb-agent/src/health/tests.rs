//! Responses of the health server, and how long they stay valid.

use super::*;

/// kube-proxy's timeout, if none is configured.
const PATIENCE: Duration = Duration::from_mins(1);

fn code(health: &Health, is_about_node: bool) -> u16 {
    health.answer("healthz", is_about_node).status().as_u16()
}

#[test]
fn a_node_that_leaves_is_alive_but_not_healthy() {
    let health = Health::new(PATIENCE);
    assert_eq!((code(&health, true), code(&health, false)), (503, 200), "node unknown");
    health.node(NodeState::Eligible);
    assert_eq!((code(&health, true), code(&health, false)), (200, 200));
    health.node(NodeState::Deleting);
    assert_eq!((code(&health, true), code(&health, false)), (503, 200));
    assert_eq!(health.answers()[&("healthz", 503)], 2);
}

#[test]
fn a_change_that_waits_too_long_is_unhealthy() {
    let health = Health::new(PATIENCE);
    health.node(NodeState::Eligible);
    health.pending(Instant::now().checked_sub(PATIENCE));
    assert_eq!((code(&health, true), code(&health, false)), (503, 503));
    health.updated();
    assert_eq!(code(&health, true), 200);
    let hasty = Health::new(Duration::from_mins(10));
    hasty.pending(Instant::now().checked_sub(Duration::from_mins(5)));
    assert_eq!(code(&hasty, false), 200);
    hasty.pending(Instant::now().checked_sub(Duration::from_mins(11)));
    assert_eq!(code(&hasty, false), 503);
}

/// The kubelet restarts a process that is not alive, and its links would end with it.
#[test]
fn missing_pins_are_unhealthy_despite_updates_but_no_reason_for_a_restart() {
    let health = Health::new(PATIENCE);
    health.node(NodeState::Eligible);
    health.unpinned(Instant::now().checked_sub(PATIENCE));
    health.pending(Some(Instant::now()));
    health.updated();
    health.pending(None);
    assert_eq!((code(&health, true), code(&health, false)), (503, 200));
    assert!(!health.is_fresh(), "load balancers prefer other nodes");
    health.pending(Instant::now().checked_sub(PATIENCE));
    assert_eq!(code(&health, false), 503, "it fails for another reason");
    health.pending(None);
    for since in [Some(Instant::now()), None] {
        health.unpinned(since);
        assert_eq!((code(&health, true), code(&health, false)), (200, 200));
    }
}

/// The loop may be blocked by a lock, a disk or the kernel. The server itself does not block, and reports it.
#[test]
fn a_loop_that_hangs_is_unhealthy() {
    let health = Health::new(Duration::ZERO);
    assert_eq!(code(&health, false), 200, "it has not begun");
    health.turns();
    assert_eq!(code(&health, false), 503);
    let patient = Health::new(PATIENCE);
    patient.turns();
    assert_eq!(code(&patient, false), 200);
}

async fn body(health: &Health) -> serde_json::Value {
    let answer = health.answer("healthz", true).into_body();
    let bytes = axum::body::to_bytes(answer, 10_000).await.expect("a short text");
    serde_json::from_slice(&bytes).expect("a document")
}

#[tokio::test]
async fn families_report_their_last_update_and_the_whole_the_current_time() {
    let health = Health::new(PATIENCE);
    let unknown = body(&health).await;
    let keys: Vec<_> = unknown.as_object().expect("a mapping").keys().collect();
    assert_eq!(keys, ["currentTime", "healthy", "lastUpdated", "nodeEligible"]);
    assert_eq!(unknown["lastUpdated"], NEVER, "the answer is 503: now is for 200");
    assert_eq!((&unknown["healthy"], &unknown["nodeEligible"]), (&true.into(), &false.into()));
    health.node(NodeState::Eligible);
    let before = body(&health).await;
    assert_eq!(before["lastUpdated"], before["currentTime"], "nothing waits");
    health.updated();
    let (first, second) = (body(&health).await, body(&health).await);
    assert_ne!(first["status"]["IPv4"]["lastUpdated"], NEVER);
    assert_eq!(first["status"], second["status"], "no update between them");
    health.pending(Instant::now().checked_sub(PATIENCE));
    let stale = body(&health).await;
    assert_eq!(stale["lastUpdated"], stale["status"]["IPv4"]["lastUpdated"]);
    health.updated();
    health.node(NodeState::Deleting);
    let deleting = body(&health).await;
    assert_eq!(deleting["lastUpdated"], deleting["status"]["IPv4"]["lastUpdated"]);
    assert_eq!(
        (&deleting["healthy"], deleting["status"]["IPv4"]["healthy"].clone()),
        (&true.into(), true.into())
    );
    assert_eq!((&stale["healthy"], &stale["status"]), (&false.into(), &stale_status(&first)));
}

/// The same times, but unhealthy.
fn stale_status(body: &serde_json::Value) -> serde_json::Value {
    let mut status = body["status"].clone();
    for family in status.as_object_mut().expect("families").values_mut() {
        family["healthy"] = false.into();
    }
    status
}

#[tokio::test]
async fn troubles_are_counted_and_change_no_verdict() {
    let health = Health::new(PATIENCE);
    health.node(NodeState::Eligible);
    health.troubles(2, 1);
    let troubled = body(&health).await;
    assert_eq!((&troubled["nodeProblems"], &troubled["staleKinds"]), (&2.into(), &1.into()));
    assert_eq!(code(&health, true), 200);
    health.troubles(0, 0);
    assert_eq!(body(&health).await.get("nodeProblems"), None, "as kube-proxy answers");
}

#[tokio::test]
async fn other_paths_are_answered_as_by_go() {
    let not_found = elsewhere(Method::GET, Uri::from_static("/nothing")).await;
    assert_eq!(not_found.status().as_u16(), 404);
    let body = axum::body::to_bytes(not_found.into_body(), 100).await.expect("a body");
    assert_eq!(body, "404 page not found\n");
    for (path, to) in [("//healthz", "/healthz"), ("/a/../livez?x", "/livez?x"), ("/./a//", "/a/")]
    {
        let moved = elsewhere(Method::GET, path.parse().expect("a path")).await;
        assert_eq!(
            (moved.status().as_u16(), &moved.headers()[header::LOCATION]),
            (307, &to.parse().expect("a header"))
        );
    }
}

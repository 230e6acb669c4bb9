//! A store that was restored from an older snapshot, behind a server that does not report it.

use super::*;

/// Returns the requests for Services, apart from probes.
fn asked(run: &Run) -> Vec<String> {
    let asked = run.script.asked().into_iter();
    asked.filter(|asked| asked.contains("/services") && !asked.ends_with("limit=1")).collect()
}

fn probes(run: &Run) -> usize {
    let asked = run.script.asked();
    asked.iter().filter(|asked| asked.contains("/services") && asked.ends_with("limit=1")).count()
}

/// A watch from a position in the future is accepted, and brings nothing.
async fn is_noticed(failures: Vec<fn() -> Answer>, pace: Pace) {
    let after = failures.len() + 1;
    let script = Script::new(move |asked| match (asked.resource(), asked.count()) {
        ("services", 0) => Answer::list("Service", &["a", "b"], 1_000),
        ("services", _) if asked.probes() => Answer::list("Service", &["a"], 500),
        ("services", count) if count < after => failures[count - 1](),
        ("services", _) if asked.watches() => Answer::stream(&[]),
        ("services", _) => Answer::list("Service", &["a"], 501),
        _ => Answer::Hang,
    });
    let mut run = run_at(script, None, ListMode::Paged, pace);
    let events = run.events(ObjectKind::Service, 7).await;
    assert_eq!(events, ["list", "+a", "+b", "synced", "list", "+a", "synced"]);
    let asked = asked(&run);
    assert!(asked[after + 1].contains("limit=500"), "{asked:?}");
    assert!(!asked[after + 1].contains("resourceVersion"), "{asked:?}");
    run.until("fresh", |run| run.view.oldest().is_none()).await;
}

#[tokio::test]
async fn a_restore_is_noticed_after_each_failure_that_may_be_a_restart() {
    let failures: [fn() -> Answer; 4] = [
        || Answer::Broken,
        || Answer::status(503, "ServiceUnavailable", "later"),
        || Answer::Page("<html>".to_owned()),
        || Answer::Cut(Vec::new()),
    ];
    for failure in failures {
        is_noticed(vec![failure], QUICK).await;
    }
}

#[tokio::test]
async fn a_restore_is_noticed_after_a_watch_that_brought_nothing() {
    let pace = Pace { silence: Duration::from_millis(50), ..QUICK };
    is_noticed(vec![|| Answer::stream(&[])], pace).await;
}

#[tokio::test]
async fn a_probe_that_shows_nothing_older_costs_no_list() {
    let script = Script::new(|asked| match (asked.resource(), asked.count()) {
        ("services", 0) => Answer::list("Service", &["a"], 5),
        ("services", 1) => Answer::Broken,
        // The list is as new as the state that was known at the request; the event may come before it.
        ("services", 3) if asked.probes() => Answer::list("Service", &["a"], 5),
        ("services", 2) => Answer::stream(&[("MODIFIED", "Service", "a", 6)]),
        _ => Answer::Hang,
    });
    let pace = Pace { silence: Duration::from_millis(300), ..QUICK };
    let mut run = run_at(script, None, ListMode::Paged, pace);
    assert_eq!(run.events(ObjectKind::Service, 4).await, ["list", "+a", "synced", "+a"]);
    run.until("the next watch", |run| asked(run).len() == 4).await;
    let asked = asked(&run);
    assert!(
        asked[3].contains("watch=true") && asked[3].contains("resourceVersion=6&"),
        "{asked:?}"
    );
    assert!(probes(&run) >= 1);
}

#[tokio::test]
async fn a_probe_that_is_refused_or_never_answered_holds_no_watch_up() {
    for refuses in [false, true] {
        let script = Script::new(move |asked| match (asked.resource(), asked.count()) {
            ("services", 0) => Answer::list("Service", &["a"], 5),
            ("services", 1) => Answer::Broken,
            ("services", _) if asked.probes() && refuses => Answer::status(403, "Forbidden", "no"),
            ("services", _) if asked.probes() => Answer::Hang,
            ("services", 2) => Answer::stream(&[("MODIFIED", "Service", "a", 6)]),
            _ => Answer::Hang,
        });
        let mut run = run(script, None, ListMode::Paged);
        assert_eq!(run.events(ObjectKind::Service, 4).await, ["list", "+a", "synced", "+a"]);
        run.until("fresh", |run| run.view.oldest().is_none()).await;
    }
}

//! Servers with unexpected responses: kept objects, next requests, and reports.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::server::object;
use super::*;

/// A Service with an unreadable spec.
fn unreadable(name: &str, version: u32) -> serde_json::Value {
    let mut object = object("Service", name, version);
    object["spec"] = json!({ "ports": "all of them" });
    object
}

pub(super) fn list_of(items: &[serde_json::Value], version: u32) -> String {
    json!({ "metadata": { "resourceVersion": version.to_string() }, "items": items }).to_string()
}

pub(super) fn event(kind: &str, object: &serde_json::Value) -> String {
    json!({ "type": kind, "object": object }).to_string()
}

fn bookmark(version: u32) -> String {
    event("BOOKMARK", &json!({ "metadata": { "resourceVersion": version.to_string() } }))
}

/// The bookmark that ends a streamed list.
fn end_of_list(version: u32) -> String {
    let end = json!({ "k8s.io/initial-events-end": "true" });
    let metadata = json!({ "resourceVersion": version.to_string(), "annotations": end });
    event("BOOKMARK", &json!({ "metadata": metadata }))
}

#[tokio::test]
async fn an_object_that_cannot_be_read_stays_and_is_named() {
    let script = Script::new(|asked| match (asked.resource(), asked.count()) {
        ("services", 0) => Answer::Whole(list_of(
            &[object("Service", "a", 1), unreadable("b", 2), object("Service", "c", 3)],
            5,
        )),
        ("services", 1) => Answer::Stream(vec![
            event("MODIFIED", &unreadable("a", 6)),
            event("MODIFIED", &object("Service", "b", 7)),
            event("MODIFIED", &object("Service", "c", 8)),
        ]),
        _ => Answer::Hang,
    });
    let mut run = run(script, None, ListMode::Paged);
    assert_eq!(run.events(ObjectKind::Service, 5).await, ["list", "+a", "=b", "+c", "synced"]);
    assert_eq!(run.events(ObjectKind::Service, 3).await, ["=a", "+b", "+c"]);
    let problems: Vec<String> = run.view.problems().iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].starts_with("Service default/a: object: cannot be read ("), "{problems:?}");
    assert_eq!(run.script.asked().iter().filter(|a| a.contains("/services")).count(), 2);
}

#[tokio::test]
async fn a_list_with_a_name_that_cannot_be_read_removes_nothing() {
    let script = Script::new(|asked| match (asked.resource(), asked.count()) {
        ("services", 0) => {
            Answer::Whole(list_of(&[object("Service", "a", 1), json!({ "metadata": 7 })], 5))
        }
        _ => Answer::Hang,
    });
    let mut run = run(script, None, ListMode::Paged);
    assert_eq!(run.events(ObjectKind::Service, 3).await, ["list", "+a", "in part"]);
}

/// A proxy may serve lists and disturb watches.
#[tokio::test]
async fn objects_are_listed_again_when_watches_bring_nothing() {
    for refuses in [false, true] {
        let script = Script::new(move |asked| match (asked.resource(), asked.watches()) {
            ("services", false) if asked.count() == 0 => Answer::list("Service", &["a"], 5),
            ("services", false) => Answer::list("Service", &["a", "b"], 6),
            ("services", true) if refuses => {
                Answer::status(500, "InternalError", "no watches here")
            }
            ("services", true) => Answer::Ended(Vec::new()),
            _ => Answer::Hang,
        });
        let mut run = run(script, None, ListMode::Paged);
        assert_eq!(run.events(ObjectKind::Service, 3).await, ["list", "+a", "synced"]);
        assert_eq!(run.events(ObjectKind::Service, 4).await, ["list", "+a", "+b", "synced"]);
    }
}

#[tokio::test]
async fn outage_of_the_server_makes_no_watch_a_list_and_no_stream_a_page() {
    let script = Script::new(|asked| match (asked.resource(), asked.count()) {
        ("services", ..5 | 6..20) => Answer::status(503, "ServiceUnavailable", "starting"),
        ("services", 5) => {
            Answer::Ended(vec![event("ADDED", &object("Service", "a", 5)), end_of_list(5)])
        }
        ("services", 20) => Answer::Stream(vec![event("ADDED", &object("Service", "b", 6))]),
        _ => Answer::Hang,
    });
    let mut run = run(script, None, ListMode::Streaming);
    assert_eq!(run.events(ObjectKind::Service, 3).await, ["list", "+a", "synced"]);
    assert_eq!(run.events(ObjectKind::Service, 1).await, ["+b"]);
    let asked = run.script.asked();
    assert!(
        !asked.iter().any(|it| it.contains("/services") && it.contains("limit=500")),
        "{asked:?}"
    );
}

#[tokio::test]
async fn objects_are_listed_in_pages_when_the_server_fails_each_streamed_list() {
    let script = Script::new(|asked| match asked.resource() {
        "services" if asked.streams() => Answer::status(500, "InternalError", "no streams here"),
        "services" if !asked.watches() => Answer::list("Service", &["a"], 5),
        _ => Answer::Hang,
    });
    let mut run = run(script, None, ListMode::Streaming);
    assert_eq!(run.events(ObjectKind::Service, 3).await, ["list", "+a", "synced"]);
}

/// The API server does this while it rebuilds a watch cache.
#[tokio::test]
async fn watches_that_end_at_once_wait_longer_each_time_and_are_called_an_outage() {
    let script = Script::new(|asked| match (asked.resource(), asked.count()) {
        ("services", 0) => Answer::list("Service", &["a"], 5),
        // An object that was sent before is not new.
        ("services", _) => Answer::Ended(vec![event("MODIFIED", &object("Service", "a", 5))]),
        _ => Answer::Hang,
    });
    let pace = Pace { most: Duration::from_mins(1), ..QUICK };
    let run = run_at(script, None, ListMode::Paged, pace);
    run.until("a stale view", |run| {
        run.view.oldest().is_some_and(|(_, stale)| stale.reason.contains("each watch at once"))
    })
    .await;
    // Delays double from a millisecond: 15 of them take half a minute.
    assert!(run.script.asked().iter().filter(|a| a.contains("/services")).count() < 16);
}

#[tokio::test]
async fn watch_that_brought_events_restarts_without_delay() {
    let script = Script::new(|asked| match (asked.resource(), asked.count()) {
        ("services", 0) => Answer::list("Service", &["a"], 5),
        ("services", count @ 1..50) => {
            Answer::Ended(vec![event("MODIFIED", &object("Service", "a", 5 + count as u32))])
        }
        _ => Answer::Hang,
    });
    let pace = Pace { first: Duration::from_mins(1), most: Duration::from_mins(1), ..QUICK };
    let mut run = run_at(script, None, ListMode::Paged, pace);
    // A single delay would be longer than the time limit.
    assert_eq!(run.events(ObjectKind::Service, 52).await.len(), 52);
}

#[tokio::test]
async fn a_page_for_people_is_one_failure_however_many_lines_it_has() {
    let script = Script::new(|asked| match (asked.resource(), asked.count()) {
        ("services", 0) => Answer::list("Service", &["a"], 5),
        ("services", 1) => Answer::Page("<html>\n".repeat(1_000)),
        ("services", 2) => Answer::stream(&[("MODIFIED", "Service", "a", 6)]),
        _ => Answer::Hang,
    });
    let pace = Pace { first: Duration::from_secs(1), most: Duration::from_mins(1), ..QUICK };
    let mut run = run_at(script, None, ListMode::Paged, pace);
    assert_eq!(run.events(ObjectKind::Service, 4).await, ["list", "+a", "synced", "+a"]);
}

#[tokio::test]
async fn a_list_may_take_longer_than_it_may_be_silent() {
    for streams in [false, true] {
        let script = Script::new(move |asked| match (asked.resource(), asked.count()) {
            ("services", 0) => {
                let whole = if streams {
                    let added = event("ADDED", &object("Service", "a", 1));
                    format!("{added}\n{}\n", end_of_list(5))
                } else {
                    list_of(&[object("Service", "a", 1)], 5)
                };
                let pieces = whole.as_bytes().chunks(whole.len() / 20 + 1);
                let pieces = pieces.map(|piece| String::from_utf8_lossy(piece).into_owned());
                Answer::Slow(pieces.collect(), Duration::from_millis(200))
            }
            _ => Answer::Hang,
        });
        let silence = Duration::from_secs(2);
        let pace = Pace { list_silence: silence, stream_silence: silence, ..QUICK };
        let list = if streams { ListMode::Streaming } else { ListMode::Paged };
        let mut run = run_at(script, None, list, pace);
        assert_eq!(run.events(ObjectKind::Service, 3).await, ["list", "+a", "synced"], "{streams}");
    }
}

#[tokio::test]
async fn a_bookmark_of_the_past_is_a_new_list_of_any_age() {
    let script = Script::new(|asked| match (asked.resource(), asked.count()) {
        ("services", 0) => Answer::list("Service", &["a", "b"], 50),
        ("services", 1) => Answer::Stream(vec![bookmark(40)]),
        ("services", 2) => Answer::list("Service", &["a"], 40),
        _ => Answer::Hang,
    });
    let mut run = run(script, None, ListMode::Paged);
    let events = run.events(ObjectKind::Service, 7).await;
    assert_eq!(events, ["list", "+a", "+b", "synced", "list", "+a", "synced"]);
    let asked: Vec<_> =
        run.script.asked().into_iter().filter(|asked| asked.contains("/services")).collect();
    assert!(!asked[2].contains("resourceVersion"), "{asked:?}");
}

#[tokio::test]
async fn a_list_of_the_past_is_not_taken_at_first() {
    let script = Script::new(|asked| match (asked.resource(), asked.count()) {
        ("services", 0) => Answer::list("Service", &["a"], 50),
        ("services", 1) => Answer::stream(&[("GONE", "Service", "", 0)]),
        ("services", 2) => Answer::list("Service", &["a"], 40),
        ("services", 3) => Answer::list("Service", &["a"], 60),
        _ => Answer::Hang,
    });
    let mut run = run(script, None, ListMode::Paged);
    let events = run.events(ObjectKind::Service, 8).await;
    assert_eq!(events, ["list", "+a", "synced", "list", "+a", "list", "+a", "synced"]);
}

#[tokio::test]
async fn an_outage_makes_each_kind_stale_at_once_and_a_wait_is_obeyed() {
    for code in [429, 503] {
        let script = Script::new(move |asked| match asked.count() {
            0 => Answer::Whole(list_of(&[], 5)),
            _ => Answer::Busy(code, 3_600),
        });
        let run = run(script, None, ListMode::Paged);
        run.until("four stale kinds", |run| {
            let kinds = run.view.kinds();
            let reason = format!("({code})");
            let names_reason = |stale: &crate::snapshot::Stale| stale.reason.contains(&reason);
            kinds.values().filter(|view| view.stale.as_ref().is_some_and(names_reason)).count() == 4
        })
        .await;
        // Without the pause the next ones would come within milliseconds.
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(run.script.asked().len(), 8, "{:?}", run.script.asked());
    }
}

#[tokio::test]
async fn single_refusal_does_not_disable_pages_for_good() {
    let script = Script::new(|asked| match (asked.resource(), asked.count()) {
        ("services", 0) => Answer::status(400, "BadRequest", "a stray one"),
        ("services", 1) => Answer::list("Service", &["a"], 5),
        ("services", _) if asked.streams() => {
            Answer::stream(&[("ADDED", "Service", "a", 1), ("END", "Service", "", 6)])
        }
        ("services", _) => Answer::stream(&[("GONE", "Service", "", 0)]),
        _ => Answer::Hang,
    });
    let pace = Pace { avoided: Duration::from_millis(1), ..QUICK };
    let mut run = run_at(script, None, ListMode::Streaming, pace);
    let events = run.events(ObjectKind::Service, 3).await;
    assert_eq!(events, ["list", "+a", "synced"]);
    run.until("a stream again", |run| {
        run.script.asked().iter().filter(|a| a.contains("sendInitialEvents")).count() > 4
    })
    .await;
}

#[tokio::test]
async fn a_place_that_is_always_forgotten_is_no_tight_loop_of_lists() {
    for list in [ListMode::Paged, ListMode::Streaming] {
        let script = Script::new(|asked| match asked.resource() {
            "services" if asked.streams() => Answer::stream(&[
                ("ADDED", "Service", "a", 1),
                ("END", "Service", "", 5),
                ("GONE", "Service", "", 0),
            ]),
            "services" if asked.watches() => Answer::stream(&[("GONE", "Service", "", 0)]),
            "services" => Answer::list("Service", &["a"], 5),
            _ => Answer::Hang,
        });
        let pace = Pace { relist: Duration::from_mins(1), ..QUICK };
        let began = Instant::now();
        let mut run = run_at(script, None, list, pace);
        assert_eq!(run.events(ObjectKind::Service, 27).await.len(), 27);
        // Nine lists have eight pauses between them, each at least half of 1, 2, 4 ms and so on.
        assert!(began.elapsed() >= Duration::from_micros(127_500), "{:?}", began.elapsed());
        let asked = run.script.asked();
        let is_list = |asked: &&String| {
            asked.contains("/services")
                && (asked.contains("sendInitialEvents") || !asked.contains("watch=true"))
        };
        assert_eq!(asked.iter().filter(is_list).count(), 9, "{asked:?}");
    }
}

/// Pauses that an outage made longer do not delay the list.
#[tokio::test]
async fn one_forgotten_place_is_a_new_list_soon_even_after_an_outage() {
    let times = Arc::new(Mutex::new(Vec::new()));
    let clock = Arc::clone(&times);
    let script = Script::new(move |asked| {
        if asked.resource() != "services" {
            return Answer::Hang;
        }
        clock.lock().expect("no panic").push(Instant::now());
        match asked.count() {
            0 => Answer::list("Service", &["a"], 5),
            1..12 => Answer::Broken,
            12 => Answer::status(410, "Expired", "too old"),
            13 => Answer::list("Service", &["a"], 9),
            _ => Answer::Hang,
        }
    });
    let pace = Pace { most: Duration::from_mins(1), ..QUICK };
    let mut run = run_at(script, None, ListMode::Paged, pace);
    assert_eq!(run.events(ObjectKind::Service, 6).await.len(), 6);
    let times = times.lock().expect("no panic").clone();
    // Eleven failures have doubled the other pause to two seconds, and at least half of it is waited.
    assert!(times[13] - times[12] < Duration::from_secs(1), "{times:?}");
}

//! Lists: pages that fail or expire, and streams that do not arrive.

use super::odd::event;
use super::server::object;
use super::*;

/// Makes a page with one Service; `next` leads to the page after it.
fn page(name: &str, next: &str) -> Answer {
    let metadata = json!({ "resourceVersion": "5", "continue": next });
    let list = json!({ "metadata": metadata, "items": [object("Service", name, 1)] });
    Answer::Whole(list.to_string())
}

#[tokio::test]
async fn only_the_truncated_page_is_requested_again() {
    let script = Script::new(|asked| match (asked.resource(), asked.count()) {
        ("services", 0) => page("a", "second"),
        ("services", 1) => Answer::Broken,
        ("services", 2) => page("b", ""),
        _ => Answer::Hang,
    });
    let mut run = run(script, None, ListMode::Paged);
    assert_eq!(run.events(ObjectKind::Service, 4).await, ["list", "+a", "+b", "synced"]);
    let asked = run.script.asked();
    let again = asked.iter().filter(|asked| asked.contains("continue=second")).count();
    assert_eq!(again, 2, "{asked:?}");
}

/// Its pages expire each time on a connection that needs more time than the server keeps them.
#[tokio::test]
async fn list_with_expired_pages_is_read_in_one_piece() {
    let script = Script::new(|asked| match (asked.resource(), asked.count()) {
        ("services", 0) => page("a", "second"),
        ("services", 1) => Answer::status(410, "Expired", "the continue token is too old"),
        ("services", 2) => Answer::list("Service", &["a", "b"], 7),
        ("services", 3) => Answer::stream(&[("GONE", "Service", "", 0)]),
        ("services", 4) => Answer::list("Service", &["a", "b"], 8),
        _ => Answer::Hang,
    });
    let mut run = run(script, None, ListMode::Paged);
    let whole = ["list", "+a", "+b", "synced"];
    assert_eq!(run.events(ObjectKind::Service, 6).await, [&["list", "+a"], &whole[..]].concat());
    assert_eq!(run.events(ObjectKind::Service, 4).await, whole);
    let asked: Vec<_> =
        run.script.asked().into_iter().filter(|asked| asked.contains("/services")).collect();
    let limits: Vec<_> = asked.iter().map(|asked| asked.contains("limit=")).collect();
    assert_eq!(limits[..5], [true, true, false, false, true], "{asked:?}");
}

/// Pages would come from etcd, for every node at the same time.
#[tokio::test]
async fn later_lists_of_a_server_that_did_not_divide_the_first_one_come_in_one_piece() {
    let script = Script::new(|asked| match (asked.resource(), asked.count()) {
        ("services", 0) => Answer::list("Service", &["a"], 5),
        ("services", 1) => Answer::stream(&[("GONE", "Service", "", 0)]),
        ("services", 2) => Answer::list("Service", &["a"], 7),
        _ => Answer::Hang,
    });
    let mut run = run(script, None, ListMode::Paged);
    let lists = ["list", "+a", "synced", "list", "+a", "synced"];
    assert_eq!(run.events(ObjectKind::Service, 6).await, lists);
    let asked: Vec<_> =
        run.script.asked().into_iter().filter(|asked| asked.contains("/services")).collect();
    assert!(asked[0].contains("limit=500"), "{asked:?}");
    assert!(asked[2].contains("resourceVersion=5&") && !asked[2].contains("limit="), "{asked:?}");
}

#[tokio::test]
async fn a_list_that_was_begun_in_pages_goes_on_so_when_streams_are_tried_again() {
    let script = Script::new(|asked| match (asked.resource(), asked.count()) {
        ("services", 0) => Answer::status(400, "BadRequest", "no streams"),
        ("services", 1) => page("a", "second"),
        ("services", 2) => Answer::Broken,
        ("services", 3) => page("b", ""),
        _ => Answer::Hang,
    });
    let pace =
        Pace { avoided: Duration::from_millis(20), first: Duration::from_millis(100), ..QUICK };
    let mut run = run_at(script, None, ListMode::Streaming, pace);
    assert_eq!(run.events(ObjectKind::Service, 4).await, ["list", "+a", "+b", "synced"]);
}

/// A list that needs more time than a server gives a watch ends each time like this.
#[tokio::test]
async fn a_streamed_list_that_breaks_is_read_in_pages() {
    let line = || vec![event("ADDED", &object("Service", "a", 1))];
    let unreadable = |mut lines: Vec<String>| {
        lines.push("{\"type\":\"ADD".to_owned());
        Answer::Stream(lines)
    };
    let broken: [fn(Vec<String>) -> Answer; 3] = [Answer::Ended, Answer::Cut, unreadable];
    for end in broken {
        let script = Script::new(move |asked| match (asked.resource(), asked.count()) {
            ("services", 0) => end(line()),
            ("services", 1) => Answer::list("Service", &["a"], 5),
            _ => Answer::Hang,
        });
        let pace = Pace { first: Duration::from_hours(1), most: Duration::from_hours(1), ..QUICK };
        let mut run = run_at(script, None, ListMode::Streaming, pace);
        assert_eq!(
            run.events(ObjectKind::Service, 5).await,
            ["list", "+a", "list", "+a", "synced"]
        );
        let asked = run.script.asked();
        let asked: Vec<_> = asked.iter().filter(|asked| asked.contains("/services")).collect();
        let seconds = asked[0].split("timeoutSeconds=").nth(1).expect("a time");
        let seconds = seconds.split('&').next().unwrap_or_default();
        assert!(seconds.parse::<u32>().expect("a number") >= 1_800, "{asked:?}");
        assert!(asked[1].contains("limit=500"), "{asked:?}");
    }
}

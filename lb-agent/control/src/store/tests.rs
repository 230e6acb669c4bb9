//! The store as its readers and writers see it.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::service::{Booking, Taken as _};

struct Home {
    directory: TempDir,
    retention: Retention,
}

impl Home {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), retention: Retention::default() }
    }

    fn open(&self) -> Store {
        Store::open(&self.directory.path().join("store"), self.retention).unwrap()
    }
}

fn key(name: &str) -> Key {
    Key::new("services", "ns", name)
}

fn service(name: &str, label: &str) -> Value {
    json!({"kind": "Service", "apiVersion": "v1", "metadata": {"name": name, "labels": {"a": label}}})
}

async fn put(store: &Store, name: &str, label: &str) -> u64 {
    let (key, value) = (key(name), service(name, label));
    let written = store.write(move |it| Ok::<_, ()>(it.put(key, value).revision)).await;
    written.unwrap().unwrap()
}

async fn delete(store: &Store, name: &str) {
    let key = key(name);
    let written = store.write(move |it| it.delete(&key).ok_or(())).await;
    assert!(written.unwrap().is_ok());
}

fn kinds(store: &Store, after: u64) -> Vec<(u64, ChangeKind)> {
    let (_, changes) = store.changes("services", after, 100).unwrap();
    changes.iter().map(|it| (it.revision, it.kind)).collect()
}

#[tokio::test]
async fn statement_93_one_revision_that_rises_by_every_write() {
    let store = Home::new().open();
    assert_eq!(put(&store, "a", "1").await, 1);
    assert_eq!(put(&store, "a", "2").await, 2);
    delete(&store, "a").await;
    assert_eq!(store.revision(), 3);
    assert_eq!(
        kinds(&store, 0),
        [(1, ChangeKind::Added), (2, ChangeKind::Modified), (3, ChangeKind::Deleted)]
    );
    assert_eq!(kinds(&store, 2), [(3, ChangeKind::Deleted)]);
    let (_, changes) = store.changes("services", 2, 1).unwrap();
    assert_eq!(changes[0].object.value()["metadata"]["resourceVersion"], "3");
}

#[tokio::test]
async fn a_transaction_that_fails_changes_nothing() {
    let store = Home::new().open();
    let work = |it: &mut Transaction<'_>| {
        drop(it.put(key("a"), service("a", "1")));
        assert!(it.get(&key("a")).is_some(), "it sees its own changes");
        Err::<(), _>("no")
    };
    assert_eq!(store.write(work).await.unwrap(), Err("no"));
    assert_eq!((store.get(&key("a")), store.revision()), (None, 0));
}

#[tokio::test]
async fn statement_103_a_restart_keeps_objects_bookings_and_history() {
    let home = Home::new();
    {
        let store = home.open();
        let booked = store.write(|it| {
            let ports = [30_001, 30_002].map(Booking::Port).into();
            let decision = crate::service::Decision {
                service: crate::service::Service::default(),
                books: ports,
                releases: [].into(),
            };
            it.book(&decision);
            it.release(Booking::Port(30_002));
            Ok::<_, ()>(())
        });
        assert!(booked.await.unwrap().is_ok());
        put(&store, "a", "1").await;
        put(&store, "a", "2").await;
    }
    let store = reopened(&home);
    assert_eq!(store.revision(), 2);
    assert_eq!(store.get(&key("a")).unwrap().labels, [("a".to_owned(), "2".to_owned())]);
    let ports =
        |it: &mut Transaction<'_>| Ok::<_, ()>([30_001, 30_002].map(|port| it.has_port(port)));
    assert_eq!(store.write(ports).await.unwrap(), Ok([true, false]));
    let (_, changes) = store.changes("services", 1, 9).unwrap();
    assert_eq!(changes[0].previous.as_ref().unwrap().labels[0].1, "1");
}

/// The writer closes the file a moment after the last handle is dropped.
fn reopened(home: &Home) -> Store {
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    loop {
        match Store::open(&home.directory.path().join("store"), home.retention) {
            Ok(store) => return store,
            Err(error) => assert!(std::time::Instant::now() < deadline, "{error}"),
        }
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn statement_95_the_past_can_be_listed() {
    let store = Home::new().open();
    put(&store, "a", "1").await;
    let first = put(&store, "b", "1").await;
    put(&store, "a", "2").await;
    delete(&store, "b").await;
    put(&store, "c", "1").await;
    let names = |at: u64| -> Vec<(String, String)> {
        let all = store.list_at("services", Some("ns"), at).unwrap();
        all.iter().map(|it| (it.key.name.clone(), it.labels[0].1.clone())).collect()
    };
    let of = |all: &[(&str, &str)]| -> Vec<(String, String)> {
        all.iter().map(|it| (it.0.to_owned(), it.1.to_owned())).collect()
    };
    assert_eq!(names(first), of(&[("a", "1"), ("b", "1")]));
    assert_eq!(names(store.revision()), of(&[("a", "2"), ("c", "1")]));
    assert_eq!(names(0), []);
    assert_eq!(store.list_at("services", Some("other"), first).unwrap(), []);
}

#[tokio::test]
async fn statement_98_forgotten_revisions_are_reported() {
    let mut home = Home::new();
    home.retention = Retention { changes: 2, age: Duration::ZERO };
    let store = home.open();
    // Entries of this second count as young.
    let old = |it: &mut Transaction<'_>| Ok::<_, ()>(it.put(key("a"), service("a", "0")).revision);
    let mut last = 0;
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while store.changes("services", 0, 1).is_ok() {
        assert!(std::time::Instant::now() < deadline, "never forgotten");
        last = store.write(old).await.unwrap().unwrap();
    }
    let gone = store.changes("services", 0, 1).unwrap_err();
    assert!(gone.oldest > 0 && gone.oldest < last, "{gone:?}");
    assert!(store.changes("services", gone.oldest, 9).is_ok());
    assert_eq!(store.list_at("services", None, 0).unwrap_err(), gone);
    drop(store);
    let store = reopened(&home);
    assert!(store.changes("services", 0, 1).is_err(), "a restart brings nothing back");
}

#[tokio::test]
async fn statement_65_writers_at_once_share_commits_and_lose_nothing() {
    let store = Home::new().open();
    let writers = (0..200).map(|number: u32| {
        let store = store.clone();
        tokio::spawn(async move { put(&store, &format!("s{number}"), "1").await })
    });
    let mut revisions = Vec::new();
    for writer in writers.collect::<Vec<_>>() {
        revisions.push(writer.await.unwrap());
    }
    revisions.sort_unstable();
    assert_eq!(revisions, (1..=200).collect::<Vec<_>>(), "each has a revision of its own");
    assert_eq!(store.list("services", None).1.len(), 200);
}

#[tokio::test]
async fn a_second_process_on_one_file_is_refused_with_the_remedy() {
    let home = Home::new();
    let _store = home.open();
    let again = Store::open(&home.directory.path().join("store"), home.retention).unwrap_err();
    assert!(again.to_string().contains("remedy: end the other process"), "{again}");
    let nowhere = Store::open(Path::new("/nowhere/store"), home.retention).unwrap_err();
    assert!(nowhere.to_string().contains("remedy: the directory must exist"), "{nowhere}");
}

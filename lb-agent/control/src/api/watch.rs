//! Watches: lines of JSON, sent at the pace at which the client reads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::{BufMut as _, Bytes, BytesMut};
use futures::stream;
use hyper::http::request::Parts;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::answer::Answer;
use super::failure::Failure;
use super::form::{Form, Shape};
use super::list::parse;
use super::query::Query;
use super::select::Selector;
use super::server::Server;
use super::table;
use super::target::Target;
use crate::field::Cause;
use crate::kind::Kind;
use crate::store::{Change, ChangeKind, Object, Store};

/// Interval of bookmarks, for clients that request them (`allowWatchBookmarks`).
const BOOKMARK: Duration = Duration::from_mins(1);
/// Duration of a watch without `timeoutSeconds`.
const LASTS: Duration = Duration::from_mins(45);
/// Largest number of changes that are read from the store at a time.
const TOGETHER: usize = 256;
/// Size of one write to the connection, in bytes; the last line of it may exceed this.
const CHUNK: usize = 64 << 10;

/// Answers with changes until the requested time is over, or until the client falls out of the window of kept changes.
pub(crate) fn watch(server: &Server, parts: &Parts, target: &Target) -> Result<Answer, Failure> {
    let form = Form::of(parts)?;
    let query = Query::of(parts);
    let selector = Selector::of(&query, target.kind)?;
    let has_initial = initial(&query)?;
    let now = server.store.revision();
    let version = query.get("resourceVersion");
    let after = version.map(parse).transpose()?.filter(|it| *it > 0);
    // A version from the future means that this store was replaced by an older one. The client must list again.
    if let Some(after) = after.filter(|it| *it > now) {
        return Err(Failure::too_large(after, now));
    }
    let lasts = query.number("timeoutSeconds").filter(|it| *it > 0);
    let shape = (form.shape, query.get("includeObject").map(str::to_owned));
    let view = View { kind: target.kind, namespace: target.namespace.clone(), selector, shape };
    let until = Instant::now() + lasts.map_or(LASTS, Duration::from_secs);
    let is_marked = query.flag("allowWatchBookmarks");
    let mut watching = Watching {
        store: server.store.clone(),
        view,
        after: now,
        until,
        is_marked,
        waiting: VecDeque::new(),
        is_over: false,
        next_mark: Instant::now() + BOOKMARK,
    };
    match after {
        Some(after) if !has_initial => watching.after = after,
        Some(_) | None => watching.begin(has_initial),
    }
    let revisions = server.store.revisions();
    let lines = stream::unfold((watching, revisions), |(mut watching, mut revisions)| async move {
        let chunk = watching.next(&mut revisions).await?;
        Some((Ok::<_, std::convert::Infallible>(chunk), (watching, revisions)))
    });
    Ok(Answer::json(200, Body::from_stream(lines)))
}

fn initial(query: &Query) -> Result<bool, Failure> {
    let matching = query.get("resourceVersionMatch");
    let is_asked = query.get("sendInitialEvents").is_some();
    let wants = query.flag("sendInitialEvents");
    let cause = match (is_asked, matching) {
        (true, Some("NotOlderThan")) | (false, None) => None,
        (true, None) => Some(Cause::forbidden(
            "resourceVersionMatch",
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        )),
        (true, Some(other)) => {
            Some(Cause::not_supported("resourceVersionMatch", other, &["NotOlderThan"]))
        }
        (false, Some(_)) => Some(Cause::forbidden(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        )),
    };
    match cause {
        Some(cause) => Err(Failure::invalid_of("meta.k8s.io", "ListOptions", "", &[cause])),
        None => Ok(wants),
    }
}

/// The selected objects of a resource, and their form.
struct View {
    kind: &'static Kind,
    namespace: Option<String>,
    selector: Selector,
    shape: (Shape, Option<String>),
}

impl View {
    fn shows(&self, object: &Object) -> bool {
        let is_here = self.namespace.as_ref().is_none_or(|it| *it == object.key.namespace);
        is_here && self.selector.matches(object)
    }

    /// Returns the event for a change. It depends on whether the selector matched the object before and matches it
    /// after.
    fn event(&self, change: &Change) -> Option<Bytes> {
        let was = change.previous.as_ref().is_some_and(|it| self.shows(it));
        let is = change.kind != ChangeKind::Deleted && self.shows(&change.object);
        match (was, is) {
            (false, false) => None,
            (false, true) => Some(self.line("ADDED", &change.object)),
            (true, true) => Some(self.line("MODIFIED", &change.object)),
            (true, false) if change.kind == ChangeKind::Deleted => {
                Some(self.line("DELETED", &change.object))
            }
            // The object no longer matches the selector: the client gets the last state that it knew, at the new
            // revision, as a deletion.
            (true, false) => change.previous.as_ref().map(|before| {
                let mut value = before.value();
                if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
                    let revision = change.revision.to_string();
                    drop(metadata.insert("resourceVersion".into(), revision.into()));
                }
                self.value_line("DELETED", table::translated(value, self.kind), change.revision)
            }),
        }
    }

    fn line(&self, event: &str, object: &Object) -> Bytes {
        if self.shape.0 == Shape::Whole && !table::is_translated(self.kind) {
            // The usual case, once per change and watcher: the stored JSON is copied without being parsed.
            let mut line = BytesMut::with_capacity(object.json.len() + 40);
            line.put_slice(b"{\"type\":\"");
            line.put_slice(event.as_bytes());
            line.put_slice(b"\",\"object\":");
            line.put_slice(&object.json);
            line.put_slice(b"}\n");
            return line.freeze();
        }
        self.value_line(event, table::view(object, self.kind), object.revision)
    }

    fn value_line(&self, event: &str, value: Value, revision: u64) -> Bytes {
        let object = match &self.shape {
            (Shape::Whole, _) => value,
            (Shape::Metadata, _) => table::metadata(&value),
            (Shape::Table, include) => {
                table::table(self.kind, &[value], &revision.to_string(), include.as_deref())
            }
        };
        raw(&json!({"type": event, "object": object}))
    }

    fn bookmark(&self, revision: u64, ends_initial: bool) -> Bytes {
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if let (true, Some(fields)) = (ends_initial, metadata.as_object_mut()) {
            let mark = json!({"k8s.io/initial-events-end": "true"});
            drop(fields.insert("annotations".into(), mark));
        }
        let object = match self.shape.0 {
            Shape::Whole => {
                json!({"kind": self.kind.kind, "apiVersion": self.kind.api_version(), "metadata": metadata})
            }
            Shape::Metadata => {
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
            }
            Shape::Table => json!({
                "kind": "Table", "apiVersion": "meta.k8s.io/v1",
                "metadata": {"resourceVersion": revision.to_string()}, "columnDefinitions": [],
                "rows": [{"cells": [], "object": {"kind": "PartialObjectMetadata",
                    "apiVersion": "meta.k8s.io/v1", "metadata": metadata}}],
            }),
        };
        raw(&json!({"type": "BOOKMARK", "object": object}))
    }
}

fn raw(value: &Value) -> Bytes {
    let mut line = value.to_string();
    line.push('\n');
    line.into()
}

struct Watching {
    store: Store,
    view: View,
    /// The revision up to which changes have been sent.
    after: u64,
    until: Instant,
    is_marked: bool,
    waiting: VecDeque<Bytes>,
    is_over: bool,
    next_mark: Instant,
}

impl Watching {
    /// Queues all matching objects as ADDED events; with `is_marked`, a bookmark ends them.
    fn begin(&mut self, is_marked: bool) {
        let (revision, all) =
            self.store.list(self.view.kind.resource, self.view.namespace.as_deref());
        self.after = revision;
        let shown = all.iter().filter(|it| self.view.shows(it));
        self.waiting = shown.map(|it: &Arc<Object>| self.view.line("ADDED", it)).collect();
        if is_marked {
            self.waiting.push_back(self.view.bookmark(revision, true));
        }
    }

    /// Returns the next part of the answer; `None` at the end.
    async fn next(&mut self, revisions: &mut tokio::sync::watch::Receiver<u64>) -> Option<Bytes> {
        loop {
            if !self.waiting.is_empty() {
                return Some(self.chunk());
            }
            if self.is_over {
                return None;
            }
            // The revision is marked as seen before the read, so that a change in between wakes this task again.
            let _seen: u64 = *revisions.borrow_and_update();
            self.read();
            if !self.waiting.is_empty() {
                continue;
            }
            // The end of the watch also wakes the task, since no change may ever come.
            let marks = if self.is_marked { self.next_mark.min(self.until) } else { self.until };
            tokio::select! {
                changed = revisions.changed() => self.is_over |= changed.is_err(),
                () = tokio::time::sleep_until(marks) => self.mark(),
            }
        }
    }

    fn chunk(&mut self) -> Bytes {
        let mut chunk = BytesMut::new();
        while let Some(line) = self.waiting.pop_front() {
            chunk.put_slice(&line);
            if chunk.len() > CHUNK {
                break;
            }
        }
        chunk.freeze()
    }

    fn mark(&mut self) {
        let now = Instant::now();
        self.is_over = now >= self.until;
        self.next_mark = now + BOOKMARK;
        if self.is_marked {
            self.waiting.push_back(self.view.bookmark(self.after, false));
        }
    }

    fn read(&mut self) {
        let resource = self.view.kind.resource;
        match self.store.changes(resource, self.after, TOGETHER) {
            Ok((revision, changes)) => {
                let is_all = changes.len() < TOGETHER;
                let last = changes.last().map_or(self.after, |it| it.revision);
                // With all changes read, the watch is current as of the store's revision, which other resources may
                // have raised.
                self.after = if is_all { revision } else { last };
                self.waiting.extend(changes.iter().filter_map(|it| self.view.event(it)));
                // None of these changes matched, and more wait: read on instead of waiting for the next write.
                if !is_all && self.waiting.is_empty() {
                    self.read();
                }
            }
            Err(gone) => {
                let text = format!("too old resource version: {} ({})", self.after, gone.oldest);
                let event = json!({"type": "ERROR", "object": Failure::expired(text).status()});
                self.waiting.push_back(raw(&event));
                self.is_over = true;
            }
        }
    }
}

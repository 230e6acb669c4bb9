//! The objects that cannot be read: by name, with the reason, for status, log and Events.

use std::collections::BTreeMap;

use crate::snapshot::object::Identifiers;
use crate::snapshot::{Finding, Findings, ObjectKind, ViewHealth};

/// The number of names per list that are logged; status counts all.
const NAMED: usize = 20;

/// The objects of one kind that cannot be read now.
#[derive(Debug)]
pub(super) struct Unread {
    kind: ObjectKind,
    view: ViewHealth,
    by_name: BTreeMap<(String, String), Finding>,
    /// Findings of the current list; `None` outside of a list.
    listed: Option<BTreeMap<(String, String), Finding>>,
    logged: usize,
}

impl Unread {
    /// Makes an empty collection.
    pub(super) const fn new(kind: ObjectKind, view: ViewHealth) -> Self {
        Self { kind, view, by_name: BTreeMap::new(), listed: None, logged: 0 }
    }

    /// Records the beginning of a list. Its findings replace the current ones at its end.
    pub(super) fn began(&mut self) {
        (self.listed, self.logged) = (Some(BTreeMap::new()), 0);
    }

    /// A list has ended.
    pub(super) fn ended(&mut self) {
        if let Some(listed) = self.listed.take() {
            let is_other = self.by_name != listed;
            self.by_name = listed;
            if is_other {
                self.publish();
            }
        }
        self.logged = 0;
    }

    /// Notes that an object cannot be read.
    pub(super) fn add(&mut self, who: &Identifiers, reason: &serde_json::Error) {
        let mut findings = Findings::of(self.kind.name(), &who.namespace, &who.name);
        findings.wrong(
            "object",
            format_args!(
                "cannot be read ({}); its last readable version stays in effect",
                text(reason)
            ),
            "rewrite it",
        );
        let key = (who.namespace.clone(), who.name.clone());
        for finding in findings.into_list() {
            // Each list contains an unreadable object again; it is logged once for each reason.
            if self.by_name.get(&key) != Some(&finding) {
                self.logged += 1;
                if self.logged <= NAMED {
                    tracing::warn!(%finding, "object cannot be read");
                }
            }
            if let Some(listed) = &mut self.listed {
                drop(listed.insert(key.clone(), finding.clone()));
            }
            if self.by_name.insert(key.clone(), finding.clone()).as_ref() != Some(&finding) {
                self.publish();
            }
        }
    }

    /// Notes that an object could be read or is gone.
    pub(super) fn remove(&mut self, namespace: &str, name: &str) {
        if self.by_name.is_empty() {
            return;
        }
        if self.by_name.remove(&(namespace.to_owned(), name.to_owned())).is_some() {
            self.publish();
        }
    }

    fn publish(&self) {
        let part = format!("unread {}", self.kind.resource());
        self.view.problems_of(&part, self.by_name.values().cloned().collect());
    }
}

/// Returns the text of a serde error without the column, which changes when other fields change.
fn text(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or_default().to_owned()
}

//! A stored object: its key, its bytes as they are sent, and the values for selectors.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use crate::kind::Kind;
use crate::schema;

/// The key of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Resource, as the plural in paths.
    pub resource: String,
    /// Namespace; empty for objects without one.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
}

impl Key {
    /// Makes a key; `namespace` is empty for cluster-scoped kinds.
    pub fn new(resource: &str, namespace: &str, name: &str) -> Self {
        let [resource, namespace, name] = [resource, namespace, name].map(str::to_owned);
        Self { resource, namespace, name }
    }

    /// Returns the key as one text. None of its parts can contain a slash.
    pub(super) fn word(&self) -> String {
        format!("{}/{}/{}", self.resource, self.namespace, self.name)
    }

    pub(super) fn of_word(word: &str) -> Option<Self> {
        let mut parts = word.splitn(3, '/');
        Some(Self::new(parts.next()?, parts.next()?, parts.next()?))
    }
}

/// An object at a revision.
#[derive(Debug, PartialEq, Eq)]
pub struct Object {
    /// The identity of the object.
    pub key: Key,
    /// The revision of its last change.
    pub revision: u64,
    /// JSON, as clients get it.
    pub json: Bytes,
    /// Labels, sorted by key.
    pub labels: Vec<(String, String)>,
    /// Further fields for field selectors.
    pub fields: Vec<(&'static str, String)>,
}

impl Object {
    /// Makes the object to store from a value, with a new revision.
    pub(super) fn new(key: Key, mut value: Value, revision: u64) -> Self {
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            drop(metadata.insert("resourceVersion".into(), revision.to_string().into()));
        }
        let mut json = Vec::new();
        let kind = Kind::kept(&key.resource);
        schema::encode(kind.map_or("", |it| it.type_name), &value, &mut json);
        Self::of(key, &value, json.into(), revision)
    }

    /// Makes an object that is not stored: of a dry run, or a comparison with the stored one.
    pub(crate) fn unstored(key: Key, value: &Value) -> Self {
        let mut json = Vec::new();
        let kind = Kind::kept(&key.resource);
        schema::encode(kind.map_or("", |it| it.type_name), value, &mut json);
        Self::of(key, value, json.into(), 0)
    }

    /// Returns the object with another revision.
    #[must_use]
    pub(crate) const fn at(mut self, revision: u64) -> Self {
        self.revision = revision;
        self
    }

    /// Makes an object from stored bytes.
    pub(super) fn kept(key: Key, json: &[u8], revision: u64) -> Self {
        let value: Value = serde_json::from_slice(json).unwrap_or_default();
        Self::of(key, &value, Bytes::copy_from_slice(json), revision)
    }

    fn of(key: Key, value: &Value, json: Bytes, revision: u64) -> Self {
        let labels = value.pointer("/metadata/labels").and_then(Value::as_object);
        let text = |it: &Value| it.as_str().unwrap_or_default().to_owned();
        let labels = labels.into_iter().flatten().map(|(name, it)| (name.clone(), text(it)));
        let mut labels: Vec<(String, String)> = labels.collect();
        labels.sort();
        let fields = Kind::kept(&key.resource).map_or_else(Vec::new, |it| it.selectable(value));
        Self { key, revision, json, labels, fields }
    }

    /// Parses the stored JSON, which cannot fail.
    pub fn value(&self) -> Value {
        // The bytes were written by `encode`, so parsing cannot fail.
        serde_json::from_slice(&self.json).unwrap_or_default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The object was created.
    Added,
    /// The object was updated.
    Modified,
    /// The object was deleted.
    Deleted,
}

/// A change of one object.
#[derive(Debug)]
pub struct Change {
    /// The revision of the change.
    pub revision: u64,
    /// The kind of change.
    pub kind: ChangeKind,
    /// The object after the change; for a deletion its last state, at the revision of the deletion.
    pub object: Arc<Object>,
    /// The object before the change; `None` for a creation.
    pub previous: Option<Arc<Object>>,
    /// Time of the change, in seconds since 1970.
    pub at: u64,
}

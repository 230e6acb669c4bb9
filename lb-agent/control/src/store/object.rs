//! A stored object: its name, its bytes as they are sent, and the fields by which it can be selected.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use crate::kind::Kind;
use crate::schema;

/// The name of an object among all.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Resource, in the plural.
    pub resource: String,
    /// Namespace; empty for what lives in none.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Key {
    /// Makes one.
    pub fn new(resource: &str, namespace: &str, name: &str) -> Self {
        let [resource, namespace, name] = [resource, namespace, name].map(str::to_owned);
        Self { resource, namespace, name }
    }

    /// Writes it as one word; none of its parts can hold a slash.
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
    /// Its name.
    pub key: Key,
    /// The revision of its last change.
    pub revision: u64,
    /// As it is sent, in JSON.
    pub json: Bytes,
    /// In order.
    pub labels: Vec<(String, String)>,
    /// Further fields by which it can be selected.
    pub fields: Vec<(&'static str, String)>,
}

impl Object {
    /// Makes the object that is kept of a value at a revision.
    pub(super) fn new(key: Key, mut value: Value, revision: u64) -> Self {
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            drop(metadata.insert("resourceVersion".into(), revision.to_string().into()));
        }
        let mut json = Vec::new();
        let kind = Kind::kept(&key.resource);
        schema::encode(kind.map_or("", |it| it.type_name), &value, &mut json);
        Self::of(key, &value, json.into(), revision)
    }

    /// Makes the object that a value would be, of which nothing is kept.
    pub(crate) fn shown(key: Key, value: &Value) -> Self {
        let mut json = Vec::new();
        let kind = Kind::kept(&key.resource);
        schema::encode(kind.map_or("", |it| it.type_name), value, &mut json);
        Self::of(key, value, json.into(), 0)
    }

    /// Returns it as of a revision.
    #[must_use]
    pub(crate) const fn at(mut self, revision: u64) -> Self {
        self.revision = revision;
        self
    }

    /// Takes bytes that were kept.
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

    /// Reads the bytes.
    pub fn value(&self) -> Value {
        // They were written by ourselves.
        serde_json::from_slice(&self.json).unwrap_or_default()
    }
}

/// A change of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It is new.
    Added,
    /// It is another.
    Modified,
    /// It is gone.
    Deleted,
}

/// One change of one object.
#[derive(Debug)]
pub struct Change {
    /// The revision that it made.
    pub revision: u64,
    /// The kind of change.
    pub kind: ChangeKind,
    /// The object after it; of a deleted one the last state, at the revision of its end.
    pub object: Arc<Object>,
    /// The object before it.
    pub previous: Option<Arc<Object>>,
    /// Seconds since 1970.
    pub at: u64,
}

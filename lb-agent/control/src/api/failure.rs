//! A failed request, as the `Status` object that clients turn into their messages.

use serde_json::{Map, Value, json};

use crate::field::{Cause, sentence};
use crate::kind::Kind;
use crate::service::Refusal;
use crate::store;

/// A request that failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The HTTP status code.
    pub code: u16,
    /// The `reason` of the `Status` object: one word for programs, such as `NotFound`.
    pub reason: &'static str,
    /// A sentence for people.
    pub message: String,
    /// The `details` of the `Status` object: the object concerned, and the causes.
    pub details: Map<String, Value>,
    /// Warnings that the client gets with the failure.
    pub warnings: Vec<String>,
}

impl Failure {
    pub(crate) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: Map::new(), warnings: Vec::new() }
    }

    pub(crate) fn of(mut self, name: &str, kind: &str, group: &str) -> Self {
        for (key, value) in [("name", name), ("group", group), ("kind", kind)] {
            if !value.is_empty() {
                drop(self.details.insert(key.into(), value.into()));
            }
        }
        self
    }

    /// Adds the warnings about the body: the client gets them whether or not the request succeeds.
    pub(crate) fn warned(mut self, warnings: &[String]) -> Self {
        self.warnings.extend_from_slice(warnings);
        self
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub(crate) fn no_path() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource")
    }

    pub(crate) fn not_found(kind: &Kind, name: &str) -> Self {
        let message = format!("{} {name:?} not found", kind.qualified());
        Self::new(404, "NotFound", message).of(name, kind.resource, kind.group)
    }

    pub(crate) fn exists(kind: &Kind, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", kind.qualified());
        Self::new(409, "AlreadyExists", message).of(name, kind.resource, kind.group)
    }

    pub(crate) fn conflict(kind: &Kind, name: &str, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} {name:?}: {why}", kind.qualified());
        Self::new(409, "Conflict", message).of(name, kind.resource, kind.group)
    }

    pub(crate) fn modified(kind: &Kind, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(kind, name, why)
    }

    pub(crate) fn forbidden(kind: &Kind, name: &str, why: &str) -> Self {
        let object = if name.is_empty() { String::new() } else { format!(" {name:?}") };
        let message = format!("{}{object} is forbidden: {why}", kind.qualified());
        Self::new(403, "Forbidden", message).of(name, kind.resource, kind.group)
    }

    pub(crate) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(405, "MethodNotAllowed", message)
    }

    pub(crate) fn invalid(kind: &Kind, name: &str, causes: &[Cause]) -> Self {
        Self::invalid_of(kind.group, kind.kind, name, causes)
    }

    /// Makes a failure about a type that is no resource, such as the options of a request.
    pub(crate) fn invalid_of(group: &str, kind: &str, name: &str, causes: &[Cause]) -> Self {
        let whole = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let message = format!("{whole} {name:?} is invalid: {}", sentence(causes));
        let listed: Vec<Value> = causes
            .iter()
            .map(|it| json!({"reason": it.reason.word(), "message": it.message, "field": it.field}))
            .collect();
        // kubectl prints the message; controllers read the causes.
        let mut failure = Self::new(422, "Invalid", message).of(name, kind, group);
        drop(failure.details.insert("causes".into(), listed.into()));
        failure
    }

    pub(crate) fn internal(text: &str) -> Self {
        let message = format!("Internal error occurred: {text}");
        let mut failure = Self::new(500, "InternalError", message);
        drop(failure.details.insert("causes".into(), json!([{"message": text}])));
        failure
    }

    pub(crate) fn refused(kind: &Kind, name: &str, refusal: &Refusal) -> Self {
        match refusal {
            Refusal::Invalid(causes) => Self::invalid(kind, name, causes),
            Refusal::Internal(text) => Self::internal(text),
        }
    }

    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// Makes a failure for a list or watch at a revision that the store has not reached.
    pub(crate) fn too_large(asked: u64, now: u64) -> Self {
        let message = format!("Too large resource version: {asked}, current: {now}");
        let mut failure = Self::new(504, "Timeout", format!("Timeout: {message}"));
        let causes =
            json!([{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]);
        drop(failure.details.insert("causes".into(), causes));
        drop(failure.details.insert("retryAfterSeconds".into(), 1.into()));
        failure
    }

    /// Returns the `Status` object.
    pub(crate) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if let (false, Some(fields)) = (self.details.is_empty(), status.as_object_mut()) {
            drop(fields.insert("details".into(), self.details.clone().into()));
        }
        status
    }
}

impl From<store::Error> for Failure {
    fn from(error: store::Error) -> Self {
        Self::internal(&error.to_string())
    }
}

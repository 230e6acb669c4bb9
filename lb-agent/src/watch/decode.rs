//! Decodes the lines of a watch: the type of event and the identity, separately from the content of the object.

use std::borrow::Cow;

use kube::core::Status;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::failure::Failure;
use super::version::Version;
use crate::snapshot::object::{Identifiers, ObjectIdentity};

/// An event of a watch, which is one line of it.
#[derive(Debug)]
pub(super) enum WatchEvent<'a> {
    /// An object was added or changed.
    Applied(&'a RawValue),
    /// An object is gone.
    Deleted(Identifiers),
    /// The current version. At the beginning of a watch it ends the list.
    Bookmark {
        version: Option<Version>,
        /// The list is complete.
        ends_list: bool,
    },
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Bookmark {
    metadata: BookmarkMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookmarkMetadata {
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    annotations: BookmarkAnnotations,
}

#[derive(Default, Deserialize)]
struct BookmarkAnnotations {
    #[serde(rename = "k8s.io/initial-events-end")]
    ends_list: Option<String>,
}

/// The frame of a list: the list without its items.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ListFrame {
    pub(super) metadata: FrameMetadata,
}

/// The metadata of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct FrameMetadata {
    pub(super) resource_version: String,
    #[serde(rename = "continue")]
    pub(super) next: Option<String>,
}

/// Decodes a line. A failure that the line reports is returned as an error.
pub(super) fn line(text: &[u8]) -> Result<WatchEvent<'_>, Failure> {
    let envelope: Envelope<'_> = serde_json::from_slice(text).map_err(|error| garbage(&error))?;
    let object = envelope.object.get();
    match &*envelope.kind {
        // The type does not show whether the object is known here: a streamed list sends each one as `ADDED`.
        "ADDED" | "MODIFIED" => Ok(WatchEvent::Applied(envelope.object)),
        // The server also sends this when a change of labels takes an object out of the selection (contract 1.1).
        "DELETED" => match identity(object) {
            Some(identity) => Ok(WatchEvent::Deleted(identity)),
            None => Err(Failure::Garbage("a deleted object has no name".to_owned())),
        },
        "BOOKMARK" => {
            let Bookmark { metadata } =
                serde_json::from_str(object).map_err(|error| garbage(&error))?;
            let ends_list = metadata.annotations.ends_list.as_deref() == Some("true");
            Ok(WatchEvent::Bookmark { version: Version::of(&metadata.resource_version), ends_list })
        }
        "ERROR" => {
            let status: Status = serde_json::from_str(object).map_err(|error| garbage(&error))?;
            let Status { code, message, .. } = status;
            Err(Failure::Refused { code, message, wait: None })
        }
        other => {
            // An event that is skipped may have been a change, so an unknown type leads to a list
            // (`Failure::consequence`).
            Err(Failure::Garbage(format!("an event of type {}", crate::snapshot::quoted(other))))
        }
    }
}

/// Returns the identity of an object; `None` if even that cannot be read.
pub(super) fn identity(object: &str) -> Option<Identifiers> {
    let identity: ObjectIdentity = serde_json::from_str(object).ok()?;
    Some(identity.metadata).filter(|identity| !identity.name.is_empty())
}

/// Returns the metadata of a list.
pub(super) fn frame(text: &[u8]) -> Result<FrameMetadata, Failure> {
    serde_json::from_slice(text)
        .map(|ListFrame { metadata }| metadata)
        .map_err(|error| garbage(&error))
}

fn garbage(error: &serde_json::Error) -> Failure {
    Failure::Garbage(error.to_string())
}

//! The object of the API.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};

use super::EventContent;

/// Longest note that the API server accepts, in bytes.
const NOTE: usize = 1_024;

/// Makes the object of an Event that this node reports at a time.
pub(super) fn event(content: &EventContent, node: &str, now: Timestamp) -> Event {
    let regarding = content.service.as_ref().map_or_else(
        || ObjectReference {
            kind: Some("Node".into()),
            name: Some(node.to_owned()),
            // The kubelet and kube-proxy also use the Node's name as its UID.
            uid: Some(node.to_owned()),
            ..ObjectReference::default()
        },
        |service| ObjectReference {
            kind: Some("Service".into()),
            name: Some(service.name.clone()),
            namespace: Some(service.namespace.clone()),
            uid: Some(content.uid.clone()).filter(|uid| !uid.is_empty()),
            ..ObjectReference::default()
        },
    );
    let namespace = regarding.namespace.clone().unwrap_or_else(|| "default".into());
    let name = regarding.name.clone().unwrap_or_default();
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{:x}", now.as_nanosecond())),
            namespace: Some(namespace),
            ..ObjectMeta::default()
        },
        action: Some(content.action.into()),
        event_time: Some(MicroTime(now)),
        // A character takes up to four bytes, and the limit is in bytes.
        note: Some(content.text.chars().take(NOTE / 4).collect()),
        reason: Some(content.reason.into()),
        regarding: Some(ObjectReference { api_version: Some("v1".into()), ..regarding }),
        reporting_controller: Some("lb-agent".into()),
        // The API server accepts no more characters (`ReportingInstanceLengthLimit` in pkg/apis/core/validation).
        reporting_instance: Some(node.chars().take(128).collect()),
        type_: Some(if content.is_warning { "Warning" } else { "Normal" }.into()),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube_events::tests::content;

    #[test]
    fn event_regards_a_service_or_the_node_of_the_agent() {
        let about = event(&content(&"x".repeat(5_000)), "n", Timestamp::UNIX_EPOCH);
        let regarding = about.regarding.unwrap();
        assert_eq!(
            (regarding.kind.as_deref(), regarding.uid.as_deref()),
            (Some("Service"), Some("u"))
        );
        assert_eq!(about.metadata.namespace.as_deref(), Some("shop"));
        assert!(about.note.unwrap().len() <= NOTE);
        let about =
            event(&EventContent { service: None, ..content("") }, "n", Timestamp::UNIX_EPOCH);
        assert_eq!(about.regarding.unwrap().uid.as_deref(), Some("n"));
        assert_eq!(about.metadata.namespace.as_deref(), Some("default"));
    }
}

//! Follows the objects of a Kubernetes API server and reports them as [`Event`]s.
//!
//! Only objects that a service proxy needs are requested (contract 1.1), and each object is reduced as it arrives.
//! Failures are retried for ever. Meanwhile the last known objects stay, and [`ViewHealth`] says since when they are
//! stale.
//!
//! The client never uses an address of the server that this agent programs itself: see [`client::Server`].

mod access;
mod body;
mod builds;
pub mod client;
mod connector;
mod decode;
mod failure;
mod follow;
mod head;
mod items;
mod listing;
mod objects;
pub mod observe;
mod pace;
mod renew;
mod request;
mod secrets;
mod server;
pub mod source_address;
mod unread;
mod version;

use kube::Client;
use tokio::sync::mpsc::Sender;

use self::follow::{Follow, FollowContext};
use self::objects::{CidrObjects, NodeObjects, ServiceObjects, SliceObjects};
use self::pace::Pace;
use crate::snapshot::{Event, HEADLESS_LABEL, PROXY_NAME_LABEL, ViewHealth};

/// The kinds and objects to follow.
#[derive(Clone, Debug)]
pub struct Watch {
    pub node: String,
    /// Follow the Services with this value of the proxy-name label, instead of those without the label.
    pub service_proxy_name: Option<String>,
    /// How complete lists are read.
    pub list: ListMode,
}

/// How complete lists are read, at the start and after the server has forgotten the last position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListMode {
    /// Objects arrive one by one as the first events of a watch if the server supports that, otherwise in pages.
    #[default]
    Streaming,
    /// Objects arrive in pages, as far as the server divides the list.
    Paged,
}

impl Watch {
    /// Follows the objects until the receiver of the events is dropped.
    pub async fn run(self, client: Client, view: ViewHealth, events: Sender<Event>) {
        Box::pin(self.run_at(client, view, events, Pace::default())).await;
    }

    async fn run_at(self, client: Client, view: ViewHealth, events: Sender<Event>, pace: Pace) {
        let (service_labels, not_headless) = (self.service_labels(), NOT_HEADLESS.to_owned());
        // Slices are selected by owner, not by their own proxy-name label: the tracker joins slices and Services.
        let slice_labels = format!("!{HEADLESS_LABEL}");
        // The name as a field selector is also what RBAC and the node authorizer can restrict to one object.
        let name = format!("metadata.name={}", self.node);
        let context = FollowContext { client, view, events, list: self.list, pace };
        // Each kind is followed on its own, because a server may refuse or lack one of them: ServiceCIDRs are in
        // `networking.k8s.io/v1` only since Kubernetes 1.33.
        let ((), (), (), ()) = tokio::join!(
            Follow::new(ServiceObjects, Some(service_labels), Some(not_headless), context.clone())
                .run(),
            Follow::new(SliceObjects::default(), Some(slice_labels), None, context.clone()).run(),
            Follow::new(NodeObjects, None, Some(name), context.clone()).run(),
            Follow::new(CidrObjects::default(), None, None, context).run(),
        );
    }

    /// Returns the label selector. The server filters, so that a label set on a live Service acts as a deletion
    /// (contract 1.1).
    fn service_labels(&self) -> String {
        match &self.service_proxy_name {
            Some(name) => format!("{PROXY_NAME_LABEL}={name}"),
            None => format!("!{PROXY_NAME_LABEL}"),
        }
    }
}

const NOT_HEADLESS: &str = "spec.clusterIP!=None";

#[cfg(test)]
mod tests;

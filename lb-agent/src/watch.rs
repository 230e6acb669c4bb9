//! Follows the objects of a Kubernetes API server and reports them as [`Event`]s.
//!
//! Only what a service proxy needs is asked for (contract 1.1), and each object is cut down as it
//! arrives. Failures are retried for ever; meanwhile the last view stays, and [`ViewHealth`] says
//! since when it is old. Never asks the server by an address that this agent programs itself:
//! see [`client::Server`].

pub mod client;
mod failure;
mod follow;
mod objects;
pub mod observe;
mod pace;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::{Api, Client};
use tokio::sync::mpsc::Sender;

use self::follow::Follow;
use self::objects::{Cidrs, Nodes, Services, Slices};
use self::pace::Pace;
use crate::snapshot::{Event, HEADLESS_LABEL, PROXY_NAME_LABEL, ViewHealth};

/// What to follow.
#[derive(Clone, Debug)]
pub struct Watch {
    /// Our node's name.
    pub node: String,
    /// Follow the Services whose proxy-name label is this, instead of those without the label.
    pub service_proxy_name: Option<String>,
    /// How complete lists are read.
    pub list: ListMode,
}

/// How complete lists are read, at the start and after the server forgot where we were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListMode {
    /// One by one as the first events of a watch where the server can do that, else all at once.
    #[default]
    Streaming,
    /// All at once, from the server's cache.
    AtOnce,
}

impl Watch {
    /// Follows until nobody receives the events any more.
    pub async fn run(self, client: Client, view: ViewHealth, events: Sender<Event>) {
        Box::pin(self.run_at(client, view, events, Pace::default())).await;
    }

    async fn run_at(self, client: Client, view: ViewHealth, events: Sender<Event>, pace: Pace) {
        let follow = |labels: Option<String>, fields: Option<String>| Follow {
            labels,
            fields,
            list: self.list,
            view: view.clone(),
            events: events.clone(),
            pace,
        };
        let services = follow(Some(self.service_labels()), Some(NOT_HEADLESS.to_owned()));
        // By owner, not by the slice's own proxy-name label: the tracker joins them.
        let slices = follow(Some(format!("!{HEADLESS_LABEL}")), None);
        let node = follow(None, Some(format!("metadata.name={}", self.node)));
        let cidrs = follow(None, None);
        let ((), (), (), ()) = tokio::join!(
            services.run(Api::<Service>::all(client.clone()), Services),
            slices.run(Api::<EndpointSlice>::all(client.clone()), Slices::default()),
            node.run(Api::<Node>::all(client.clone()), Nodes),
            cidrs.run(Api::<ServiceCIDR>::all(client.clone()), Cidrs::default()),
        );
    }

    /// Contract 1.1: the server filters, so that a label set on a live Service acts as a deletion.
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

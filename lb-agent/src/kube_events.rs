//! Kubernetes Events about this Node and about Services (contract 8.4). Best effort: they inform people, and nothing
//! waits for them.
//!
//! The same Event is written at most once an hour, and all Events together are limited in rate, to protect the API
//! server: each node of a cluster reports the same fault of a Service. One that the server is not able to take is tried
//! again a few times.

mod failed;
mod limit;
mod object;

use std::fmt;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::events::v1::Event;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::debug;

use self::failed::Failed;
use self::limit::Limit;
use self::object::event;
use crate::plan::ServiceName;
use crate::random;

/// Largest number of Events that wait to be written, and of those that wait for another attempt; more are dropped.
const WAITING: usize = 256;
/// Time between two attempts to write an Event, as in client-go, to which up to as much is added.
const RETRY: Duration = Duration::from_secs(10);
/// Time limit for the Event about the end of the agent.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// All that is written into an Event. Equal content is not written again for a while.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventContent {
    /// The Service concerned; `None` for this Node.
    pub service: Option<ServiceName>,
    /// `metadata.uid` of the Service; empty if unknown.
    pub uid: String,
    /// Type Warning; otherwise Normal.
    pub is_warning: bool,
    /// Reason, one word for programs.
    pub reason: &'static str,
    /// Action during which the event happened.
    pub action: &'static str,
    /// Message for people; longer ones are cut at the API's limit.
    pub text: String,
}

/// The destination of Events; without an API server they are dropped.
#[derive(Clone, Default)]
pub struct Events(Option<Sink>);

#[derive(Clone)]
struct Sink {
    queue: mpsc::Sender<EventContent>,
    client: Client,
    node: String,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("has_server", &self.0.is_some()).finish()
    }
}

impl Events {
    /// Writes Events to a server in the name of this node.
    pub fn start(client: Client, node: &str) -> Self {
        let (queue, waiting) = mpsc::channel(WAITING);
        let node = node.to_owned();
        drop(tokio::spawn(send(client.clone(), node.clone(), waiting, RETRY)));
        Self(Some(Sink { queue, client, node }))
    }

    /// Queues an Event. Never blocks.
    pub fn record(&self, content: EventContent) {
        if let Some(sink) = &self.0
            && let Err(error) = sink.queue.try_send(content)
        {
            debug!(%error, "Event dropped: queue is full");
        }
    }

    /// Writes an Event about why the agent ends, and waits for it for a limited time.
    pub async fn end(&self, reason: &'static str, text: String) {
        let Some(sink) = &self.0 else { return };
        let (action, uid) = ("StartKubeProxy", String::new());
        let content = EventContent { service: None, uid, is_warning: true, reason, action, text };
        let event = event(&content, &sink.node, Timestamp::now());
        if timeout(LAST_WORDS, create(&sink.client, &event)).await.is_err() {
            debug!(reason, "Event not written: API server timed out");
        }
    }

    /// Queues a warning about a Service.
    pub fn warn(
        &self,
        service: &ServiceName,
        uid: &str,
        reason: &'static str,
        action: &'static str,
        text: String,
    ) {
        let (service, uid) = (Some(service.clone()), uid.to_owned());
        self.record(EventContent { service, uid, is_warning: true, reason, action, text });
    }

    /// Queues an Event about this node.
    pub fn node(&self, reason: &'static str, text: String) {
        let action = "StartKubeProxy";
        let (service, uid) = (None, String::new());
        self.record(EventContent { service, uid, is_warning: false, reason, action, text });
    }
}

async fn send(
    client: Client,
    node: String,
    mut queue: mpsc::Receiver<EventContent>,
    pause: Duration,
) {
    let mut limit = Limit::new(Instant::now());
    let mut failed = Failed::default();
    loop {
        let (event, attempts) = tokio::select! {
            // New Events go before those that have failed.
            biased;
            content = queue.recv() => match content {
                // The Event gets the time of writing: the content may have waited in the queue.
                Some(content) if limit.admits(&content, Instant::now()) => {
                    (event(&content, &node, Timestamp::now()), 0)
                }
                Some(_) => continue,
                None => return,
            },
            Some(again) = failed.due() => again,
        };
        if !create(&client, &event).await {
            // The server takes no other one either.
            let next = Instant::now() + pause + random::below(pause);
            failed.postpone(next);
            failed.add(event, attempts + 1, next);
        }
    }
}

/// Writes an Event. Returns false if the server may take it later.
async fn create(client: &Client, event: &Event) -> bool {
    let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
    let api = Api::<Event>::namespaced(client.clone(), namespace);
    let Err(error) = api.create(&PostParams::default(), event).await else { return true };
    let reason = event.reason.as_deref();
    debug!(error = %crate::chain(&error), note.reason = reason, "Event not written");
    // An attempt whose response was lost may have written it (409), and a refusal for any other reason would only be
    // repeated.
    let is_final = |code: u16| (400..500).contains(&code) && code != 429;
    matches!(&error, kube::Error::Api(status) if is_final(status.code))
}

#[cfg(test)]
mod tests;

//! Kubernetes Events about this Node and about Services (contract 8.4). Best effort: they inform people, and nothing
//! waits for them.
//!
//! The same Event is written at most once in ten minutes, and all Events together are limited in rate, to protect the
//! API server. One that the server is not able to take is tried again a few times.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::pending;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::mpsc;
use tokio::time::{sleep_until, timeout};
use tracing::debug;

use crate::plan::ServiceName;
use crate::random;

/// Number of Events that may be written at once.
const BURST: u32 = 25;
/// Time after which one more may be written.
const REFILL: Duration = Duration::from_secs(10);
/// Time during which the same Event is not written again.
const SILENCE: Duration = Duration::from_mins(10);
/// Largest number of Events that wait to be written, and of those that wait for another attempt; more are dropped.
const WAITING: usize = 256;
/// Time between two attempts to write an Event, as in client-go, to which up to as much is added.
const RETRY: Duration = Duration::from_secs(10);
/// Largest number of attempts to write an Event, as in client-go.
const ATTEMPTS: u32 = 12;
/// Time limit for the Event about the end of the agent.
const LAST_WORDS: Duration = Duration::from_secs(3);
/// Longest note that the API server accepts, in bytes.
const NOTE: usize = 1_024;
/// Largest number of Events that are remembered as written.
const REMEMBERED: usize = 4_096;

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

/// The Events that could not be written, with the number of attempts, by the time of the next one.
#[derive(Debug, Default)]
struct Failed(VecDeque<(Event, u32, Instant)>);

impl Failed {
    /// Adds an Event for another attempt, unless it had enough of them, or too many Events wait.
    fn add(&mut self, event: Event, attempts: u32, at: Instant) {
        if attempts < ATTEMPTS && self.0.len() < WAITING {
            self.0.push_back((event, attempts, at));
        }
    }

    /// Lets no attempt come before this time.
    fn postpone(&mut self, until: Instant) {
        for (_, _, at) in &mut self.0 {
            *at = (*at).max(until);
        }
    }

    /// Takes the first Event once its next attempt is due, with the number of attempts.
    async fn due(&mut self) -> Option<(Event, u32)> {
        match self.0.front() {
            Some((_, _, at)) => sleep_until((*at).into()).await,
            None => pending().await,
        }
        self.0.pop_front().map(|(event, attempts, _)| (event, attempts))
    }
}

/// The Events that were written, and the number that may still be written.
#[derive(Debug)]
struct Limit {
    tokens: u32,
    filled: Instant,
    said: BTreeMap<EventContent, Instant>,
}

impl Limit {
    const fn new(now: Instant) -> Self {
        Self { tokens: BURST, filled: now, said: BTreeMap::new() }
    }

    fn admits(&mut self, content: &EventContent, now: Instant) -> bool {
        self.said.retain(|_, said| now.duration_since(*said) < SILENCE);
        let periods = now.duration_since(self.filled).as_secs() / REFILL.as_secs();
        if periods > 0 {
            self.tokens = BURST.min(self.tokens.saturating_add(periods as u32));
            self.filled = now;
        }
        // A token bucket, and no repetition for a while: neither a fault of many Services nor one that stays may flood
        // the API server.
        if self.tokens == 0 || self.said.contains_key(content) || self.said.len() >= REMEMBERED {
            return false;
        }
        self.tokens -= 1;
        self.said.insert(content.clone(), now);
        true
    }
}

fn event(content: &EventContent, node: &str, now: Timestamp) -> Event {
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
    use axum::body::Body;
    use axum::http::{Request, Response};
    use futures::FutureExt as _;
    use kube::client::ClientBuilder;
    use tower::service_fn;

    use super::*;

    /// The answer to an Event that was written.
    const WRITTEN: &str =
        r#"{"apiVersion":"events.k8s.io/v1","kind":"Event","metadata":{"name":"e"}}"#;

    fn content(text: &str) -> EventContent {
        let service = Some(ServiceName { namespace: "shop".into(), name: "web".into() });
        let (reason, action) = ("FailedToStartServiceHealthcheck", "Listen");
        EventContent {
            service,
            uid: "u".into(),
            is_warning: true,
            reason,
            action,
            text: text.into(),
        }
    }

    #[test]
    fn equal_events_are_sent_once_and_all_events_are_limited() {
        let start = Instant::now();
        let mut limit = Limit::new(start);
        assert!(limit.admits(&content("a"), start));
        assert!(!limit.admits(&content("a"), start));
        let more = (0..100).filter(|n| limit.admits(&content(&n.to_string()), start)).count();
        assert_eq!(more, BURST as usize - 1);
        assert!(limit.admits(&content("b"), start + REFILL));
        assert!(!limit.admits(&content("c"), start + REFILL));
        assert!(limit.admits(&content("a"), start + SILENCE), "said long ago");
    }

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

    /// Makes a client of a server that answers with these status codes, and then with success. The answers are sent.
    fn answering(codes: &'static [u16]) -> (Client, mpsc::UnboundedReceiver<u16>) {
        let (seen, answers) = mpsc::unbounded_channel();
        let mut codes = codes.iter().copied();
        let service = service_fn(move |_: Request<kube::client::Body>| {
            let code = codes.next().unwrap_or(201);
            seen.send(code).expect("a test");
            let body = if code < 400 { WRITTEN } else { "refused" };
            let response = Response::builder().status(code).body(Body::from(body));
            async move { Ok::<_, std::io::Error>(response.expect("a response")) }
        });
        (ClientBuilder::new(service, "default").build(), answers)
    }

    #[tokio::test]
    async fn event_is_tried_again_while_the_server_may_take_it_later() {
        let (client, mut answers) = answering(&[503, 429, 500, 201, 403]);
        let (queue, waiting) = mpsc::channel(WAITING);
        let task = tokio::spawn(send(client, "n".into(), waiting, Duration::ZERO));
        let mut next = async |count: usize| {
            let mut codes = Vec::new();
            while codes.len() < count {
                let code = timeout(Duration::from_mins(1), answers.recv()).await;
                codes.push(code.expect("a request in time").expect("a server"));
            }
            codes
        };
        queue.send(content("a")).await.expect("a receiver");
        assert_eq!(next(4).await, [503, 429, 500, 201]);
        queue.send(content("b")).await.expect("a receiver");
        assert_eq!(next(1).await, [403]);
        queue.send(content("c")).await.expect("a receiver");
        assert_eq!(next(1).await, [201]);
        drop(queue);
        task.await.expect("an end");
        assert!(answers.try_recv().is_err(), "a refused Event is not repeated");
    }

    /// After an attempt that fails, the others wait as well: a server that is back is not asked for all at once.
    #[test]
    fn attempts_wait_for_the_server_together() {
        let event = || event(&content(""), "n", Timestamp::UNIX_EPOCH);
        let (mut failed, now) = (Failed::default(), Instant::now());
        failed.add(event(), 1, now);
        failed.postpone(now + RETRY);
        failed.add(event(), 1, now + RETRY);
        assert!(failed.0.iter().all(|(_, _, at)| *at == now + RETRY));
    }

    #[test]
    fn attempts_and_waiting_events_are_limited() {
        let event = || event(&content(""), "n", Timestamp::UNIX_EPOCH);
        let (mut failed, now) = (Failed::default(), Instant::now());
        assert!(failed.due().now_or_never().is_none(), "there is none");
        failed.add(event(), ATTEMPTS, now);
        assert!(failed.0.is_empty());
        for _ in 0..=WAITING {
            failed.add(event(), 1, now);
        }
        assert_eq!(failed.0.len(), WAITING);
    }
}

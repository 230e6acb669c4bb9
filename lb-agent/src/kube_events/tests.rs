//! Events that a server takes, late or not at all.

use axum::body::Body;
use axum::http::{Request, Response};
use kube::client::ClientBuilder;
use tower::service_fn;

use super::*;

/// The answer to an Event that was written.
const WRITTEN: &str = r#"{"apiVersion":"events.k8s.io/v1","kind":"Event","metadata":{"name":"e"}}"#;

pub(super) fn content(text: &str) -> EventContent {
    let service = Some(ServiceName { namespace: "shop".into(), name: "web".into() });
    let (reason, action) = ("FailedToStartServiceHealthcheck", "Listen");
    EventContent { service, uid: "u".into(), is_warning: true, reason, action, text: text.into() }
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

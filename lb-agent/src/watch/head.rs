//! The head of a response: decides whether a Kubernetes API server sent it.

use std::error::Error as _;
use std::time::Duration;

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use kube::core::Status;

use super::body::Incoming;
use super::failure::Failure;
use super::request::get;

/// The maximum number of bytes read from a refusal.
const REFUSAL: usize = 64 << 10;
/// The longest silence within a refusal.
const SILENCE: Duration = Duration::from_secs(5);
/// The longest pause that a server may request: a change is seen soon after an outage.
const LONGEST_WAIT: Duration = Duration::from_secs(4);
/// The longest pause that a server with too many requests (429) may request. Only the server knows its load.
const LONGEST_OF_BUSY: Duration = Duration::from_secs(10);

/// Sends the request and returns the body of a successful response.
pub(super) async fn ask(client: &Client, address: &str) -> Result<Incoming, Failure> {
    let request = get(address).map_err(|error| Failure::Broken(crate::chain(&error)))?;
    let answer = client.send(request).await.map_err(|error| no_answer(&error))?;
    accept(answer).await
}

fn no_answer(error: &kube::Error) -> Failure {
    let is_of_service = matches!(error, kube::Error::Service(_));
    // The outer error says only that a request failed.
    let inner = error.source().filter(|_| is_of_service);
    Failure::NoAnswer(inner.map_or_else(|| crate::chain(error), crate::chain))
}

async fn accept(answer: Response<Body>) -> Result<Incoming, Failure> {
    let (head, body) = answer.into_parts();
    let mut body = Incoming::new(axum::body::Body::new(body));
    if !head.status.is_success() {
        // An API server explains a refusal in a `Status`. A proxy may send a page of any length in its place.
        let text = body.beginning(SILENCE, REFUSAL).await;
        let status = serde_json::from_slice::<Status>(&text).ok();
        let message = status.map(|status| status.message).filter(|message| !message.is_empty());
        return Err(Failure::Refused {
            code: head.status.as_u16(),
            message: message.unwrap_or_else(|| "the server gives no reason".to_owned()),
            wait: wait(head.status, &head.headers),
        });
    }
    let kind = head.headers.get(CONTENT_TYPE).map(|kind| kind.to_str().unwrap_or_default());
    match kind {
        // A server that names no type sends the one that was requested.
        None => Ok(body),
        Some(kind) if is_json(kind) => Ok(body),
        Some(kind) => Err(Failure::Foreign(crate::snapshot::quoted(kind))),
    }
}

fn is_json(kind: &str) -> bool {
    let kind = kind.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}

/// Returns the pause that the server requests, up to a maximum.
fn wait(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    // The form with a date is ignored, as by client-go (`retryAfterSeconds` in its package `rest`).
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    let is_busy = status == StatusCode::TOO_MANY_REQUESTS;
    let most = if is_busy { LONGEST_OF_BUSY } else { LONGEST_WAIT };
    Some(Duration::from_secs(seconds).min(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_obeyed_up_to_a_bound() {
        let asked = |status, text: &'static str| {
            let mut headers = HeaderMap::new();
            drop(headers.insert(RETRY_AFTER, text.parse().expect("a header")));
            wait(status, &headers)
        };
        let (away, busy) = (StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS);
        for (status, most) in [(away, LONGEST_WAIT), (busy, LONGEST_OF_BUSY)] {
            assert_eq!(asked(status, "2"), Some(Duration::from_secs(2)));
            assert_eq!(asked(status, "86400"), Some(most));
            assert_eq!(asked(status, "Wed, 21 Oct 2015 07:28:00 GMT"), None);
        }
    }

    #[test]
    fn json_is_distinguished_from_pages() {
        assert!(is_json("application/json") && is_json("Application/JSON; charset=utf-8"));
        assert!(!is_json("text/html") && !is_json("application/json-patch"));
    }
}

//! What a failed request means, in words an operator can act on.

use std::error::Error as _;

use kube::core::Status;
use kube::runtime::watcher;

use crate::snapshot::Kind;

/// The code of what the client takes for a failure and is none: every JSON without a code, an event that lacks a field
/// for example.
const UNREAD: u16 = 0;

/// What follows from a failure, apart from trying again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Consequence {
    /// Try again where we were.
    Again,
    /// The server does not understand how it was asked: ask for less.
    AskLess,
    /// The server has forgotten where we were: read the list again.
    Relist,
    /// We may not read this, or the server has no such resource.
    Refused,
}

/// What follows from a failure.
pub(super) fn consequence(error: &watcher::Error) -> Consequence {
    let Some(status) = status(error) else {
        return match error {
            watcher::Error::NoResourceVersion
            | watcher::Error::WatchFailed(kube::Error::SerdeError(_)) => Consequence::Relist,
            watcher::Error::InitialListFailed(_)
            | watcher::Error::WatchStartFailed(_)
            | watcher::Error::WatchError(_)
            | watcher::Error::WatchFailed(_) => Consequence::Again,
        };
    };
    match status.code {
        400 | 405 | 406 | 422 => Consequence::AskLess,
        401 | 403 | 404 => Consequence::Refused,
        // What is unreadable may have been a change.
        410 | UNREAD => Consequence::Relist,
        // The server was restored to an older state: our place lies in its future.
        504 if status.message.contains("Too large resource version") => Consequence::Relist,
        _ => Consequence::Again,
    }
}

/// The failure in one line.
pub(super) fn words(error: &watcher::Error, kind: Kind) -> String {
    let resource = kind.resource();
    match status(error) {
        Some(Status { code: 401, .. }) => {
            "the server does not know us (401); renew the credentials".to_owned()
        }
        Some(Status { code: 403, .. }) => {
            format!("not allowed (403); grant get, list and watch of {resource}")
        }
        Some(Status { code: 404, .. }) => format!("the server has no {resource} (404)"),
        Some(Status { code: UNREAD, message, .. }) if message.is_empty() => {
            "the server sent something that is no event and no list".to_owned()
        }
        Some(status) => format!("{} ({})", status.message, status.code),
        None => chain(error),
    }
}

/// Whether it says who we are or what we may, and nothing of what is there.
pub(super) fn is_about_us(error: &watcher::Error) -> bool {
    status(error).is_some_and(|status| matches!(status.code, 401 | 403))
}

fn status(error: &watcher::Error) -> Option<&Status> {
    match error {
        watcher::Error::WatchError(status)
        | watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status)) => Some(status),
        watcher::Error::InitialListFailed(_)
        | watcher::Error::WatchStartFailed(_)
        | watcher::Error::WatchFailed(_)
        | watcher::Error::NoResourceVersion => None,
    }
}

/// The innermost causes say most; each is said once.
fn chain(error: &watcher::Error) -> String {
    let mut parts = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(inner) = cause {
        let text = inner.to_string();
        if !parts.iter().any(|part| part.contains(&text)) {
            parts.push(text);
        }
        cause = inner.source();
    }
    parts.join(": ")
}

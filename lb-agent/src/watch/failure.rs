//! Failed requests, in words that an operator can act on.

use std::time::Duration;

use crate::snapshot::Kind;

/// Why a request brought nothing more.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nobody listens any more.
    Closed,
    /// No connection, or no head of an answer.
    NoAnswer(String),
    /// The server says no.
    Refused {
        /// Code of HTTP, or of the event that says so.
        code: u16,
        message: String,
        /// It asks us to wait so long.
        wait: Option<Duration>,
    },
    /// A body of another type than Kubernetes objects.
    Foreign(String),
    /// The body broke off.
    Broken(String),
    /// Nothing came for so long.
    Silent(Duration),
    /// A line or an object that does not end.
    TooLong,
    /// Something that is no event and no list.
    Garbage(String),
    /// The server's state is older than what it told before.
    WentBack,
    /// Watches end as soon as they begin.
    Short,
}

/// The consequence of a failure, apart from trying again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Consequence {
    /// Try again where we were.
    Again,
    /// The server does not understand how it was asked: ask for less.
    AskLess,
    /// The server has forgotten where we were, or a change could not be read: read the list again.
    Relist,
    /// Read the list again, of whatever age it is.
    RelistAnyAge,
    /// We may not read this, or the server has no such resource.
    Refused,
}

impl Failure {
    /// The consequence of it.
    pub(super) fn consequence(&self) -> Consequence {
        match self {
            Self::Refused { code: 504, message, .. }
                if message.to_ascii_lowercase().contains("too large resource version") =>
            {
                Consequence::RelistAnyAge
            }
            Self::Refused { code, .. } => match code {
                400 | 405 | 406 | 422 => Consequence::AskLess,
                401 | 403 | 404 => Consequence::Refused,
                410 => Consequence::Relist,
                _ => Consequence::Again,
            },
            Self::WentBack => Consequence::RelistAnyAge,
            // An unreadable line may have been a change.
            Self::Garbage(_) | Self::TooLong => Consequence::Relist,
            Self::Closed
            | Self::NoAnswer(_)
            | Self::Foreign(_)
            | Self::Broken(_)
            | Self::Silent(_)
            | Self::Short => Consequence::Again,
        }
    }

    /// The failure in one line.
    pub(super) fn words(&self, kind: Kind) -> String {
        let resource = kind.resource();
        match self {
            Self::Closed => "connection refused".to_owned(),
            Self::NoAnswer(reason) => reason.clone(),
            Self::Refused { code: 401, .. } => {
                "API server rejected our credentials (401); reading them again".to_owned()
            }
            Self::Refused { code: 403, .. } => {
                format!("forbidden (403); grant get, list and watch on {resource}")
            }
            Self::Refused { code: 404, .. } => format!("the server has no {resource} (404)"),
            Self::Refused { code, message, .. } => format!("{message} ({code})"),
            Self::Foreign(kind) => format!(
                "the response has type {kind}, not a Kubernetes type; is there a proxy or a login \
                 page in between?"
            ),
            Self::Broken(reason) => format!("the response ended early: {reason}"),
            Self::Silent(silence) => format!("no data from the server for {silence:?}"),
            Self::TooLong => "an object exceeds the size limit".to_owned(),
            Self::Garbage(reason) => {
                format!("the response is neither an event nor a list: {reason}")
            }
            Self::WentBack => {
                "the server's state is older than what it sent before; was etcd restored?"
                    .to_owned()
            }
            Self::Short => "the server closes each watch at once".to_owned(),
        }
    }

    /// Whether pages may succeed where this streamed list failed. A stream that stalls may be one that an old server
    /// never ends; a stream that breaks, a list that takes longer than the server allows; an unreadable line, one
    /// that a proxy has cut. Pages keep what has arrived.
    pub(super) const fn is_of_stream(&self) -> bool {
        matches!(self, Self::Silent(_) | Self::Broken(_) | Self::TooLong | Self::Garbage(_))
    }

    /// Whether it says who we are or what we may, and nothing of what is there.
    pub(super) const fn is_about_us(&self) -> bool {
        matches!(self, Self::Refused { code: 401 | 403, .. })
    }

    /// Whether the server that answers next may be another one, or one with another state.
    pub(super) const fn is_of_server(&self) -> bool {
        match self {
            Self::NoAnswer(_) | Self::Broken(_) | Self::Silent(_) | Self::Foreign(_) => true,
            Self::Refused { code, .. } => *code >= 500,
            Self::Closed | Self::TooLong | Self::Garbage(_) | Self::WentBack | Self::Short => false,
        }
    }

    /// How long the server asks us to wait.
    pub(super) const fn wait(&self) -> Option<Duration> {
        match self {
            Self::Refused { wait, .. } => *wait,
            Self::Closed
            | Self::NoAnswer(_)
            | Self::Foreign(_)
            | Self::Broken(_)
            | Self::Silent(_)
            | Self::TooLong
            | Self::Garbage(_)
            | Self::WentBack
            | Self::Short => None,
        }
    }
}

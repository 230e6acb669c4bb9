//! Failed requests, described so that an operator can act on them.

use std::time::Duration;

use crate::snapshot::ObjectKind;

/// The reason why a request ended.
#[derive(Debug)]
pub(super) enum Failure {
    /// The receiver of the events is dropped.
    Closed,
    /// No connection, or no head of a response.
    NoAnswer(String),
    /// The server refused the request.
    Refused {
        /// The status code of HTTP, or of the event that reports the refusal.
        code: u16,
        message: String,
        /// The pause that the server requests.
        wait: Option<Duration>,
    },
    /// The body has another type than Kubernetes objects.
    Foreign(String),
    /// The body ended early.
    Broken(String),
    /// No data arrived for so long.
    Silent(Duration),
    /// A line or an object exceeds the size limit.
    TooLong,
    /// The response is neither an event nor a list.
    Garbage(String),
    /// The server's state is older than what it sent before.
    WentBack,
    /// Watches end as soon as they begin.
    Short,
}

/// The consequence of a failure, besides the retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Consequence {
    /// Retry from the same position.
    Again,
    /// The server does not understand the request: use a simpler one.
    AskLess,
    /// The server has forgotten the position, or a change could not be read: read the list again.
    Relist,
    /// Read the list again, at any resource version.
    RelistAnyAge,
    /// The agent is not allowed to read this, or the server has no such resource.
    Refused,
}

impl Failure {
    /// Returns what the caller has to do, besides the retry.
    pub(super) fn consequence(&self) -> Consequence {
        match self {
            // The API server sends this when its cache is older than the requested version, for example after etcd was
            // restored from a backup.
            Self::Refused { code: 504, message, .. }
                if message.to_ascii_lowercase().contains("too large resource version") =>
            {
                Consequence::RelistAnyAge
            }
            Self::Refused { code, .. } => match code {
                // A field selector that the server does not know is a bad request (400); `sendInitialEvents` is invalid
                // (422) while the feature gate `WatchList` is off.
                400 | 405 | 406 | 422 => Consequence::AskLess,
                401 | 403 | 404 => Consequence::Refused,
                410 => Consequence::Relist,
                _ => Consequence::Again,
            },
            Self::WentBack => Consequence::RelistAnyAge,
            // An unreadable line may have been a change, so the state is no longer known.
            Self::Garbage(_) | Self::TooLong => Consequence::Relist,
            Self::Closed
            | Self::NoAnswer(_)
            | Self::Foreign(_)
            | Self::Broken(_)
            | Self::Silent(_)
            | Self::Short => Consequence::Again,
        }
    }

    /// Returns the failure in one line.
    pub(super) fn words(&self, kind: ObjectKind) -> String {
        let resource = kind.resource();
        match self {
            Self::Closed => "the agent ends".to_owned(),
            // The name of the error in `webpki`.
            Self::NoAnswer(reason) if reason.contains("CaUsedAsEndEntity") => format!(
                "{reason}; the API server's certificate is itself a CA: issue one with CA:FALSE"
            ),
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

    /// Reports whether pages may succeed where this streamed list failed.
    ///
    /// An old server may never end a stream; a list may take longer than the server allows for a stream; a proxy may
    /// have cut a line. Pages keep what has arrived.
    pub(super) const fn is_of_stream(&self) -> bool {
        matches!(self, Self::Silent(_) | Self::Broken(_) | Self::TooLong | Self::Garbage(_))
    }

    /// Reports whether a server or a proxy refused the request because of its own state, whatever was requested.
    pub(super) const fn is_outage(&self) -> bool {
        matches!(self, Self::Refused { code: 502..=504, .. })
    }

    /// Reports whether the failure concerns identity or permissions and says nothing about the state.
    pub(super) const fn is_about_us(&self) -> bool {
        matches!(self, Self::Refused { code: 401 | 403, .. })
    }

    /// Reports whether the next response may come from another server, or from one with another state.
    pub(super) const fn is_of_server(&self) -> bool {
        match self {
            Self::NoAnswer(_) | Self::Broken(_) | Self::Silent(_) | Self::Foreign(_) => true,
            Self::Refused { code, .. } => *code >= 500,
            Self::Closed | Self::TooLong | Self::Garbage(_) | Self::WentBack | Self::Short => false,
        }
    }

    /// Returns the pause that the server requests.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_that_is_a_ca_is_reported_with_its_remedy() {
        let words = |reason: &str| Failure::NoAnswer(reason.to_owned()).words(ObjectKind::Node);
        assert_eq!(words("timed out"), "timed out");
        let refused = words("invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))");
        assert!(refused.ends_with("issue one with CA:FALSE"), "{refused}");
    }
}

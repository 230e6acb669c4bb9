//! The requests for lists and watches.

use axum::http::Request;
use kube::client::Body;

use super::version::Version;

/// The number of objects per page of a list.
const PAGE: &str = "500";

/// A request for a list or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Page {
    First,
    /// The page that follows from this token (`continue`) of the page before.
    Later(String),
    /// The list in one piece: its pages expired before all were read, or the server's cache has it.
    Whole,
}

/// The place from which a server takes a list that may have any age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// Its cache, which gives such lists in one piece, also if pages are requested.
    Cache,
    /// Its store, in pages: it has no cache.
    Store,
}

impl Page {
    /// Reports whether pages before this one were read.
    pub(super) const fn is_later(&self) -> bool {
        matches!(self, Self::Later(_))
    }
}

/// The selection of objects of one kind.
#[derive(Clone, Debug)]
pub(super) struct Selection {
    /// The path of the resource.
    pub(super) path: &'static str,
    /// The label selector in the notation of the API; `None` selects all.
    pub(super) labels: Option<String>,
    /// The field selector in the notation of the API; `None` selects all.
    pub(super) fields: Option<String>,
}

impl Selection {
    /// Returns the request of a part of a list. The first part is not older than `bound`.
    ///
    /// Without a bound it is what the store holds now; with `any` it may come from the server's cache.
    pub(super) fn page(&self, bound: Option<&Version>, any: bool, page: &Page) -> String {
        // `0` accepts any age: the server answers from its cache, and nodes that start together do not burden etcd.
        let version = bound.map(Version::text).or_else(|| any.then_some("0"));
        let mut parts = Vec::new();
        if *page != Page::Whole {
            parts.push(("limit", PAGE));
        }
        if let Page::Later(token) = page {
            // The token contains the version; the server refuses a request with both.
            parts.push(("continue", token));
        } else if let Some(version) = version {
            parts.extend([("resourceVersion", version), ("resourceVersionMatch", "NotOlderThan")]);
        }
        self.query(&parts)
    }

    /// Returns the request of a watch that begins with the whole list, not older than `bound`. Without a bound the list
    /// is what the store holds now.
    pub(super) fn stream(&self, bound: Option<&Version>, seconds: &str) -> String {
        let mut parts = vec![
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", seconds),
            ("sendInitialEvents", "true"),
            ("resourceVersionMatch", "NotOlderThan"),
        ];
        parts.extend(bound.map(|version| ("resourceVersion", version.text())));
        self.query(&parts)
    }

    /// Returns the request of one object of what the store holds now, for the version of the list around it.
    pub(super) fn probe(&self) -> String {
        // Without `resourceVersion` the answer is current, also if the server has a cache.
        self.query(&[("limit", "1")])
    }

    /// Returns the request of a watch from a position.
    pub(super) fn watch(&self, from: &Version, seconds: &str) -> String {
        self.query(&[
            ("watch", "true"),
            // Bookmarks move the position on although nothing changes: the server forgets old positions (410).
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", seconds),
            ("resourceVersion", from.text()),
        ])
    }

    fn query(&self, parts: &[(&str, &str)]) -> String {
        let mut query = form_urlencoded::Serializer::new(format!("{}?", self.path));
        for (name, selector) in [("labelSelector", &self.labels), ("fieldSelector", &self.fields)] {
            if let Some(selector) = selector {
                query.append_pair(name, selector);
            }
        }
        query.extend_pairs(parts).finish()
    }
}

/// Makes the HTTP request for an address.
pub(super) fn get(address: &str) -> Result<Request<Body>, axum::http::Error> {
    Request::get(address).header("Accept", "application/json").body(Body::empty())
}

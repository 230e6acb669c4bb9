//! Requests for lists and watches.

use axum::http::Request;
use kube::client::Body;

use super::version::Version;

/// Objects of one page of a list.
const PAGE: &str = "500";

/// A request for a list, or for a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Page {
    First,
    /// The one that this token of the page before leads to (`continue`).
    Later(String),
    /// The list in one piece: its pages were forgotten before they were all read.
    Whole,
}

impl Page {
    /// Pages before it were read.
    pub(super) const fn is_later(&self) -> bool {
        matches!(self, Self::Later(_))
    }
}

/// The query for objects of one kind.
#[derive(Clone, Debug)]
pub(super) struct Selection {
    /// Path of the resource.
    pub(super) path: &'static str,
    /// Selector of labels.
    pub(super) labels: Option<String>,
    /// Selector of fields.
    pub(super) fields: Option<String>,
}

impl Selection {
    /// A part of a list, the first one not older than `bound`. Without a bound
    /// it is what the store holds now; `any` takes what the server has at hand.
    pub(super) fn page(&self, bound: Option<&Version>, any: bool, page: &Page) -> String {
        let version = bound.map(Version::text).or_else(|| any.then_some("0"));
        let mut parts = Vec::new();
        if *page != Page::Whole {
            parts.push(("limit", PAGE));
        }
        if let Page::Later(token) = page {
            parts.push(("continue", token));
        } else if let Some(version) = version {
            parts.extend([("resourceVersion", version), ("resourceVersionMatch", "NotOlderThan")]);
        }
        self.query(&parts)
    }

    /// A watch that begins with the whole list, not older than `bound`; without a bound it is what the store holds now.
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

    /// One object of what the store holds now, for the version of the list around it.
    pub(super) fn probe(&self) -> String {
        self.query(&[("limit", "1")])
    }

    /// A watch from a place on.
    pub(super) fn watch(&self, from: &Version, seconds: &str) -> String {
        self.query(&[
            ("watch", "true"),
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

/// The request of an address.
pub(super) fn get(address: &str) -> Result<Request<Body>, axum::http::Error> {
    Request::get(address).header("Accept", "application/json").body(Body::empty())
}

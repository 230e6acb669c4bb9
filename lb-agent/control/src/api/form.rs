//! The form of an answer that the client's `Accept` header names.

use hyper::header;
use hyper::http::request::Parts;

use super::failure::Failure;

/// The form in which an object is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// The object with all its fields.
    Whole,
    /// Rows and columns for people (`Table`), as kubectl prints them.
    Table,
    /// Only the metadata (`PartialObjectMetadata`).
    Metadata,
}

/// Shape and notation of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) shape: Shape,
    pub(crate) is_yaml: bool,
}

const ACCEPTED: &str =
    "only the following media types are accepted: application/json, application/yaml";

impl Form {
    pub(crate) fn of(parts: &Parts) -> Result<Self, Failure> {
        let accept = parts.headers.get(header::ACCEPT).and_then(|it| it.to_str().ok());
        let found = accept.unwrap_or("*/*").split(',').find_map(Self::one);
        found.ok_or_else(|| Failure::new(406, "NotAcceptable", ACCEPTED))
    }

    fn one(text: &str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let is_yaml = match parts.next()? {
            "application/json" | "*/*" | "application/*" => false,
            "application/yaml" => true,
            _ => return None,
        };
        let mut shape = Shape::Whole;
        let mut is_known = true;
        for parameter in parts {
            match parameter.split_once('=') {
                Some(("as", "Table")) => shape = Shape::Table,
                Some(("as", "PartialObjectMetadata" | "PartialObjectMetadataList")) => {
                    shape = Shape::Metadata;
                }
                // An unknown form makes this range unusable, so that the next range of the header is tried.
                Some(("as", _)) => is_known = false,
                Some(("g", group)) => is_known &= group == "meta.k8s.io",
                Some(("v", version)) => is_known &= matches!(version, "v1" | "v1beta1"),
                _ => {}
            }
        }
        is_known.then_some(Self { shape, is_yaml })
    }
}

//! An answer on its way out: status, headers, body.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use hyper::http::request::Parts;
use hyper::{HeaderMap, StatusCode, header};
use serde_json::Value;

use super::failure::Failure;
use super::form::Form;

/// A response: HTTP status code, media type and body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) media: &'static str,
    pub(crate) body: Body,
    /// Texts of `Warning` headers, which kubectl prints.
    pub(crate) warnings: Vec<String>,
}

impl Answer {
    /// Makes an answer in JSON.
    pub(crate) fn json(code: u16, bytes: impl Into<Body>) -> Self {
        Self { code, media: "application/json", body: bytes.into(), warnings: Vec::new() }
    }

    pub(crate) fn text(text: &'static str) -> Self {
        let media = "text/plain; charset=utf-8";
        Self { code: 200, media, body: text.into(), warnings: Vec::new() }
    }

    /// Makes an answer in the notation that the client accepts, JSON or YAML.
    pub(crate) fn value(code: u16, value: &Value, form: Form) -> Self {
        if form.is_yaml {
            let text = serde_saphyr::to_string(value).unwrap_or_default();
            return Self { media: "application/yaml", ..Self::json(code, text) };
        }
        Self::json(code, value.to_string())
    }

    pub(crate) fn failure(failure: &Failure, parts: &Parts) -> Self {
        let form =
            Form::of(parts).unwrap_or(Form { shape: super::form::Shape::Whole, is_yaml: false });
        Self::value(failure.code, &failure.status(), form).with_warnings(failure.warnings.clone())
    }

    pub(crate) fn with_warnings(mut self, warnings: Vec<String>) -> Self {
        self.warnings = warnings;
        self
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let mut headers = HeaderMap::new();
        let fixed =
            [(header::CONTENT_TYPE, self.media), (header::CACHE_CONTROL, "no-cache, private")];
        headers.extend(fixed.map(|(name, value)| (name, header::HeaderValue::from_static(value))));
        for warning in &self.warnings {
            // A quoted string of HTTP (RFC 9110 5.6.4); 299 is the code for warnings that persist.
            let text = warning.replace('\\', "\\\\").replace('"', "\\\"");
            if let Ok(value) = format!("299 - \"{text}\"").parse::<header::HeaderValue>() {
                headers.append(header::WARNING, value);
            }
        }
        let code = StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (code, headers, self.body).into_response()
    }
}

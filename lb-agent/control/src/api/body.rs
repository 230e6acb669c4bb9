//! The body of a write: JSON, YAML or protobuf becomes a value of known fields.

use hyper::header;
use hyper::http::request::Parts;
use serde_json::Value;

use super::failure::Failure;
use super::query::Validation;
use crate::kind::{KINDS, Kind};
use crate::schema::{self, Parsed};

/// An object as the client sent it, reduced to the fields that its kind has.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) value: Value,
    pub(crate) warnings: Vec<String>,
}

/// Returns the media type of a body, without parameters.
pub(crate) fn media(parts: &Parts) -> &str {
    let given = parts.headers.get(header::CONTENT_TYPE).and_then(|it| it.to_str().ok());
    given.unwrap_or("application/json").split(';').next().unwrap_or_default().trim()
}

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// Reads an object of this kind. Errors use upstream's words: another kind, a syntax error, or unknown fields under
/// `Strict`.
pub(crate) fn object(
    parts: &Parts,
    bytes: &[u8],
    kind: &Kind,
    validation: Validation,
) -> Result<Sent, Failure> {
    let (parsed, api_version, name) = read(parts, bytes, kind.type_name)?;
    let text = |name: &str| parsed.value.get(name).and_then(Value::as_str).unwrap_or_default();
    // A protobuf envelope carries version and kind outside of the object; JSON and YAML have them as fields.
    let api_version =
        if api_version.is_empty() { text("apiVersion").to_owned() } else { api_version };
    let name = if name.is_empty() { text("kind").to_owned() } else { name };
    let expected = kind.api_version();
    let is_other = |given: &str, wanted: &str| !given.is_empty() && given != wanted;
    if is_other(&api_version, &expected) || is_other(&name, kind.kind) {
        let version = api_version.rsplit('/').next().unwrap_or_default();
        let is_known = name == "Status" || KINDS.iter().any(|it| it.kind == name);
        let why = if is_known {
            format!("converting ({version}.{name}) to (core.{}): unknown conversion", kind.kind)
        } else {
            format!("no kind {name:?} is registered here for version {api_version:?}")
        };
        let wanted = kind.kind;
        let head = format!("{name} in version {version:?} cannot be handled as a {wanted}");
        return Err(Failure::bad_request(format!("{head}: {why}")));
    }
    known(&parsed, kind, validation)
}

/// Reads a body of a type that is no resource, such as `DeleteOptions`.
pub(crate) fn plain(parts: &Parts, bytes: &[u8], type_name: &str) -> Result<Value, Failure> {
    let (parsed, ..) = read(parts, bytes, type_name)?;
    let decoded = schema::decode(type_name, &parsed.value).map_err(Failure::bad_request)?;
    Ok(decoded.value)
}

fn read(parts: &Parts, bytes: &[u8], type_name: &str) -> Result<(Parsed, String, String), Failure> {
    let media = media(parts);
    let parsed = match media {
        "application/json" => schema::json(bytes),
        "application/yaml" => schema::yaml(bytes),
        PROTOBUF => {
            let envelope = schema::protobuf_envelope(bytes).map_err(Failure::bad_request)?;
            let value = schema::protobuf_object(type_name, &envelope.raw);
            let value = value.map_err(Failure::bad_request)?;
            let parsed = Parsed { value, duplicates: Vec::new() };
            return Ok((parsed, envelope.api_version, envelope.kind));
        }
        other => {
            let message = format!(
                "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, {PROTOBUF} ({other:?} was sent)"
            );
            return Err(Failure::new(415, "UnsupportedMediaType", message));
        }
    };
    let wrong = |error: String| {
        Failure::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): couldn't get version/kind; json parse error: {error}",
            type_name.rsplit('.').next().unwrap_or_default()
        ))
    };
    Ok((parsed.map_err(wrong)?, String::new(), String::new()))
}

/// Drops the fields that the kind does not have. They become warnings, or an error under `fieldValidation=Strict`.
pub(crate) fn known(parsed: &Parsed, kind: &Kind, validation: Validation) -> Result<Sent, Failure> {
    let decoded = schema::decode(kind.type_name, &parsed.value).map_err(|error| {
        let name = kind.kind;
        Failure::bad_request(format!(
            "{name} in version \"v1\" cannot be handled as a {name}: {error}"
        ))
    })?;
    let doubled = parsed.duplicates.iter().map(|it| format!("duplicate field {it:?}"));
    let unknown = decoded.unknown.iter().map(|it| format!("unknown field {it:?}"));
    let faults: Vec<String> = doubled.chain(unknown).collect();
    let warnings = match validation {
        Validation::Ignore => Vec::new(),
        Validation::Warn => faults,
        Validation::Strict if faults.is_empty() => faults,
        Validation::Strict => {
            let (name, faults) = (kind.kind, faults.join(", "));
            return Err(Failure::bad_request(format!(
                "{name} in version \"v1\" cannot be handled as a {name}: strict decoding error: {faults}"
            )));
        }
    };
    Ok(Sent { value: decoded.value, warnings })
}

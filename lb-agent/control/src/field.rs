//! A fault of a field, in the words that clients of Kubernetes know.

use std::collections::BTreeSet;

use serde_json::Value;

/// The kind of a fault; [`Reason::word`] is the `reason` of a cause in a `Status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The value occurs more than once.
    Duplicate,
    /// The field may not be set here.
    Forbidden,
    /// The value is not valid for the field.
    Invalid,
    /// The value is not in the set of allowed words.
    NotSupported,
    /// The field must be set.
    Required,
    /// The value is too long.
    TooLong,
    /// There are too many values.
    TooMany,
}

impl Reason {
    /// Returns the `reason` of a cause, such as `FieldValueInvalid`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Duplicate => "FieldValueDuplicate",
            Self::Forbidden => "FieldValueForbidden",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Required => "FieldValueRequired",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Self::Duplicate => "Duplicate value",
            Self::Forbidden => "Forbidden",
            Self::Invalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Required => "Required value",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
        }
    }
}

/// One fault of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The kind of fault.
    pub reason: Reason,
    /// Path of the field, such as `spec.ports[0].port`.
    pub field: String,
    /// The message for a person, without the field.
    pub message: String,
}

impl Cause {
    fn new(reason: Reason, field: impl Into<String>, value: Option<Value>, detail: &str) -> Self {
        let mut message = reason.text().to_owned();
        for part in [value.map(|it| it.to_string()), Some(detail.to_owned())].into_iter().flatten()
        {
            if !part.is_empty() {
                message.push_str(": ");
                message.push_str(&part);
            }
        }
        Self { reason, field: field.into(), message }
    }

    /// Makes a fault for a value that is not valid; `detail` says why.
    pub fn invalid(field: impl Into<String>, value: impl Into<Value>, detail: &str) -> Self {
        Self::new(Reason::Invalid, field, Some(value.into()), detail)
    }

    /// Makes a fault for a field that must be set.
    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        Self::new(Reason::Required, field, None, detail)
    }

    /// Makes a fault for a field that may not be set.
    pub fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self::new(Reason::Forbidden, field, None, detail)
    }

    /// Makes a fault for a value that occurs more than once.
    pub fn duplicate(field: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::new(Reason::Duplicate, field, Some(value.into()), "")
    }

    /// Makes a fault for a duplicate value that is already in upstream's notation, such as a struct.
    pub(crate) fn duplicate_text(field: impl Into<String>, value: &str) -> Self {
        let message = format!("{}: {value}", Reason::Duplicate.text());
        Self { reason: Reason::Duplicate, field: field.into(), message }
    }

    /// Makes a fault for a value that is longer than `limit` bytes.
    pub fn too_long(field: impl Into<String>, limit: usize) -> Self {
        Self::new(Reason::TooLong, field, None, &format!("may not be more than {limit} bytes"))
    }

    /// Makes a fault for more than `limit` values.
    pub fn too_many(field: impl Into<String>, count: usize, limit: usize) -> Self {
        let detail = format!("must have at most {limit} items");
        Self::new(Reason::TooMany, field, Some(count.into()), &detail)
    }

    /// Makes a fault for a value that is not one of `supported`.
    pub fn not_supported(
        field: impl Into<String>,
        value: impl Into<Value>,
        supported: &[&str],
    ) -> Self {
        let quoted: Vec<String> = supported.iter().map(|it| format!("{it:?}")).collect();
        let detail = format!("supported values: {}", quoted.join(", "));
        Self::new(Reason::NotSupported, field, Some(value.into()), &detail)
    }

    /// Returns the message with the field, for a person.
    pub fn line(&self) -> String {
        format!("{}: {}", self.field, self.message)
    }
}

/// Returns a list of texts; an empty one as null, as Go writes a nil slice.
pub(crate) fn list(values: &[String]) -> Value {
    if values.is_empty() { Value::Null } else { values.into() }
}

/// Returns all causes as one text, each once.
pub fn sentence(causes: &[Cause]) -> String {
    let mut lines: Vec<String> = causes.iter().map(Cause::line).collect();
    // As upstream's aggregate of errors prints each message once.
    let mut seen = BTreeSet::new();
    lines.retain(|it| seen.insert(it.clone()));
    match lines.as_slice() {
        [only] => only.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_read_as_upstream_writes_them() {
        let port =
            Cause::invalid("spec.ports[0].port", 0, "must be between 1 and 65535, inclusive");
        assert_eq!(
            port.line(),
            "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive"
        );
        assert_eq!(Cause::required("spec.ports", "").line(), "spec.ports: Required value");
        let unsupported = Cause::not_supported("spec.type", "Foo", &["ClusterIP", "NodePort"]);
        assert_eq!(
            unsupported.message,
            r#"Unsupported value: "Foo": supported values: "ClusterIP", "NodePort""#
        );
    }

    #[test]
    fn one_cause_stands_bare_and_several_in_brackets() {
        let one = Cause::required("a", "");
        let two = Cause::required("b", "");
        assert_eq!(sentence(std::slice::from_ref(&one)), "a: Required value");
        assert_eq!(sentence(&[one.clone(), one.clone()]), "a: Required value");
        assert_eq!(sentence(&[one, two]), "[a: Required value, b: Required value]");
    }
}

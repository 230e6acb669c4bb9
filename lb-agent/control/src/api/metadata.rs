//! The metadata of an object in JSON: its fields, and the identity of a new object. The rules for them are in
//! [`crate::meta`].

use serde_json::{Map, Value};

/// Returns a text field of an object's metadata; empty if it is not set.
pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.pointer(&format!("/metadata/{field}")).and_then(Value::as_str).unwrap_or_default()
}

pub(crate) fn name_of(value: &Value) -> &str {
    text(value, "name")
}

/// Sets a field of an object's metadata; null removes the field.
pub(crate) fn set(value: &mut Value, field: &str, to: Value) {
    let Some(object) = value.as_object_mut() else { return };
    let metadata = object.entry("metadata").or_insert_with(|| Map::new().into());
    if let Some(metadata) = metadata.as_object_mut() {
        drop(if to.is_null() { metadata.remove(field) } else { metadata.insert(field.into(), to) });
    }
}

/// Returns a random UUID (RFC 4122, version 4).
pub(crate) fn uid() -> String {
    let bits = (fastrand::u128(..) & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default().to_owned();
    [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_of_version_4() {
        let uid = uid();
        assert_eq!(uid.len(), 36);
        assert_eq!(uid.as_bytes()[14], b'4');
        assert!(matches!(uid.as_bytes()[19], b'8' | b'9' | b'a' | b'b'), "{uid}");
    }
}

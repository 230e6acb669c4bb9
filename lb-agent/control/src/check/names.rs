//! Syntax of names, labels and annotations.

use std::collections::BTreeMap;

use crate::field::Cause;

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const KEY: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const KEY_RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
/// Largest size of all annotations of an object, in bytes.
const ANNOTATIONS: usize = 256 * 1024;

/// The faults of a value, in upstream's words.
pub(crate) type Faults = Vec<String>;

fn by_pattern(rule: &str, pattern: &str, examples: &[&str]) -> String {
    let examples: Vec<String> = examples.iter().map(|it| format!("'{it}', ")).collect();
    format!("{rule} (e.g. {}regex used for validation is '{pattern}')", examples.join(" or "))
}

const fn is_lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

fn is_label(value: &str) -> bool {
    is_bounded(value, is_lower, |it| is_lower(it) || it == b'-')
}

fn is_key(value: &str) -> bool {
    let inner = |it: u8| it.is_ascii_alphanumeric() || matches!(it, b'-' | b'_' | b'.');
    is_bounded(value, |it| it.is_ascii_alphanumeric(), inner)
}

fn is_bounded(value: &str, ends: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    let bytes = value.as_bytes();
    let (Some(&first), Some(&last)) = (bytes.first(), bytes.last()) else { return false };
    ends(first) && ends(last) && bytes.iter().all(|&it| inner(it))
}

/// Checks an RFC 1123 label: at most 63 lower-case letters, digits and hyphens.
pub(crate) fn dns_label(value: &str) -> Faults {
    let mut faults = Faults::new();
    if value.len() > 63 {
        faults.push("must be no more than 63 bytes".into());
    }
    if !is_label(value) {
        faults.push(if is_subdomain(value) && value.contains('.') {
            "must not contain dots".into()
        } else {
            let rule = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character";
            by_pattern(rule, LABEL, &["my-name", "123-abc"])
        });
    }
    faults
}

fn is_subdomain(value: &str) -> bool {
    value.split('.').all(is_label)
}

/// Checks an RFC 1123 subdomain.
pub(crate) fn dns_subdomain(value: &str) -> Faults {
    let mut faults = Faults::new();
    if value.len() > 253 {
        faults.push("must be no more than 253 bytes".into());
    }
    if !is_subdomain(value) {
        let rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";
        faults.push(by_pattern(rule, &format!("{LABEL}(\\.{LABEL})*"), &["example.com"]));
    }
    faults
}

/// Checks the key of a label: an optional prefix, which is a subdomain, and a name.
pub(crate) fn label_key(value: &str) -> Faults {
    let examples = ["MyName", "my.name", "123-abc"];
    let mut faults = Faults::new();
    let parts: Vec<&str> = value.split('/').collect();
    let name = match parts.as_slice() {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                faults.push("prefix part must be non-empty".into());
            } else {
                faults.extend(dns_subdomain(prefix).iter().map(|it| format!("prefix part {it}")));
            }
            name
        }
        _ => {
            let rule = by_pattern(KEY_RULE, KEY, &examples);
            let prefix =
                "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return vec![format!("a valid label key {rule} {prefix}")];
        }
    };
    if name.is_empty() {
        faults.push("name part must be non-empty".into());
    } else if name.len() > 63 {
        faults.push("name part must be no more than 63 bytes".into());
    }
    if !is_key(name) {
        faults.push(format!("name part {}", by_pattern(KEY_RULE, KEY, &examples)));
    }
    faults
}

/// Checks the value of a label: empty, or like the name of a key.
pub(crate) fn label_value(value: &str) -> Faults {
    let mut faults = Faults::new();
    if value.len() > 63 {
        faults.push("must be no more than 63 bytes".into());
    }
    if !value.is_empty() && !is_key(value) {
        let rule = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
        let examples = ["MyValue", "my_value", "12345"];
        faults.push(by_pattern(rule, &format!("({KEY})?"), &examples));
    }
    faults
}

/// Checks the name of a container's port (IANA service name).
pub(crate) fn port_name(value: &str) -> Faults {
    let bytes = value.as_bytes();
    let is_set = |it: &u8| is_lower(*it) || *it == b'-';
    let is_hyphen = |it: Option<&u8>| it == Some(&b'-');
    let rules = [
        (value.len() > 15, "must be no more than 15 characters"),
        (
            value.is_empty() || !bytes.iter().all(is_set),
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
        ),
        (!bytes.iter().any(u8::is_ascii_lowercase), "must contain at least one letter (a-z)"),
        (value.contains("--"), "must not contain consecutive hyphens"),
        (
            is_hyphen(bytes.first()) || is_hyphen(bytes.last()),
            "must not begin or end with a hyphen",
        ),
    ];
    rules.into_iter().filter(|it| it.0).map(|it| it.1.to_owned()).collect()
}

/// Checks the number of a port: 1 to 65535.
pub(crate) fn port_number(value: i64) -> Faults {
    let is_port = (1..=65_535).contains(&value);
    if is_port { Faults::new() } else { vec!["must be between 1 and 65535, inclusive".into()] }
}

/// Checks a map of labels, or a selector by labels.
pub(crate) fn labels(values: &BTreeMap<String, String>, field: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (key, value) in values {
        let faults = label_key(key).into_iter().map(|it| Cause::invalid(field, key.as_str(), &it));
        causes.extend(faults);
        let faults = label_value(value).into_iter();
        causes.extend(faults.map(|it| Cause::invalid(field, value.as_str(), &it)));
    }
    causes
}

/// Checks the annotations of an object.
pub(crate) fn annotations(values: &BTreeMap<String, String>, field: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    for key in values.keys() {
        // As upstream does: keys of annotations may have upper-case letters in the prefix.
        let faults = label_key(&key.to_lowercase()).into_iter();
        causes.extend(faults.map(|it| Cause::invalid(field, key.as_str(), &it)));
    }
    let size: usize = values.iter().map(|(key, value)| key.len() + value.len()).sum();
    if size > ANNOTATIONS {
        causes.push(Cause::too_long(field, ANNOTATIONS));
    }
    causes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statement_19_names_of_ports() {
        assert_eq!(port_name("http-1"), Faults::new());
        assert_eq!(port_name("0123456789abcdef"), ["must be no more than 15 characters"]);
        assert_eq!(port_name("80"), ["must contain at least one letter (a-z)"]);
        assert_eq!(port_name("a--b"), ["must not contain consecutive hyphens"]);
        assert_eq!(port_name("a-"), ["must not begin or end with a hyphen"]);
        assert_eq!(port_name("A").len(), 2, "no lower case letter, and one that is none");
    }

    #[test]
    fn statement_37_a_label_may_begin_with_a_digit() {
        assert_eq!(dns_label("1-a"), Faults::new());
        assert_eq!(dns_label("a.b"), ["must not contain dots"]);
        assert!(dns_label("A")[0].contains("(e.g. 'my-name',  or '123-abc', regex"));
        assert_eq!(dns_label(&"a".repeat(64)), ["must be no more than 63 bytes"]);
        assert_eq!(dns_label(&"a".repeat(63)), Faults::new());
    }

    #[test]
    fn statement_38_keys_have_a_prefix_and_a_name() {
        assert_eq!(label_key("example.com/My_name.1"), Faults::new());
        assert_eq!(label_key("/a"), ["prefix part must be non-empty"]);
        assert_eq!(label_key("a/").len(), 2);
        assert!(label_key("a/b/c")[0].ends_with("(e.g. 'example.com/MyName')"));
        assert_eq!(label_value(""), Faults::new());
        assert_eq!(label_value("-").len(), 1);
        let large = BTreeMap::from([("a".to_owned(), "x".repeat(ANNOTATIONS))]);
        assert_eq!(annotations(&large, "metadata.annotations").len(), 1);
    }
}

//! The fields of every served object as data: one table serves decoding, encoding, patches, protobuf and `OpenAPI`.
//!
//! `cargo xtask schema` generates the table, `schema/fields.txt`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

mod decode;
mod encode;
mod parse;
mod protobuf;
mod time;

pub(crate) use decode::decode;
pub(crate) use encode::{encode, is_zero};
pub(crate) use parse::{Parsed, json, yaml};
pub(crate) use protobuf::{object as protobuf_object, unknown as protobuf_envelope};
pub(crate) use time::now;

/// The type of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    String,
    Bool,
    Int32,
    Int64,
    /// Bytes; base64 in JSON.
    Bytes,
    /// A timestamp, RFC 3339 in whole seconds.
    Time,
    /// A timestamp, RFC 3339 with microseconds.
    MicroTime,
    Quantity,
    IntOrString,
    /// Any JSON value, kept as it is.
    Any,
    List(Box<Self>),
    Map(Box<Self>),
    /// An object of the type with this name in the table.
    Object(String),
}

/// A field in JSON.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// Whether an empty value is left out (`omitempty`).
    pub(crate) omits_empty: bool,
    /// Whether a struct of zero values is left out (`omitzero`).
    pub(crate) omits_zero: bool,
    /// Whether absent and zero differ (a pointer in Go).
    pub(crate) is_pointer: bool,
    /// The merge key of a strategic merge patch: the field that identifies an element.
    pub(crate) merge_key: Option<String>,
    /// Patch strategies of the field: `merge`, `replace`, `retainKeys`.
    pub(crate) strategy: Vec<String>,
}

/// The meaning of a field number in protobuf.
#[derive(Clone, Debug)]
pub(crate) enum Wire {
    /// A field, by its index in [`Type::fields`].
    Field(usize),
    /// A type whose fields are inlined into this one in JSON.
    Inline(String),
}

/// The fields of an object, in the order in which they are written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Type {
    /// Name without its package, for error messages.
    pub(crate) short: String,
    pub(crate) fields: Vec<Field>,
    pub(crate) wire: BTreeMap<u64, Wire>,
}

impl Type {
    pub(crate) fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|it| it.name == name)
    }
}

static TABLE: LazyLock<BTreeMap<String, Type>> =
    LazyLock::new(|| table(include_str!("schema/fields.txt")));

/// Returns a type by its name in the table; an unknown type has no fields.
pub(crate) fn type_of(name: &str) -> &'static Type {
    static NONE: LazyLock<Type> = LazyLock::new(Type::default);
    TABLE.get(name).unwrap_or(&NONE)
}

type Lines<'a> = BTreeMap<&'a str, Vec<Vec<&'a str>>>;

fn table(text: &str) -> BTreeMap<String, Type> {
    let mut lines: Lines<'_> = BTreeMap::new();
    let mut name = "";
    for line in text.lines().filter(|it| !it.starts_with('#')) {
        if let Some(field) = line.strip_prefix(' ') {
            lines.entry(name).or_default().push(field.split(' ').collect());
        } else {
            name = line;
            lines.entry(name).or_default();
        }
    }
    lines.keys().map(|name| ((*name).to_owned(), build(name, &lines))).collect()
}

fn build(name: &str, lines: &Lines<'_>) -> Type {
    let short = name.rsplit('.').next().unwrap_or(name).to_owned();
    let mut built = Type { short, ..Type::default() };
    for words in lines.get(name).into_iter().flatten() {
        let [field, kind, number, flags @ ..] = words.as_slice() else { continue };
        let number: u64 = number.parse().unwrap_or(0);
        // In JSON, fields of an inline type are those of the outer object; in protobuf they are a message of their own.
        if *field == "@inline" {
            built.fields.extend(build(kind, lines).fields);
            if number > 0 {
                drop(built.wire.insert(number, Wire::Inline((*kind).to_owned())));
            }
            continue;
        }
        drop(built.wire.insert(number, Wire::Field(built.fields.len())));
        let value = |key: &str| flags.iter().find_map(|it| it.strip_prefix(key));
        built.fields.push(Field {
            name: (*field).to_owned(),
            kind: kind_of(kind),
            omits_empty: flags.contains(&"o"),
            omits_zero: flags.contains(&"z"),
            is_pointer: flags.contains(&"p"),
            merge_key: value("m=").map(str::to_owned),
            strategy: value("s=")
                .into_iter()
                .flat_map(|it| it.split(','))
                .map(str::to_owned)
                .collect(),
        });
    }
    built
}

fn kind_of(word: &str) -> Kind {
    if let Some(element) = word.strip_prefix("[]") {
        return Kind::List(Box::new(kind_of(element)));
    }
    if let Some(element) = word.strip_prefix("{}") {
        return Kind::Map(Box::new(kind_of(element)));
    }
    match word {
        "str" => Kind::String,
        "bool" => Kind::Bool,
        "i32" => Kind::Int32,
        "i64" => Kind::Int64,
        "bytes" => Kind::Bytes,
        "time" => Kind::Time,
        "micro" => Kind::MicroTime,
        "qty" => Kind::Quantity,
        "intstr" => Kind::IntOrString,
        "fields" | "raw" => Kind::Any,
        name => Kind::Object(name.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_that_a_field_names_is_in_the_table() {
        fn named(kind: &Kind) -> Option<&str> {
            match kind {
                Kind::List(it) | Kind::Map(it) => named(it),
                Kind::Object(name) => Some(name),
                Kind::String
                | Kind::Bool
                | Kind::Int32
                | Kind::Int64
                | Kind::Bytes
                | Kind::Time
                | Kind::MicroTime
                | Kind::Quantity
                | Kind::IntOrString
                | Kind::Any => None,
            }
        }
        for (name, one) in TABLE.iter() {
            assert!(!one.fields.is_empty(), "{name}");
            for field in &one.fields {
                let to = named(&field.kind);
                assert!(
                    to.is_none_or(|to| TABLE.contains_key(to)),
                    "{name}.{}: {to:?}",
                    field.name
                );
            }
        }
    }

    #[test]
    fn ports_merge_by_their_number() {
        let ports = type_of("core.ServiceSpec").field("ports").unwrap();
        assert_eq!(ports.merge_key.as_deref(), Some("port"));
        assert_eq!(ports.strategy, ["merge"]);
        assert!(type_of("core.Volume").field("emptyDir").is_some(), "fields of inline types");
    }
}

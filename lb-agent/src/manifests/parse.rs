//! The objects of one file: several documents, lists, YAML or JSON.

mod list;
mod object;
mod other;

use serde::Deserialize;
use serde::de::{DeserializeSeed as _, Error as _};
use serde_saphyr::{Error, Options, with_deserializer_from_str_with_options};

use self::list::List;
use self::object::Known;
pub(super) use self::object::Object;
pub(super) use self::other::Other;
use crate::snapshot::quoted;

/// The content of a file.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// The objects of kinds that are read.
    pub(super) objects: Vec<Object>,
    /// The others; of lists only their objects of kinds that are read are looked at.
    pub(super) others: Vec<Other>,
}

/// Why a file cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unreadable {
    /// From 1; 0 when unknown.
    pub(super) line: u64,
    /// From 1; 0 when unknown.
    pub(super) column: u64,
    /// The fault, in one line.
    pub(super) message: String,
}

/// Reads every object of a file that is of a kind we know.
pub(super) fn contents(text: &str) -> Result<Contents, Unreadable> {
    let mut found = Contents::default();
    for (line, document) in documents(text.strip_prefix('\u{feff}').unwrap_or(text)) {
        read((line, document), &mut found).map_err(|error| unreadable(&error, line))?;
    }
    Ok(found)
}

/// Cuts a text at its document markers, which YAML allows nowhere else at the beginning of a line.
/// Each part comes with the number of lines before it.
fn documents(text: &str) -> Vec<(u64, &str)> {
    let mut parts = Vec::new();
    let (mut begin, mut first_line) = (0, 0);
    let mut at = 0;
    for (line, content) in (0..).zip(text.split_inclusive('\n')) {
        let marker = |marker| {
            let rest = content.strip_prefix(marker);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
        };
        if marker("---") {
            parts.push((first_line, &text[begin..at]));
            (begin, first_line) = (at, line);
        } else if marker("...") {
            parts.push((first_line, &text[begin..at]));
            (begin, first_line) = (at + content.len(), line + 1);
        }
        at += content.len();
    }
    parts.push((first_line, &text[begin..]));
    parts.retain(|(_, part)| part.lines().any(says_something));
    parts
}

/// Neither blank, comment, directive, nor a marker alone.
fn says_something(line: &str) -> bool {
    let content = line.strip_prefix("---").unwrap_or(line).trim();
    !(content.is_empty() || content.starts_with('#') || line.starts_with('%'))
}

#[derive(Deserialize)]
struct Header {
    #[serde(rename = "apiVersion", default)]
    api_version: Option<String>,
    #[serde(default)]
    kind: Option<String>,
}

#[derive(Deserialize)]
struct ListHeader {
    #[serde(default)]
    items: Vec<Header>,
}

impl Header {
    /// The header of a document in the usual form: both fields on lines of their own, at the margin,
    /// as plain words. Anything else is left to the parser, which takes as long as for the object.
    fn at_a_glance(document: &str) -> Option<Self> {
        let field = |name: &str| {
            let mut lines = document.lines().filter_map(|line| line.strip_prefix(name));
            let word = lines.next()?.strip_prefix(": ")?.trim();
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '/' || c == '.' || c == '-';
            let usual = !word.is_empty() && word.chars().all(plain) && lines.next().is_none();
            usual.then(|| word.to_owned())
        };
        Some(Self { api_version: Some(field("apiVersion")?), kind: Some(field("kind")?) })
    }

    fn known(&self) -> Option<Known> {
        let version = self.api_version.as_deref().unwrap_or_default();
        let group = version.split_once('/').map_or("", |(group, _)| group);
        match (group, self.kind.as_deref()?) {
            ("", "Service") => Some(Known::Service),
            ("discovery.k8s.io", "EndpointSlice") => Some(Known::Slice),
            ("", "Node") => Some(Known::Node),
            ("networking.k8s.io", "ServiceCIDR") => Some(Known::ServiceCidr),
            _ => None,
        }
    }

    /// The same; an error where it is a version of the kind that is not read.
    fn read_as(&self) -> Result<Option<Known>, Error> {
        let Some(known) = self.known() else { return Ok(None) };
        let (version, read) = (self.api_version.as_deref().unwrap_or_default(), known.version());
        if version.is_empty() || version == read {
            return Ok(Some(known));
        }
        Err(Error::custom(format_args!(
            "apiVersion {} is not read, expected {read}",
            quoted(version)
        )))
    }

    /// The header of the items of a list that have none themselves; `None` if this is no list.
    fn item(&self) -> Option<Self> {
        let kind = Some(self.kind.as_deref()?.strip_suffix("List")?.to_owned());
        Some(Self { api_version: self.api_version.clone(), kind })
    }
}

fn read((line, document): (u64, &str), contents: &mut Contents) -> Result<(), Error> {
    let found = &mut contents.objects;
    let header = match Header::at_a_glance(document) {
        Some(header) => header,
        None => serde_saphyr::from_str_with_options(document, options())?,
    };
    if let Some(known) = header.read_as()? {
        let seed = |de: serde_saphyr::Deserializer<'_, '_>| known.deserialize(de);
        found.push(with_deserializer_from_str_with_options(document, options(), seed)?);
    } else if let Some(item) = header.item() {
        let item = item.read_as()?;
        let list: ListHeader = serde_saphyr::from_str_with_options(document, options())?;
        let kinds = list.items.iter().map(|header| Ok(header.read_as()?.or(item)));
        let kinds: Vec<_> = kinds.collect::<Result<_, Error>>()?;
        let seed =
            |de: serde_saphyr::Deserializer<'_, '_>| List { kinds: &kinds, found }.deserialize(de);
        with_deserializer_from_str_with_options(document, options(), seed)?;
    } else {
        let (api_version, kind) = (header.api_version, header.kind);
        let (api_version, kind) = (api_version.unwrap_or_default(), kind.unwrap_or_default());
        contents.others.push(Other { line: line + 1, api_version, kind });
    }
    Ok(())
}

/// Files are the operator's own: large ones are read, bombs made of aliases are not. The dump of a program repeats one
/// anchor as often as it has endpoints.
fn options() -> Options {
    serde_saphyr::options! {
        with_snippet: false,
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 2_000_000 },
        budget: serde_saphyr::budget! {
            enforce_alias_anchor_ratio: false,
            max_aliases: 1_000_000,
            max_events: 200_000_000,
            max_nodes: 100_000_000,
            max_total_scalar_bytes: 1 << 30,
        },
    }
}

fn unreadable(error: &Error, lines_before: u64) -> Unreadable {
    let location = error.location().filter(|location| location.line() > 0);
    let (line, column) = location.map_or((lines_before + 1, 0), |location| {
        (lines_before + location.line(), location.column())
    });
    let message = error.without_snippet().to_string();
    // The parser ends its message with the place inside the document, which is not that of the file.
    let message = message.lines().next().unwrap_or_default();
    let message = message.split(" at line ").next().unwrap_or(message);
    Unreadable { line, column, message: message.to_owned() }
}

#[cfg(test)]
mod tests;

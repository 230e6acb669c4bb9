//! Reads the objects of one file: several documents, lists, YAML or JSON.

mod list;
mod object;
mod other;

use serde::Deserialize;
use serde::de::{DeserializeSeed as _, Error as _};
use serde_saphyr::{Error, Options, with_deserializer_from_str_with_options};

use self::list::List;
use self::object::KnownKind;
pub(super) use self::object::Object;
pub(super) use self::other::Other;
use crate::snapshot::quoted;

/// The content of a file.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// The objects of supported kinds.
    pub(super) objects: Vec<Object>,
    /// The objects of other kinds. In a list, objects of unsupported kinds are skipped without a report.
    pub(super) others: Vec<Other>,
}

/// The reason why a file cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unreadable {
    /// Counted from 1; 0 if unknown.
    pub(super) line: u64,
    /// Counted from 1; 0 if unknown.
    pub(super) column: u64,
    /// The problem, in one line.
    pub(super) message: String,
}

/// Reads all objects of supported kinds in a file.
pub(super) fn contents(text: &str) -> Result<Contents, Unreadable> {
    let mut found = Contents::default();
    // Editors on Windows begin a file with a byte order mark.
    for (line, document) in documents(text.strip_prefix('\u{feff}').unwrap_or(text)) {
        read(line, document, &mut found).map_err(|error| unreadable(&error, line))?;
    }
    Ok(found)
}

/// Divides a text at its document markers. YAML allows these nowhere else at the beginning of a line.
///
/// Returns each part with the number of lines before it.
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
    // A part of comments alone would be an empty document, and an error for the parser.
    parts.retain(|(_, part)| part.lines().any(says_something));
    parts
}

/// Reports whether a line is more than blank, a comment, a directive or a bare marker.
fn says_something(line: &str) -> bool {
    let content = line.strip_prefix("---").unwrap_or(line).trim();
    !(content.is_empty() || content.starts_with('#') || line.starts_with('%'))
}

/// The fields of an object that name its kind.
#[derive(Deserialize)]
struct ObjectHeader {
    #[serde(rename = "apiVersion", default)]
    api_version: Option<String>,
    #[serde(default)]
    kind: Option<String>,
}

#[derive(Deserialize)]
struct ListHeader {
    #[serde(default)]
    items: Vec<ObjectHeader>,
}

impl ObjectHeader {
    /// Reads the header of a document in the usual form: both fields on lines of their own, at the margin, as plain
    /// words.
    ///
    /// Every other form is left to the parser, which needs as much time for the header as for the whole object.
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

    fn known_kind(&self) -> Option<KnownKind> {
        let version = self.api_version.as_deref().unwrap_or_default();
        let group = version.split_once('/').map_or("", |(group, _)| group);
        match (group, self.kind.as_deref()?) {
            ("", "Service") => Some(KnownKind::Service),
            ("discovery.k8s.io", "EndpointSlice") => Some(KnownKind::Slice),
            ("", "Node") => Some(KnownKind::Node),
            ("networking.k8s.io", "ServiceCIDR") => Some(KnownKind::ServiceCidr),
            _ => None,
        }
    }

    /// Returns the supported kind. Fails if its API version is not supported.
    fn read_as(&self) -> Result<Option<KnownKind>, Error> {
        let Some(kind) = self.known_kind() else { return Ok(None) };
        let (version, read) = (self.api_version.as_deref().unwrap_or_default(), kind.version());
        if version.is_empty() || version == read {
            return Ok(Some(kind));
        }
        Err(Error::custom(format_args!(
            "apiVersion {} is not supported, expected {read}",
            quoted(version)
        )))
    }

    /// Returns the header for list items that have none of their own. `None` if this is not a list.
    fn item(&self) -> Option<Self> {
        let kind = Some(self.kind.as_deref()?.strip_suffix("List")?.to_owned());
        Some(Self { api_version: self.api_version.clone(), kind })
    }
}

fn read(line: u64, document: &str, contents: &mut Contents) -> Result<(), Error> {
    // Objects go straight to their vector, so that a list of many thousands is not held twice.
    let found = &mut contents.objects;
    let header = match ObjectHeader::at_a_glance(document) {
        Some(header) => header,
        None => serde_saphyr::from_str_with_options(document, options())?,
    };
    if let Some(kind) = header.read_as()? {
        let seed = |de: serde_saphyr::Deserializer<'_, '_>| kind.deserialize(de);
        found.push(with_deserializer_from_str_with_options(document, options(), seed)?);
    } else if let Some(item) = header.item() {
        let item = item.read_as()?;
        // The text is read twice: the kinds first, because the fields of an item can precede its kind.
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

/// Returns the options of the parser. Files belong to the operator: large ones are read, but bombs made of aliases are
/// refused.
///
/// A file that a program wrote may repeat one anchor as often as it has endpoints.
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
    // The parser ends its message with the position inside the document, which differs from that in the file.
    let message = message.lines().next().unwrap_or_default();
    let message = message.split(" at line ").next().unwrap_or(message);
    Unreadable { line, column, message: message.to_owned() }
}

#[cfg(test)]
mod tests;

//! `map list`: the maps with their entries and memory.

use std::path::Path;

use serde::Serialize;

use super::Error;
use super::print::{self, Row, Tone};
use crate::cli::Format;
use crate::datapath::{maps_directory, open};
use crate::maps::{self, Kept};

/// From this fill level in percent, a map is shown as a warning.
const NEARLY_FULL: u64 = 90;

/// One map, with its fill level and memory.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MapRow {
    name: &'static str,
    kind: &'static str,
    /// `None` for maps in which every element always exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<usize>,
    max: u32,
    bytes: u64,
    key_bytes: u32,
    value_bytes: u32,
}

/// Returns the maps as text.
pub fn list(bpf_dir: &Path, format: Format) -> Result<String, Error> {
    let fill = open(bpf_dir)?.fill()?;
    let row = |kept: Kept| {
        // Only hash maps have a number of entries.
        let entries = fill.iter().find(|(name, ..)| *name == kept.name).map(|(_, used, _)| *used);
        MapRow {
            name: kept.name,
            kind: kept.kind,
            entries,
            max: kept.max,
            bytes: kept.bytes,
            key_bytes: kept.key,
            value_bytes: kept.value,
        }
    };
    let all: Vec<MapRow> = maps::kept(&maps_directory(bpf_dir))?.into_iter().map(row).collect();
    print::print(&all, format)
}

impl MapRow {
    fn percent(&self) -> Option<u64> {
        self.entries.map(|used| used as u64 * 100 / u64::from(self.max.max(1)))
    }
}

impl Row for MapRow {
    const HEADINGS: (&'static [&'static str], &'static [&'static str]) =
        (&["NAME", "TYPE", "ENTRIES", "MAX", "USED", "BYTES"], &["KEY", "VALUE"]);
    const NONE: &'static str = "no maps";

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.into(),
            self.kind.into(),
            self.entries.map(|used| used.to_string()).unwrap_or_default(),
            self.max.to_string(),
            self.percent().map(|percent| format!("{percent}%")).unwrap_or_default(),
            self.bytes.to_string(),
            self.key_bytes.to_string(),
            self.value_bytes.to_string(),
        ]
    }

    fn name(&self) -> String {
        self.name.into()
    }

    fn tone(&self) -> Tone {
        let is_nearly_full = self.percent().is_some_and(|percent| percent >= NEARLY_FULL);
        if is_nearly_full { Tone::Bad } else { Tone::Plain }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_a_line() {
        let services = MapRow {
            name: "SERVICES",
            kind: "hash",
            entries: Some(60_000),
            max: 65_536,
            bytes: 5_242_880,
            key_bytes: 24,
            value_bytes: 40,
        };
        let settings = MapRow {
            name: "SETTINGS",
            kind: "array",
            entries: None,
            max: 1,
            bytes: 700,
            key_bytes: 4,
            value_bytes: 408,
        };
        assert_eq!((services.tone(), settings.tone()), (Tone::Bad, Tone::Plain));
        insta::assert_snapshot!(print::print(&[services, settings], print::PLAIN).unwrap());
    }
}

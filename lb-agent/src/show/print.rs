//! Prints every list: columns for people, JSON and YAML for programs, names for shells.

use std::iter;

use serde::Serialize;

use super::Error;
use crate::cli::{Format, Output};

/// The space between two columns.
const PADDING: usize = 2;
/// Length of the longest cell that makes its column wider. Padding to a longer one would cost every other line as much.
const LONGEST: usize = 400;

/// The colour of a line on a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    /// The terminal's own colour.
    Plain,
    /// A part of less interest.
    Faint,
    Bad,
}

/// One line of a list.
pub(super) trait Row: Serialize {
    /// The headings of a table, then those that `wide` adds.
    const HEADINGS: (&'static [&'static str], &'static [&'static str]);
    /// The text for an empty list.
    const NONE: &'static str;

    /// Returns as many cells as there are headings.
    fn cells(&self) -> Vec<String>;

    /// Returns the cells of a table that is not wide, without the end of very long ones.
    fn brief(&self) -> Vec<String> {
        self.cells()
    }

    /// Returns the name that `-o name` prints.
    fn name(&self) -> String;

    /// Returns the colour of the line.
    fn tone(&self) -> Tone {
        Tone::Plain
    }
}

/// Returns the rows as text.
pub(super) fn print<R: Row>(rows: &[R], format: Format) -> Result<String, Error> {
    Ok(match format.output {
        Output::Json => serde_json::to_string_pretty(rows)? + "\n",
        Output::Yaml => yaml(&rows)?,
        Output::Name => rows.iter().map(|row| row.name() + "\n").collect(),
        Output::Table | Output::Wide if rows.is_empty() && format.no_headers => String::new(),
        Output::Table | Output::Wide if rows.is_empty() => format!("{}\n", R::NONE),
        Output::Table | Output::Wide => table(rows, format, &mut Vec::new()),
    })
}

/// Returns one value as YAML.
pub(super) fn yaml(value: &impl Serialize) -> Result<String, Error> {
    let text = serde_saphyr::to_string(value)?;
    Ok(text.trim_end().to_owned() + "\n")
}

/// Returns lines of columns at least as wide as `widths`, and updates `widths`.
pub(super) fn table<R: Row>(rows: &[R], format: Format, widths: &mut Vec<usize>) -> String {
    let (few, more) = R::HEADINGS;
    let is_wide = format.output == Output::Wide;
    let columns = if is_wide { few.len() + more.len() } else { few.len() };
    let headings = few.iter().chain(more).map(|heading| (*heading).to_owned());
    let headings = (!format.no_headers).then(|| (headings.collect(), "1"));
    let rows = rows.iter().map(|row| {
        let tone = match row.tone() {
            Tone::Plain => "",
            Tone::Faint => "2",
            Tone::Bad => "31",
        };
        (if is_wide { row.cells() } else { row.brief() }, tone)
    });
    let mut lines: Vec<(Vec<String>, &str)> = headings.into_iter().chain(rows).collect();
    widths.resize(columns, 0);
    for (cells, _) in &mut lines {
        cells.truncate(columns);
        for (cell, width) in cells.iter_mut().zip(widths.iter_mut()) {
            if cell.is_empty() {
                "-".clone_into(cell);
            }
            let own = cell.chars().count();
            if own <= LONGEST {
                *width = own.max(*width);
            }
        }
    }
    let mut text = String::new();
    for (cells, code) in &lines {
        let line = line(cells, widths);
        if format.colour && !code.is_empty() {
            text.extend(["\x1b[", code, "m", &line, "\x1b[0m\n"]);
        } else {
            text.extend([&line, "\n"]);
        }
    }
    text
}

/// Returns the cells of a line. Each one is padded to its column, but not the last one.
fn line(cells: &[String], widths: &[usize]) -> String {
    let mut line = String::new();
    for (index, (cell, width)) in cells.iter().zip(widths).enumerate() {
        line.push_str(cell);
        if index + 1 < cells.len() {
            let missing = width.saturating_sub(cell.chars().count());
            line.extend(iter::repeat_n(' ', missing + PADDING));
        }
    }
    line.truncate(line.trim_end().len());
    line
}

#[cfg(test)]
pub(super) const PLAIN: Format = Format { output: Output::Table, no_headers: false, colour: false };

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Fruit(&'static str, u32);

    impl Row for Fruit {
        const HEADINGS: (&'static [&'static str], &'static [&'static str]) =
            (&["NAME"], &["SEEDS"]);
        const NONE: &'static str = "no fruit";

        fn cells(&self) -> Vec<String> {
            vec![self.0.into(), if self.1 == 0 { String::new() } else { self.1.to_string() }]
        }

        fn name(&self) -> String {
            self.0.into()
        }

        fn tone(&self) -> Tone {
            if self.1 == 0 { Tone::Bad } else { Tone::Plain }
        }
    }

    #[test]
    fn each_output_format_has_its_text() {
        let all = [Fruit("apple", 8), Fruit("banana", 0)];
        let cases = [
            (PLAIN, "NAME\napple\nbanana\n"),
            (Format { no_headers: true, ..PLAIN }, "apple\nbanana\n"),
            (Format { output: Output::Wide, ..PLAIN }, "NAME    SEEDS\napple   8\nbanana  -\n"),
            (Format { output: Output::Name, ..PLAIN }, "apple\nbanana\n"),
            (
                Format { colour: true, ..PLAIN },
                "\x1b[1mNAME\x1b[0m\napple\n\x1b[31mbanana\x1b[0m\n",
            ),
        ];
        for (format, expected) in cases {
            assert_eq!(print(&all, format).unwrap(), expected, "{format:?}");
        }
        let read = print(&all, Format { output: Output::Yaml, ..PLAIN }).unwrap();
        let read: Vec<(String, u32)> = serde_saphyr::from_str(&read).unwrap();
        assert_eq!(read[0], ("apple".to_owned(), 8));
        assert_eq!(print::<Fruit>(&[], PLAIN).unwrap(), "no fruit\n");
        let json = print::<Fruit>(&[], Format { output: Output::Json, ..PLAIN }).unwrap();
        assert_eq!(json, "[]\n", "a program gets an empty list, not words");
    }

    #[test]
    fn very_long_cell_is_printed_whole_and_pads_no_other_line() {
        let long: &'static str = "x".repeat(70_000).leak();
        let all = [Fruit(long, 1), Fruit("banana", 2)];
        let found = print(&all, Format { output: Output::Wide, ..PLAIN }).unwrap();
        assert_eq!(found, format!("NAME    SEEDS\n{long}  1\nbanana  2\n"));
    }
}

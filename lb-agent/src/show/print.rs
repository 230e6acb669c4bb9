//! Prints every list: columns for people, JSON and YAML for programs, names for shells.

use comfy_table::{ColumnConstraint, Table, Width};
use serde::Serialize;

use super::Error;
use crate::cli::{Format, Output};

/// The space between two columns.
const PADDING: u16 = 2;

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
pub(super) fn table<R: Row>(rows: &[R], format: Format, widths: &mut Vec<u16>) -> String {
    let (few, more) = R::HEADINGS;
    let columns = if format.output == Output::Wide { few.len() + more.len() } else { few.len() };
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    if !format.no_headers {
        table.set_header(few.iter().chain(more).take(columns));
    }
    for row in rows {
        let cells = row.cells().into_iter().take(columns);
        table.add_row(cells.map(|cell| if cell.is_empty() { "-".to_owned() } else { cell }));
    }
    widths.resize(columns, 0);
    for (width, own) in widths.iter_mut().zip(table.column_max_content_widths()) {
        *width = own.max(*width);
    }
    for (column, width) in table.column_iter_mut().zip(widths) {
        column.set_padding((0, PADDING));
        column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(*width + PADDING)));
    }
    let heading = (!format.no_headers).then_some("1");
    let tones = heading.into_iter().chain(rows.iter().map(|row| match row.tone() {
        Tone::Plain => "",
        Tone::Faint => "2",
        Tone::Bad => "31",
    }));
    let lines = table.lines().map(|line| line.trim_end().to_owned());
    let paint = |(line, code): (String, &str)| {
        if format.colour && !code.is_empty() {
            format!("\x1b[{code}m{line}\x1b[0m\n")
        } else {
            line + "\n"
        }
    };
    lines.zip(tones).map(paint).collect()
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
}

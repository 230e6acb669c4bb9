//! Prints a long list piece by piece: it uses the memory of one piece, however many rows there are.

use std::io::{self, Write};

use super::Error;
use super::print::{Row, print, table, yaml};
use crate::cli::{Format, Output};

/// The number of rows per piece: some megabytes while a table is laid out.
const PIECE: usize = 2_048;

/// The printer of a long list.
///
/// If all rows fit into one piece they are sorted by their keys; otherwise they keep the order in which they came.
pub(super) struct Pieces<'a, K, R> {
    to: &'a mut dyn Write,
    format: Format,
    rows: Vec<(K, R)>,
    /// The column widths so far: later pieces are at least as wide.
    widths: Vec<usize>,
    is_begun: bool,
}

impl<'a, K: Ord, R: Row> Pieces<'a, K, R> {
    pub(super) fn new(to: &'a mut dyn Write, format: Format) -> Self {
        Self { to, format, rows: Vec::new(), widths: Vec::new(), is_begun: false }
    }

    /// Reports whether no row was added.
    pub(super) const fn is_empty(&self) -> bool {
        !self.is_begun && self.rows.is_empty()
    }

    pub(super) fn push(&mut self, key: K, row: R) -> Result<(), Error> {
        if self.rows.len() == PIECE {
            self.write()?;
        }
        self.rows.push((key, row));
        Ok(())
    }

    /// Prints the remaining rows.
    pub(super) fn finish(mut self) -> Result<(), Error> {
        if self.is_empty() {
            self.to.write_all(print::<R>(&[], self.format)?.as_bytes())?;
        } else {
            if !self.is_begun {
                self.rows.sort_by(|(left, _), (right, _)| left.cmp(right));
            }
            self.write()?;
            if self.format.output == Output::Json {
                self.to.write_all(b"\n]\n")?;
            }
        }
        Ok(self.to.flush()?)
    }

    fn write(&mut self) -> Result<(), Error> {
        let rows: Vec<R> = self.rows.drain(..).map(|(_, row)| row).collect();
        // Only the first piece has headings.
        let no_headers = self.format.no_headers || self.is_begun;
        match self.format.output {
            Output::Json => self.write_json(&rows)?,
            Output::Yaml => self.to.write_all(yaml(&rows)?.as_bytes())?,
            Output::Name => self.to.write_all(print(&rows, self.format)?.as_bytes())?,
            Output::Table | Output::Wide => {
                let format = Format { no_headers, ..self.format };
                self.to.write_all(table(&rows, format, &mut self.widths).as_bytes())?;
            }
        }
        self.is_begun = true;
        Ok(())
    }

    /// Writes elements of one array; [`Self::finish`] writes its end.
    fn write_json(&mut self, rows: &[R]) -> Result<(), Error> {
        let before: io::Result<()> = self.to.write_all(if self.is_begun { b",\n" } else { b"[\n" });
        before?;
        let elements: Vec<String> =
            rows.iter().map(serde_json::to_string_pretty).collect::<Result<_, _>>()?;
        // A line break inside a string is escaped, so every line break belongs to the layout.
        let indented = elements.iter().map(|element| element.replace('\n', "\n  "));
        let text = indented.map(|element| format!("  {element}")).collect::<Vec<_>>().join(",\n");
        Ok(self.to.write_all(text.as_bytes())?)
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    use super::*;
    use crate::show::print::PLAIN;

    #[derive(Clone, Serialize)]
    struct Number {
        text: String,
        length: usize,
    }

    impl Row for Number {
        const HEADINGS: (&'static [&'static str], &'static [&'static str]) =
            (&["NUMBER", "LENGTH"], &[]);
        const NONE: &'static str = "no numbers";

        fn cells(&self) -> Vec<String> {
            vec![self.text.clone(), self.length.to_string()]
        }

        fn name(&self) -> String {
            self.text.clone()
        }
    }

    fn rows(count: usize) -> Vec<Number> {
        // The last piece has longer and shorter texts than the first.
        let text = |number| format!("{number}\n\"{}\"", "x".repeat(number % 7));
        let row = |number| Number { text: text(number), length: text(number).len() };
        (0..count).map(row).collect()
    }

    fn in_pieces(rows: &[Number], format: Format) -> String {
        let mut text = Vec::new();
        let mut pieces = Pieces::new(&mut text, format);
        rows.iter().enumerate().for_each(|(key, row)| pieces.push(key, row.clone()).unwrap());
        pieces.finish().unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_list_is_the_same_in_one_piece_and_in_several() {
        for count in [0, 1, PIECE, PIECE + 1, PIECE * 3] {
            for output in [Output::Json, Output::Yaml, Output::Name] {
                let (rows, format) = (rows(count), Format { output, ..PLAIN });
                let (found, whole) = (in_pieces(&rows, format), print(&rows, format).unwrap());
                assert!(found == whole, "{count} rows as {output:?}");
            }
        }
    }

    #[test]
    fn a_table_has_its_headings_once_and_later_pieces_stand_below_the_first() {
        let wide = Number { text: "a long one".into(), length: 10 };
        let narrow = Number { text: "one".into(), length: 3 };
        let mut rows = vec![wide; PIECE];
        rows.push(narrow.clone());
        let found = in_pieces(&rows, PLAIN);
        let lines: Vec<&str> = found.lines().collect();
        assert_eq!(lines[..2], ["NUMBER      LENGTH", "a long one  10"]);
        assert_eq!(lines[PIECE + 1..], ["one         3"]);
        assert_eq!(in_pieces(&[], PLAIN), "no numbers\n");
        assert_eq!(in_pieces(&[], Format { no_headers: true, ..PLAIN }), "");
        assert_eq!(in_pieces(&[narrow], PLAIN), "NUMBER  LENGTH\none     3\n");
    }

    #[test]
    fn rows_of_one_piece_are_sorted() {
        let mut text = Vec::new();
        let mut pieces = Pieces::new(&mut text, Format { output: Output::Name, ..PLAIN });
        for number in [2, 1] {
            pieces.push(number, Number { text: number.to_string(), length: 1 }).unwrap();
        }
        pieces.finish().unwrap();
        assert_eq!(text, b"1\n2\n");
    }
}

//! The report of benchmarks: one HTML page without external files, with a chart of every figure and one table of all
//! rows.
//!
//! It shows only what the results hold: a benchmark that did not run has no section. It has dark colours where the
//! reader's browser asks for them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

#[cfg(test)]
mod browser;
mod changes;
mod charts;
mod packets;
mod pick;
mod picture;
mod sizes;
mod svg;
mod traffic;

use super::results::{Results, Row};
use svg::{escape, number};

const STYLE: &str = include_str!("report/page.css");

/// Writes one report of several results (files, or directories that hold them) to a file, and the main chart beside it.
pub fn write(from: &[PathBuf], to: &Path) -> Result<()> {
    ensure!(!from.is_empty(), "no results to report\nremedy: cargo xtask bench traffic");
    let results: Vec<Results> =
        from.iter().map(|path| Results::read(path)).collect::<Result<_>>()?;
    let put = |to: &Path, text| fs::write(to, text).context(format!("write {}", to.display()));
    let picture = results.iter().find_map(picture::of);
    picture.map_or(Ok(()), |picture| put(&to.with_file_name("picture.svg"), picture))?;
    put(to, page(&results))
}

pub(super) fn page(results: &[Results]) -> String {
    let sections: String = results.iter().map(section).collect();
    let names: Vec<&str> = results.iter().map(|results| results.bench.as_str()).collect();
    let title = format!("lb-agent: {}", names.join(", "));
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{}</title>\
         <style>\n{STYLE}</style></head>\n<body><main><h1>Cost of lb-agent and of alternatives</h1>\
         <p class=\"faint\">A figure is the median of its rounds; whiskers and brackets reach from the first to the third quartile. \
         Modes are measured in turn, so that a disturbance affects neighbouring modes alike.</p>\n{sections}</main></body></html>\n",
        escape(&title)
    )
}

fn section(results: &Results) -> String {
    let Results { bench, commit, command, machine, notes, rows, time, .. } = results;
    let pictures = match bench.as_str() {
        "traffic" => traffic::pictures(rows),
        "churn" => changes::pictures(rows),
        "scale" => sizes::pictures(rows),
        "packet" => packets::pictures(rows),
        _ => String::new(),
    };
    let notes = notes.iter().flat_map(|note| ["<p>".to_owned(), escape(note), "</p>".to_owned()]);
    let notes: String = notes.collect();
    let disturbed = rows.iter().filter(|row| row.disturbed).count();
    let dropped: usize = rows.iter().map(|row| row.dropped).sum();
    let warning = if disturbed > 0 {
        format!(
            "<p class=\"warning\">{disturbed} of {} figures come from rounds that other work on the machine disturbed, \
             because too few rounds were calm: they are unreliable.</p>",
            rows.len()
        )
    } else if dropped > 0 {
        format!("<p>{dropped} disturbed rounds were dropped.</p>")
    } else {
        String::new()
    };
    format!(
        "<section id=\"{0}\"><h2>{0}</h2><p>{1}. Commit <code>{2}</code>, <time>{3}</time>. Repeat: <code>{4}</code></p>\
         {notes}{warning}{pictures}{5}</section>\n",
        escape(bench),
        escape(&machine.words()),
        escape(commit),
        utc(*time),
        escape(command),
        table(rows)
    )
}

/// A table of all rows, unchanged.
fn table(rows: &[Row]) -> String {
    let line = |row: &Row| {
        let spread = row.spread;
        let marks = match (row.disturbed, row.dropped) {
            (true, _) => "disturbed".to_owned(),
            (false, 0) => String::new(),
            (false, dropped) => format!("{dropped} dropped"),
        };
        format!(
            "<tr><td>{}</td><td>{}</td><td class=\"figure\">{}</td><td class=\"figure\">{} to {}</td><td>{}</td>\
             <td class=\"figure\">{}</td><td class=\"figure\">{}</td><td>{marks}</td></tr>",
            escape(&row.name()),
            escape(&row.measure),
            number(spread.median),
            number(spread.low),
            number(spread.high),
            escape(&row.unit),
            row.rounds,
            row.values.max(row.rounds)
        )
    };
    let lines: String = rows.iter().map(line).collect();
    format!(
        "<details><summary>All {} figures</summary><table><tr><th>subject</th><th>figure</th><th>median</th><th>quartiles</th>\
         <th>unit</th><th>rounds</th><th>values</th><th></th></tr>{lines}</table></details>",
        rows.len()
    )
}

/// A chart with its caption.
fn figure(caption: &str, small: &str, drawing: &str) -> String {
    let (caption, small) = (escape(caption), escape(small));
    format!("<figure><figcaption>{caption} <small>{small}</small></figcaption>{drawing}</figure>")
}

/// Seconds since 1970 as date and time in UTC.
fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // The algorithm is Howard Hinnant's civil_from_days, for days after 1970: its years begin in March, so that leap
    // days come last.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", rest / 3_600, rest % 3_600 / 60)
}

#[cfg(test)]
mod tests {
    use super::super::figures::Figure;
    use super::super::machine::Machine;
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00 UTC");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(utc(1_795_287_600), "2026-11-21 19:00 UTC");
    }

    #[test]
    fn page_names_dropped_and_disturbed_rounds() {
        let mut row = Row::new(&[("way", "ours")], "rate", "x", &[1.0].into_iter().collect());
        row.dropped = 3;
        let machine = Machine::here(None).unwrap();
        let mut results = Results::new("traffic", "abc", machine, vec![row]);
        assert!(page(std::slice::from_ref(&results)).contains("3 disturbed rounds were dropped"));
        results.rows[0].disturbed = true;
        assert!(page(&[results]).contains("1 of 1 figures come from rounds"));
    }

    #[test]
    fn a_page_needs_nothing_else() {
        let rows = vec![Row::new(&[], "rate", "x", &Figure::default())];
        let text = page(&[Results::new("traffic", "abc", Machine::here(None).unwrap(), rows)]);
        for word in ["http:", "https:", "src=", "href=", "@import", "url("] {
            assert!(!text.contains(word), "{word}");
        }
    }
}

//! The rows of `docs/proof.md`: a campaign replaces its own rows and leaves the others unchanged.

use anyhow::{Context as _, Result, ensure};

/// The header of the table; the next line separates it from the rows.
const HEAD: &str = "| campaign | figure | value | commit | machine | date | minutes |";

/// A row of the table: a figure with its circumstances.
pub(super) struct Row {
    pub(super) campaign: String,
    pub(super) figure: String,
    pub(super) value: String,
    pub(super) commit: String,
    pub(super) machine: String,
    pub(super) date: String,
    pub(super) minutes: String,
}

impl Row {
    /// The row as a line of Markdown.
    fn line(&self) -> String {
        let Self { campaign, figure, value, commit, machine, date, minutes } = self;
        let cells = [campaign, figure, value, commit, machine, date, minutes];
        // A vertical bar would end the cell.
        let cells = cells.map(|cell| cell.replace('|', "/"));
        format!("| {} |", cells.join(" | "))
    }
}

/// Returns the document with these rows in place of the campaign's old rows; the rows of a new campaign come last.
pub(super) fn rewritten(document: &str, campaign: &str, rows: &[Row]) -> Result<String> {
    let lines: Vec<&str> = document.lines().collect();
    let head = lines.iter().position(|line| *line == HEAD).context("no table of figures")?;
    let first = head + 2;
    ensure!(
        lines.get(head + 1).is_some_and(|line| line.starts_with("| ---")),
        "the table of figures has no second line"
    );
    let last = lines[first..].iter().take_while(|line| line.starts_with('|')).count() + first;
    let own = format!("| {campaign} |");
    let is_other = |line: &&str| !line.starts_with(&own);
    let begin = lines[first..last].iter().position(|line| !is_other(line));
    let (before, after) = lines[first..last].split_at(begin.unwrap_or(last - first));
    let mut all: Vec<String> = lines[..first].iter().map(ToString::to_string).collect();
    all.extend(before.iter().map(ToString::to_string));
    all.extend(rows.iter().map(Row::line));
    all.extend(after.iter().copied().filter(is_other).map(str::to_owned));
    all.extend(lines[last..].iter().map(ToString::to_string));
    Ok(all.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::{HEAD, Row, rewritten};

    fn row(campaign: &str, value: &str) -> Row {
        Row {
            campaign: campaign.to_owned(),
            figure: "answers".to_owned(),
            value: value.to_owned(),
            commit: "abc1234".to_owned(),
            machine: "CPU".to_owned(),
            date: "2026-11-25".to_owned(),
            minutes: "1.5".to_owned(),
        }
    }

    fn document(rows: &[(&str, &str)]) -> String {
        let rows: String =
            rows.iter().map(|(name, value)| row(name, value).line() + "\n").collect();
        format!(
            "# Figures\n\n{HEAD}\n| --- |\n{rows}\nThe end.\n| differential | another table |\n"
        )
    }

    #[test]
    fn rows_of_the_campaign_are_replaced_where_they_are() {
        let before =
            document(&[("churn", "1"), ("differential", "2"), ("differential", "3"), ("two", "4")]);
        let after = rewritten(&before, "differential", &[row("differential", "5")]).unwrap();
        assert_eq!(after, document(&[("churn", "1"), ("differential", "5"), ("two", "4")]));
    }

    #[test]
    fn new_campaign_comes_last() {
        let after =
            rewritten(&document(&[("differential", "2")]), "churn", &[row("churn", "1")]).unwrap();
        assert_eq!(after, document(&[("differential", "2"), ("churn", "1")]));
        let first = rewritten(&document(&[]), "churn", &[row("churn", "1")]).unwrap();
        assert_eq!(first, document(&[("churn", "1")]));
    }

    #[test]
    fn rows_apart_from_each_other_are_replaced_together() {
        let before = document(&[("differential", "2"), ("churn", "1"), ("differential", "3")]);
        let after = rewritten(&before, "differential", &[row("differential", "5")]).unwrap();
        assert_eq!(after, document(&[("differential", "5"), ("churn", "1")]));
    }

    #[test]
    fn bar_does_not_end_a_cell() {
        assert!(row("differential", "1|2").line().contains("| 1/2 |"));
    }

    #[test]
    fn document_without_a_table_is_refused() {
        assert!(rewritten("# Figures\n", "differential", &[]).is_err());
        assert!(rewritten(&format!("{HEAD}\n"), "differential", &[]).is_err());
    }
}

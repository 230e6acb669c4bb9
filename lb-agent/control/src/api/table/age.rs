//! Ages in the short form that kubectl prints.

use jiff::Timestamp;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// Returns the time since a timestamp of the API; `<unknown>` if there is none.
pub(super) fn since(at: Option<&str>) -> String {
    let at = at.and_then(|it| it.parse::<Timestamp>().ok());
    at.map_or_else(
        || "<unknown>".into(),
        |it| duration(Timestamp::now().as_second() - it.as_second()),
    )
}

/// Formats a duration in seconds: exact if short, rounded if long.
fn duration(seconds: i64) -> String {
    let two = |large: i64, large_word: &str, small: i64, small_word: &str| {
        let rest = seconds % large / small;
        let small = if rest == 0 { String::new() } else { format!("{rest}{small_word}") };
        format!("{}{large_word}{small}", seconds / large)
    };
    match seconds {
        ..-1 => "<invalid>".into(),
        // A clock that is a little ahead must not show an error.
        -1 => "0s".into(),
        0..120 => format!("{seconds}s"),
        it if it < 10 * MINUTE => two(MINUTE, "m", 1, "s"),
        it if it < 3 * HOUR => format!("{}m", it / MINUTE),
        it if it < 8 * HOUR => two(HOUR, "h", MINUTE, "m"),
        it if it < 2 * DAY => format!("{}h", it / HOUR),
        it if it < 8 * DAY => two(DAY, "d", HOUR, "h"),
        it if it < 2 * YEAR => format!("{}d", it / DAY),
        it if it < 8 * YEAR => two(YEAR, "y", DAY, "d"),
        it => format!("{}y", it / YEAR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_as_upstream_prints_them() {
        let cases = [
            (-5, "<invalid>"),
            (-1, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (HOUR, "60m"),
            (3 * HOUR + 60, "3h1m"),
            (47 * HOUR, "47h"),
            (2 * DAY + HOUR, "2d1h"),
            (100 * DAY, "100d"),
            (2 * YEAR + DAY, "2y1d"),
            (9 * YEAR, "9y"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(duration(seconds), expected, "{seconds}");
        }
    }
}

//! Timestamps as the API writes them.

use jiff::Timestamp;

fn parse(text: &str) -> Result<Timestamp, String> {
    text.parse().map_err(|error: jiff::Error| format!("parsing time {text:?}: {error}"))
}

/// Normalizes any RFC 3339 timestamp to whole seconds, in UTC.
pub(crate) fn seconds(text: &str) -> Result<String, String> {
    parse(text).map(whole)
}

/// Normalizes any RFC 3339 timestamp to microseconds, in UTC.
pub(crate) fn micro(text: &str) -> Result<String, String> {
    parse(text).map(|it| format!("{it:.6}"))
}

/// Returns the current time in whole seconds, as RFC 3339.
pub(crate) fn now() -> String {
    whole(Timestamp::now())
}

/// Converts protobuf's seconds and nanoseconds since 1970; `None` if the time is out of range.
pub(super) fn of_protobuf(seconds: i64, nanos: i32, is_micro: bool) -> Option<String> {
    let at = Timestamp::new(seconds, nanos).ok()?;
    Some(if is_micro { format!("{at:.6}") } else { whole(at) })
}

fn whole(at: Timestamp) -> String {
    let at = Timestamp::from_second(at.as_second()).unwrap_or(at);
    at.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statement_104_times() {
        assert_eq!(seconds("2024-05-01T10:00:00.9+02:00").unwrap(), "2024-05-01T08:00:00Z");
        assert_eq!(micro("2024-05-01T10:00:00Z").unwrap(), "2024-05-01T10:00:00.000000Z");
        assert!(seconds("yesterday").is_err());
        assert_eq!(now().len(), 20);
    }
}

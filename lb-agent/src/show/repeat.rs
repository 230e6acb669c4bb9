//! `--watch`: prints a text again when it changes.

use std::io::{self, Write};
use std::thread;
use std::time::Duration;

/// The pause between two checks, as each one walks through maps.
const PAUSE: Duration = Duration::from_secs(1);
/// Moves the cursor to the corner of the screen and clears it.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Prints the text of `text`: once, or when watching at each change.
///
/// Ends when the reader closes the pipe, or with the first error of `text`. On a screen the new text replaces the old
/// one; elsewhere it follows an empty line.
pub fn repeat<E: From<io::Error>>(
    is_watching: bool,
    is_screen: bool,
    to: &mut impl Write,
    mut text: impl FnMut() -> Result<String, E>,
) -> Result<(), E> {
    let mut said: Option<String> = None;
    loop {
        let now = text()?;
        if said.as_ref() != Some(&now) {
            let between = match &said {
                // The escape sequence is in the same write as the text, so that the screen does not flicker.
                _ if is_watching && is_screen => CLEAR,
                Some(_) => "\n",
                None => "",
            };
            let written = write!(to, "{between}{now}").and_then(|()| to.flush());
            match written {
                // `| head` is not an error.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                written => written?,
            }
            said = Some(now);
        }
        if !is_watching {
            return Ok(());
        }
        thread::park_timeout(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(is_watching: bool, is_screen: bool) -> (String, bool) {
        let mut texts = ["one\n", "one\n", "two\n"].into_iter();
        let mut to = Vec::new();
        let result: Result<(), io::Error> = repeat(is_watching, is_screen, &mut to, || {
            texts.next().map(str::to_owned).ok_or_else(|| io::ErrorKind::NotFound.into())
        });
        (String::from_utf8(to).unwrap(), result.is_ok())
    }

    #[test]
    fn only_changed_output_is_printed_again() {
        assert_eq!(said(false, false), ("one\n".into(), true));
        assert_eq!(said(true, false), ("one\n\ntwo\n".into(), false));
        assert_eq!(said(true, true), (format!("{CLEAR}one\n{CLEAR}two\n"), false));
    }
}

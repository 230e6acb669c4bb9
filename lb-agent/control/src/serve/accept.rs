//! Accepts connections, also while the system refuses them.

use std::io;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Time after an error until the next attempt. Most errors last, and without a pause the loop would take a whole CPU:
/// without a free descriptor (EMFILE), accept(2) fails at once and leaves the connection in the queue.
const PAUSE: Duration = Duration::from_millis(100);
/// Shortest time between two lines of the log about errors.
const APART: Duration = Duration::from_secs(10);

/// Limits the lines of the log about errors.
#[derive(Debug, Default)]
pub(super) struct Errors {
    /// The time of the last line.
    reported: Option<Instant>,
}

impl Errors {
    /// Reports whether an error at this time is to be logged.
    fn is_news(&mut self, now: Instant) -> bool {
        let is_news = self.reported.is_none_or(|at| now.duration_since(at) >= APART);
        if is_news {
            self.reported = Some(now);
        }
        is_news
    }
}

/// Repeats `accept` until it returns a connection.
pub(super) async fn accepted<T, F>(mut accept: impl FnMut() -> F, errors: &mut Errors) -> T
where
    F: Future<Output = io::Result<T>>,
{
    loop {
        match accept().await {
            Ok(connection) => return connection,
            Err(error) => {
                if errors.is_news(Instant::now()) {
                    tracing::warn!(%error, "connections are not accepted; retrying");
                }
                sleep(PAUSE).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    #[tokio::test]
    async fn an_error_is_followed_by_a_pause() {
        let (began, mut errors) = (Instant::now(), Errors::default());
        let mut answers = [Ok(1), Err(io::ErrorKind::Other), Err(io::ErrorKind::Other)].to_vec();
        let next = || ready(answers.pop().expect("an answer").map_err(io::Error::from));
        assert_eq!(accepted(next, &mut errors).await, 1);
        assert!(began.elapsed() >= PAUSE * 2);
        assert!(errors.reported.is_some_and(|at| at < began + PAUSE), "the first one is logged");
    }

    #[test]
    fn errors_that_last_do_not_flood_the_log() {
        let (began, mut errors) = (Instant::now(), Errors::default());
        let lines = (0..1_000).filter(|number| errors.is_news(began + PAUSE * *number));
        assert_eq!(lines.count(), 10, "in 100 seconds");
    }
}

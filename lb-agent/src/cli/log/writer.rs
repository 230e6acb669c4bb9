//! Writes the log without blocking the agent: lines that cannot be written are dropped and counted.
//!
//! A separate thread writes, and may block for ever on a reader that has stopped. A task that logs never blocks. A full
//! disk costs only log lines.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// Largest number of lines that wait to be written.
const WAITING: usize = 4_096;
/// Time limit for writing them at the end of the process.
const LAST_LINES: Duration = Duration::from_millis(500);

/// Number of lines that this process has lost.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Returns the number of log lines that were lost.
pub fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// A handle that queues lines for the writer thread.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    to: SyncSender<WriterMessage>,
    lost: &'static AtomicU64,
}

/// A message to the writer thread.
#[derive(Debug)]
enum WriterMessage {
    Line(Vec<u8>),
    /// Replies once all lines before it are written.
    Flush(SyncSender<()>),
}

/// A line of the log under construction; dropping it queues it.
#[derive(Debug)]
pub(super) struct LogLine {
    text: Vec<u8>,
    lines: Lines,
}

/// Dropping it waits for the queued lines to be written, for a limited time.
#[derive(Debug)]
#[must_use = "the last log lines may be lost without it"]
pub struct LastLines(SyncSender<WriterMessage>);

/// Starts the writer thread with this sink.
pub(super) fn start(sink: impl Write + Send + 'static) -> io::Result<(Lines, LastLines)> {
    start_counting(sink, &LOST)
}

fn start_counting(
    sink: impl Write + Send + 'static,
    lost: &'static AtomicU64,
) -> io::Result<(Lines, LastLines)> {
    // The queue is bounded: a reader that has stopped must not make the agent's memory grow.
    let (to, from) = sync_channel(WAITING);
    drop(thread::Builder::new().name("log".to_owned()).spawn(move || write(sink, &from, lost))?);
    Ok((Lines { to: to.clone(), lost }, LastLines(to)))
}

fn write(mut sink: impl Write, from: &Receiver<WriterMessage>, lost: &AtomicU64) {
    for message in from {
        match message {
            WriterMessage::Line(line) => {
                if sink.write_all(&line).and_then(|()| sink.flush()).is_err() {
                    lost.fetch_add(1, Ordering::Relaxed);
                }
            }
            // The sender of this message may have stopped waiting.
            WriterMessage::Flush(written) => drop(written.try_send(())),
        }
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = LogLine;

    fn make_writer(&'a self) -> LogLine {
        LogLine { text: Vec::new(), lines: self.clone() }
    }
}

impl Write for LogLine {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LogLine {
    fn drop(&mut self) {
        let text = std::mem::take(&mut self.text);
        if !text.is_empty() && self.lines.to.try_send(WriterMessage::Line(text)).is_err() {
            self.lines.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for LastLines {
    fn drop(&mut self) {
        let (written, wait) = sync_channel(1);
        if self.0.try_send(WriterMessage::Flush(written)).is_ok() {
            // The writer thread may be blocked: give up after the time limit.
            let _is_written: Result<(), RecvTimeoutError> = wait.recv_timeout(LAST_LINES);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use super::*;

    fn log(lines: &Lines, count: usize) {
        for _ in 0..count {
            let mut line = lines.make_writer();
            line.write_all(&[b'x'; 1_024]).expect("a line");
        }
    }

    #[test]
    fn a_full_disk_costs_its_lines_and_nothing_else() {
        static LOST_HERE: AtomicU64 = AtomicU64::new(0);
        let full = File::options().write(true).open("/dev/full").expect("/dev/full");
        let (lines, flush) = start_counting(full, &LOST_HERE).expect("a thread");
        log(&lines, 10);
        drop(flush);
        assert_eq!(LOST_HERE.load(Ordering::Relaxed), 10);
    }

    #[test]
    fn stopped_reader_does_not_block_logging() {
        static LOST_HERE: AtomicU64 = AtomicU64::new(0);
        let (ours, _nobody_reads) = UnixStream::pair().expect("a pair");
        let (lines, flush) = start_counting(ours, &LOST_HERE).expect("a thread");
        let began = Instant::now();
        log(&lines, 4 * WAITING);
        drop(flush);
        assert!(LOST_HERE.load(Ordering::Relaxed) > 0);
        assert!(began.elapsed() < Duration::from_mins(1));
    }

    #[test]
    fn queued_lines_are_written_at_the_end() {
        static LOST_HERE: AtomicU64 = AtomicU64::new(0);
        let mut file = tempfile::tempfile().expect("a file");
        let sink = file.try_clone().expect("a file");
        let (lines, flush) = start_counting(sink, &LOST_HERE).expect("a thread");
        log(&lines, 100);
        drop(flush);
        let size = io::Seek::seek(&mut file, io::SeekFrom::End(0)).expect("a size");
        assert_eq!((size, LOST_HERE.load(Ordering::Relaxed)), (100 * 1_024, 0));
    }
}

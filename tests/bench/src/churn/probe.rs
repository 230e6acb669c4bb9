//! The probe that sees a change: a UDP client that asks repeatedly, each time from a new port, until the expected
//! server answers.
//!
//! A question is sent every millisecond, whether or not the one before was answered. A client that waited for an answer
//! that never comes would see the change too late.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

/// The time between two questions.
const PACE: Duration = Duration::from_millis(1);
/// The number of questions that may be waiting for an answer.
const OPEN: usize = 64;
/// The first source port; privileged ports are not for clients.
const FIRST_PORT: u16 = 1_024;
/// The number of source ports, used in turn.
const PORTS: u32 = 64_000;
/// The question that servers of the harness answer; it asks for no padding.
const QUESTION: &[u8] = b"ask 0 \n";

/// Returns the time at which `server` first answered at `to`.
pub(super) fn until_answered_by(to: SocketAddr, server: &str, within: Duration) -> Result<Instant> {
    let deadline = Instant::now() + within;
    let mut open: Vec<UdpSocket> = Vec::new();
    let mut next = Instant::now();
    loop {
        let now = Instant::now();
        if now >= deadline {
            bail!("{to}: {server} did not answer within {} s", within.as_secs_f64());
        }
        if now >= next {
            next = now + PACE;
            // An error means no route or a refusal: the Service is not served yet.
            if let Ok(socket) = ask(to) {
                if open.len() >= OPEN {
                    drop(open.remove(0));
                }
                open.push(socket);
            }
        }
        let ready = wait(&open, next.saturating_duration_since(Instant::now()))?;
        for index in ready.into_iter().rev() {
            let mut answer = [0; 512];
            // This socket has its answer, or an error that says that there is none.
            let socket = open.swap_remove(index);
            let Ok(length) = socket.recv(&mut answer) else { continue };
            if answer.get(..length).is_some_and(|answer| is_from(answer, server)) {
                return Ok(Instant::now());
            }
        }
    }
}

/// Whether a server answers at `to` right now.
pub(super) fn is_answered(to: SocketAddr) -> Result<bool> {
    /// Many times the round-trip time.
    const PATIENCE: Duration = Duration::from_millis(100);
    let Ok(socket) = ask(to) else { return Ok(false) };
    let open = [socket];
    let ready = wait(&open, PATIENCE)?;
    Ok(!ready.is_empty() && open.iter().all(|socket| socket.recv(&mut [0; 512]).is_ok()))
}

/// Opens a socket with the next port and sends a question. A port that was used recently has a conntrack entry (30 s
/// for one question and its answer), which would still translate for rules that are gone. Using all ports once takes
/// more than a minute.
fn ask(to: SocketAddr) -> io::Result<UdpSocket> {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let port = FIRST_PORT + (ASKED.fetch_add(1, Ordering::Relaxed) % PORTS) as u16;
    let socket = UdpSocket::bind(SocketAddr::from(([0, 0, 0, 0], port)))?;
    socket.set_nonblocking(true)?;
    socket.connect(to)?;
    socket.send(QUESTION)?;
    Ok(socket)
}

/// The indexes of the sockets that are readable or have an error, in ascending order.
fn wait(sockets: &[UdpSocket], time: Duration) -> Result<Vec<usize>> {
    let mut polled: Vec<PollFd<'_>> =
        sockets.iter().map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN)).collect();
    // poll(2) has a resolution of milliseconds, which the timer tick rounds up further.
    ppoll(&mut polled, Some(TimeSpec::from_duration(time)), None).context("poll")?;
    let ready = polled.iter().enumerate().filter(|(_, it)| it.any() == Some(true));
    Ok(ready.map(|(index, _)| index).collect())
}

fn is_from(answer: &[u8], server: &str) -> bool {
    answer.split(|byte| *byte == b' ').next() == Some(server.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_of_an_answer_is_its_server() {
        assert!(is_from(b"pod-b1 10.0.0.1:80 7\n", "pod-b1"));
        assert!(!is_from(b"pod-b1 10.0.0.1:80 7\n", "pod-b"));
    }

    #[test]
    fn the_expected_server_is_waited_for() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = server.local_addr().unwrap();
        let answers = std::thread::spawn(move || {
            for name in ["other", "other", "expected"] {
                let (_, client) = server.recv_from(&mut [0; 64]).unwrap();
                server.send_to(format!("{name} x y\n").as_bytes(), client).unwrap();
            }
            server
        });
        let began = Instant::now();
        let at = until_answered_by(to, "expected", Duration::from_mins(1)).unwrap();
        assert!(at > began);
        let server = answers.join().unwrap();
        assert!(until_answered_by(to, "expected", Duration::from_millis(20)).is_err());
        drop(server);
        assert!(!is_answered(to).unwrap(), "the server is gone");
    }
}

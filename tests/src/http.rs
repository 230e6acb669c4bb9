//! A minimal HTTP client for the pages of an agent.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::process::Home;

/// The deadline for one answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Gets `path` from a server that is reachable from `home`; returns status code and body.
pub fn get(home: &Home, server: SocketAddr, path: &str) -> Result<(u16, String)> {
    home.run_in(|| fetch(server, path))?
}

/// Gets `path` with this `Accept` header; returns status code and body.
pub fn get_as(home: &Home, server: SocketAddr, path: &str, accept: &str) -> Result<(u16, String)> {
    home.run_in(|| parsed(server, path, &format!("Accept: {accept}\r\n")))?
}

/// Gets `path` from a server; returns status code and body.
pub fn fetch(server: SocketAddr, path: &str) -> Result<(u16, String)> {
    parsed(server, path, "")
}

fn parsed(server: SocketAddr, path: &str, headers: &str) -> Result<(u16, String)> {
    let answer =
        exchange(server, path, headers).with_context(|| format!("http://{server}{path}"))?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer without a body")?;
    let status = head.split(' ').nth(1).context("an answer without a status")?;
    Ok((status.parse().with_context(|| format!("status {status}"))?, body.to_owned()))
}

fn exchange(server: SocketAddr, path: &str, headers: &str) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&server, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // With version 1.0 the answer is not chunked and ends with the connection.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {server}\r\n{headers}\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

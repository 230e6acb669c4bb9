//! Commands to ask and to serve from a shell, for people and for `cargo xtask demo`.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use super::conversation::once;
use super::load::Tally;
use super::server::Server;
use super::{Ask, Protocol};
use crate::http;
use crate::wait::wait_until;

/// The deadline of all waits in these commands.
const PATIENCE: Duration = Duration::from_mins(1);
/// The number of consecutive answers of other servers that proves that one no longer answers.
const PROOF: u32 = 30;

/// Serves one port with both transports and both families until it is killed.
pub fn serve(name: &str, port: &str) -> Result<()> {
    let port = port.parse().context("port")?;
    let any = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
    let mut servers = Vec::new();
    for protocol in Protocol::ALL {
        for address in any {
            servers.push(Server::start(name, protocol, SocketAddr::new(address, port))?);
        }
    }
    writeln!(io::stdout(), "{name} serves port {port}")?;
    loop {
        thread::park();
    }
}

/// Asks once and prints all details, or asks many times and prints the number of answers of each server.
pub fn ask(protocol: &str, to: &str, times: Option<&str>) -> Result<()> {
    let question = question(protocol, to)?;
    let mut output = io::stdout();
    let Some(times) = times else {
        let answer = once(&question).with_context(|| format!("{to} through {protocol}"))?;
        let (server, client) = (&answer.server, answer.client);
        writeln!(output, "{server} answered; it saw {client}, and was seen as {}", answer.peer)?;
        ensure!(answer.peer == question.to, "the client asked {to} and sees {}", answer.peer);
        return Ok(());
    };
    let mut tally = Tally::default();
    (0..times.parse().context("number of questions")?).for_each(|_| tally.count(once(&question)));
    writeln!(output, "{}", spell(&tally.servers))?;
    ensure!(tally.failed() == 0, "without an answer: {}", spell(&tally.failures));
    Ok(())
}

/// Asks until `server` answers, or with `gone`, until it certainly no longer answers.
pub fn ask_until(protocol: &str, to: &str, server: &str, gone: bool) -> Result<()> {
    let question = question(protocol, to)?;
    let mut asked = 0;
    let mut by_server = || {
        asked += 1;
        once(&question).is_ok_and(|answer| answer.server == server)
    };
    let what = if gone { "no longer answers" } else { "answers" };
    wait_until(PATIENCE, &format!("{server} {what}"), || {
        let found = if gone { (0..PROOF).all(|_| !by_server()) } else { by_server() };
        found.then_some(())
    })?;
    writeln!(io::stdout(), "{server} {what} (seen after {asked} questions)")?;
    Ok(())
}

/// Waits until an agent's health server reports that it is ready.
pub fn ready(server: &str) -> Result<()> {
    let server = server.parse().context("address and port")?;
    wait_until(PATIENCE, "the agent is ready", || {
        http::fetch(server, "/readyz").is_ok_and(|(status, _)| status == 200).then_some(())
    })
}

fn question(protocol: &str, to: &str) -> Result<Ask> {
    let protocol = match protocol {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        other => bail!("transport {other}: use tcp or udp"),
    };
    Ok(Ask::new(protocol, to.parse().with_context(|| format!("address and port {to}"))?))
}

fn spell(counts: &BTreeMap<String, u64>) -> String {
    let counts: Vec<String> =
        counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    counts.join(", ")
}

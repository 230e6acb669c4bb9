//! Flows that clients begin from one source port.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context as _, Result, ensure};

use crate::topology::Member;
use crate::traffic::{Answer, Ask, Protocol};

/// A port that no earlier connection has left in `TIME_WAIT`.
pub fn unused_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(25_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Opens a flow of each client from one port to its frontend, uses each of them twice, and returns the last answers.
/// Fails unless their backend sees different clients.
pub fn from_one_port(protocol: Protocol, flows: &[(&Member, SocketAddr)]) -> Result<Vec<Answer>> {
    let (port, mut open) = (unused_port(), Vec::new());
    for (from, to) in flows {
        let question = Ask::new(protocol, *to).from_port(port);
        let flow = from.peer().keep(question);
        let flow = flow.with_context(|| format!("{}: {question:?}", from.name()))?;
        open.push((from.name(), question, flow));
    }
    let (mut seen, mut answers) = (BTreeSet::new(), Vec::new());
    for round in 0..2 {
        answers.clear();
        for (name, question, flow) in &open {
            let answer =
                flow.ask().with_context(|| format!("round {round}, {name}: {question:?}"))?;
            ensure!(answer.local.port() == port && answer.peer == question.to, "{answer:?}");
            seen.insert(answer.client);
            answers.push(answer);
        }
    }
    ensure!(seen.len() == flows.len(), "{protocol} to {flows:?}: the backend saw {seen:?}");
    Ok(answers)
}

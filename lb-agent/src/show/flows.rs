//! `ct list` and `ct flush`: the flow entries of translated packets.

use std::collections::HashSet;
use std::io::Write;
use std::path::Path;

use lb_common::addr::{Endpoint, Ip, Protocol};
use lb_common::flow::{Flow, FlowKey, Kind, Shown, Side};
use lb_common::service::ServiceId;
use serde::Serialize;

use super::Error;
use super::pieces::Pieces;
use super::print::{Row, Tone};
use super::services::{matches, unknown};
use crate::cli::{FlowFilter, Format, Scope};
use crate::datapath::open;
use crate::maps::{FlowMaps, Maps};
use crate::state_file::StateFile;
use crate::syscall::monotonic;
use crate::words;

/// One flow: the frontend that its client uses, and the backend that replies.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowRow {
    protocol: String,
    client: String,
    frontend: String,
    backend: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<String>,
    id: ServiceId,
    state: &'static str,
    idle_seconds: u64,
    at: &'static str,
    masqueraded: bool,
    epoch: u32,
}

/// Writes the flows as text while reading them: full tables are as large as the memory of the agent's container.
pub fn list(
    bpf_dir: &Path,
    scope: &Scope,
    filter: &FlowFilter,
    format: Format,
    to: &mut dyn Write,
) -> Result<(), Error> {
    let maps = open(bpf_dir)?;
    let now = monotonic().as_nanos() as u64;
    let lifetimes = maps.settings()?.node.lifetimes;
    let state_file = StateFile::read(bpf_dir);
    let service = |flow: &Flow| state_file.names.get(&flow.service);
    let is_shown = |key: &FlowKey, flow: &Flow| {
        flow.is_forward()
            && scope.has(service(flow).map(String::as_str))
            && scope.has_family(key.tuple.source.is_v4())
            && is_meant(filter, &state_file, key, flow)
    };
    let mut rows = Pieces::new(to, format);
    maps.flows().each(is_shown, |key, flow| {
        let reply = maps.flows().opposite(key, flow)?;
        // Idle entries that packets treat as absent stay until their space is needed.
        if lifetimes.is_over(key, flow, reply.as_ref(), now) {
            return Ok(());
        }
        rows.push(*key, row(key, flow, reply.as_ref(), service(flow).cloned(), now))
    })?;
    unknown_service(&maps, &state_file, filter, rows.is_empty())?;
    rows.finish()
}

/// Deletes the flows that match the filter, and returns how many entries were deleted.
pub fn flush(bpf_dir: &Path, filter: &FlowFilter) -> Result<String, Error> {
    let maps = open(bpf_dir)?;
    let state_file = StateFile::read(bpf_dir);
    let (mut forwards, mut others) = (Vec::new(), HashSet::new());
    let is_meant = |key: &FlowKey, flow: &Flow| is_meant(filter, &state_file, key, flow);
    maps.flows().each(is_meant, |key, flow| {
        if flow.is_forward() {
            forwards.push(*key);
        } else {
            others.insert(*key);
        }
        Ok::<(), Error>(())
    })?;
    let count = others.len() + forwards.len();
    unknown_service(&maps, &state_file, filter, count == 0)?;
    for key in &forwards {
        for other in forget(&maps.flows(), key)? {
            others.remove(&other);
        }
    }
    // These belong to no flow that was found: own connections, and what flows have left behind.
    for key in &others {
        if let Some(flow) = maps.flows().get(key)? {
            maps.flows().forget(key, &flow)?;
        }
    }
    Ok(format!("deleted {count} flow entries\n"))
}

/// Removes the entries of one flow, and returns the keys of those beside the forward one.
///
/// The forward entry is removed first. A client's packet that comes meanwhile begins the flow again, with transient
/// entries; what it renewed stays, so that no answer is left untranslated.
fn forget(flows: &FlowMaps<'_>, key: &FlowKey) -> Result<Vec<FlowKey>, Error> {
    let Some(flow) = flows.get(key)? else { return Ok(Vec::new()) };
    let mut others = Vec::new();
    let opposite = key.opposite(&flow);
    // Another flow may have the reply entry by now, and with it the masquerade.
    if let Some(reply) = flows.opposite(key, &flow)? {
        others.push((opposite, reply));
        let masquerade = FlowKey::new(flow.to, key.protocol, Side::EGRESS);
        if let Some(found) = flows.get(&masquerade)?.filter(|_| flow.flags & Flow::MASQUERADED != 0)
        {
            others.push((masquerade, found));
            let answers = masquerade.opposite(&found);
            let is_own = |it: &Flow| it.to.is_reverse_of(&masquerade.tuple);
            others.extend(flows.get(&answers)?.filter(is_own).map(|flow| (answers, flow)));
        }
    }
    flows.remove(&[*key])?;
    for (key, flow) in &others {
        flows.forget(key, flow)?;
    }
    Ok(others.into_iter().map(|(key, _)| key).collect())
}

/// Reports whether the flow of an entry matches the filter.
fn is_meant(filter: &FlowFilter, state_file: &StateFile, key: &FlowKey, flow: &Flow) -> bool {
    let name = state_file.names.get(&flow.service).map(String::as_str);
    let (client, backend) = ends(key, flow);
    filter.service.as_ref().is_none_or(|wanted| matches(wanted, None, Some(flow.service), name))
        && filter.client.is_none_or(|wanted| Ip::from(wanted) == client)
        && filter.backend.is_none_or(|wanted| Ip::from(wanted) == backend)
}

/// Returns the client and the backend of the flow of an entry.
const fn ends(key: &FlowKey, flow: &Flow) -> (Ip, Ip) {
    if flow.is_answer() {
        return (flow.to.destination, key.tuple.source);
    }
    let is_masquerade = flow.kind.0 == Kind::MASQUERADE.0;
    let backend = if is_masquerade { key.tuple.destination } else { flow.to.destination };
    (key.tuple.source, backend)
}

/// Fails if no service has the name. A service without flows is no error.
fn unknown_service(
    maps: &Maps,
    state_file: &StateFile,
    filter: &FlowFilter,
    is_empty: bool,
) -> Result<(), Error> {
    let Some(wanted) = filter.service.as_ref().filter(|_| is_empty) else { return Ok(()) };
    let mut ids = maps.services()?.into_iter().map(|(_, service)| service.id);
    let name = |id: ServiceId| state_file.names.get(&id).map(String::as_str);
    if ids.any(|id| matches(wanted, None, Some(id), name(id))) {
        Ok(())
    } else {
        Err(unknown(wanted, state_file))
    }
}

fn row(
    key: &FlowKey,
    flow: &Flow,
    reply: Option<&Flow>,
    service: Option<String>,
    now: u64,
) -> FlowRow {
    // Packets of either direction keep the flow alive.
    let seen = flow.seen.max(reply.map_or(0, |reply| reply.seen));
    let (tuple, to) = (&key.tuple, &flow.to);
    let source = Endpoint::new(tuple.source, tuple.source_port);
    FlowRow {
        protocol: words::protocol(key.protocol),
        client: words::endpoint(source.ip, source.port).to_string(),
        frontend: words::endpoint(tuple.destination, tuple.destination_port).to_string(),
        backend: words::endpoint(to.destination, to.destination_port).to_string(),
        service,
        id: flow.service,
        state: phase(key.protocol, flow.shown, reply.map(|reply| reply.shown)),
        idle_seconds: now.saturating_sub(seen) / 1_000_000_000,
        at: match (key.side, flow.kind) {
            (Side::EGRESS, _) => "host",
            (_, Kind::HAIRPIN) => "hairpin",
            (_, _) => "packet",
        },
        masqueraded: flow.flags & Flow::MASQUERADED != 0,
        epoch: flow.epoch,
    }
}

/// The state of a flow that both ends use.
pub(super) const OPEN: &str = "open";

/// Returns the state of a flow, from the packets seen in both directions.
pub(super) const fn phase(
    protocol: Protocol,
    forward: Shown,
    reply: Option<Shown>,
) -> &'static str {
    let Some(reply) = reply else { return "alone" };
    if forward.rst | reply.rst != 0 {
        return "reset";
    }
    match (forward.fin != 0, reply.fin != 0) {
        (true, true) => return "closed",
        (true, false) | (false, true) => return "closing",
        (false, false) => {}
    }
    if reply.established != 0 {
        OPEN
    } else if protocol.0 == Protocol::TCP.0 {
        "opening"
    } else {
        "unanswered"
    }
}

impl Row for FlowRow {
    const HEADINGS: (&'static [&'static str], &'static [&'static str]) = (
        &["PROTOCOL", "CLIENT", "FRONTEND", "BACKEND", "SERVICE", "STATE", "IDLE"],
        &["AT", "SOURCE", "EPOCH"],
    );
    const NONE: &'static str = "no flows";

    fn cells(&self) -> Vec<String> {
        vec![
            self.protocol.clone(),
            self.client.clone(),
            self.frontend.clone(),
            self.backend.clone(),
            words::service(self.id, self.service.as_deref()),
            self.state.into(),
            words::age(self.idle_seconds),
            self.at.into(),
            if self.masqueraded { "translated".into() } else { "kept".into() },
            self.epoch.to_string(),
        ]
    }

    fn name(&self) -> String {
        format!("{}/{}/{}", self.protocol, self.client, self.frontend)
    }

    fn tone(&self) -> Tone {
        match self.state {
            OPEN => Tone::Plain,
            "reset" | "unanswered" => Tone::Bad,
            _ => Tone::Faint,
        }
    }
}

#[cfg(test)]
mod tests;

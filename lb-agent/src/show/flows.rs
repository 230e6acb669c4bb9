//! `ct list` and `ct flush`: what the data path remembers of translated packets.

use std::path::Path;

use lb_common::addr::{Endpoint, Protocol};
use lb_common::flow::{Flow, FlowKey, Kind, Side, state};
use lb_common::service::ServiceId;
use serde::Serialize;

use super::print::{self, Row, Tone};
use super::services::{matches, unknown};
use super::{Error, open, words};
use crate::cli::{Format, Scope};
use crate::maps::Maps;
use crate::run::{Known, monotonic};

/// One flow: what its client asks for, and who answers.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Shown {
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

/// The flows, as text.
pub fn list(bpf_dir: &Path, scope: &Scope, format: Format) -> Result<String, Error> {
    let maps = open(bpf_dir)?;
    let known = Known::read(bpf_dir);
    let now = monotonic().as_nanos() as u64;
    let mut forwards = Vec::new();
    maps.flows(|key, flow| {
        if begins(flow) {
            forwards.push((*key, *flow));
        }
    })?;
    forwards.sort_by_key(|(key, _)| *key);
    let mut flows = Vec::new();
    for (key, flow) in forwards {
        let service = known.names.get(&flow.service);
        if scope.has(service.map(String::as_str)) && scope.has_family(key.tuple.source.is_v4()) {
            let reply = maps.flow(&key.other(&flow))?;
            flows.push(shown(&key, &flow, reply.as_ref(), service.cloned(), now));
        }
    }
    print::print(&flows, format)
}

/// Forgets all flows, or those of one service, and says how many.
pub fn flush(bpf_dir: &Path, service: Option<&str>) -> Result<String, Error> {
    let maps = open(bpf_dir)?;
    let known = Known::read(bpf_dir);
    let halves = halves(&maps, |id| {
        let name = known.names.get(&id).map(String::as_str);
        service.is_none_or(|wanted| matches(wanted, None, Some(id), name))
    })?;
    if let Some(wanted) = service.filter(|_| halves.is_empty()) {
        // Nothing to forget is fine, a name that nobody has is not.
        let mut known_ids = maps.services()?.into_iter().map(|(_, service)| service.id);
        let is_known = known_ids
            .any(|id| matches(wanted, None, Some(id), known.names.get(&id).map(String::as_str)));
        if !is_known {
            return Err(unknown(wanted, &known));
        }
    }
    maps.remove_flows(&halves)?;
    Ok(format!("forgot {} halves of flows\n", halves.len()))
}

/// The halves of the services that are meant, those that go with them included. What a client's packets meet comes last:
/// removed before the others, it would be made anew beside them, and then stand without them.
fn halves(maps: &Maps, is_meant: impl Fn(ServiceId) -> bool) -> Result<Vec<FlowKey>, Error> {
    let (mut others, mut first) = (Vec::new(), Vec::new());
    maps.flows(|key, flow| {
        if is_meant(flow.service) {
            if begins(flow) { first.push(*key) } else { others.push(*key) }
        }
    })?;
    others.append(&mut first);
    Ok(others)
}

/// Whether a half is the one that the client's packets meet.
pub(super) const fn begins(flow: &Flow) -> bool {
    matches!(flow.kind, Kind::FORWARD | Kind::HAIRPIN)
}

fn shown(
    key: &FlowKey,
    flow: &Flow,
    reply: Option<&Flow>,
    service: Option<String>,
    now: u64,
) -> Shown {
    let seen = flow.seen.max(reply.map_or(0, |reply| reply.seen));
    let (tuple, to) = (&key.tuple, &flow.to);
    let source = Endpoint::new(tuple.source, tuple.source_port);
    let client = match key.side {
        Side::SOCKET => words::client(source.ip),
        _ => words::endpoint(source.ip, source.port).to_string(),
    };
    Shown {
        protocol: words::protocol(key.protocol),
        client,
        frontend: words::endpoint(tuple.destination, tuple.destination_port).to_string(),
        backend: words::endpoint(to.destination, to.destination_port).to_string(),
        service,
        id: flow.service,
        state: phase(key.protocol, flow.state, reply.map(|reply| reply.state)),
        idle_seconds: now.saturating_sub(seen) / 1_000_000_000,
        at: match (key.side, flow.kind) {
            (Side::SOCKET, _) => "socket",
            (Side::EGRESS, Kind::HAIRPIN) => "host",
            (_, Kind::HAIRPIN) => "hairpin",
            (_, _) => "packet",
        },
        masqueraded: flow.flags & Flow::MASQUERADED != 0,
        epoch: flow.epoch,
    }
}

/// Whether no side has ended it.
pub(super) const fn is_open(flow: &Flow) -> bool {
    flow.state & (state::FIN | state::RST) == 0
}

/// How far a flow is, by what its two directions have shown.
const fn phase(protocol: Protocol, forward: u8, reply: Option<u8>) -> &'static str {
    let Some(reply) = reply else { return "alone" };
    let both = forward | reply;
    if both & state::RST != 0 {
        return "reset";
    }
    match (forward & state::FIN != 0, reply & state::FIN != 0) {
        (true, true) => return "closed",
        (true, false) | (false, true) => return "closing",
        (false, false) => {}
    }
    if reply & state::ESTABLISHED != 0 {
        "open"
    } else if protocol.0 == Protocol::TCP.0 {
        "opening"
    } else {
        "unanswered"
    }
}

impl Row for Shown {
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
            "open" => Tone::Plain,
            "reset" | "unanswered" => Tone::Bad,
            _ => Tone::Faint,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_common::addr::{Ip, Port};
    use lb_common::flow::Tuple;

    #[test]
    fn phases_follow_what_both_directions_showed() {
        use state::{ESTABLISHED, FIN, RST};
        let cases = [
            (Protocol::TCP, 0, Some(0), "opening"),
            (Protocol::TCP, ESTABLISHED, Some(ESTABLISHED), "open"),
            (Protocol::TCP, ESTABLISHED | FIN, Some(ESTABLISHED), "closing"),
            (Protocol::TCP, ESTABLISHED | FIN, Some(ESTABLISHED | FIN), "closed"),
            (Protocol::TCP, ESTABLISHED, Some(RST), "reset"),
            (Protocol::UDP, ESTABLISHED, Some(0), "unanswered"),
            (Protocol::UDP, 0, Some(ESTABLISHED), "open"),
            (Protocol::UDP, 0, None, "alone"),
        ];
        for (protocol, forward, reply, expected) in cases {
            assert_eq!(
                phase(protocol, forward, reply),
                expected,
                "{protocol:?} {forward} {reply:?}"
            );
        }
    }

    #[test]
    fn a_flow_is_a_line() {
        let at = |host: u8, port| Endpoint::new(Ip::v4([10, 0, 0, host]), Port::new(port));
        let (client, frontend, backend) = (at(1, 1000), at(2, 80), at(3, 8080));
        let flow = |seen: u64, state| {
            let mut flow = Flow::new(Tuple::new(client, backend), Kind::FORWARD, seen);
            (flow.service, flow.state, flow.epoch) = (1, state, 4);
            flow
        };
        let key = |side| FlowKey::new(Tuple::new(client, frontend), Protocol::TCP, side);
        let mut socket = key(Side::SOCKET);
        socket.protocol = Protocol::UDP;
        socket.tuple.source = Ip::cookie(99);
        let (open, quiet) = (flow(1_000_000_000, 1), flow(9_000_000_000, 0));
        let now = 191_000_000_000;
        let all = [
            shown(&key(Side::INGRESS), &open, Some(&open), Some("default/web".into()), now),
            shown(&socket, &quiet, Some(&quiet), None, now),
        ];
        let wide = Format { output: crate::cli::Output::Wide, ..print::PLAIN };
        insta::assert_snapshot!(print::print(&all, wide).unwrap());
        insta::assert_snapshot!(
            print::print(&all, Format { output: crate::cli::Output::Json, ..wide }).unwrap()
        );
    }
}

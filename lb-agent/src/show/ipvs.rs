//! `lb list --ipvs`: frontends and backends in the layout of `ipvsadm -Ln`, which many operators know.
//!
//! Columns without an equivalent are fixed: a weight is always 1. Flows are counted per service port, not per frontend.

use std::collections::BTreeMap;
use std::path::Path;

use lb_common::addr::Protocol;
use lb_common::flow::{Flow, FlowKey};
use lb_common::service::ServiceId;

use super::Error;
use super::flows::{OPEN, phase};
use super::list::{DRAINING, LEFT, ListedFrontend, entries};
use crate::cli::Scope;
use crate::datapath::open;
use crate::syscall::monotonic;
use crate::words;

/// The number of open TCP connections and of other flows. IPVS counts every UDP flow among the others.
type FlowCounts = (u64, u64);

/// Returns all frontends in the maps.
pub fn list(bpf_dir: &Path, scope: &Scope) -> Result<String, Error> {
    let maps = open(bpf_dir)?;
    let (mut all, _state_file) = entries(&maps, bpf_dir)?;
    all.retain(|entry| entry.is_in(scope) && is_served_here(entry));
    let (now, lifetimes) = (monotonic().as_nanos() as u64, maps.settings()?.node.lifetimes);
    let mut flows = BTreeMap::new();
    maps.flows().each(
        |_, flow| flow.is_forward(),
        |key, flow| {
            let reply = maps.flows().opposite(key, flow)?;
            // Idle entries that packets treat as absent stay until their space is needed.
            if !lifetimes.is_over(key, flow, reply.as_ref(), now) {
                count(key, flow, reply.as_ref(), &mut flows);
            }
            Ok::<(), Error>(())
        },
    )?;
    Ok(layout(&all, &flows))
}

/// Reports whether the data path serves new connections of a frontend, or refuses them.
fn is_served_here(entry: &ListedFrontend) -> bool {
    !matches!(entry.state, DRAINING | LEFT)
}

fn count(
    key: &FlowKey,
    flow: &Flow,
    reply: Option<&Flow>,
    flows: &mut BTreeMap<(ServiceId, String), FlowCounts>,
) {
    let backend = words::endpoint(flow.to.destination, flow.to.destination_port).to_string();
    let counts = flows.entry((flow.service, backend)).or_default();
    let state = phase(key.protocol, flow.shown, reply.map(|reply| reply.shown));
    let is_open = key.protocol == Protocol::TCP && state == OPEN;
    *(if is_open { &mut counts.0 } else { &mut counts.1 }) += 1;
}

fn layout(entries: &[ListedFrontend], flows: &BTreeMap<(ServiceId, String), FlowCounts>) -> String {
    let mut lines = vec![
        "Prot LocalAddress:Port Scheduler Flags".to_owned(),
        "  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn".to_owned(),
    ];
    for entry in entries {
        let (address, protocol) = entry.frontend.rsplit_once('/').unwrap_or((&entry.frontend, ""));
        let persistent = match entry.affinity_seconds {
            0 => String::new(),
            seconds => format!(" persistent {seconds}"),
        };
        lines.push(format!("{protocol:<4} {address} maglev{persistent}"));
        for endpoint in entry.used() {
            let (address, key) = (&endpoint.address, (entry.id, endpoint.address.clone()));
            let (active, other) = flows.get(&key).copied().unwrap_or_default();
            lines.push(format!("  -> {address:<28} Masq    1      {active:<10} {other}"));
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use lb_common::addr::{Endpoint, Ip, Port};
    use lb_common::flow::{Kind, Shown, Side, Tuple};

    use super::*;
    use crate::show::list::samples;

    #[test]
    fn active_connections_are_those_that_ct_list_shows_as_open() {
        let at = |host: u8, port| Endpoint::new(Ip::v4([10, 0, 0, host]), Port::new(port));
        let tuple = Tuple::new(at(1, 1000), at(2, 80));
        let entry = |shown| {
            let mut flow = Flow::new(Tuple::new(at(1, 1000), at(3, 8080)), Kind::FORWARD, 0);
            flow.shown = shown;
            flow
        };
        let [none, open, rst] = [Shown::NOTHING, Shown::ESTABLISHED, Shown::RST];
        let mut flows = BTreeMap::new();
        for (protocol, forward, reply) in [
            (Protocol::TCP, open, Some(open)),
            // A refused connection, a lone SYN, one without an answer yet, and an answered datagram.
            (Protocol::TCP, none, Some(rst)),
            (Protocol::TCP, none, None),
            (Protocol::TCP, none, Some(none)),
            (Protocol::UDP, none, Some(open)),
        ] {
            let key = FlowKey::new(tuple, protocol, Side::INGRESS);
            count(&key, &entry(forward), reply.map(entry).as_ref(), &mut flows);
        }
        assert_eq!(flows.into_values().collect::<Vec<_>>(), [(1, 4)]);
    }

    #[test]
    fn the_layout_is_that_of_ipvsadm() {
        let entries: Vec<ListedFrontend> =
            samples(&BTreeMap::new()).into_iter().filter(is_served_here).collect();
        let flows = BTreeMap::from([((1, "10.244.0.3:8080".to_owned()), (12, 3))]);
        let found = layout(&entries, &flows);
        let lines: Vec<&str> = found.lines().collect();
        assert_eq!(lines[0], "Prot LocalAddress:Port Scheduler Flags");
        assert_eq!(
            lines[1],
            "  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn"
        );
        for line in [
            "TCP  10.96.0.1:80 maglev persistent 60",
            "  -> 10.244.0.2:8080              Masq    1      0          0",
            "  -> 10.244.0.3:8080              Masq    1      12         3",
        ] {
            assert!(lines.contains(&line), "{line} in\n{found}");
        }
        assert_eq!(lines.len(), 10, "{found}");
    }
}

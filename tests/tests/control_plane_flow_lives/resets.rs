//! One RST with a wrong sequence number in each open connection. The connections are idle afterwards, for longer than
//! one that has really ended is remembered, and then their Service gets more endpoints: a proxy that has forgotten a
//! connection would choose a backend for it again, mostly another one.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lb_common::flow::CLOSED;
use lb_tests::manifest::{Endpoint, Service};
use lb_tests::rig::{Rig, TARGET, until};
use lb_tests::topology::Family;
use lb_tests::traffic::{Ask, Attacked, End};
use lb_tests::wait::pass;

use super::Life;

const NODE_PORT: u16 = 30_064;
/// Longer than a connection that was reset is remembered, here and by netfilter (`nf_conntrack_tcp_timeout_close`).
const IDLE: Duration = Duration::from_secs(CLOSED as u64 + 2);

/// Open connections with a forged RST each.
pub(crate) struct Reset<'a> {
    open: Vec<Attacked<'a>>,
    since: Instant,
}

impl<'a> Reset<'a> {
    /// Opens connections to two backends, and sends the segments: in the name of the client, of the backend, and of
    /// both.
    pub(crate) fn open(life: &'a Life<'_>) -> Result<Self> {
        let rig = life.rig();
        let service = service(rig)?;
        life.server.publish(&service.objects())?;
        let mut open = Vec::new();
        for ends in [&[End::Client][..], &[End::Backend], &End::ALL] {
            let all = Attacked::open_all(rig, &service, NODE_PORT)?;
            for connection in &all {
                ends.iter().try_for_each(|end| connection.reset(*end))?;
            }
            open.extend(all);
        }
        Ok(Self { open, since: Instant::now() })
    }

    /// Adds endpoints, and asks by each connection once more.
    pub(crate) fn all_go_on(self, life: &Life<'_>) -> Result<()> {
        let (rig, few) = (life.rig(), service(life.rig())?);
        // The subject is the time that a proxy remembers a connection, and no event ends it.
        pass(IDLE.saturating_sub(self.since.elapsed()));
        let more = [Endpoint::pod(rig.pod(1, 0)?), Endpoint::host(rig.node(1)?)];
        let added = [rig.pod(1, 0)?.name(), rig.node(1)?.host().name()];
        let many = few.clone().endpoints(backends(rig)?.into_iter().chain(more));
        life.server.publish(&many.objects())?;
        for family in Family::ALL {
            until(rig.pod(0, 0)?, Ask::tcp(few.frontend(family)), |outcome| {
                outcome.as_ref().is_ok_and(|answer| added.contains(&answer.server.as_str()))
            })?;
        }
        let broken = self.open.iter().filter_map(|connection| connection.goes_on().err());
        let broken: Vec<String> = broken.map(|error| format!("{error:#}")).collect();
        let (count, all) = (broken.len(), self.open.len());
        ensure!(broken.is_empty(), "{count} of {all} connections broke: {broken:#?}");
        // The next world begins with two backends again.
        life.server.publish(&few.objects())
    }
}

fn backends(rig: &Rig) -> Result<[Endpoint; 2]> {
    Ok([Endpoint::pod(rig.pod(0, 1)?), Endpoint::pod(rig.pod(1, 1)?)])
}

fn service(rig: &Rig) -> Result<Service> {
    let service = Service::new("life-reset", 219)?.port(80, TARGET).node_port(NODE_PORT);
    Ok(service.endpoints(backends(rig)?))
}

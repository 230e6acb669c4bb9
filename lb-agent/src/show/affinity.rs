//! `affinity list`: clients and the backends to which they are bound.

use std::path::Path;

use lb_common::flow::{Affinity, Client};
use lb_common::service::{Backend, ServiceId};
use serde::Serialize;

use super::Error;
use super::print::{self, Row, Tone};
use crate::cli::{Format, Scope};
use crate::datapath::open;
use crate::state_file::StateFile;
use crate::syscall::monotonic;
use crate::words;

/// One client of one service.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stuck {
    client: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<String>,
    id: ServiceId,
    policy: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    backend: Option<String>,
    idle_seconds: u64,
}

/// Returns the affinities as text.
pub fn list(bpf_dir: &Path, scope: &Scope, format: Format) -> Result<String, Error> {
    let maps = open(bpf_dir)?;
    let backends = maps.backends()?;
    let now = monotonic().as_nanos() as u64;
    let all = maps.affinities()?;
    // The names are read after the entries: the agent writes a name before the rows that need it.
    let state_file = StateFile::read(bpf_dir);
    // The family of the backend: an entry of layout v5 may name a client by a cookie, which has no family.
    let is_v4 = |affinity: &Affinity| {
        backends.get(affinity.backend as usize).is_some_and(|row| row.ip.is_v4())
    };
    let all = all.iter().filter(|(_, affinity)| scope.has_family(is_v4(affinity)));
    let shown = all.map(|(client, affinity)| {
        let service = state_file.names.get(&client.service).cloned();
        stuck(client, affinity, &backends, service, now)
    });
    let mut all: Vec<Stuck> = shown.filter(|stuck| scope.has(stuck.service.as_deref())).collect();
    all.sort_by(|left, right| (left.id, &left.client).cmp(&(right.id, &right.client)));
    print::print(&all, format)
}

fn stuck(
    client: &Client,
    affinity: &Affinity,
    backends: &[Backend],
    service: Option<String>,
    now: u64,
) -> Stuck {
    // A different epoch means that the endpoint was removed; the next packet selects a new one.
    let row = backends.get(affinity.backend as usize).filter(|row| row.epoch == affinity.epoch);
    Stuck {
        client: words::client(client.ip),
        service,
        id: client.service,
        policy: if client.scope == 0 { "Cluster" } else { "Local" },
        backend: row.map(|row| words::endpoint(row.ip, row.port).to_string()),
        idle_seconds: now.saturating_sub(affinity.seen) / 1_000_000_000,
    }
}

impl Row for Stuck {
    const HEADINGS: (&'static [&'static str], &'static [&'static str]) =
        (&["CLIENT", "SERVICE", "BACKEND", "LAST NEW FLOW"], &["POLICY", "ID"]);
    const NONE: &'static str = "no affinity";

    fn cells(&self) -> Vec<String> {
        vec![
            self.client.clone(),
            words::service(self.id, self.service.as_deref()),
            self.backend.clone().unwrap_or_else(|| "(removed)".into()),
            words::age(self.idle_seconds),
            self.policy.into(),
            self.id.to_string(),
        ]
    }

    fn name(&self) -> String {
        format!("{}/{}", self.client, words::service(self.id, self.service.as_deref()))
    }

    fn tone(&self) -> Tone {
        if self.backend.is_some() { Tone::Plain } else { Tone::Faint }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_common::addr::{Ip, Port};

    #[test]
    fn client_of_a_removed_backend_has_no_backend() {
        let row = Backend {
            ip: Ip::v4([10, 244, 0, 2]),
            port: Port::new(8080),
            epoch: 3,
            service: 1,
            ..Backend::default()
        };
        let backends = [Backend::default(), row];
        let client = |ip| Client { ip, service: 1, scope: 0 };
        let affinity = |epoch| Affinity { backend: 1, epoch, seen: 0 };
        let name = Some("default/web:http".to_owned());
        let now = 75_000_000_000;
        let all = [
            stuck(&client(Ip::v4([10, 0, 0, 1])), &affinity(3), &backends, name, now),
            stuck(&client(Ip::cookie(7)), &affinity(2), &backends, None, now),
        ];
        let wide = Format { output: crate::cli::Output::Wide, ..print::PLAIN };
        insta::assert_snapshot!(print::print(&all, wide).unwrap());
    }
}
